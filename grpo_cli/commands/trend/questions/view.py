"""Answers to questions about a run, in words and numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby, zip_longest
from typing import Any

from rich.console import Console
from rich.text import Text

from grpo_cli.commands.check.view import print_findings as print_checked
from grpo_cli.commands.trend.findings import command
from grpo_cli.commands.trend.questions.against import Difference, RunComparison
from grpo_cli.commands.trend.questions.at import FACTS, UNUSUAL, StepAnswer
from grpo_cli.commands.trend.questions.parts import PartsAnswer
from grpo_cli.commands.trend.step import Flags, Step
from grpo_cli.commands.trend.view import NEAR, print_finding
from grpo_cli.commands.trend.watched import is_watched
from grpo_cli.terminal.grid import column, fitting, grid, print_hidden
from grpo_cli.terminal.numbers import brief, shown, visible
from grpo_cli.terminal.prose import as_command, wrapped
from grpo_cli.terminal.screen import Screen

_LEAST_ROWS, _MOST_ROWS = 5, 20
_MOST_PARTS, _MOST_NAMED = 12, 4
_INTERNAL = ("name", "scale", "spread", "size")
_SIZE = "change, in σ"
_MIXED = 0.05
"""Of the responses: the least change of a part's share that is shown."""


def print_step_answer(
    console: Console, screen: Screen, answer: StepAnswer, step: Step, flags: Flags
) -> None:
    """Prints what happened at a step."""
    spans = [
        f"{name}: {span[0]} to {span[1]}" if span else f"{name}: no steps"
        for name, span in (("before", answer.before), ("after", answer.after))
    ]
    console.print(Text.assemble((f"step {answer.step}", "bold magenta"), f"  ({'; '.join(spans)})"))
    console.print(wrapped(Text(f"the run: {visible(answer.verdict)}", "bold"), screen.reading, 2))
    console.print()
    found = {one.metric for one in answer.findings}
    rows = [
        one
        for one in answer.metrics
        if one.name in found or answer.check is None or is_watched(one.name)
    ]
    unusual = sum(one.name in found or abs(one.size or 0.0) >= UNUSUAL for one in rows)
    rows = rows[: min(max(unusual, _LEAST_ROWS), _MOST_ROWS)]
    rest = len(answer.metrics) - len(rows)
    more = f"; {rest} more metrics: --json" if rest else ""
    explained = (
        "findings first, then the metrics that changed most, of those in which trend looks for "
        f"changes; before, after: medians of these steps; {_SIZE}: at − before, in standard "
        "deviations of the steps before (1.4826 times their median absolute deviation), of "
        f"logarithms where trend compares these{more}"
    )
    table = [{"metric": one.name, **one.fields(), _SIZE: one.size} for one in rows]
    _print_rows(console, screen, table, spare=("after",), hide=_INTERNAL, note=explained)
    if answer.findings:
        console.print()
    for finding in answer.findings:
        print_finding(console, screen, finding)
    places = answer.places
    if kept := [row for row in answer.groups if not places.keys().isdisjoint(row["worst_in"])]:
        console.print(Text("\nworst groups", "bold"))
        names = [name for name in FACTS if any(row[name] is not None for row in kept)]
        groups = [
            {name: shown(row[name]) for name in ("record", "group")}
            | {"worst_in": ", ".join(kind for kind in row["worst_in"] if kind in places)}
            | {name: row[name] for name in names}
            for row in kept
        ]
        _print_rows(console, screen, groups, spare=("group", *reversed(names)))
    if places:
        console.print(Text("\nworst places", "bold"))
    for kind, place in places.items():
        there = command(step, place, kind, flags) or ""
        words = there.replace(f"  # step {step.number}", f"  # {kind}")
        console.print(as_command(f"  {visible(words)}", screen.edge), style="cyan")
    if answer.check is not None:
        console.print(Text("\nfindings of grpo check in the records of this step", "bold"))
        print_checked(console, screen, answer.check)


def print_parts(console: Console, screen: Screen, answer: PartsAnswer) -> None:
    """Prints which parts carry each change."""
    before, also = None, dict[str, list[str]]()

    def print_also() -> None:
        for words, metrics in also.items():
            line = Text(f"also {', '.join(metrics)} {words}", "dim")
            console.print(wrapped(line, screen.reading, 2))
        also.clear()

    changes = groupby(answer.changes, key=lambda one: (one.metric, one.step))
    each = ([*same] for _, same in changes)
    for sentence, rows in zip_longest(answer.verdicts, each):
        if rows and before is not None and rows[0].step - before <= NEAR:
            metric = rows[0].metric
            also.setdefault(sentence.removeprefix(f"{metric} "), []).append(metric)
            continue
        print_also()
        if before is not None:
            console.print()
        console.print(wrapped(Text(sentence, "bold"), screen.reading, 2))
        if rows:
            is_first, before = before is None, rows[0].step
            mixed = any(abs(one.weight_after - one.weight_before) >= _MIXED for one in rows)
            weights = () if mixed else ("weight_before", "weight_after")
            _print_parts(
                console, screen, rows, hide=("metric", "step", *weights), explained=is_first
            )
    print_also()
    if not answer.verdicts:
        console.print(Text(f"no change to explain; medians by {answer.field}", "bold"))
        _print_parts(console, screen, [one.row() for one in answer.parts], hide=("metrics",))


