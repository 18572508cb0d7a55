"""``grpo diff``: where two runs that should be identical first differ."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from grpo_cli.commands.diff.diff import Parting, RunDiff, compare
from grpo_cli.commands.options.objective import tolerance as parse_tolerance
from grpo_cli.commands.options.option import argument, option
from grpo_cli.commands.options.output import PageOptions
from grpo_cli.commands.options.source import (
    LoadingOptions,
    Step,
    paths,
    print_notes,
    refuse_unopened,
)
from grpo_cli.commands.trend.logs import is_log
from grpo_cli.commands.trend.origins import Origins, StepSource, differ_by_number, run_of
from grpo_cli.engine import Reader
from grpo_cli.engine.reader import of_runs
from grpo_cli.errors import GrpoError, InputError
from grpo_cli.records import Source
from grpo_cli.records.choose.where import read_path
from grpo_cli.records.open.folders import files as expanded
from grpo_cli.records.record import once
from grpo_cli.terminal.display import chosen
from grpo_cli.terminal.grid import column, print_fitting
from grpo_cli.terminal.messages import failures
from grpo_cli.terminal.numbers import counted, shell_line, shown
from grpo_cli.terminal.prose import wrapped
from grpo_cli.terminal.screen import Screen, mark

NO = 1

_SPARE = ("record", "largest_difference", "response", "token")
"""What a narrow terminal goes without, the first to go first; the line above has the first's."""

_GAPS = 4
"""Columns of the screen between the columns that are always shown."""

Tolerance = Annotated[
    float | None,
    option(
        "--tolerance",
        "NUMBER",
        "Largest difference to ignore; default: noise.",
        parser=parse_tolerance,
    ),
]


def diff(
    *,
    first: Annotated[str, argument("RUN_A", "A run: a folder, a file or a 'pattern*'.")],
    second: Annotated[str, argument("RUN_B", "The run to compare it with.")],
    loading: LoadingOptions,
    step: Step = None,
    tolerance: Tolerance = None,
    page: PageOptions,
) -> None:
    """Find where two runs first differ: step, group, token, column.

    \b
    grpo diff run-a/rollouts run-b/rollouts
    grpo diff before.jsonl after.jsonl --tolerance 1e-6

    Lists the columns that differ, causes before effects. `grpo trend RUN --against RUN`
    gives the difference of each metric, with its confidence interval. Exits with 1 if
    the runs differ, even if only by noise.

    Records of a step are paired by id, or else in order. The order of the columns is:
    samples, rewards, log-probs of engine, old policy and reference, settings,
    advantages, log-probs of the policy. Differences of rounding or bfloat16 are listed
    as noise, unless --tolerance is given. `grpo compare RUN RUN` does this too.
    """  # noqa: D301 - \b is for the help's formatter
    with failures(as_json=page.json):
        same = diff_runs((first, second), loading, step, tolerance, page)
    raise typer.Exit(0 if same else NO)


def diff_runs(
    runs: tuple[str, str],
    loading: LoadingOptions,
    step: str | None,
    tolerance: float | None,
    page: PageOptions,
) -> bool:
    """Prints where two runs first differ; returns whether they are identical."""
    places = [paths([run]) for run in runs]
    refuse_unopened([*chain(*places)])
    against = shell_line(["grpo", "trend", runs[0], "--against", runs[1]])
    if all(len(one) == 1 and is_log(Source.of(one[0])) for one in places):
        reason = f"both files are trainers' logs, which have no tokens: {against} (from 8 steps on)"
        raise InputError(reason, source=runs[0])
    reading, skip = loading.reading(loading.record), loading.on_error == "skip"
    step_source = StepSource(None if step is None else read_path(step, "--step"))
    alone = step is None and all(len(one) == 1 and Path(one[0]).is_file() for one in places)
    readings = of_runs(reading, places)
    first, second = (
        Reader(one, replace(each, decoding=decoding), skip=skip)
        for one, each, decoding in zip(places, readings, once(), strict=True)
    )
    if alone and not (_has_steps(first) or _has_steps(second)):
        step_source = StepSource(files=dict.fromkeys(chain(*places), 0))
    answer = compare(first, second, step_source, tolerance)
    page.write(
        answer, lambda console, screen: _print(console, screen, answer, against), beyond="cut"
    )
    print_notes(first.notes() | second.notes() | dict.fromkeys(answer.notes), quiet=page.quiet)
    return answer.ok


