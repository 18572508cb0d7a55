"""Causes over many records: what explained one is tried first on the next."""

from __future__ import annotations

from grpo_cli.commands.verify.causes.case import Cause
from grpo_cli.commands.verify.causes.search import causes
from grpo_cli.commands.verify.company import Asked
from grpo_cli.objective.objective import Objective

_KEPT = 3
"""Answers remembered."""

_COUNTS = "num_items_in_batch"
"""What differs from record to record of one run, and is in no answer."""

Key = tuple[object, ...]


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
        self._known: list[tuple[Key, list[Cause]]] = []
        self.left_out = 0

    def causes(self, asked: Asked) -> list[Cause] | None:
        """Why the record differs; empty where nothing explains it, None where nothing was tried."""
        key = _key(asked.objective)
        for at, (of, known) in enumerate(self._known):
            fitting = [cause for cause in known if of == key and asked.explained_by(cause)]
            if fitting:
                self._known.insert(0, self._known.pop(at))
                return fitting
        if self._left <= 0:
            self.left_out += 1
            return None
        self._left -= 1
        found = causes(asked.case)
        if found:
            self._known = [(key, found), *self._known][:_KEPT]
        return found


def _key(objective: Objective) -> Key:
    """The stages and their values: an answer to other ones would be worded otherwise."""
    return tuple(
        (stage, bound.name, *(pair for pair in bound.values.items() if pair[0] != _COUNTS))
        for stage, bound in objective.stages.items()
    )
