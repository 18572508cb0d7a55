"""``grpo report``: a run in one page, from its series to its tokens."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer

from grpo_cli.commands.options.everywhere import bundled
from grpo_cli.commands.options.objective import ObjectiveOptions, unserved
from grpo_cli.commands.options.output import Quiet, output_option
from grpo_cli.commands.options.place import destination
from grpo_cli.commands.options.source import (
    Files,
    ReadingOptions,
    paths,
    tell_errors,
    tell_notes,
    tell_skipped,
)
from grpo_cli.commands.page.block import finite
from grpo_cli.commands.report.groups import Choice, Group, KeptGroups, choose, limit_tokens
from grpo_cli.commands.trend.command import LogOption, OneRun, flags_of
from grpo_cli.commands.trend.comparison import compare_log, framework_of
from grpo_cli.commands.trend.drawings import head, page, with_other
from grpo_cli.commands.trend.events import events, verdict_of
from grpo_cli.commands.trend.findings import findings as look
from grpo_cli.commands.trend.inspection import with_checks, with_mismatches
from grpo_cli.commands.trend.logs import read_finite
from grpo_cli.commands.trend.origins import StepSource
from grpo_cli.commands.trend.questions.parts import PartSteps, answer_by, windows
from grpo_cli.commands.trend.run import Run
from grpo_cli.commands.trend.step import Steps
from grpo_cli.engine.fold import first_pass
from grpo_cli.errors import InputError, UsageError
from grpo_cli.terminal.messages import failures


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """What of the run is kept, and where the page goes."""

    output: Annotated[str | None, output_option("Write the page here, whole or not at all.")] = None
    html: Annotated[
        bool,
        typer.Option(
            "--html",
            help="As a page for the browser, there is no other form; --html FILE is -o FILE.",
        ),
    ] = True
    step: Annotated[
        str | None,
        typer.Option(
            "--step",
            metavar="FIELD",
            help="Where a record says its step, as in trend; file: each file is one.",
            show_default=False,
        ),
    ] = None
    one_run: OneRun = False
    log: LogOption = None
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="RUN",
            help="Another run, whose series are drawn as well.",
            show_default=False,
        ),
    ] = None
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            metavar="FIELD",
            help="Say which part carries each change, as `grpo trend --by` does.",
            show_default=False,
        ),
    ] = None
    steps: Annotated[
        int,
        typer.Option(
            "--steps",
            metavar="N",
            min=1,
            help="Steps whose groups are kept; those that findings point at always are.",
        ),
    ] = 40
    groups: Annotated[
        int,
        typer.Option(
            "--groups",
            metavar="N",
            min=0,
            help="Groups of a step whose tokens are kept, besides its worst ones.",
        ),
    ] = 2
    tokens: Annotated[
        int,
        typer.Option(
            "--tokens",
            metavar="N",
            min=0,
            help="Tokens that are kept, besides those that findings point at.",
        ),
    ] = 500_000
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="Of the sample of steps and groups.")
    ] = 0
    quiet: Quiet = False


@bundled
def report(
    *,
    files: Files = None,
    objective: ObjectiveOptions,
    reading: ReadingOptions,
    options: ReportOptions,
) -> None:
    """Write a run as one page: its series, its steps, their groups, their tokens.

    \b
    grpo report run/rollouts --html report.html
    grpo report 'steps/*.jsonl.zst' -v dapo --steps 100 -o report.html

    Series and findings are those of `grpo trend`. What findings point at is kept,
    and of the rest a sample: the page says which. It asks nothing of the network.
    Exit codes: 0 done, 2 usage, 3 bad input.
    """  # noqa: D301 - \b is for the help's formatter
    with failures():
        named, output = _page_among(files or [], options.output)
        if output is None and sys.stdout is not None and sys.stdout.isatty():
            raise UsageError("a page is not for a terminal: -o FILE writes it")
        plan, places = objective.of_one_batch(), paths(named)
        reader = reading.reader(places, None)
        reader.keep_input()
        step_source = StepSource.of_flag(options.step, places)
        log, unread = read_finite(options.log)
        whose = framework_of(log)
        run = Run(reader, plan, step_source, whose, one_run=options.one_run, command="report")
        steps = run.read()
        compared = compare_log(whose, log, run.logged, steps)
        found = look(steps, flags_of(objective, reading))
        happened = with_checks(events(found), reader)
        choice = choose(steps, found, most=options.steps, groups=options.groups, seed=options.seed)
        make = partial(KeptGroups, plan, run.step_source, choice, run.statistics)
        read = first_pass(reader, make)
        kept = read.steps
        happened = with_mismatches(happened, read.mismatches)
        lost = limit_tokens(kept, options.groups, options.tokens)
        whole = head(steps, happened, compared, verdict_of(steps, happened, run))
        if options.by is not None:
            parts = PartSteps(reader, plan, step_source, options.by)
            around = windows(steps, [(one.metric, one.onset) for one in found])
            whole["by"] = answer_by(options.by, parts, steps, around, ()).document()
        if options.against is not None:
            other = Run(reading.reader(paths([options.against]), None), plan, step_source)
            whole = with_other(whole, options.against, other.read())
        with destination(output) as stream:
            for part in _page(steps, whole, choice, kept, lost, places, run):
                stream.write(part.encode())
        missing = unserved(run.missing.values(), "report", reader, objective)
        tell_notes(reader.notes(plan) | missing | run.notices | unread, quiet=options.quiet)
        tell_errors(run.skipped, as_json=False)
        tell_skipped(run.skipped)
    raise typer.Exit(InputError.exit_code if run.skipped else 0)


def _page_among(files: list[str], output: str | None) -> tuple[list[str], str | None]:
    """The files, and the page: ``--html PAGE``, as other commands have it, puts it among them.

    Raises:
        UsageError: where the page is all there is.
    """
    pages = [file for file in files if file.lower().endswith((".html", ".htm"))]
    if output is not None or len(pages) != 1:
        return files, output
    if len(files) == 1:
        raise UsageError(f"{pages[0]} is the page to write: name the run's files too")
    return [file for file in files if file not in pages], pages[0]


def _page(
    steps: Steps,
    whole: Mapping[str, Any],
    choice: Choice,
    kept: Mapping[int, Sequence[Group]],
    lost: int,
    places: Sequence[str],
    run: Run,
) -> Iterator[str]:
    blocks: list[tuple[str, str]] = []
    numbered: dict[str, list[dict[str, Any]]] = {}
    for step in sorted(kept):
        rows = numbered[str(step)] = []
        for group in kept[step]:
            facts = finite(group.facts) | {"tokens": group.tokens, "block": None}
            if group.block:
                facts["block"] = f"block-{len(blocks)}"
                blocks.append((facts["block"], group.block))
            rows.append(facts)
    kept_steps = {str(number): why for number, why in choice.steps.items()}
    whole = dict(whole) | {
        "kept": kept_steps,
        "groups": numbered,
        "seed": choice.seed,
        "sampled": choice.groups,
        "lost": lost,
    }
    yield from page(steps, places, list(run.signatures), whole, blocks)
