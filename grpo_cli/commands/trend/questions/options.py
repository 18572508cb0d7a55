"""The flags that ask ``grpo trend`` one question about a run, and which answer they get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from grpo_cli.commands.options.option import option
from grpo_cli.commands.options.output import PageOptions
from grpo_cli.commands.trend.findings import findings
from grpo_cli.commands.trend.origins import StepSource
from grpo_cli.commands.trend.questions.against import RunComparison, compare_runs, read_runs
from grpo_cli.commands.trend.questions.at import StepAnswer, place_of, step_at, unusual_at
from grpo_cli.commands.trend.questions.correlation import ResponseColumns, correlate
from grpo_cli.commands.trend.questions.parts import PartSteps, answer_by, windows
from grpo_cli.commands.trend.questions.view import (
    print_comparison,
    print_correlation,
    print_parts,
    print_step_answer,
)
from grpo_cli.commands.trend.run import Run
from grpo_cli.commands.trend.step import Flags, Steps
from grpo_cli.commands.trend.view import usual
from grpo_cli.engine import Reader
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.engine.fold import fold
from grpo_cli.errors import UsageError
from grpo_cli.records.translate import Notices
from grpo_cli.variants.plan import Plan


@dataclass(frozen=True, kw_only=True)
class QuestionOptions:
    """A question about a run, in place of its steps."""

    at: Annotated[int | None, option("--at", "STEP", "What happened at STEP.")] = None
    by: Annotated[
        str | None, option("--by", "FIELD", "Which part changed, by rank, environment, prompt…")
    ] = None
    against: Annotated[
        list[str] | None,
        option("--against", "RUN", "Which metrics differ from another RUN's."),
    ] = None
    correlate: Annotated[
        tuple[str, str] | None,
        option("--correlate", "A B", "Whether A follows B, as reward length."),
    ] = None

    @property
    def asked(self) -> str | None:
        """The flag that asks; None where there is no question.

        Raises:
            UsageError: where two ask.
        """
        flags = {
            "--by": self.by,
            "--at": self.at,
            "--against": self.against,
            "--correlate": self.correlate,
        }
        given = [flag for flag, value in flags.items() if value not in (None, [])]
        if len(given) > 1 and given != ["--by", "--at"]:
            raise UsageError(f"{given[1]} contradicts {given[0]}; ask one question at a time")
        return given[0] if given else None


def answer_of_log(
    questions: QuestionOptions,
    page: PageOptions,
    logs: Sequence[str],
    steps: Steps,
    other: Steps | None,
) -> None:
    """Prints what a log alone answers: what it says at a step, or how it differs from another.

    Raises:
        UsageError: for a question that needs records.
    """
    if other is not None:
        _write_comparison(page, compare_runs([steps], [other]), logs, questions.against or ())
    elif questions.at is not None and questions.by is None:
        _write_step(page, step_at(steps, questions.at, findings(steps)), steps, Flags())
    else:
        raise UsageError(f"{questions.asked} needs records; a log has no more than --at, --against")


def _write_comparison(
    page: PageOptions, answer: RunComparison, first: Sequence[str], second: Sequence[str]
) -> None:
    page.write(
        answer,
        lambda console, screen: print_comparison(console, screen, answer, (first, second)),
        rows=answer.metrics,
    )


def _write_step(page: PageOptions, answer: StepAnswer, steps: Steps, flags: Flags) -> None:
    step = steps[place_of(steps, answer.step)]
    page.write(
        answer,
        lambda console, screen: print_step_answer(console, screen, answer, step, flags),
        rows=answer.metrics,
    )


@dataclass(frozen=True)
class Asked:
    """A run that a question is about.

    Attributes:
        named: its files and folders, as the command line has them.
        reader: of its files.
        plan: the objective.
        step_source: how the step of a record is found.
        one_run: whether files are of one run, whatever their paths say.
        flags: what the commands of the answer go on with.
    """

    named: Sequence[str]
    reader: Reader
    plan: Plan
    step_source: StepSource
    one_run: bool
    flags: Flags

    def answer(
        self, questions: QuestionOptions, page: PageOptions, other: Reader | None
    ) -> Notices:
        """Prints the answer to a question; returns the notes on the run.

        Args:
            questions: one of which is asked.
            page: how it is printed.
            other: of the run that this one is compared with.

        Raises:
            UsageError: for a step, a field or a run that is not there.
        """
        if other is not None:
            how = self.plan, self.step_source
            sides = [read_runs(one, *how, one_run=self.one_run) for one in (self.reader, other)]
            answer = compare_runs(*sides)
            _write_comparison(page, answer, self.named, questions.against or ())
            return self.reader.notes(self.plan) | dict.fromkeys(answer.notes)
        if questions.correlate is not None:
            self._correlate(*questions.correlate, page)
            return self.reader.notes()
        self.reader.keep_input()
        run = Run(self.reader, self.plan, self.step_source, one_run=self.one_run)
        if questions.by is not None:
            self._answer_by(run, questions.by, questions.at, page)
        else:
            self._answer_at(run, questions.at or 0, page)
        return self.reader.notes(self.plan) | run.notices

    def _answer_at(self, run: Run, number: int, page: PageOptions) -> None:
        """Prints what happened at a step."""
        steps = run.read()
        found = findings(steps, self.flags)
        _write_step(page, step_at(steps, number, found, self.reader, run), steps, self.flags)

    def _answer_by(self, run: Run, field: str, number: int | None, page: PageOptions) -> None:
        """Prints which parts of a run carry its changes, or what is unusual at a step."""
        steps = run.read()
        if number is None:
            found = findings(steps, self.flags)
            around = windows(steps, [(one.metric, one.onset) for one in found])
        else:
            unusual = unusual_at(steps, place_of(steps, number))
            around = windows(steps, [(one.name, number) for one in unusual], width=1)
        parts = PartSteps(self.reader, self.plan, self.step_source, field)
        answer = answer_by(field, parts, steps, around, usual(steps))
        page.write(
            answer,
            lambda console, screen: print_parts(console, screen, answer),
            rows=answer.changes or [one.row() for one in answer.parts],
        )

    def _correlate(self, first: str, second: str, page: PageOptions) -> None:
        """Prints whether one quantity of responses follows another."""
        make = partial(ResponseColumns, Evaluator(self.plan), self.step_source)
        answer = correlate(fold(self.reader, make), first, second)
        page.write(
            answer,
            lambda console, screen: print_correlation(console, screen, answer),
            rows=answer.spans,
        )
