"""Numbers that were written in half precision: bfloat16 or float16."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64

_DIGITS = 5
"""A number of no more digits than these may have been typed, and is no evidence of a format."""


def _bfloat16(values: F64) -> NDArray[np.bool_]:
    single = values.astype(np.float32)
    short: NDArray[np.bool_] = (single == values) & ((single.view(np.uint32) & 0xFFFF) == 0)
    return short


def _float16(values: F64) -> NDArray[np.bool_]:
    with np.errstate(over="ignore"):
        short: NDArray[np.bool_] = values.astype(np.float16) == values
    return short


def _bfloat16_step(values: F64) -> F64:
    _, exponent = np.frexp(values)
    return np.ldexp(np.ones_like(values), exponent - 8)


def _float16_step(values: F64) -> F64:
    return np.spacing(np.abs(values).astype(np.float16)).astype(np.float64)


_FORMATS: Mapping[str, tuple[Callable[[F64], NDArray[np.bool_]], Callable[[F64], F64]]] = {
    "bfloat16": (_bfloat16, _bfloat16_step),
    "float16": (_float16, _float16_step),
}
"""What holds exactly the numbers of a format, and how far apart its numbers are there."""


def precision(values: F64) -> str:
    """The format that all the numbers were rounded to; "" where it is none of these."""
    for name, (holds, _) in _FORMATS.items():
        if bool(holds(values[:8]).all()) and bool(holds(values).all()) and _tells(values):
            return name
    return ""


def _tells(values: F64) -> bool:
    """Whether any number has more digits than somebody would type."""
    return any(
        float(f"{value:.{_DIGITS}g}") != value for value in values[values != 0.0][:50].tolist()
    )


def half_steps(name: str, values: F64) -> F64:
    """How far each number may be from what it was rounded from."""
    finite = np.where(np.isfinite(values), values, 0.0)
    return 0.5 * _FORMATS[name][1](finite)
