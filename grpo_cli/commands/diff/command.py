"""``grpo diff``: where two runs that should be identical first differ."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from grpo_cli.commands.diff.diff import Parting, RunDiff, compare
from grpo_cli.commands.options.everywhere import bundled
from grpo_cli.commands.options.objective import number
from grpo_cli.commands.options.output import PageOptions
from grpo_cli.commands.options.source import (
    ErrorOptions,
    SourceOptions,
    paths,
    refuse_unopened,
    tell_notes,
)
from grpo_cli.commands.trend.origins import StepSource
from grpo_cli.engine import Reader
from grpo_cli.errors import UsageError
from grpo_cli.records.choose.where import read_path
from grpo_cli.terminal.grid import column, fitting, grid, print_hidden
from grpo_cli.terminal.messages import failures
from grpo_cli.terminal.numbers import shown
from grpo_cli.terminal.prose import wrapped
from grpo_cli.terminal.screen import Screen

NO = 1

_SPARE = ("record", "largest_difference", "response", "token")
"""What a narrow terminal goes without, the first to go first; the line above has the first's."""

RunArgument = typer.Argument(
    metavar="RUN", help="A folder, a file, or a 'pattern*' of files.", show_default=False
)


@bundled
def diff(
    *,
    first: Annotated[str, RunArgument],
    second: Annotated[str, RunArgument],
    source: SourceOptions,
    errors: ErrorOptions,
    step: Annotated[
        str | None,
        typer.Option("--step", metavar="FIELD", help="Where a record says its step."),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            "--tolerance",
            metavar="NUMBER",
            parser=number,
            help="By how much numbers may differ. Default: as rounding and an engine's noise do.",
            show_default=False,
        ),
    ] = None,
    page: PageOptions,
) -> None:
    """Find where two runs first differ: step, group, token, column.

    \b
    grpo diff run-a/rollouts run-b/rollouts
    grpo diff before.jsonl after.jsonl --tolerance 1e-6

    Records of a step are compared by id, else in their order; causes come
    before effects: what was sampled, rewards, the engine's log-probs, the old
    policy's, the reference's, settings, advantages, the policy's. Without
    --tolerance rounding, and noise as an engine's in bfloat16, is named with its
    size, and a difference is what is beyond it. Exit codes: 0 they are
    identical, 1 they differ (noise, too), 2 usage, 3 bad input.
    """  # noqa: D301 - \b is for the help's formatter
    with failures(as_json=page.json):
        if tolerance is not None and tolerance < 0.0:
            raise UsageError("--tolerance: expected 0 or more")
        step_source = StepSource(None if step is None else read_path(step, "--step"))
        skip = errors.on_error == "skip"
        runs = [paths([run]) for run in (first, second)]
        refuse_unopened([place for run in runs for place in run])
        readers = [Reader(run, source.reading(), skip=skip) for run in runs]
        answer = compare(readers[0], readers[1], step_source, tolerance)
        page.write(answer, lambda console, screen: _print(console, screen, answer), beyond="cut")
        tell_notes(
            readers[0].notes() | readers[1].notes() | dict.fromkeys(answer.notes), quiet=page.quiet
        )
    raise typer.Exit(0 if answer.same else NO)


def _print(console: Console, screen: Screen, answer: RunDiff) -> None:
    looked = f"{answer.records:,} records, {answer.tokens:,} tokens"
    for one in answer.only[:3]:
        console.print(Text(f"step {one.step} is in run {one.run} only", "magenta"))
    if len(answer.only) > 3:
        console.print(Text(f"… and {len(answer.only) - 3:,} steps more", "magenta"))
    if not answer.partings:
        text = "identical where both have a step" if answer.only else "the runs are identical"
        text += " but for noise" if answer.noise else ""
        console.print(Text(f"{text}: {answer.steps:,} steps, {looked}", "bold green"))
        _print_noise(console, screen, answer)
        return
    first = answer.partings[0]
    before = (
        "from the first step"
        if answer.agreed_until is None
        else f"after step {answer.agreed_until}"
    )
    console.print(Text(f"the runs differ {before} ({looked} compared)", "bold red"))
    console.print(Text(f"{_place(first)}: {first.column}, {first.meaning}", "bold"))
    console.print(Text("  {} against {}".format(*_both(first))))
    _print_noise(console, screen, answer)
    console.print()
    rows = answer.partings
    columns = [
        column("column", [one.column for one in rows], numeric=False),
        column("record", [one.record for one in rows], numeric=False),
        column("response", [one.response for one in rows]),
        column("token", [one.token for one in rows]),
        column("first", [_both(one)[0] for one in rows], show=str, numeric=False),
        column("second", [_both(one)[1] for one in rows], show=str, numeric=False),
        column("largest_difference", [one.difference for one in rows]),
    ]
    kept, hidden = fitting(columns, _SPARE, screen.width)
    console.print(grid(kept))
    print_hidden(console, screen, hidden, "--json")


def _print_noise(console: Console, screen: Screen, answer: RunDiff) -> None:
    """Says how far columns differ where nothing stands out."""
    until = "" if answer.agreed_until is None else f" up to step {answer.agreed_until}"
    for one in answer.noise:
        why = (
            "rounding"
            if one.kind == "rounding"
            else f"an engine's noise, {one.mean:.1g} in the mean"
        )
        text = f"{one.column} differs by ≤ {one.largest:.1g}{until}: {why}"
        console.print(
            wrapped(
                Text(f"{text} ({one.differing:,} of {one.numbers:,})", "dim"), screen.reading, 2
            )
        )


def _both(one: Parting) -> tuple[str, str]:
    """The values in either run; with all digits, where fewer show no difference."""
    short = shown(one.first), shown(one.second)
    return short if short[0] != short[1] else (repr(one.first), repr(one.second))


def _place(one: Parting) -> str:
    parts = [f"step {one.step}", f"record {shown(one.record)}"]
    parts += [] if one.group is None else [f"group {shown(one.group)}"]
    parts += [] if one.response is None else [f"response {one.response}"]
    parts += [] if one.token is None else [f"token {one.token}"]
    return ", ".join(parts)
