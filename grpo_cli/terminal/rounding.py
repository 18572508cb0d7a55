"""Numbers rounded so that, as printed, they add up to their printed sum."""

from __future__ import annotations

import math
from collections.abc import Sequence


def decimals(values: Sequence[float], digits: int = 6) -> int:
    """How many decimals give the largest of the values so many significant digits."""
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    if not largest:
        return 1
    return min(max(digits - 1 - math.floor(math.log10(largest)), 0), 15)


def adding_up(values: Sequence[float], total: float, places: int) -> list[str]:
    """The values to so many decimals, each off by at most one unit, so that they make the total.

    What rounding leaves over goes to the values that it changed most (largest remainder), to all
    that are equal or to none: then they may miss the total, which ``equality`` says.
    """
    if not all(map(math.isfinite, (*values, total))):
        return [f"{value:g}" for value in values]
    unit = 10.0**-places
    whole = [round(value / unit) for value in values]
    missing = round(total / unit) - sum(whole)
    step = 1 if missing > 0 else -1
    left = [(value / unit - one) * step for value, one in zip(values, whole, strict=True)]
    missing = abs(missing)
    for alike in sorted(_equal(values, unit), key=lambda places: -left[places[0]]):
        if len(alike) <= missing:
            missing -= len(alike)
            for at in alike:
                whole[at] += step
    return [fixed(one * unit, places) for one in whole]


def _equal(values: Sequence[float], unit: float) -> list[list[int]]:
    """The places of values that are equal, or would be but for their own rounding."""
    found: dict[int, list[int]] = {}
    for at, value in enumerate(values):
        found.setdefault(round(value / unit * _FINER), []).append(at)
    return [*found.values()]


_FINER = 10_000


def equality(texts: Sequence[str], total: str) -> str:
    """``=`` where printed numbers make their printed total, else ``≈``."""
    places = len(total.partition(".")[2])
    return "=" if round(math.fsum(map(float, texts)) - float(total), places) == 0.0 else "≈"


def fixed(value: float, places: int) -> str:
    """A number to so many decimals, without a negative zero."""
    text = f"{value:.{places}f}"
    return text.removeprefix("-") if not float(text) else text
