"""A spark line: numbers in a row as characters, ASCII alone where the terminal has no UTF-8."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from grpo_cli.terminal.destination import standard_output

F64 = NDArray[np.float64]
Values = Sequence[float | None]

_BLOCKS, _ASCII_BLOCKS = "▁▂▃▄▅▆▇█", "_.-:=+*#"


def ascii_only() -> bool:
    """Whether standard output is not known to show more than ASCII."""
    encoding = (getattr(standard_output(), "encoding", None) or "utf-8").lower()
    return not encoding.startswith("utf") or os.environ.get("TERM") == "dumb"


def spark(values: Values, width: int, *, plain: bool = False) -> str:
    """A line of at most ``width`` characters, from the least value to the greatest.

    Where there are more values than characters, each shows the one of its values that is
    furthest from the median of all, so that a spike is never lost. A space: no value.
    """
    blocks = _ASCII_BLOCKS if plain else _BLOCKS
    numbers = _numbers(values)
    low, high = _range(numbers)
    middle = float(np.median(_finite(numbers))) if math.isfinite(low) else 0.0
    return "".join(
        _block(_furthest(part, middle), low, high, blocks)
        for part in np.array_split(numbers, max(min(width, len(numbers)), 1))
    )


def _block(value: float, low: float, high: float, blocks: str) -> str:
    if not math.isfinite(value):
        return " "
    share = (value - low) / (high - low) if high > low else 0.5
    return blocks[min(int(share * len(blocks)), len(blocks) - 1)]


def _furthest(part: F64, middle: float) -> float:
    finite = _finite(part)
    return float(finite[np.argmax(np.abs(finite - middle))]) if finite.size else math.nan


def _numbers(values: Values) -> F64:
    return np.array([math.nan if one is None else one for one in values], dtype=np.float64)


def _finite(numbers: F64) -> F64:
    return numbers[np.isfinite(numbers)]


def _range(numbers: F64) -> tuple[float, float]:
    finite = _finite(numbers)
    return (float(finite.min()), float(finite.max())) if finite.size else (math.nan, math.nan)
