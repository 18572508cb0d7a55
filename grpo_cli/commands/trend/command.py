"""``grpo trend``: a run step by step, and when something began."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from grpo_cli.commands.options.everywhere import bundled
from grpo_cli.commands.options.objective import ObjectiveOptions, unserved
from grpo_cli.commands.options.place import destination, drawings
from grpo_cli.commands.options.source import (
    Files,
    ReadingOptions,
    paths,
    tell_errors,
    tell_notes,
    tell_skipped,
)
from grpo_cli.commands.trend.comparison import Trend, compare_log
from grpo_cli.commands.trend.drawings import alone, figure, page
from grpo_cli.commands.trend.findings import Condition, coverage, read_condition
from grpo_cli.commands.trend.findings import findings as look
from grpo_cli.commands.trend.follow import Follow, Watch
from grpo_cli.commands.trend.logs import read_finite
from grpo_cli.commands.trend.metrics import METRICS, functions, metric
from grpo_cli.commands.trend.options import TrendOptions, flags_of
from grpo_cli.commands.trend.output import write
from grpo_cli.commands.trend.run import Run
from grpo_cli.commands.trend.step import Finding, Steps
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.errors import InputError, UsageError
from grpo_cli.records.open.folders import files as expanded
from grpo_cli.terminal.messages import failures, say
from grpo_cli.variants.plan import Plan

NO = 1


@bundled
def trend(
    *,
    files: Files = None,
    objective: ObjectiveOptions,
    reading: ReadingOptions,
    options: TrendOptions,
) -> None:
    """Follow a run step by step: its metrics, and when something began.

    \b
    grpo trend run/rollouts
    grpo trend 'steps/*.jsonl.zst' --fields reward_mean,kl_k3,mismatch.k3 --plot
    grpo trend run --html run.html --svg run.svg
    grpo trend run --fail-on 'mismatch.k3>0.01' --fail-on findings

    RUN is a folder, a pattern or files; every record is evaluated once, and a
    step is a batch of its own. A finding is a level that shifted, a drift that
    began, or a limit that a framework publishes, with the commands that show
    where it began, what may explain it, and its worst token. p999 is right to
    0.2 %. Exit codes: 0 done, 1 --fail-on holds, 2 usage, 3 bad input.
    """  # noqa: D301 - \b is for the help's formatter
    with failures(as_json=options.json or options.format == "json"):
        conditions = [read_condition(one) for one in options.fail_on or ()]
        columns, plan = options.columns(), objective.of_one_batch()
        if options.follow:
            raise typer.Exit(_follow(files or [], plan, conditions, objective, reading, options))
        places = paths(files)
        reader = reading.reader(places, None)
        log, unread = read_finite(options.log)
        whose = options.framework(log)
        run = Run(reader, plan, options.step_source(places), whose, one_run=options.one_run)
        steps = run.read()
        found = look(steps, flags_of(objective, reading))
        compared = compare_log(whose, log, run.logged, steps)
        _check_fields(columns, steps)
        shown_steps = steps if options.names == "grpo" else steps.with_metrics(run.logged)
        missing = unserved(run.missing.values(), "trend", reader, objective)
        notes = reader.notes(plan) | missing | run.notices | unread
        signatures = list(run.signatures)
        with drawings(options.html, options.svg) as (written, drawn):
            if written is not None:
                for part in page(steps, places, signatures, alone(steps, found, compared)):
                    written.write(part.encode())
            if drawn is not None:
                drawn.write(figure(shown_steps, found, columns, signatures).encode())
        if options.html is None and options.svg is None:
            with destination(options.output) as stream:
                asked = columns if options.names == "grpo" else ()
                covered = coverage(steps, asked, run.missing, on_policy=not run.moved)
                answer = Trend(plan.variant, signatures, shown_steps, found, compared)
                write(stream, answer, columns, options, covered, notes)
        tell_notes(notes, quiet=options.quiet)
        code = _finish(run, conditions, found, steps, options)
    raise typer.Exit(code)


def _follow(
    files: list[str],
    plan: Plan,
    conditions: Sequence[Condition],
    objective: ObjectiveOptions,
    reading: ReadingOptions,
    options: TrendOptions,
) -> int:
    """Watches files until --fail-on holds; Ctrl-C ends it as any command."""
    drawn = options.html is not None or options.svg is not None
    if options.kind not in ("table", "jsonl") or options.names != "grpo" or options.log or drawn:
        only = "without --names, --log, --html and --svg"
        raise UsageError(f"--follow prints a table or --format jsonl, {only}")
    if reading.on is not None:
        raise UsageError("--follow reads files as they grow, on this machine: without --on")
    if Evaluator(plan).wants_first_pass:
        raise UsageError(f"--follow: {plan.variant} needs the statistics of a whole step first")
    if not files or "-" in files:
        raise UsageError("--follow: name a file, a folder or a pattern")
    step_source = (
        options.step_source(expanded(files)) if options.step == "file" else options.step_source(())
    )
    follow = Follow(
        files,
        reading.reading(None),
        plan,
        step_source,
        skip=reading.on_error == "skip",
        one_run=options.one_run,
    )
    flags = flags_of(objective, reading)
    with destination(options.output) as stream:
        watch = Watch(
            follow,
            stream,
            fields=options.columns(),
            as_json=options.kind == "jsonl",
            conditions=conditions,
            flags=flags,
        )
        return watch.run(2.0 if options.every is None else options.every)


def _check_fields(columns: Sequence[str] | None, steps: Steps) -> None:
    """Refuses the mean of a reward function that is not there.

    Raises:
        UsageError: with those that are.
    """
    there = functions(steps.metrics) if steps else []
    for name in columns or ():
        if name not in METRICS and metric(name) and name not in there:
            has = f"there are {', '.join(there)}" if there else "the records have one reward each"
            raise UsageError(f"--fields {name}: {has}")


def _finish(
    run: Run,
    conditions: Sequence[Condition],
    found: Sequence[Finding],
    steps: Steps,
    options: TrendOptions,
) -> int:
    tell_errors(run.skipped, as_json=options.kind == "json")
    tell_skipped(run.skipped)
    answers = [one.answer(steps, found) for one in conditions]
    for answer in filter(None, answers):
        if not options.quiet:
            say(f"--fail-on {answer}")
    if any(answers):
        return NO
    return InputError.exit_code if run.skipped else 0
