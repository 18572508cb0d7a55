"""Answers to questions about a run, in words and numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, zip_longest
from typing import Any

from rich.console import Console
from rich.text import Text

from grpo_cli.commands.check.view import print_findings as print_checked
from grpo_cli.commands.trend.findings import command
from grpo_cli.commands.trend.questions.against import RunComparison
from grpo_cli.commands.trend.questions.at import FACTS, UNUSUAL, MetricAt, StepAnswer
from grpo_cli.commands.trend.questions.correlation import CorrelationAnswer
from grpo_cli.commands.trend.questions.parts import PartChange, PartsAnswer
from grpo_cli.commands.trend.step import Flags, Step
from grpo_cli.commands.trend.view import NEAR, print_finding
from grpo_cli.commands.trend.watched import is_watched
from grpo_cli.terminal.grid import Column, column, fitting, grid, print_hidden
from grpo_cli.terminal.numbers import brief, shown, visible
from grpo_cli.terminal.prose import as_command, wrapped
from grpo_cli.terminal.screen import Screen

_LEAST_ROWS, _MOST_ROWS = 5, 20
_MOST_PARTS, _MOST_NAMED = 12, 4
_MIXED = 0.05
"""Of the responses: the least change of a part's share that is shown."""


def number(value: object) -> str:
    """A number of a metric, in four digits."""
    return brief(value) if isinstance(value, float) else shown(value)


def print_step_answer(
    console: Console, screen: Screen, answer: StepAnswer, step: Step, flags: Flags
) -> None:
    """Prints what happened at a step."""
    spans = [
        f"{name}: {span[0]} to {span[1]}" if span else f"{name}: no steps"
        for name, span in (("before", answer.before), ("after", answer.after))
    ]
    console.print(Text.assemble((f"step {answer.step}", "bold magenta"), f"  ({'; '.join(spans)})"))
    console.print()
    rows = [one for one in answer.metrics if answer.check is None or is_watched(one.name)]
    unusual = [one for one in rows if abs(one.size or 0.0) >= UNUSUAL]
    rows = rows[: min(max(len(unusual), _LEAST_ROWS), _MOST_ROWS)]
    console.print(grid(_metric_columns(rows)))
    rest = len(answer.metrics) - len(rows)
    more = f"… and {rest} more metrics (see --json); " if rest else ""
    explained = f"{more}size: in standard deviations over the previous steps"
    console.print(wrapped(Text(explained, "dim"), screen.reading))
    for finding in answer.findings:
        console.print()
        print_finding(console, screen, finding)
    if answer.groups:
        console.print(Text("\nworst groups", "bold"))
        _print_groups(console, screen, answer)
    if answer.worst:
        console.print(Text("\nworst places", "bold"))
    for kind, place in answer.worst.items():
        words = command(step, place, kind, flags).replace(f"  # step {step.number}", f"  # {kind}")
        console.print(as_command(f"  {visible(words)}", screen.edge), style="cyan")
    if answer.check is not None:
        console.print(Text("\nfindings of grpo check in its records", "bold"))
        print_checked(console, screen, answer.check)


def _metric_columns(rows: Sequence[MetricAt]) -> list[Column]:
    return [
        column("metric", [one.name for one in rows], numeric=False),
        *(
            column(name, [getattr(one, name) for one in rows], show=number, numeric=True)
            for name in ("before", "at", "after")
        ),
        column("size", [one.size for one in rows], show=_size, numeric=True),
    ]


def _size(size: float | None) -> str:
    """By how many standard deviations; no digit that 30 steps do not know."""
    if size is None:
        return "–"
    return (
        "only here" if math.isinf(size) else f"{size:+.1f}" if abs(size) < 100 else f"{size:+.3g}"
    )


def _print_groups(console: Console, screen: Screen, answer: StepAnswer) -> None:
    rows = answer.groups
    texts = [
        column("record", [shown(row["record"]) for row in rows], show=str, numeric=False),
        column("group", [shown(row["group"]) for row in rows], show=str, numeric=False),
        column("worst_in", [", ".join(row["worst_in"]) for row in rows], numeric=False),
    ]
    names = [name for name in FACTS if any(row[name] is not None for row in rows)]
    facts = [column(name, [row[name] for row in rows], show=number, numeric=True) for name in names]
    kept, hidden = fitting([*texts, *facts], ("group", *reversed(names)), screen.width)
    console.print(grid(kept))
    print_hidden(console, screen, hidden, "--json")


# ---- --by ---------------------------------------------------------------------------------------


def print_parts(console: Console, screen: Screen, answer: PartsAnswer) -> None:
    """Prints which parts carry each change, and those whose reward fell."""
    before = None
    for sentence, rows in zip_longest(answer.verdicts, _each_change(answer.changes)):
        if rows and before is not None and rows[0].step - before <= NEAR:
            console.print(wrapped(Text(f"also {sentence}", "dim"), screen.reading, 2))
            continue
        if before is not None:
            console.print()
        console.print(wrapped(Text(sentence, "bold"), screen.reading, 2))
        if rows:
            before = rows[0].step
            mixed = any(abs(one.weight_after - one.weight_before) >= _MIXED for one in rows)
            weights = () if mixed else ("weight_before", "weight_after")
            _print_rows(console, screen, rows, len(rows), hide=("metric", "step", *weights))
    if answer.fell:
        _print_rows(console, screen, answer.fell, len(answer.fell), hide=())
    if not answer.verdicts:
        console.print(Text(f"no change to explain; medians by {answer.field}", "bold"))
        flat: list[Mapping[str, Any]] = [one.row() for one in answer.parts]
        _print_rows(console, screen, flat, len(flat), hide=("metrics",))


