"""A number as it was typed: what it says, and how far off its rounding may have left it."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PARTS = re.compile(r"[+-]?(\d*)\.?(\d*)(?:[eE]([+-]?\d+))?")


@dataclass(frozen=True)
class Typed:
    """A logged number.

    Attributes:
        name: what it is: "loss", "objective", or another total of ``grpo eval``.
        text: as it was typed.
        value: what that says.
        half: how far off the number that was rounded to it may be: half a unit of the last digit.
    """

    name: str
    text: str
    value: float
    half: float

    @classmethod
    def of(cls, name: str, text: str, rtol: float | None = None) -> Typed:
        """Reads a number; ``rtol`` stands for the tolerance where it is given."""
        value = float(text)
        half = half_unit(text) if rtol is None else rtol * abs(value)
        return cls(name, text, value, half)

    @property
    def rtol(self) -> float:
        """The tolerance relative to the number; infinite for 0."""
        return self.half / abs(self.value) if self.value else float("inf")


def half_unit(text: str) -> float:
    """Half a unit of the last digit: 0.0256 → 0.00005, 1.20e-3 → 0.000005."""
    found = _PARTS.fullmatch(text)
    assert found is not None  # the caller's number was parsed
    exponent = int(found[3] or 0) - len(found[2])
    return 0.5 * 10.0**exponent