def are_two_runs(named: Sequence[str], loading: LoadingOptions) -> bool:
    """Whether two files, folders or patterns hold two runs, by their paths and first records.

    As ``trend`` has it: files that differ by a step, a rank or a number (``step_1.jsonl``,
    ``part-00001.parquet``) are parts of one run, and records of a run have steps.
    """
    with suppress(GrpoError):
        sides = [expanded([one]) for one in named]
        first, second = ({*map(run_of, side)} for side in sides)
        reading = loading.reading(loading.record)
        if first.isdisjoint(second):
            firsts = [[side[0]] for side in sides if Path(side[0]).is_file()]
            readers = map(Reader, firsts, of_runs(reading, firsts))
            return [*map(_has_steps, readers)] == [True, True]
        origins, files = Origins(), [file for side in sides for file in side]
        if len(files) == 2 and differ_by_number(*files):
            for raw, _ in Reader(files, reading).records():
                origins.add(StepSource().of_record(raw).number, raw.source, raw.line)
        return origins.two_runs() is not None
    return False


def _has_steps(reader: Reader) -> bool:
    """Whether the first record has a step."""
    with suppress(InputError):
        return StepSource().of_record(reader.peek()).number is not None
    return False


def _print(console: Console, screen: Screen, answer: RunDiff, against: str) -> None:
    """Prints where the runs differ; ``against`` is the command for runs of different samples."""
    looked = f"{counted(answer.records, 'record')}, {counted(answer.tokens, 'token')}"
    for one in answer.only[:3]:
        console.print(Text(f"step {one.step} is in run {one.run} only", "magenta"))
    if len(answer.only) > 3:
        console.print(Text(f"… and {counted(len(answer.only) - 3, 'more step')}", "magenta"))
    if not (answer.partings or answer.steps):
        console.print(Text("no step is in both runs", "bold red"))
        return
    if not answer.partings:
        both = "identical at the steps that both runs have"
        text = both if answer.only else "the runs are identical"
        text += " except for noise" if answer.noise else ""
        text += f": {counted(answer.steps, 'step')}, {looked}"
        console.print(wrapped(Text(text, "bold green"), screen.reading, 2))
        _print_noise(console, screen, answer)
        return
    first = answer.partings[0]
    what = "these are different samples" if answer.of_other_samples else "the runs differ"
    text = f"{what} {answer.since} ({looked} compared)"
    console.print(wrapped(Text(text, "bold red"), screen.reading, 2))
    if answer.of_other_samples:
        rest = "" if chosen().full else "; --full lists the columns that differ"
        text = f"{against} compares their metrics{rest}"
        console.print(wrapped(Text(text), screen.reading, 2))
        if rest:
            return
    parts = [f"step {first.step}", f"record {shown(first.record)}"]
    parts += [] if first.group is None else [f"group {shown(first.group)}"]
    parts += [] if first.response is None else [f"response {first.response}"]
    parts += [] if first.token is None else [f"token {first.token}"]
    place = f"{', '.join(parts)}: {first.column} ({first.meaning})"
    console.print(wrapped(Text(place, "bold"), screen.reading, 2))
    console.print(wrapped(Text("  first {}, second {}".format(*_both(first))), screen.reading, 2))
    _print_noise(console, screen, answer)
    console.print()
    rows, most = answer.partings, None
    if screen.width is not None and not chosen().full:
        most = (screen.width - max(len(one.column) for one in rows) - _GAPS) // 2
    columns = [
        column("column", [one.column for one in rows], numeric=False),
        column("record", [one.record for one in rows], numeric=False),
        column("response", [one.response for one in rows]),
        column("token", [one.token for one in rows]),
        *(
            column(name, [_cut(_both(one)[at], most) for one in rows], show=str, numeric=False)
            for at, name in enumerate(("first", "second"))
        ),
        column("largest_difference", [one.difference for one in rows]),
    ]
    print_fitting(console, screen, columns, _SPARE, "column")


def _print_noise(console: Console, screen: Screen, answer: RunDiff) -> None:
    """Says how far columns differ where no difference is large."""
    until = "" if answer.agreed_until is None else f" up to step {answer.agreed_until}"
    for one in answer.noise:
        engine = f"an engine's noise, {one.mean:.1g} on average"
        why = "rounding" if one.kind == "rounding" else engine
        text = f"{one.column} differs by ≤ {one.largest:.1g}{until}: {why}"
        text += f" ({one.differing:,} of {one.numbers:,})"
        console.print(wrapped(Text(text, "dim"), screen.reading, 2))
        mark(console, "noisy column")


def _cut(text: str, most: int | None) -> str:
    """The beginning of a text that is longer."""
    return text if most is None or len(text) <= most else f"{text[: max(most - 1, 1)]}…"


def _both(one: Parting) -> tuple[str, str]:
    """The values in either run; with all digits, where fewer show no difference."""
    short = shown(one.first), shown(one.second)
    return short if short[0] != short[1] else (repr(one.first), repr(one.second))
