"""``trend``, ``report`` and ``diff`` as functions."""

from __future__ import annotations

import os
import pathlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast, overload

from grpo_cli.api.arguments import asked, of_arguments
from grpo_cli.api.data import (
    Data,
    Held,
    Path,
    Texts,
    listed,
    not_negative,
    plain,
    reader_of,
    reading_flags,
    whole,
)
from grpo_cli.api.evaluation import Hyperparameter, one_variant, planned
from grpo_cli.api.questions import Stages, noting
from grpo_cli.commands.diff.diff import RunDiff
from grpo_cli.commands.trend.comparison import Trend
from grpo_cli.commands.trend.questions.against import RunComparison
from grpo_cli.commands.trend.questions.at import StepAnswer
from grpo_cli.commands.trend.questions.parts import PartsAnswer
from grpo_cli.errors import UsageError
from grpo_cli.variants.plan import as_flags

if TYPE_CHECKING:
    from grpo_cli.commands.trend.run import Run
    from grpo_cli.commands.trend.step import Steps


@overload
def trend(
    data: Data, variant: str = "grpo", *, against: Data, **arguments: Any
) -> RunComparison: ...
@overload
def trend(data: Data, variant: str = "grpo", *, by: str, **arguments: Any) -> PartsAnswer: ...
@overload
def trend(data: Data, variant: str = "grpo", *, at: int, **arguments: Any) -> StepAnswer: ...
@overload
def trend(
    data: Data,
    variant: str = "grpo",
    *,
    at: None = None,
    by: None = None,
    against: None = None,
    **arguments: Any,
) -> Trend: ...
@asked
def trend(
    data: Data,
    variant: str = "grpo",
    *,
    at: int | None = None,
    by: str | None = None,
    against: Data | None = None,
    step: str | None = None,
    log: str | os.PathLike[str] | None = None,
    html: Path | None = None,
    one_run: bool = False,
    where: Texts = (),
    group_by: Texts = (),
    group_size: int | None = None,
    stages: Stages = None,
    batch: Literal["input", "record"] = "input",
    **hyperparameters: Hyperparameter,
) -> Trend | StepAnswer | PartsAnswer | RunComparison:
    """Computes a run step by step, and finds when something changed.

    >>> run = trend("samples/run/temperature.jsonl.gz", "trl/grpo")
    >>> run.last_good_step, run.findings[0].sentence
    (29, 'mismatch.k3 rose at step 30: median ... before, ... over the next 12 steps ...')

    Args:
        data: the run, as ``evaluate`` takes data; or a trainer's log, or several.
        variant: a variant's name or alias. Default: "grpo".
        at: a step, for its metrics, worst groups and tokens. Default: none.
        by: a field, as "rank" or "env", to see which of its values carry the changes of the run.
            Default: none.
        against: another run, whose metrics are compared with this one's. Default: none.
        step: the field that has a record's step; "file": each file is a step. Default: the first of
            the usual names that the records have.
        log: a trainer's log to compare with the records. Default: none.
        html: a file for the page that ``report`` writes. Default: none.
        one_run: whether all files belong to one run, in any folders. Default: False.
        batch: "input", all records are one batch, or "record", each is. Default: "input".
        where, group_by, group_size, stages, **hyperparameters: as ``evaluate`` takes them.

    Returns:
        ``verdict`` (a sentence), ``last_good_step``, ``findings`` and ``events``, the earliest
        first, and ``steps``, whose metrics are attributes. With ``against``: ``metrics``, a row for
        each with both means and their ``difference``, those that differ first. With ``at``:
        ``metrics`` around the step, and its worst groups and tokens; with ``by``: ``changes``.

    Raises:
        UsageError: for an unknown name, or files of several runs.
        InputError: for data that cannot be read, or without a step.
    """
    from grpo_cli.commands.trend.answer import trend_of
    from grpo_cli.commands.trend.comparison import framework_of
    from grpo_cli.commands.trend.logs import log_of, logs_among, read_finite, steps_of, unused
    from grpo_cli.commands.trend.origins import StepSource
    from grpo_cli.commands.trend.questions.against import compare_runs
    from grpo_cli.commands.trend.questions.at import answer_of_step
    from grpo_cli.commands.trend.questions.parts import answer_of_parts
    from grpo_cli.commands.trend.run import Run
    from grpo_cli.commands.trend.step import Flags, Steps
    from grpo_cli.records.parse.record import is_logged

    variant = one_variant(variant)
    values = plain(hyperparameters)
    plan = planned(variant, stages, values, batch).of_one_batch()
    objective = as_flags(None if variant == "grpo" else variant, stages or {}, values)
    asking = {"by": by, "at": at, "log": log, "against": against, "html": html}
    questions = [name for name, value in asking.items() if value is not None]
    if len(questions) > 1:
        raise UsageError(f"{questions[1]} cannot be combined with {questions[0]}")
    logged, _ = read_finite(None if log is None else os.fspath(log), None)
    framework = framework_of(logged)

    def written(answer: Trend, run: Run | Steps) -> Trend:
        if html is not None:
            _write_page(os.fspath(html), run, answer)
        return answer

    def opened(data: Data) -> Run | Steps:
        reader, words = reader_of(data, where=where, group_by=group_by, group_size=group_size)
        alone = logs_among(reader, words) if log is None else None
        rows = reader.reading.objects if isinstance(reader.reading, Held) else ()
        if log is None and rows and is_logged(rows[0]):
            alone = steps_of([log_of(rows, "data")])
        source = StepSource.of_flag(step, reader.paths)
        own = Run(reader, plan, source, framework, one_run=one_run)
        return own if alone is None else alone

    run = opened(data)
    if against is not None:
        both = run, opened(against)
        compared = compare_runs(*(one if isinstance(one, Steps) else one.read() for one in both))
        notes = (one.reader.notes(plan) for one in both if isinstance(one, Run))
        return noting(compared, *notes, compared.notes)
    if isinstance(run, Steps) and {*questions} <= {"html"}:
        found = written(trend_of(None, run, Flags()), run)
        return noting(found, unused(objective) | run.notices)
    named: dict[str, Any] = {"variant": None if variant == "grpo" else variant, "stages": stages}
    named |= {"group_by": group_by, "group_size": group_size}
    given = {name: one for name, one in named.items() if one} | values
    given["where"] = listed(where)
    flags = Flags(objective, reading_flags(where, group_by, group_size), given)
    at = None if at is None else whole("at", at)
    answer: StepAnswer | PartsAnswer | None = None
    if by is not None:
        answer = answer_of_parts(run, flags, by)
    elif at is not None:
        answer = answer_of_step(run, flags, at)[0]
    if answer is not None:
        notices = () if isinstance(run, Steps) else (run.reader.notes(plan), run.notices)
        return noting(answer, *notices)
    assert isinstance(run, Run)
    found = trend_of(run, run.read(), flags, log=logged, framework=framework)
    found = replace(written(found, run), verdict=of_arguments(found.verdict))
    return noting(found, run.reader.notes(plan), run.lacks, run.notices)


