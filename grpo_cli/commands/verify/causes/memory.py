"""Causes over many records: what explained one is tried first on the next."""

from __future__ import annotations

from grpo_cli.commands.verify.causes.case import Case, Cause
from grpo_cli.commands.verify.causes.search import causes, explains

_KEPT = 3
"""Answers remembered."""


class Memory:
    """The answers to the records before; so many records are searched from the beginning.

    What is found depends on the order of the records and on nothing else.

    Args:
        most: records that may be searched; those after are only tried against what is known.

    Attributes:
        left_out: records that were not searched, since ``most`` had been.
    """

    def __init__(self, most: int) -> None:
        self._left = most
        self._known: list[list[Cause]] = []
        self.left_out = 0

    def causes(self, case: Case) -> list[Cause]:
        """Why the record differs; empty where nothing that is known, or was tried, explains it."""
        for at, known in enumerate(self._known):
            fitting = [cause for cause in known if explains(cause, case)]
            if fitting:
                self._known.insert(0, self._known.pop(at))
                return fitting
        if self._left <= 0:
            self.left_out += 1
            return []
        self._left -= 1
        found = causes(case)
        if found:
            self._known = [found, *self._known][:_KEPT]
        return found
