"""The answer to the question about a run that a flag asks: ``--at``, ``--by``, and so on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from grpo_cli.commands.trend.findings import findings
from grpo_cli.commands.trend.questions.against import compare_runs
from grpo_cli.commands.trend.questions.at import place_of, step_at, unusual_at
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
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.engine.fold import fold
from grpo_cli.errors import UsageError
from grpo_cli.records.translate import Notices

if TYPE_CHECKING:
    from grpo_cli.commands.trend.options import TrendOptions


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
    if other is not None:
        return _answer_against(options, run, other, named)
    if options.at is not None and options.by is None:
        _answer_at(options, run, options.at, flags)
    elif isinstance(run, Steps):
        raise UsageError(f"{options.asked} needs records; a log can only answer --at and --against")
    elif options.correlate is not None:
        _answer_correlate(options, run, *options.correlate)
        return run.reader.notes()
    else:
        _answer_by(options, run, options.by or "", flags)
    return {} if isinstance(run, Steps) else run.reader.notes(run.plan) | run.notices


def _answer_against(
    options: TrendOptions, run: Run | Steps, other: Run | Steps, named: Sequence[str]
) -> Notices:
    """Prints which metrics differ from those of another run, or of others."""
    each, others = ([one] if isinstance(one, Steps) else one.read_each() for one in (run, other))
    answer = compare_runs(each, others)
    names = named, options.against or ()
    options.page.write(
        answer,
        lambda console, screen: print_comparison(console, screen, answer, names),
        rows=answer.metrics,
    )
    if isinstance(run, Steps):
        return {}
    return run.reader.notes(run.plan) | dict.fromkeys(answer.notes)


def _answer_at(options: TrendOptions, run: Run | Steps, number: int, flags: Flags) -> None:
    """Prints what happened at a step."""
    records, steps = (None, run) if isinstance(run, Steps) else (run, run.read())
    answer = step_at(records, steps, number, findings(steps, flags))
    step = steps[place_of(steps, number)]
    options.page.write(
        answer,
        lambda console, screen: print_step_answer(console, screen, answer, step, flags),
        rows=answer.metrics,
    )


def _answer_by(options: TrendOptions, run: Run, field: str, flags: Flags) -> None:
    """Prints which parts of a run carry its changes, or what is unusual at a step."""
    source, steps = run.step_source, run.read()
    if options.at is None:
        around = windows(steps, [(one.metric, one.onset) for one in findings(steps, flags)])
    else:
        unusual = unusual_at(steps, place_of(steps, options.at))
        around = windows(steps, [(one.name, options.at) for one in unusual], width=1)
    parts = PartSteps(run.reader, run.plan, source, field)
    answer = answer_by(field, parts, steps, around, usual(steps))
    options.page.write(
        answer,
        lambda console, screen: print_parts(console, screen, answer),
        rows=answer.changes or [one.row() for one in answer.parts],
    )


def _answer_correlate(options: TrendOptions, run: Run, first: str, second: str) -> None:
    """Prints whether one quantity of responses follows another."""
    make = partial(ResponseColumns, Evaluator(run.plan), run.step_source)
    answer = correlate(fold(run.reader, make), first, second)
    options.page.write(
        answer,
        lambda console, screen: print_correlation(console, screen, answer),
        rows=answer.spans,
    )
