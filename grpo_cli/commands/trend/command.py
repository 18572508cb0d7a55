"""``grpo trend``: a run step by step, and when something began; ``grpo report``: its page."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import typer

from grpo_cli.commands.options import complete
from grpo_cli.commands.options.objective import OneBatchOptions
from grpo_cli.commands.options.place import destination, print_written
from grpo_cli.commands.options.source import (
    Files,
    ReadingOptions,
    RunFiles,
    is_piped,
    paths,
    print_errors,
    print_notes,
    print_skipped,
)
from grpo_cli.commands.report.page import page_of
from grpo_cli.commands.trend.answer import trend_of
from grpo_cli.commands.trend.comparison import Trend
from grpo_cli.commands.trend.logs import logs_among, read_finite, unused
from grpo_cli.commands.trend.metrics import METRICS, functions, metric
from grpo_cli.commands.trend.options import (
    ReportOptions,
    StoredOptions,
    TrendOptions,
    flags_of,
    read_test,
)
from grpo_cli.commands.trend.origins import StepSource
from grpo_cli.commands.trend.questions.against import compare_runs
from grpo_cli.commands.trend.questions.at import answer_of_step
from grpo_cli.commands.trend.questions.parts import answer_of_parts
from grpo_cli.commands.trend.questions.view import print_comparison, print_parts, print_step_answer
from grpo_cli.commands.trend.run import Run
from grpo_cli.commands.trend.step import Finding, Flags, Steps
from grpo_cli.commands.trend.view import print_answer, write
from grpo_cli.engine.reader import of_runs
from grpo_cli.errors import InputError, UsageError
from grpo_cli.records.open.budget import read_size
from grpo_cli.records.translate import Notices
from grpo_cli.terminal.messages import failures, say
from grpo_cli.variants.plan import Plan

NO = 1


def trend(
    *,
    files: RunFiles = None,
    objective: OneBatchOptions,
    reading: ReadingOptions,
    options: TrendOptions,
    stored: StoredOptions,
) -> None:
    """Show a run step by step, and when something changed.

    \b
    grpo trend run/rollouts
    grpo trend 'steps/*.jsonl.zst' --fields reward_mean,kl_k3,mismatch.k3 --plot
    grpo trend run --html run.html
    grpo trend run --fail-on 'gradient_norm>10' --fail-on findings
    grpo trend run --at 12
    grpo trend run --by rank
    grpo trend run-a/rollouts --against run-b/rollouts

    RUN is a folder, a pattern or files; each step is one batch. Prints what
    changed and when, the likely cause and a fix, then the steps. `grpo help NAME`
    explains a column, as `grpo help mismatch.k3`. Exits with 1 if --fail-on holds.

    A finding is a shift, a drift, or a limit that the run exceeds. A command with
    each finding shows where it began; --at STEP names the worst tokens of a step.
    p999 is accurate to 0.2 %, and exact in steps of fewer than 1,000 tokens.
    """  # noqa: D301 - \b is for the help's formatter
    answer_run(files, objective, reading, options, stored)


def report(
    *,
    files: RunFiles = None,
    objective: OneBatchOptions,
    reading: ReadingOptions,
    options: ReportOptions,
    stored: StoredOptions,
) -> None:
    """Write a run as one HTML page: its series, steps, groups and tokens.

    \b
    grpo report run/rollouts -o report.html
    grpo report 'steps/*.jsonl.zst' -v dapo --steps 100 -o report.html

    `grpo trend RUN --html FILE` writes this page too. It stores the groups that
    findings point at and a random sample of the others, and says which. It
    loads nothing from the network.
    """  # noqa: D301 - \b is for the help's formatter
    page = options.html or options.output
    with failures():
        if page is None:
            raise UsageError("use -o FILE to save the page (-o - prints its HTML)")
    options = replace(options, html=page)
    answer_run(files, objective, reading, options, stored)


_SKIP = "--on-error skip leaves out records that cannot be read (grpo check lists them)"


def answer_run(
    files: Files,
    objective: OneBatchOptions,
    reading: ReadingOptions,
    options: TrendOptions,
    stored: StoredOptions,
) -> NoReturn:
    """Answers and ends the command."""
    with failures(as_json=options.json or options.format == "json", hint=_SKIP):
        if options.asked:
            options.refuse_others()
        if options.against and not files and not is_piped():
            raise UsageError("the first run is missing: grpo trend RUN --against OTHER")
        plan = objective.plan().of_one_batch()
        log, unread = read_finite(options.log, read_size(reading.unpack))
        whose = options.framework(log)
        run, places = _opened(files, plan, reading, options, whose, options.against)
        logged = isinstance(run, Steps)
        tests = [read_test(one, logged=logged) for one in options.fail_on or ()]
        columns = options.columns(logged=logged)
        other = None
        if options.against:
            other, _ = _opened(options.against, plan, reading, options, None, files)
        flags = flags_of(objective, reading)
        if logged:
            words = flags_of(objective, replace(reading, unpack=None)).words
            unread, flags = unread | unused(words) | run.notices, Flags()
        found: Sequence[Finding] = ()
        steps: Steps | None = None
        if options.asked:
            notes = unread | _answer_question(options, run, other, flags, files or ["-"])
        else:
            records = None if isinstance(run, Steps) else run
            steps = run if isinstance(run, Steps) else run.read()
            for test in tests:
                test.check(steps)
            of_records = columns if options.names == "grpo" else ()
            answer = trend_of(records, steps, flags, columns=of_records, log=log, framework=whose)
            found = answer.findings
            _check_fields(columns, steps)
            drawn: Iterable[str] = ()
            if options.html is not None:
                drawn = page_of(run, other, answer, places, options, stored)
            notes = unread
            if records is not None:
                notes = records.reader.notes(plan) | records.lacks | records.notices | unread
                if options.names != "grpo":
                    answer = replace(answer, steps=steps.with_metrics(records.logged))
            _write_answer(answer, columns, notes, options, drawn)
        print_notes(notes, quiet=options.quiet)
        skipped = [one.reader.skipped for one in (run, other) if isinstance(one, Run)]
        for one in skipped:
            print_errors(one, as_json=options.kind == "json")
            print_skipped(one)
        answers = [] if steps is None else [one.answer(steps, found) for one in tests]
        for sentence in filter(None, answers):  # quiet or not: it is why the command ends with 1
            say(f"--fail-on {sentence}")
        code = NO if any(answers) else 0
    raise typer.Exit(code or (InputError.exit_code if any(skipped) else 0))


def _answer_question(
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
        draw: Any = partial(print_comparison, answer=compared, named=names)
        options.page.write(compared, draw, rows=compared.metrics)
        notes = dict.fromkeys(compared.notes)
        for one in (run, other):
            if isinstance(one, Run) and one.alone is not None:
                notes[f"{one.reader.paths[0]}: {one.alone}"] = None
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


def _opened(
    files: Files,
    plan: Plan,
    reading: ReadingOptions,
    options: TrendOptions,
    names: str | None,
    against: Files,
) -> tuple[Run | Steps, Sequence[str]]:
    """A run of records that are to be read, or the steps of logs alone; and its files."""
    if options.plot and options.kind != "table":
        raise UsageError(f"--plot draws charts and cannot be combined with --format {options.kind}")
    places = paths(files)
    reader = reading.reader(places, None)
    if against:
        reader.reading = of_runs(reader.reading, [places, paths(against)])[0]
    logs = logs_among(reader, files or [])
    if logs is not None:
        if options.log is not None or options.names != "grpo":
            logged = "--log and --names compare a log with records"
            raise UsageError(f"{logged}: name the records' files")
        return logs, places
    source = StepSource.of_flag(options.step, places)
    return Run(reader, plan, source, names, one_run=options.one_run), places


def _write_answer(
    answer: Trend,
    columns: Sequence[str] | None,
    notes: Collection[str],
    options: TrendOptions,
    drawn: Iterable[str],
) -> None:
    """Prints an answer, or writes its page where that is asked for (``drawn``)."""
    if options.html is not None:
        flag = "--html" if options.output != options.html else "--output"
        with destination(options.html, flag) as page:
            page.writelines(part.encode() for part in drawn)
        print_written(options.html, quiet=options.quiet)
        return
    with destination(options.output) as stream:
        if options.kind != "table":
            write(stream, options.kind, answer, columns)
            return
        how = {"plot": options.plot, "quiet": options.quiet}
        how["brief"] = options.quiet and bool(options.fail_on)
        print_answer(stream, answer, columns, notes, limit=options.limit, **how)


def _check_fields(columns: Sequence[str] | None, steps: Steps) -> None:
    """Refuses a series of a log, or the mean of a reward function, that is not there.

    Raises:
        UsageError: with those that are.
    """
    there = functions(steps.metrics)
    for name in columns or ():
        if steps.logged:
            complete.known("--fields", name, [*steps.metrics])
        elif name not in METRICS and metric(name) and name not in there:
            has = f"known: {', '.join(there)}" if there else "each record has only one reward"
            raise UsageError(f"--fields {name}: {has}")
