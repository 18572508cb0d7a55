"""Sums that are exact until they are read, so that no order and no split changes a bit."""

from __future__ import annotations

import math
from fractions import Fraction


from grpo_cli.batch import F64


class ExactSum:
    """A sum of doubles kept exactly, as a short list of doubles whose sum it is.

    Adding and merging lose nothing, and ``value`` rounds once: the result depends on the multiset
    of the numbers alone. A sum that no longer is finite stays not finite.

    References:
        Shewchuk, Adaptive Precision Floating-Point Arithmetic, 1997; ``math.fsum``.
    """

    __slots__ = ("_broken", "_parts", "_pending")
    _ROOM = 4096

    def __init__(self) -> None:
        self._parts: list[float] = []
        self._pending: list[float] = []
        self._broken = 0.0

    def add(self, values: F64) -> None:
        """Adds the elements of an array."""
        self._extend(values.tolist())

    def merge(self, other: ExactSum) -> None:
        """Adds another sum."""
        self._broken += other._broken
        self._extend(other._parts + other._pending)

    def _extend(self, values: list[float]) -> None:
        self._pending += values
        if len(self._pending) > self._ROOM:
            self._settle()

    def _settle(self) -> None:
        """Replaces what was added by the few doubles that have the same exact sum."""
        rest = self._parts + self._pending
        self._parts, self._pending = [], []
        if not all(map(math.isfinite, rest)):
            self._broken += sum(rest)
            return
        try:
            self._parts = _expansion(rest)
        except OverflowError:
            self._broken += sum(rest)

    def fraction(self) -> Fraction:
        """The sum as a rational number."""
        self._settle()
        return sum((Fraction(part) for part in self._parts), Fraction(0))

    def value(self) -> float:
        """The sum, rounded once."""
        self._settle()
        return math.fsum(self._parts) + self._broken if self._broken else math.fsum(self._parts)


def _expansion(values: list[float]) -> list[float]:
    parts: list[float] = []
    while head := math.fsum(values):
        parts.append(head)
        values.append(-head)
    return parts
