"""``grpo trend``: a run step by step, and when something began."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from grpo_cli.commands.options import complete
from grpo_cli.commands.options.everywhere import bundled
from grpo_cli.commands.options.objective import ObjectiveOptions, number, unserved
from grpo_cli.commands.options.output import (
    Json,
    Output,
    PageOptions,
    Quiet,
    TableFormat,
    format_of,
)
from grpo_cli.commands.options.place import destination, drawings
from grpo_cli.commands.options.source import (
    Files,
    ReadingOptions,
    paths,
    tell_errors,
    tell_notes,
    tell_skipped,
)
from grpo_cli.commands.trend.comparison import Trend, compare_log, framework_of
from grpo_cli.commands.trend.conditions import Condition, read_condition
from grpo_cli.commands.trend.coverage import Coverage
from grpo_cli.commands.trend.drawings import figure, head, page
from grpo_cli.commands.trend.events import events, verdict
from grpo_cli.commands.trend.findings import findings as look
from grpo_cli.commands.trend.follow import Follow
from grpo_cli.commands.trend.inspection import with_checks
from grpo_cli.commands.trend.logs import Log, is_log, read_finite, steps_of_logs
from grpo_cli.commands.trend.metrics import METRICS, functions, metric
from grpo_cli.commands.trend.names import NAMES
from grpo_cli.commands.trend.origins import StepSource
from grpo_cli.commands.trend.questions.options import Asked, QuestionOptions, answer_of_log
from grpo_cli.commands.trend.run import Run
from grpo_cli.commands.trend.step import Finding, Flags, Steps
from grpo_cli.commands.trend.view import print_answer, write
from grpo_cli.commands.trend.watch import Watch
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.errors import InputError, UsageError
from grpo_cli.records.open.folders import files as expanded
from grpo_cli.terminal.messages import failures, say
from grpo_cli.variants.plan import Plan, as_flags

NO = 1


def _path(flag: str, what: str) -> Any:
    return typer.Option(flag, metavar="FILE", help=f"Write {what} instead.", show_default=False)


OneRun = Annotated[
    bool,
    typer.Option("--one-run", help="Files of one step are of one run, whatever their folders."),
]
LogOption = Annotated[
    str | None,
    typer.Option(
        "--log",
        metavar="FILE",
        help="What the trainer logged, to compare: trainer_state.json, JSONL or CSV.",
        show_default=False,
    ),
]


@dataclass(frozen=True, kw_only=True)
class TrendOptions:
    """Which steps, which columns, in which format, and what makes the answer no."""

    step: Annotated[
        str | None,
        typer.Option(
            "--step",
            metavar="FIELD",
            help="Where a record says its step, as meta.step; file: each file is one. "
            "Default: step, global_step, … or the file's name.",
            show_default=False,
        ),
    ] = None
    one_run: OneRun = False
    fields: Annotated[
        str | None,
        typer.Option(
            "--fields",
            metavar="A,B,…",
            help="The columns, in this order.",
            autocompletion=complete.among(METRICS),
            show_default=False,
        ),
    ] = None
    format: Annotated[
        TableFormat | None,
        typer.Option("--format", "-f", help="Default: table.", show_default=False),
    ] = None
    json: Json = False
    names: Annotated[
        Literal["grpo", "trl", "verl", "prime-rl", "nemo-rl", "slime"],
        typer.Option("--names", help="Whose metrics: under its names, computed as it does."),
    ] = "grpo"
    log: LogOption = None
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on as the files grow, until Ctrl-C or --fail-on.")
    ] = False
    every: Annotated[
        float | None,
        typer.Option(
            "--every",
            metavar="SECONDS",
            parser=number,
            help="How often --follow looks. Default: 2.",
            show_default=False,
        ),
    ] = None
    plot: Annotated[bool, typer.Option("--plot", help="Small charts in place of the table.")] = (
        False
    )
    html: Annotated[str | None, _path("--html", "series and findings as a page")] = None
    svg: Annotated[str | None, _path("--svg", "the series as a picture")] = None
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-on",
            metavar="TEST",
            help="Exit with 1 where a step fits, as 'mismatch.k3>0.01', or on findings.",
            show_default=False,
        ),
    ] = None
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            metavar="N",
            min=0,
            help="Steps in the table; 0 for all. Default: 40, or what the screen has room for.",
            show_default=False,
        ),
    ] = None
    output: Output = None
    quiet: Quiet = False

    @property
    def kind(self) -> str:
        """The format's name."""
        return format_of(self.format, as_json=self.json)

    def columns(self) -> list[str] | None:
        """The columns that are asked for; None for those that say something.

        Raises:
            UsageError: for an unknown one.
        """
        if self.fields is None:
            return None
        names = [one.strip() for one in self.fields.split(",")]
        metrics = METRICS if self.names == "grpo" else NAMES[self.names]
        return [
            name
            if name not in METRICS and metric(name)
            else complete.known("--fields", name, (*metrics, "file"))
            for name in names
        ]

    def framework(self, log: Log | None) -> str | None:
        """The framework whose metrics are computed as well."""
        return framework_of(log) if self.names == "grpo" else self.names


