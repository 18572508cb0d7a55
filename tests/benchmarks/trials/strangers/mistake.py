"""One entry of the list: a mistake that a trainer once made, and what an answer must say of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trials.strangers.batches import Wish
from trials.strangers.plain import Case


def both(*patterns: str) -> str:
    """A pattern of texts in which all of these are found, in any order."""
    return "".join(rf"(?=.*(?:{pattern}))" for pattern in patterns)


@dataclass(frozen=True)
class Mistake:
    """A wrong loss.

    Attributes:
        name: the mistake, in a few words.
        thread: owner/repository#number of the fix or of the confirmed report.
        plant: the case with the mistake in it; with ``strengths`` it gets one of them.
        wanted: what an answer that names it says, as a regular expression.
        wish: the batches that it shows on.
        strengths: how strongly; each is asked.
        value: whether the loss itself differs; else the gradient alone.
    """

    name: str
    thread: str
    plant: Callable[..., Case]
    wanted: str
    wish: Wish = field(default_factory=Wish)
    strengths: tuple[Any, ...] = ()
    value: bool = True

    def planted(self, case: Case, strength: Any = None) -> Case:
        return self.plant(case, strength) if self.strengths else self.plant(case)

    def named_by(self, text: str) -> bool:
        return re.search(self.wanted, text, re.IGNORECASE | re.DOTALL) is not None
