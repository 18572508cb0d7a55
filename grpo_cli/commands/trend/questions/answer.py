"""The answer to the question about a run that a flag asks: ``--at``, ``--by``, and so on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console

from grpo_cli.commands.trend.answer import trend_of
from grpo_cli.commands.trend.events import events
from grpo_cli.commands.trend.findings import findings
from grpo_cli.commands.trend.questions.against import compare_runs
from grpo_cli.commands.trend.questions.at import StepAnswer, place_of, step_at
from grpo_cli.commands.trend.questions.parts import (
    PartsAnswer,
    PartSteps,
    answer_by,
    windows_of,
)
from grpo_cli.commands.trend.questions.view import print_comparison, print_parts, print_step_answer
from grpo_cli.commands.trend.run import Run
from grpo_cli.commands.trend.step import Flags, Step, Steps
from grpo_cli.commands.trend.view import usual
from grpo_cli.errors import UsageError
from grpo_cli.records.translate import Notices
from grpo_cli.terminal.screen import Screen

if TYPE_CHECKING:
    from grpo_cli.commands.trend.options import TrendOptions

Draw = Callable[[Console, Screen], object]


def answer_question(
    options: TrendOptions,
    run: Run | Steps,
    other: Run | Steps | None,
    flags: Flags,
    named: Sequence[str],
) -> Notices:
    """Prints the answer; returns the notes on the run.

    Args:
        options: with the question, and how its answer is printed.
        run: the run, or the steps of a log.
        other: the run that it is compared with.
        flags: what the commands of the answer go on with.
        named: the run's files and folders, as the command line has them.

    Raises:
        UsageError: for a step, a field or a run that is not there, or a log without an answer.
    """
    if isinstance(run, Run):
        run.reader.keep_input()
    notes: Notices = {}
    if other is not None:
        both = (one if isinstance(one, Steps) else one.read() for one in (run, other))
        compared = compare_runs(*both)
        names = named, options.against or ()
        draw: Draw = partial(print_comparison, answer=compared, named=names)
        options.page.write(compared, draw, rows=compared.metrics)
        notes = dict.fromkeys(compared.notes)
    elif options.by is not None:
        found = answer_of_parts(run, flags, options.by)
        rows: Sequence[Any] = found.changes or [one.row() for one in found.parts]
        options.page.write(found, partial(print_parts, answer=found), rows=rows)
    else:
        assert options.at is not None
        happened, step = answer_of_step(run, flags, options.at)
        draw = partial(print_step_answer, answer=happened, step=step, flags=flags)
        options.page.write(happened, draw, rows=happened.metrics)
    if isinstance(run, Steps):
        return {}
    return run.reader.notes(run.plan) | (notes if other is not None else run.notices)


def answer_of_step(run: Run | Steps, flags: Flags, at: int) -> tuple[StepAnswer, Step]:
    """What happened at a step (``--at``), and the step.

    Raises:
        UsageError: where the run has no such step.
    """
    records, steps = (None, run) if isinstance(run, Steps) else (run, run.read())
    happened = step_at(records, trend_of(records, steps, flags), at)
    return happened, steps[place_of(steps, at)]


def answer_of_parts(run: Run | Steps, flags: Flags, by: str) -> PartsAnswer:
    """Which parts of a run, by a field, carry its changes (``--by``).

    Raises:
        UsageError: for a log.
    """
    if isinstance(run, Steps):
        raise UsageError("--by needs records; a log can only answer --at and --against")
    steps = run.read()
    around = windows_of(steps, events(findings(steps, flags), steps))
    parts = PartSteps(run.reader, run.plan, run.step_source, by)
    return answer_by(by, parts, steps, around, usual(steps))