_OF_PARTS = (
    "before, after: means; size: the change in standard errors; share: the part of the "
    "run's change that it carries"
)


def _print_parts(
    console: Console,
    screen: Screen,
    rows: Sequence[Any],
    hide: Sequence[str] = (),
    *,
    explained: bool = False,
) -> None:
    """Prints a table of parts: as many as are read; ``explained``: with what its columns are."""
    listed = [one if isinstance(one, dict) else one.fields() for one in rows[:_MOST_PARTS]]
    rest = len(rows) - len(listed)
    more = f"… and {rest:,} more (see --json)\n" if rest else ""
    more += _OF_PARTS if explained else ""
    spare = [*listed[0]][:0:-1]
    _print_rows(console, screen, listed, spare=spare, hide=hide, note=more)


def print_comparison(
    console: Console, screen: Screen, answer: RunComparison, named: Sequence[Sequence[str]]
) -> None:
    """Prints the metrics that differ, then the others; ``named``: the runs of both sides."""
    console.print(wrapped(Text(answer.headline, "bold"), screen.reading, 2))
    first_run, second_run = (visible(_listed(one)) for one in named)
    for words in (f"first: {first_run}; second: {second_run}", answer.basis):
        console.print(wrapped(Text(words), screen.reading, 2))
    rows = [
        {
            "metric": f"{'≠' if one.differs else '?' if one.misses_0 else ' '} {one.name}",
            "first": one.first,
            "second": one.second,
            "difference": with_error(one),
            "since": "" if one.since is None else str(one.since),
        }
        for one in answer.metrics
        if one not in answer.equal
    ]
    if rows:
        explained = (
            "difference: second − first. ± is a 95 % interval. ≠ marks differences that remain "
            f"after correcting for {len(answer.metrics)} comparisons."
        )
        if any(one.differs and not one.misses_0 for one in answer.metrics):
            explained += (
                " No ± is given where the mean difference is within noise, but the ratio of the "
                "runs, or a single step, is not."
            )
        if any(one.misses_0 and not one.differs for one in answer.metrics):
            explained += " ? marks other intervals that miss 0 (1 in 20 does by chance)."
        console.print(wrapped(Text(explained, "dim"), screen.reading, 2))
    console.print()
    hide = () if answer.differing else ("since",)
    if rows:
        _print_rows(console, screen, rows, spare=(), hide=hide)
    if equal := ", ".join(one.name for one in answer.equal):
        console.print(wrapped(Text(f"equal: {equal}", "dim"), screen.reading, 2))
    if answer.differing:
        console.print(wrapped(Text(_SINCE, "dim"), screen.reading, 2))


_SINCE = "since: the first step that differs; the numbers of its row are from there on"


def _listed(named: Sequence[str]) -> str:
    """The files and folders of a side of a comparison, where they are many the first and last."""
    more = f" … {named[-1]} ({len(named)} files)"
    return ", ".join(named) if len(named) <= _MOST_NAMED else named[0] + more


def with_error(one: Difference) -> str:
    """A difference with half its interval, unless that holds 0 though the metric differs."""
    if one.differs and not one.misses_0:
        return _signed(one.difference)
    return f"{_signed(one.difference)} ±{float(f'{one.difference - one.low:.2g}'):g}"


def _signed(value: float) -> str:
    return f"{float(f'{value:.3g}'):+g}"


# ---- tables -------------------------------------------------------------------------------------


def _print_rows(
    console: Console,
    screen: Screen,
    rows: Sequence[Mapping[str, Any]],
    *,
    spare: Sequence[str],
    hide: Sequence[str] = (),
    note: str = "",
) -> None:
    """Prints rows as a table.

    Args:
        console, screen: where to.
        rows: name → value, in the order of the columns.
        spare: columns that a narrow terminal goes without, the first to go first.
        hide: columns that are not shown.
        note: what is printed below.
    """
    columns = []
    for name in (name for name in (rows[0] if rows else ()) if name not in hide):
        values = [row[name] for row in rows]
        if all(isinstance(one, str) for one in values):
            columns.append(column(name, values, numeric=False))
        else:
            columns.append(column(name, values, show=_SHOWN.get(name, brief), numeric=True))
    kept, hidden = fitting(columns, spare, screen.width)
    console.print(grid(kept))
    if note:
        console.print(wrapped(Text(note, "dim"), screen.reading, 2))
    print_hidden(console, screen, hidden, "see --json")


def _size(size: float | None) -> str:
    """By how many standard deviations; no digit that 30 steps do not know."""
    if size is None:
        return "–"
    if math.isinf(size):
        return "only here"
    return f"{size:+.1f}" if abs(size) < 100 else f"{size:+.3g}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:z.0%}"


_SHOWN: Mapping[str, Callable[[Any], str]] = {
    **dict.fromkeys(("size", _SIZE), _size),
    **dict.fromkeys(("share", "weight_before", "weight_after"), _share),
}
