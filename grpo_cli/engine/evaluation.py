"""A run over files: iterate it for the output, then read its totals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from grpo_cli.engine.totals import Totals
from grpo_cli.engine.worker import Encode, Outcome, Task
from grpo_cli.errors import InputError
from grpo_cli.objective.moments import ExactMoments
from grpo_cli.records import Block, cut, records
from grpo_cli.variants.plan import Plan


class Evaluation:
    """Evaluates files in order, in flat memory.

    Iterating yields the output pieces of stretches of records, one piece per record, as they are
    computed, and raises the ``InputError`` at which the run stopped after everything before it.

    Args:
        paths: files; ``-`` is standard input.
        plan: which objective.
        encode: a breakdown's bytes, one piece per record; None when only totals are wanted.
        skip: whether to go on behind records that cannot be evaluated.
        jobs: worker processes.
    """

    def __init__(
        self, paths: Sequence[str], plan: Plan, *, encode: Encode | None, skip: bool, jobs: int
    ) -> None:
        del jobs
        self._paths = paths
        self._task = Task(plan, encode, skip)
        self._totals = Totals(plan.batch)
        self.skipped: list[InputError] = []
        self._notes: dict[str, None] = {}

    def __iter__(self) -> Iterator[list[bytes]]:
        task = self._with_statistics()
        for block in self._blocks():
            outcome = task.work(records(block))
            self._fold(outcome)
            yield outcome.pieces
            if outcome.error is not None:
                raise outcome.error

    def _fold(self, outcome: Outcome) -> None:
        self._totals.merge(outcome.totals)
        self.skipped += outcome.skipped
        self._notes |= outcome.notes

    def _with_statistics(self) -> Task:
        """The task, with the statistics of the whole input where the objective asks for them."""
        plan = self._task.plan
        if plan.batch != "input" or not plan.wants_moments:
            return self._task
        moments = ExactMoments()
        for block in self._blocks():
            moments.merge(self._task.measure(records(block)))
        return replace(self._task, moments=moments)

    def _blocks(self) -> Iterator[Block]:
        for path in self._paths:
            yield from cut(path)

    @property
    def total(self) -> dict[str, object]:
        """The batch's numbers by name, in the order of ``TOTAL_FIELDS``."""
        return self._totals.row()

    @property
    def signature(self) -> str:
        """The signature of the batch."""
        return self._totals.signature()

    @property
    def notes(self) -> list[str]:
        """What is told once."""
        return list(self._notes)
