"""Files → steps: every record is evaluated once and added to the sums of its step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from grpo_cli.commands.trend.metrics import StepSums, values
from grpo_cli.commands.trend.names import Read
from grpo_cli.commands.trend.origins import Origins, changes, two_runs
from grpo_cli.commands.trend.shelf import Shelf
from grpo_cli.commands.trend.step import Step
from grpo_cli.commands.trend.sums import Sums
from grpo_cli.commands.trend.task import Task
from grpo_cli.commands.trend.which import StepOf
from grpo_cli.engine import Reader
from grpo_cli.engine.evaluator import BatchStatistics, Evaluator
from grpo_cli.engine.references import References, without_kl
from grpo_cli.engine.skipped import Skipped
from grpo_cli.objective.inputs import MissingColumnError
from grpo_cli.records.translate import Notices
from grpo_cli.variants.plan import Plan

_AUTOMATIC = StepOf()


class Run:
    """Reads a run; iterate it for its steps, by number.

    The steps are the same to the bit whatever the reader's ``jobs`` and ``block_bytes`` are.

    Attributes:
        skipped: the records that could not be used.
        notices: what is told once.
        missing: the columns for want of which nothing was evaluated, by what is said of them.
        signatures: of the objectives that ran, each with the first step that has it.
        moved: whether a record that was evaluated has log_probs_old.
        logged: step → what a framework would have logged, where names are asked for.
    """

    def __init__(
        self,
        reader: Reader,
        plan: Plan,
        step_of: StepOf = _AUTOMATIC,
        names: Mapping[str, Read] | None = None,
        *,
        one_run: bool = False,
        command: str = "trend",
    ) -> None:
        """``one_run``: files are of one run, whatever their paths say; ``command``: who asks."""
        self._command = command
        self._reader, self._names = reader, names or {}
        self._one_run = one_run or step_of.files is not None
        logged = names is not None
        self._task = Task(Evaluator(plan), step_of, reader.skip, logged, reader.most_errors)
        self._begin()

    def _begin(self) -> None:
        self._shelf = Shelf(self._values)
        self.skipped = Skipped(self._reader.most_errors)
        self.notices: Notices = {}
        self.missing: dict[str, MissingColumnError] = {}
        self.signatures: dict[str, int] = {}
        self.moved = False
        self._origins = Origins()
        self._references = References()
        self.logged: dict[int, dict[str, float | None]] = {}

    def read(self) -> Sequence[Step]:
        """Reads the files.

        Raises:
            InputError: at the first record that cannot be used, unless it is to be skipped.
            UsageError: where files are of several runs.
        """
        plan = self._task.evaluator.plan
        if plan.leaves_kl_out():
            self._reader.keep_input()
        task = self._task = self._with_statistics()
        for _, part in self._reader.map(task, bundles=True):
            self._origins.merge(part.origins, self._shelf.file)
            self._references.merge(part.references)
            if self._origins.clash is not None and not self._one_run:
                raise two_runs(self._origins.clash, self._reader.paths, self._command)
            for step in [*part.steps]:  # given away, since the next piece is read beside the part
                self._shelf.add(step, part.steps.pop(step))
            self.notices |= part.notices
            self.missing = part.missing | self.missing
            self.moved |= part.moved
            for signature, step in part.signatures.items():
                self.signatures[signature] = min(step, self.signatures.get(signature, step))
            if part.skipped and not self._reader.skip:
                raise part.skipped.first[0]
            self.skipped.merge(part.skipped)
        if self._reader.reading.selects and not self._shelf and not self.skipped:
            raise self._reader.nothing()
        if self._references.error is not None:
            return self._read_again()
        told = [*self._origins.returns(), *changes(self.signatures)]
        self.notices |= dict.fromkeys(told)
        self.notices |= without_kl([plan] if self._references.lacking is not None else [])
        return self._shelf.steps()

    def _read_again(self) -> Sequence[Step]:
        """Reads the files again without leaving a KL out, since some records have a reference."""
        error = self._references.error
        assert error is not None
        evaluator = replace(self._task.evaluator, needs_reference=True)
        self._task = replace(self._task, evaluator=evaluator)
        self._begin()
        steps = self.read()
        others = {said: one for said, one in self.missing.items() if one.path != "log_probs_ref"}
        self.missing = {str(error): error, **others}  # it has the record's place
        return steps

    def _values(self, number: int, sums: Sums) -> Mapping[str, float | None]:
        """The metrics of a step, from all of its records, or those that were read until now."""
        own = StepSums(sums)
        if self._names:
            self.logged[number] = {name: read(own) for name, read in self._names.items()}
        return values(own)

    @property
    def measured(self) -> Mapping[int, BatchStatistics]:
        """The statistics of each step that was read, where the plan wants some."""
        return self._task.measured or {}

    def _with_statistics(self) -> Task:
        task = self._task
        if not task.evaluator.wants_first_pass:
            return task
        self._reader.keep_input()
        measured: dict[int, BatchStatistics] = {}
        for _, part in self._reader.map(task.measure, bundles=True):
            for step, moments in part.items():
                measured.setdefault(step, BatchStatistics()).merge(moments)
        return replace(task, measured=measured)


def steps(reader: Reader, plan: Plan, step_of: StepOf = _AUTOMATIC) -> Sequence[Step]:
    """The steps of a run, by number.

    Raises:
        InputError: at the first record that cannot be used, unless it is to be skipped.
    """
    return Run(reader, plan, step_of).read()


def step_from(number: int, sums: Sums, *, shares_file: bool) -> Step:
    """The numbers of a step; what is not finite is None."""
    found = {
        name: None if value is None or not math.isfinite(value) else value
        for name, value in values(StepSums(sums)).items()
    }
    return Step(number, sums.file, found, dict(sums.worst), shares_file, sums.key)