def _write_page(path: str, run: Run | Steps, answer: Trend) -> None:
    from grpo_cli.commands.options.place import destination
    from grpo_cli.commands.report.page import page_of
    from grpo_cli.commands.trend.options import StoredOptions, TrendOptions

    if pathlib.Path(path).suffix not in (".html", ".htm"):
        raise UsageError(f"{path}: a page's name ends in .html")
    files = [one or "records in memory" for one in dict.fromkeys(answer.steps.files)]
    parts = page_of(run, None, answer, files, TrendOptions(), StoredOptions(), "grpo_cli.report")
    with destination(path, "path") as page:
        page.writelines(part.encode() for part in parts)


@asked
def report(
    data: Data,
    path: Path,
    variant: str = "grpo",
    *,
    step: str | None = None,
    one_run: bool = False,
    where: Texts = (),
    group_by: Texts = (),
    group_size: int | None = None,
    stages: Stages = None,
    batch: Literal["input", "record"] = "input",
    **hyperparameters: Hyperparameter,
) -> Trend:
    """Writes a run as one HTML page: its series, steps, groups and tokens.

    Args:
        data: the run, as ``trend`` takes it.
        path: the page, ``.html``.
        variant, step, one_run, where, group_by, group_size, stages, batch, **hyperparameters: as
            ``trend`` takes them.

    Returns:
        What ``trend`` finds in the run.

    Raises:
        UsageError: for an unknown name, or a page that cannot be written.
        InputError: for data that cannot be read, or without a step.
    """
    how: dict[str, Any] = {"where": where, "group_by": group_by, "group_size": group_size}
    how |= {"step": step, "one_run": one_run, "stages": stages, "batch": batch, **hyperparameters}
    return cast("Trend", trend(data, variant, html=path, **how))


@asked
def diff(
    first: Data,
    second: Data,
    *,
    tolerance: float | None = None,
    where: Texts = (),
    group_by: Texts = (),
    group_size: int | None = None,
) -> RunDiff:
    """Finds where two runs that should be identical first differ.

    >>> runs = "samples/run/healthy.jsonl.gz", "samples/run/temperature.jsonl.gz"
    >>> diff(*runs).agreed_until
    29

    Two runs of different seeds differ from the first token on: ``trend(first, against=second)``
    compares their metrics.

    Args:
        first, second: the runs, each as ``evaluate`` takes data.
        tolerance: the largest difference to ignore. Default: rounding and an engine's noise.
        where, group_by, group_size: as ``evaluate`` takes them. Default: all, each row a record.

    Returns:
        ``ok`` (nothing differs), ``agreed_until`` (the last step that is equal), and for each
        column where it first differs.

    Raises:
        UsageError: for a tolerance below 0.
        InputError: for data that cannot be read.
    """
    from grpo_cli.commands.diff.diff import compare as compare_runs
    from grpo_cli.commands.trend.origins import StepSource

    tolerance = not_negative("tolerance", tolerance)
    readers = [
        reader_of(run, where=where, group_by=group_by, group_size=group_size)[0]
        for run in (first, second)
    ]
    found = compare_runs(readers[0], readers[1], StepSource(), tolerance)
    return noting(found, *(reader.notes() for reader in readers), found.notes)
