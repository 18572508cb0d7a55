"""``grpo report``: a run in one page, from its series to its tokens."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import typer

from grpo_cli.commands.options.bundle import bundled
from grpo_cli.commands.options.command_line import command_line
from grpo_cli.commands.options.objective import Files, ObjectiveOptions, ReadingOptions, paths
from grpo_cli.commands.options.place import destination
from grpo_cli.commands.options.source import tell_errors, tell_more_errors, tell_notes
from grpo_cli.commands.page.block import deflated, told
from grpo_cli.commands.page.page import html
from grpo_cli.commands.report.choose import Choice, choose
from grpo_cli.commands.report.groups import Keeper
from grpo_cli.commands.report.kept import Kept, within
from grpo_cli.commands.report.options import ReportOptions
from grpo_cli.commands.trend.findings import findings as look
from grpo_cli.commands.trend.metrics import metric
from grpo_cli.commands.trend.options import words_of
from grpo_cli.commands.trend.run import Run
from grpo_cli.commands.trend.step import Finding, Step
from grpo_cli.commands.trend.view import known
from grpo_cli.commands.trend.which import StepOf
from grpo_cli.engine import Reader
from grpo_cli.errors import InputError, UsageError
from grpo_cli.terminal.messages import failures, say


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
    grpo report run/rollouts --html -o report.html
    grpo report 'steps/*.jsonl.zst' -v dapo --steps 100 -o report.html

    Series and findings are those of `grpo trend`. What findings point at is kept,
    and of the rest a sample: the page says which. It asks nothing of the network.
    Exit codes: 0 done, 2 usage, 3 bad input.
    """  # noqa: D301 - \b is for the help's formatter
    with failures():
        if options.output is None and sys.stdout is not None and sys.stdout.isatty():
            raise UsageError("a page is not for a terminal: -o FILE writes it")
        plan, places = objective.plan(), paths(files)
        reader = reading.reader(places, None)
        reader.keep_input()
        step_of = StepOf.named(options.step, places)
        run = Run(reader, plan, step_of, one_run=options.one_run)
        steps = run.read()
        found = look(steps, words_of(objective, reading))
        choice = choose(steps, found, most=options.steps, groups=options.groups, seed=options.seed)
        kept = _kept(reader, Keeper(plan, step_of, choice, run.measured))
        lost = within(kept, options.groups, options.tokens)
        with destination(options.output) as stream:
            for part in _page(steps, found, choice, kept, lost, places, run):
                stream.write(part.encode())
        tell_notes(reader.notes(plan) | run.notices, quiet=options.quiet)
        tell_errors(run.skipped, as_json=False)
        if run.skipped:
            tell_more_errors(run.skipped)
            say(f"skipped {len(run.skipped)} records that cannot be used")
    raise typer.Exit(InputError.exit_code if run.skipped else 0)


def _kept(reader: Reader, keeper: Keeper) -> Kept:
    kept = Kept()
    for _, part in reader.map(keeper):
        kept.merge(part)
    return kept


def _finding(finding: Finding) -> dict[str, Any]:
    """A finding, and what shows it best: a quantity that tokens can be coloured by."""
    column = metric(finding.metric)
    worst = None if column is None else column.worst
    return told(asdict(finding)) | {"by": "log_prob" if worst == "nll" else worst}


def _page(
    steps: Sequence[Step],
    findings: Sequence[Finding],
    choice: Choice,
    kept: Kept,
    lost: int,
    places: Sequence[str],
    run: Run,
) -> Iterator[str]:
    blocks: list[tuple[str, str]] = []
    numbered: dict[str, list[dict[str, Any]]] = {}
    for step in sorted(kept.steps):
        rows = numbered[str(step)] = []
        for group in kept.steps[step]:
            facts = told(group.facts) | {"tokens": group.tokens, "block": None}
            if group.block:
                facts["block"] = f"block-{len(blocks)}"
                blocks.append((facts["block"], group.block))
            rows.append(facts)
    head = {
        "steps": [step.number for step in steps],
        "files": [step.file for step in steps],
        "metrics": [
            {
                "name": name,
                "family": column.family,
                "usual": column.spare < 20,
                "values": [step.metrics[name] for step in steps],
            }
            for name in known(steps)
            if (column := metric(name)) is not None
        ],
        "findings": [_finding(finding) for finding in findings],
        "kept": {str(number): why for number, why in choice.steps.items()},
        "groups": numbered,
        "seed": choice.seed,
        "sampled": choice.groups,
        "lost": lost,
    }
    first, last = places[0], places[-1]
    yield from html(
        title=f"a run of {len(steps):,} step{'' if len(steps) == 1 else 's'}",
        place=first if len(places) == 1 else f"{first} … {last} ({len(places):,} files)",
        command=command_line(),
        signature="\n".join(run.signatures),
        settings={"color_by": None, "top": 10},
        blocks=[("run", deflated(head)), *blocks],
    )