def flags_of(objective: ObjectiveOptions, reading: ReadingOptions) -> Flags:
    """The flags of the objective and of reading."""
    variant = None if objective.variant == "grpo" else objective.variant
    words = as_flags(variant, objective.stages, objective.hyperparameters)
    return Flags(words, reading.words)


@bundled
def trend(
    *,
    files: Files = None,
    objective: ObjectiveOptions,
    reading: ReadingOptions,
    options: TrendOptions,
    questions: QuestionOptions,
) -> None:
    """Follow a run step by step: its metrics, and when something began.

    \b
    grpo trend run/rollouts
    grpo trend 'steps/*.jsonl.zst' --fields reward_mean,kl_k3,mismatch.k3 --plot
    grpo trend run --html run.html --svg run.svg
    grpo trend run --fail-on 'gradient_norm>10' --fail-on findings
    grpo trend run --at 12
    grpo trend run --by rank
    grpo trend run-a/rollouts --against run-b/rollouts
    grpo trend run --correlate reward length

    RUN is a folder, a pattern or files; every record is evaluated once, and a
    step is a batch of its own. A finding is a level that shifted, a drift that
    began, or a limit that a framework publishes, with the commands that show
    where it began, what may explain it, and its worst token. p999 is right to
    0.2 %. Exit codes: 0 done, 1 --fail-on holds, 2 usage, 3 bad input.
    """  # noqa: D301 - \b is for the help's formatter
    with failures(as_json=options.json or options.format == "json"):
        logs = [] if options.follow else _logs_among(files or [])
        if logs and questions.asked is not None:
            _refuse_others(options, questions)
            other = steps_of_logs(questions.against) if questions.against else None
            answer_of_log(questions, _page(options), logs, steps_of_logs(logs), other)
            raise typer.Exit
        conditions = [read_condition(one, logged=bool(logs)) for one in options.fail_on or ()]
        if logs:
            raise typer.Exit(_of_logs(logs, conditions, options))
        columns, plan = options.columns(), objective.of_one_batch()
        if questions.asked is not None:
            raise typer.Exit(_answer(files, plan, objective, reading, options, questions))
        if options.follow:
            raise typer.Exit(_follow(files or [], plan, conditions, objective, reading, options))
        places = paths(files)
        reader = reading.reader(places, None)
        log, unread = read_finite(options.log)
        whose = options.framework(log)
        run = Run(
            reader, plan, StepSource.of_flag(options.step, places), whose, one_run=options.one_run
        )
        steps = run.read()
        for condition in conditions:
            condition.check(steps)
        found = look(steps, flags_of(objective, reading))
        happened = with_checks(events(found), reader)
        asked = columns if options.names == "grpo" else ()
        covered = Coverage(steps, asked, run.missing, on_policy=not run.moved)
        sentence = verdict(steps, happened, covered)
        compared = compare_log(whose, log, run.logged, steps)
        _check_fields(columns, steps)
        shown_steps = steps if options.names == "grpo" else steps.with_metrics(run.logged)
        missing = unserved(run.missing.values(), "trend", reader, objective)
        notes = reader.notes(plan) | missing | run.notices | unread
        signatures = list(run.signatures)
        answer = Trend(plan.variant, signatures, shown_steps, found, happened, sentence, compared)
        _write_answer(answer, steps, places, columns, covered, notes, options)
        tell_notes(notes, quiet=options.quiet)
        code = _finish(run, conditions, found, steps, options)
    raise typer.Exit(code)


def _write_answer(
    answer: Trend,
    steps: Steps,
    places: Sequence[str],
    columns: Sequence[str] | None,
    covered: Coverage,
    notes: Collection[str],
    options: TrendOptions,
) -> None:
    """Prints an answer, or draws it where a page or a picture is asked for.

    ``steps``: as measured, where those of the answer have a framework's metrics.
    """
    with drawings(options.html, options.svg) as (written, drawn):
        if written is not None:
            alone = head(steps, answer.events, answer.log, answer.verdict) | {"lost": 0}
            for part in page(steps, places, answer.signatures, alone):
                written.write(part.encode())
        if drawn is not None:
            drawn.write(figure(answer.steps, answer.findings, columns, answer.signatures).encode())
    if options.html is not None or options.svg is not None:
        return
    with destination(options.output) as stream:
        if options.kind == "table":
            limit, plot = options.limit, options.plot
            print_answer(stream, answer, columns, covered, notes, plot=plot, limit=limit)
        else:
            write(stream, options.kind, answer, columns)


