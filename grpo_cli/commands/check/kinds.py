"""Kinds of records or groups in the order of the input: where each begins, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.commands.check.tokens import Place

_MOST = 0.9


class Span(NamedTuple):
    """Records or groups of one kind.

    Attributes:
        kind: their kind.
        first, last: the numbers of the first and the last.
        total: how many there are.
        place: of the first.
        last_step: the step of the last; -1 without.
    """

    kind: int
    first: int
    last: int
    total: int
    place: Place
    last_step: int

    def move(self, by: int) -> Span:
        """Returns the same after others."""
        return self._replace(first=self.first + by, last=self.last + by)

    def join(self, later: Span) -> Span:
        """Returns these and later ones."""
        total = self.total + later.total
        return self._replace(last=later.last, total=total, last_step=later.last_step)


@dataclass
class Kinds:
    """The kinds of consecutive records or groups.

    Attributes:
        count: how many records or groups there are.
        spans: kind → those of the kind.
        end: those at the end that have one kind; None if there are none.
    """

    count: int = 0
    spans: dict[int, Span] = field(default_factory=dict)
    end: Span | None = None

    @classmethod
    def of(cls, kinds: NDArray[Any], place: Callable[[int], Place]) -> Kinds:
        """Returns the kinds of records or groups, each of which has a place."""
        found = cls(len(kinds))
        for kind in np.unique(kinds).tolist():
            at = np.flatnonzero(kinds == kind)
            found.spans[kind] = _span(kind, at, place)
        if len(kinds):
            others = np.flatnonzero(kinds != kinds[-1])
            at = np.arange(int(others[-1]) + 1 if len(others) else 0, len(kinds))
            found.end = _span(int(kinds[-1]), at, place)
        return found

    def merge(self, later: Kinds) -> None:
        """Adds those that follow."""
        if later.end is None:
            return
        end = later.end.move(self.count)
        if self.end is not None and later.end.first == 0 and self.end.kind == end.kind:
            end = self.end.join(end)
        for kind, span in later.spans.items():
            moved, before = span.move(self.count), self.spans.get(kind)
            self.spans[kind] = moved if before is None else before.join(moved)
        self.count += later.count
        self.end = end

    def find_change(self, least: int) -> tuple[Span | None, Span] | None:
        """Returns the kind that 9 of 10 have from one on, and the kind that 9 of 10 had before.

        At least so many have each. The kind before is None where there are several; what nothing
        has before is no change.
        """
        for span in self.spans.values():
            after = self.count - span.first
            if min(span.first, span.total) >= least and span.total > _MOST * after:
                earlier = (one for one in self.spans.values() if one.last < span.first)
                most = max(earlier, key=lambda one: one.total, default=None)
                some = most is not None and most.total > _MOST * span.first
                return most if some else None, span
        return None


def _span(kind: int, at: NDArray[np.intp], place: Callable[[int], Place]) -> Span:
    first, last = int(at[0]), int(at[-1])
    return Span(kind, first, last, len(at), place(first), place(last).step)
