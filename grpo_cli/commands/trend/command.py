"""``grpo trend``: a run step by step, and when something began."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, BinaryIO, Literal

import orjson
import typer

from grpo_cli.commands.eval.formats import csv as csv_format
from grpo_cli.commands.eval.formats import markdown as markdown_format
from grpo_cli.commands.eval.printing import Json, Quiet
from grpo_cli.commands.options import complete
from grpo_cli.commands.options.bundle import bundled
from grpo_cli.commands.options.objective import Files, ObjectiveOptions, ReadingOptions, paths
from grpo_cli.commands.options.source import tell_errors, tell_more_errors, tell_notes
from grpo_cli.commands.trend.beside import Beside, beside, framework_of, renamed
from grpo_cli.commands.trend.conditions import Condition, read_condition
from grpo_cli.commands.trend.findings import findings as look
from grpo_cli.commands.trend.logs import Log, read_log
from grpo_cli.commands.trend.metrics import METRICS
from grpo_cli.commands.trend.names import NAMES, Read
from grpo_cli.commands.trend.run import Run
from grpo_cli.commands.trend.step import Finding, Step
from grpo_cli.commands.trend.view import (
    known,
    print_beside,
    print_charts,
    print_findings,
    print_steps,
    rows,
)
from grpo_cli.commands.trend.which import StepOf
from grpo_cli.errors import InputError
from grpo_cli.records.choose.paths import read_path
from grpo_cli.terminal.destination import destination
from grpo_cli.terminal.escapes import escaped_json
from grpo_cli.terminal.messages import failures, say
from grpo_cli.terminal.screen import screen_of, written
from grpo_cli.variants.plan import Plan

NO = 1
_CONTEXT = ("step", "file")
FormatName = Literal["table", "json", "jsonl", "csv", "markdown"]


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
        FormatName | None,
        typer.Option("--format", "-f", help="Default: table.", show_default=False),
    ] = None
    json: Json = False
    names: Annotated[
        Literal["grpo", "trl", "verl", "prime-rl", "slime"],
        typer.Option("--names", help="Whose metrics: under its names, computed as it does."),
    ] = "grpo"
    log: Annotated[
        str | None,
        typer.Option(
            "--log",
            metavar="FILE",
            help="What the trainer logged, to compare: trainer_state.json, JSONL or CSV.",
            show_default=False,
        ),
    ] = None
    plot: Annotated[bool, typer.Option("--plot", help="Small charts in place of the table.")] = (
        False
    )
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
        int,
        typer.Option("--limit", metavar="N", min=0, help="Steps in the table; 0 for all."),
    ] = 40
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write here, whole or not at all.",
            show_default=False,
        ),
    ] = None
    quiet: Quiet = False

    @property
    def kind(self) -> str:
        """The format's name."""
        return "json" if self.json else self.format or "table"

    def columns(self) -> list[str] | None:
        """The columns that are asked for; None for those that say something.

        Raises:
            UsageError: for an unknown one.
        """
        if self.fields is None:
            return None
        names = [one.strip() for one in self.fields.split(",")]
        metrics = METRICS if self.names == "grpo" else NAMES[self.names]
        return [complete.known("--fields", name, (*metrics, "file")) for name in names]

    def reads(self, log: Log | None) -> tuple[str, Mapping[str, Read] | None]:
        """Whose metrics are to be computed beside ours."""
        whose: str = self.names
        if log is not None and whose == "grpo":
            whose = framework_of(log, NAMES)
        return whose, NAMES.get(whose)

    def step_of(self, places: Sequence[str]) -> StepOf:
        """How records say their step."""
        if self.step is None:
            return StepOf()
        if self.step == "file":
            return StepOf(files={place: at for at, place in enumerate(places)})
        return StepOf(field=read_path(self.step, "--step"))


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
    grpo trend run --fail-on 'mismatch.k3>0.01' --fail-on findings

    RUN is a folder, a pattern or files; every record is evaluated once, and a
    step is a batch of its own. A finding is a level that shifted, a drift that
    began, or a limit that a framework publishes, with the command that shows
    its worst token. p999 is right to 0.2 %. Exit codes: 0 done, 1 --fail-on
    holds, 2 usage, 3 bad input.
    """  # noqa: D301 - \b is for the help's formatter
    with failures(as_json=options.kind == "json"):
        conditions = [read_condition(one) for one in options.fail_on or ()]
        columns, plan, places = options.columns(), objective.plan(), paths(files)
        reader = reading.reader(places, None)
        log = None if options.log is None else read_log(options.log)
        whose, names = options.reads(log)
        run = Run(reader, plan, options.step_of(places), names)
        steps = run.read()
        found = look(steps, _words(objective, reading))
        compared = None if log is None else beside(whose, log, run.logged, steps)
        shown_steps = steps if options.names == "grpo" else renamed(steps, run.logged)
        with destination(options.output) as stream:
            _write(stream, shown_steps, found, plan, columns, options, run, compared)
        tell_notes(reader.notices | run.notices, quiet=options.quiet)
        code = _finish(run, conditions, found, steps, options)
    raise typer.Exit(code)


def _words(objective: ObjectiveOptions, reading: ReadingOptions) -> list[str]:
    """The flags of the objective and of reading, as words of a command line."""
    words = [] if objective.variant == "grpo" else ["-v", objective.variant]
    for stage, choice in objective.stages.items():
        words += [f"--{stage.replace('_', '-')}", choice]
    for name, value in objective.hyperparameters.items():
        words += ["-p", f"{name}={value}"]
    words += [] if reading.from_ is None else ["--from", reading.from_]
    for mapped in reading.mapped or ():
        words += ["--map", mapped]
    return words


def _write(
    stream: BinaryIO,
    steps: Sequence[Step],
    found: Sequence[Finding],
    plan: Plan,
    columns: list[str] | None,
    options: TrendOptions,
    run: Run,
    compared: Beside | None,
) -> None:
    metrics = list(steps[0].metrics if steps else METRICS)
    names = [*_CONTEXT, *(columns or metrics)]
    if options.kind == "json":
        document = _document(steps, found, plan, run)
        document |= {} if compared is None else {"log": compared}
        stream.write(_json(document) + b"\n")
    elif options.kind == "jsonl":
        for row in rows(steps):
            stream.write(_json({name: row[name] for name in names}, indent=False) + b"\n")
    elif options.kind in ("csv", "markdown"):
        chosen = [*_CONTEXT, *(columns or known(steps))]
        _write_lines(stream, rows(steps), chosen, options.kind)
    else:
        screen = screen_of(stream)
        console = screen.console()
        if options.plot:
            print_charts(console, screen, steps, columns, found)
        else:
            print_steps(console, screen, steps, columns, options.limit)
        print_findings(console, found)
        if compared is not None:
            print_beside(console, compared)
        stream.write(written(console).encode())


def _write_lines(
    stream: BinaryIO, found: Sequence[dict[str, Any]], names: Sequence[str], kind: str
) -> None:
    if kind == "csv":
        lines, head = csv_format.LINES, ",".join(names).encode() + b"\n"
    else:
        lines, head = markdown_format.LINES, markdown_format.head(names)
    stream.write(head)
    for row in found:
        cells = [lines.cell(row[name]) for name in names]
        stream.write(lines.line(cells, names).encode() + b"\n")


def _document(
    steps: Sequence[Step], found: Sequence[Finding], plan: Plan, run: Run
) -> dict[str, Any]:
    return {
        "variant": plan.variant,
        "signatures": list(run.signatures),
        "steps": [
            row | {"worst": step.worst} for row, step in zip(rows(steps), steps, strict=True)
        ],
        "findings": found,
    }


def _json(document: Any, *, indent: bool = True) -> bytes:
    return escaped_json(orjson.dumps(document, option=orjson.OPT_INDENT_2 if indent else 0))


def _finish(
    run: Run,
    conditions: Sequence[Condition],
    found: Sequence[Finding],
    steps: Sequence[Step],
    options: TrendOptions,
) -> int:
    tell_errors(run.skipped, as_json=options.kind == "json")
    if run.skipped:
        tell_more_errors(run.skipped)
        say(f"skipped {len(run.skipped)} records that cannot be used")
    answers = [one.answer(steps, found) for one in conditions]
    for answer in filter(None, answers):
        if not options.quiet:
            say(f"--fail-on {answer}")
    if any(answers):
        return NO
    return InputError.exit_code if run.skipped else 0