def _answer(
    files: Files,
    plan: Plan,
    objective: ObjectiveOptions,
    reading: ReadingOptions,
    options: TrendOptions,
    questions: QuestionOptions,
) -> int:
    """Answers a question about the run."""
    _refuse_others(options, questions)
    places = paths(files)
    reader = reading.reader(places, None)
    source = StepSource.of_flag(options.step, places)
    named, flags = files or ["-"], flags_of(objective, reading)
    asked = Asked(named, reader, plan, source, options.one_run, flags)
    against = questions.against
    other = None if not against else reading.reader(paths(against), None)
    tell_notes(asked.answer(questions, _page(options), other), quiet=options.quiet)
    skipped = [one.skipped for one in (reader, other) if one is not None]
    for one in skipped:
        tell_errors(one, as_json=options.kind == "json")
        tell_skipped(one)
    return InputError.exit_code if any(skipped) else 0


def _page(options: TrendOptions) -> PageOptions:
    """How the answer to a question is printed."""
    return PageOptions(
        format=options.format, as_json=options.json, output=options.output, quiet=options.quiet
    )


def _refuse_others(options: TrendOptions, questions: QuestionOptions) -> None:
    """Refuses the flags that a question does not go with.

    Raises:
        UsageError: for the first.
    """
    others = {
        "--names": options.names != "grpo",
        "--log": options.log,
        "--follow": options.follow,
        "--plot": options.plot,
        "--html": options.html,
        "--svg": options.svg,
        "--fail-on": options.fail_on,
        "--fields": options.fields,
    }
    if given := [flag for flag, value in others.items() if value]:
        raise UsageError(f"{questions.asked} answers a question: give it without {given[0]}")


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
        only = "not with --names, --log, --html or --svg"
        raise UsageError(f"--follow prints a table or --format jsonl, {only}")
    if reading.on is not None:
        raise UsageError("--follow reads files as they grow, on this machine: without --on")
    if Evaluator(plan).wants_first_pass:
        raise UsageError(f"--follow: {plan.variant} needs statistics over a whole step first")
    if not files or "-" in files:
        raise UsageError("--follow: name a file, a folder or a pattern")
    step_source = StepSource.of_flag(
        options.step, expanded(files) if options.step == "file" else ()
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


def _logs_among(files: Sequence[str]) -> list[str]:
    """The files, where all of them are logs of a trainer, so that there are no records."""
    return [*files] if files and all(map(is_log, files)) else []


def _of_logs(logs: Sequence[str], conditions: Sequence[Condition], options: TrendOptions) -> int:
    """Answers from logs alone: their series under their own names."""
    if options.log is not None or options.names != "grpo":
        raise UsageError("--log and --names compare a log with records: name the records' files")
    steps = steps_of_logs(logs)
    columns = None if options.fields is None else [one.strip() for one in options.fields.split(",")]
    for name in columns or ():
        complete.known("--fields", name, steps.metrics)
    for condition in conditions:
        condition.check(steps)
    found = look(steps)
    happened = events(found)
    covered = Coverage(steps, columns, {}, on_policy=False)
    sentence = verdict(steps, happened, covered)
    answer = Trend("", [], steps, found, happened, sentence)
    _write_answer(answer, steps, logs, columns, covered, {}, options)
    return _conclude(conditions, found, steps, options)


def _check_fields(columns: Sequence[str] | None, steps: Steps) -> None:
    """Refuses the mean of a reward function that is not there.

    Raises:
        UsageError: with those that are.
    """
    there = functions(steps.metrics) if steps else []
    for name in columns or ():
        if name not in METRICS and metric(name) and name not in there:
            has = f"known: {', '.join(there)}" if there else "each record has only one reward"
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
    return _conclude(conditions, found, steps, options) or (
        InputError.exit_code if run.skipped else 0
    )


def _conclude(
    conditions: Sequence[Condition],
    found: Sequence[Finding],
    steps: Steps,
    options: TrendOptions,
) -> int:
    """The exit code of the conditions, which are printed where they hold."""
    answers = [one.answer(steps, found) for one in conditions]
    for answer in filter(None, answers):
        if not options.quiet:
            say(f"--fail-on {answer}")
    return NO if any(answers) else 0
