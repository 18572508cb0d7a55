"""The flags that ask ``grpo trend`` one question about a run, and which answer they get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from grpo_cli.commands.options.output import PageOptions
from grpo_cli.commands.trend.questions.at import place_of, step_at, unusual_at
from grpo_cli.commands.trend.questions.parts import PartSteps, answer_by, windows
from grpo_cli.commands.trend.questions.view import print_parts, print_step_answer
from grpo_cli.commands.trend.run import Run
from grpo_cli.commands.trend.step import Finding, Flags, Steps
from grpo_cli.commands.trend.view import usual
from grpo_cli.engine import Reader
from grpo_cli.variants.plan import Plan


@dataclass(frozen=True, kw_only=True)
class QuestionOptions:
    """A question about a run, in place of all its steps."""

    at: Annotated[
        int | None,
        typer.Option(
            "--at",
            metavar="STEP",
            help="What happened at a step: metrics before, at, after; worst groups; check.",
            show_default=False,
        ),
    ] = None

    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            metavar="FIELD",
            help="Which part carries the change: rank, environment, prompt, file, ….",
            show_default=False,
        ),
    ] = None

    @property
    def asked(self) -> bool:
        """Whether there is a question."""
        return self.at is not None or self.by is not None


def answer_question(
    questions: QuestionOptions,
    page: PageOptions,
    run: Run,
    steps: Steps,
    findings: Sequence[Finding],
    reader: Reader,
    plan: Plan,
    flags: Flags,
) -> None:
    """Prints the answer to a question about a run.

    Raises:
        UsageError: for a step, a field or a metric that the run does not have.
    """
    if questions.by is not None:
        _answer_by(questions.by, questions, page, run, steps, findings, reader, plan)
    elif questions.at is not None:
        answer = step_at(
            steps, questions.at, findings, reader, plan, run.step_source, run.statistics
        )
        step = steps[place_of(steps, questions.at)]
        page.write(
            answer,
            lambda console, screen: print_step_answer(console, screen, answer, step, flags),
            rows=answer.metrics,
        )


def _answer_by(
    field: str,
    questions: QuestionOptions,
    page: PageOptions,
    run: Run,
    steps: Steps,
    findings: Sequence[Finding],
    reader: Reader,
    plan: Plan,
) -> None:
    """Prints which parts of a run carry its changes, or what was unusual at a step."""
    if questions.at is None:
        around = windows(steps, [(one.metric, one.onset) for one in findings])
    else:
        unusual = unusual_at(steps, place_of(steps, questions.at))
        around = windows(steps, [(one.name, questions.at) for one in unusual], width=1)
    parts = PartSteps(reader, plan, run.step_source, field)
    answer = answer_by(field, parts, steps, around, usual(steps))
    page.write(
        answer,
        lambda console, screen: print_parts(console, screen, answer),
        rows=answer.changes or [one.row() for one in answer.parts],
    )