def _each_change(rows: Sequence[PartChange]) -> Iterator[list[PartChange]]:
    for _, same in groupby(rows, key=lambda one: (one.metric, one.step)):
        yield [*same]


def _print_rows(
    console: Console, screen: Screen, rows: Sequence[Any], count: int, hide: Sequence[str]
) -> None:
    """Prints rows as a table: as many as are read."""
    listed = [one if isinstance(one, dict) else one.fields() for one in rows[:_MOST_PARTS]]
    names = [name for name in listed[0] if name not in hide]
    columns = []
    for name in names:
        values = [row[name] for row in listed]
        if all(isinstance(one, str) for one in values):
            columns.append(column(name, [shown(one) for one in values], show=str, numeric=False))
        else:
            show = _SHOWN.get(name, number)
            columns.append(column(name, values, show=show, numeric=True))
    kept, hidden = fitting(columns, [*reversed(names[1:])], screen.width)
    console.print(grid(kept))
    if count > len(listed):
        console.print(Text(f"… and {count - len(listed):,} more (see --json)", "dim"))
    print_hidden(console, screen, hidden, "--json")


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


_SHOWN: Mapping[str, Callable[[Any], str]] = {
    "size": _size,
    "share": _share,
    "weight_before": _share,
    "weight_after": _share,
    "p": lambda value: f"{value:.0e}",
    "dead": lambda value: "yes" if value else "no",
}


# ---- --against ----------------------------------------------------------------------------------


def print_comparison(
    console: Console, screen: Screen, answer: RunComparison, named: Sequence[Sequence[str]]
) -> None:
    """Prints the metrics that differ beyond noise, then the others; ``named``: both sides."""
    first, last, count = answer.steps
    mine, yours = answer.runs
    differ = [one for one in answer.metrics if one.differs or one.differs_at_end]
    found = f"{len(differ)} of {len(answer.metrics)} metrics differ beyond noise"
    about = f"{found}, over {count:,} steps ({first} to {last})"
    runs = f"; {mine} runs against {yours}" if mine + yours > 2 else ""
    console.print(wrapped(Text(about + runs, "bold"), screen.reading, 2))
    since = "; of KL, lengths and the like by their factor; since: from which step on"
    explained = (
        "difference: second − first, ± half of its 95 % interval; at the end: over the last "
        "quarter (at least 30 steps); ≠: beyond noise, corrected for the number of metrics"
        + (since if differ else "")
    )
    console.print(wrapped(Text(explained, "dim"), screen.reading))
    first_run, second_run = (visible(_listed(one)) for one in named)
    sides = Text(f"first: {first_run}; second: {second_run}")
    console.print(wrapped(sides, screen.reading, 2))
    console.print()
    rows = [one for one in answer.metrics if one.low != 0.0 or one.high != 0.0]
    whole = [_with_error(one.difference, one.low, differs=one.differs) for one in rows]
    ends = [_with_error(one.at_end, one.end_low, differs=one.differs_at_end) for one in rows]
    columns = [
        column("metric", [one.name for one in rows], numeric=False),
        column("first", [one.first for one in rows], show=number, numeric=True),
        column("second", [one.second for one in rows], show=number, numeric=True),
        column("difference", whole, show=str, numeric=False),
        column("at the end", ends, show=str, numeric=False),
    ]
    if differ:
        columns.append(column("since", [one.since for one in rows]))
    kept, hidden = fitting(columns, ("second", "first", "since"), screen.width)
    console.print(grid(kept))
    if equal := [one.name for one in answer.metrics if one not in rows]:
        console.print(wrapped(Text(f"\nequal: {', '.join(equal)}", "dim"), screen.reading, 2))
    print_hidden(console, screen, hidden, "--json")


def _listed(named: Sequence[str]) -> str:
    """The files and folders of a side of a comparison, where they are many the first and last."""
    more = f" … {named[-1]} ({len(named)} files)"
    return ", ".join(named) if len(named) <= _MOST_NAMED else named[0] + more


def _with_error(value: float, low: float, *, differs: bool) -> str:
    return f"{'≠' if differs else ' '} {value:+.3g} ±{value - low:.2g}"


# ---- --correlate --------------------------------------------------------------------------------


def print_correlation(console: Console, screen: Screen, answer: CorrelationAnswer) -> None:
    """Prints whether one quantity follows another, over all steps and over each third."""
    console.print(wrapped(Text(answer.verdict, "bold"), screen.reading, 2))
    if not answer.spans:
        return
    console.print()
    rows = answer.spans
    columns = [
        column("steps", [f"{one.first_step} to {one.last_step}" for one in rows], numeric=False),
        *(
            column(name, [getattr(one, name) for one in rows], show=_brief, numeric=True)
            for name in ("groups", "responses", "r", "low", "high", "slope", "between")
        ),
    ]
    kept, hidden = fitting(columns, ("responses", "between"), screen.width)
    console.print(grid(kept))
    explained = (
        f"r: correlation of ranks within groups; slope: change of {answer.first} per unit of "
        f"{answer.second} within groups; between: r of the group means"
    )
    console.print(wrapped(Text(explained, "dim"), screen.reading))
    print_hidden(console, screen, hidden, "--json")


def _brief(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else shown(value)
