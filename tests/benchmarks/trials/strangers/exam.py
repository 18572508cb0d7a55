"""A list of mistakes as an exam: what is planted, and on what the answers must be right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trials.product import Record
from trials.strangers.mistake import Fault, Mistake
from trials.strangers.settings import Wish
from trials.strangers.world import Random

KIND = "kind: "
"""How rows of one kind of mistake begin; they are listed by ``--json`` alone."""


@dataclass(frozen=True)
class Exam:
    """A list.

    Attributes:
        name: the first part of its questions' names.
        title: how its rows begin.
        rights: losses without a mistake.
        clean: batches that nothing is wrong with, of kinds that look odd.
        runs: whose losses ``match`` is asked about.
        questions: how many of them a seed draws; None asks about each.
    """

    name: str
    title: str
    mistakes: Sequence[Mistake]
    rights: Mapping[str, Wish]
    faults: Sequence[Fault]
    clean: Mapping[str, Callable[[Random], list[Record]]]
    runs: Sequence[Wish]

    def row(self, answer: str) -> str:
        return f"{self.title}: {answer}"

    def kind(self, what: str, name: str) -> str:
        return f"{KIND}{self.name} {what}: {name}"

    def mistake(self, name: str) -> Mistake:
        return next(one for one in self.mistakes if one.name == name)

    def fault(self, name: str) -> Fault:
        return next(one for one in self.faults if one.name == name)
