"""The flags that ask ``grpo trend`` one question about a run, and which answer they get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from grpo_cli.commands.options.output import PageOptions
from grpo_cli.commands.trend.questions.at import place_of, step_at
from grpo_cli.commands.trend.questions.view import print_step_answer
from grpo_cli.commands.trend.run import Run
from grpo_cli.commands.trend.step import Finding, Flags, Steps
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

    @property
    def asked(self) -> bool:
        """Whether there is a question."""
        return self.at is not None


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
    if questions.at is not None:
        answer = step_at(
            steps, questions.at, findings, reader, plan, run.step_source, run.statistics
        )
        step = steps[place_of(steps, questions.at)]
        page.write(
            answer,
            lambda console, screen: print_step_answer(console, screen, answer, step, flags),
            rows=answer.metrics,
        )
