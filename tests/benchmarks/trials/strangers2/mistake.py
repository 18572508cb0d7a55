"""One entry: a mistake that a trainer once made, and what an answer must say of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trials.strangers2.losses import Case
from trials.strangers2.settings import Wish


def both(*patterns: str) -> str:
    """Finds texts in which all of these are found, in any order."""
    return "".join(rf"(?=.*(?:{pattern}))" for pattern in patterns)


@dataclass(frozen=True)
class Mistake:
    """A wrong loss.

    Attributes:
        name, thread: the mistake, and owner/repository#number of its fix or report.
        plant: the case with the mistake; with ``strengths`` it gets one of them.
        wanted: finds an answer that names it.
        wish: the batches that it shows on.
        value: whether the loss differs; else the gradient alone.
        agent: whether it concerns turns, trajectories, tools or versions of the weights.
    """

    name: str
    thread: str
    plant: Callable[..., Case]
    wanted: str
    wish: Wish = field(default_factory=Wish)
    strengths: tuple[Any, ...] = ()
    value: bool = True
    agent: bool = False

    def planted(self, case: Case, strength: Any = None) -> Case:
        return self.plant(case, strength) if self.strengths else self.plant(case)

    def named_by(self, text: str) -> bool:
        return re.search(self.wanted, text, re.IGNORECASE | re.DOTALL) is not None
