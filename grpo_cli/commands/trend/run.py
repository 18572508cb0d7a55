"""Files → steps: every record is evaluated once and added to the sums of its step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from functools import partial

from grpo_cli.commands.trend.metrics import StepValues, values
from grpo_cli.commands.trend.names import Read
from grpo_cli.commands.trend.origins import StepSource, changes, two_runs
from grpo_cli.commands.trend.run_sums import RunSums, StepStatistics
from grpo_cli.commands.trend.step import Step, with_equal_metrics
from grpo_cli.engine import Reader
from grpo_cli.engine.evaluator import BatchStatistics, Evaluator
from grpo_cli.engine.fold import first_pass, fold_pieces
from grpo_cli.engine.references import without_kl
from grpo_cli.records.translate import Notices
from grpo_cli.variants.plan import Plan

_AUTOMATIC = StepSource()


class Run:
    """Reads a run: its steps, by number.

    They are the same to the bit whatever the reader's ``jobs`` and ``block_bytes`` are.

    Attributes:
        skipped, notices, missing, signatures, moved: as ``RunSums`` has them.
        logged: step → what a framework would have logged, where names are asked for.
        statistics: those of each step, where the plan wants some.
    """

    def __init__(
        self,
        reader: Reader,
        plan: Plan,
        step_source: StepSource = _AUTOMATIC,
        names: Mapping[str, Read] | None = None,
        *,
        one_run: bool = False,
        command: str = "trend",
    ) -> None:
        """``one_run``: files are of one run, whatever their paths say; ``command``: who asks."""
        self._reader, self._plan, self._command = reader, plan, command
        self._names, self._step_source = names, step_source
        self._one_run = one_run or step_source.files is not None
        self.statistics: BatchStatistics | None = None
        self.logged: dict[int, dict[str, float | None]] = {}

    def read(self) -> list[Step]:
        """Reads the files.

        Raises:
            InputError: at the first record that cannot be used, unless it is to be skipped.
            UsageError: where files are of several runs.
        """
        plan = self._plan
        if plan.leaves_kl_out():
            self._reader.keep_input()
        found = self._sums(Evaluator(plan))
        error = found.references.error
        if error is not None:  # some records have a reference, so the KL is not left out
            found = self._sums(Evaluator(plan, needs_reference=True))
            others = {key: one for key, one in found.missing.items() if one.path != "log_probs_ref"}
            found.missing = {str(error): error, **others}  # it has the record's place
        self.skipped, self.missing = self._reader.skipped, found.missing
        self.signatures, self.moved = found.signatures, found.moved
        notes = [*found.origins.returns(), *changes(found.signatures)]
        self.notices: Notices = found.notices | dict.fromkeys(notes)
        self.notices |= without_kl([plan] if found.references.lacking is not None else [])
        return self._steps(found)

    def _sums(self, evaluator: Evaluator) -> RunSums:
        """The sums of all records."""
        if evaluator.wants_first_pass:
            statistics = partial(StepStatistics, evaluator, step_source=self._step_source)
            self.statistics = first_pass(self._reader, statistics).found
            evaluator = evaluator.after(self.statistics)
        make = partial(RunSums, evaluator, self._step_source, logged=self._names is not None)
        run = make()
        for run in fold_pieces(self._reader, make):
            if run.origins.clash is not None and not self._one_run:
                raise two_runs(run.origins.clash, self._reader.paths, self._command)
        return run

    def _steps(self, run: RunSums) -> list[Step]:
        files = Counter(sums.file for sums in run.steps.values())
        steps = []
        for number in sorted(run.steps):
            sums = StepValues(run.steps.pop(number))
            if self._names:
                self.logged[number] = {name: read(sums) for name, read in self._names.items()}
            steps.append(make_step(number, sums, shares_file=files[sums.file] > 1))
        return with_equal_metrics(steps)


def make_step(number: int, sums: StepValues, *, shares_file: bool) -> Step:
    """The numbers of a step; None for what is not finite."""
    found = {
        name: None if value is None or not math.isfinite(value) else value
        for name, value in values(sums).items()
    }
    return Step(number, sums.file, found, sums.worst, shares_file, sums.key)


def steps(reader: Reader, plan: Plan, step_source: StepSource = _AUTOMATIC) -> list[Step]:
    """The steps of a run, by number.

    Raises:
        InputError: at the first record that cannot be used, unless it is to be skipped.
    """
    return Run(reader, plan, step_source).read()
