"""The steps and the findings, in words and numbers, and in each format."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np
from rich.console import Console
from rich.text import Text

from grpo_cli.commands.emit import as_json, write_rows
from grpo_cli.commands.eval.view import short_signature
from grpo_cli.commands.trend.comparison import Comparison, LogComparison, Trend
from grpo_cli.commands.trend.metrics import METRICS, metric
from grpo_cli.commands.trend.onsets import LEAST, TREND
from grpo_cli.commands.trend.step import INFO, WARNING, Finding, Steps
from grpo_cli.commands.trend.verdict import main_event, other_events
from grpo_cli.commands.trend.watched import watch_logged
from grpo_cli.terminal.display import chosen
from grpo_cli.terminal.grid import Column, column, fitting, grid, print_hidden
from grpo_cli.terminal.numbers import brief, shown, visible
from grpo_cli.terminal.paging import lines_of, print_page
from grpo_cli.terminal.plots import Series, small_multiples, spark
from grpo_cli.terminal.prose import as_command, wrapped
from grpo_cli.terminal.screen import Screen, screen_of, written

_OTHERS = 4
"""Series of an event whose sentences are printed."""
_UNKNOWN = (
    "only records show which responses and tokens caused this, whether log-probs, masks and groups "
    "are correct (grpo check), and which formula gives these numbers (grpo match)"
)
NEAR = 5
"""Steps within which findings are one event."""
_NUMBERS = 100
"""Columns of the lines below the verdict."""
_EDGES = 120  # columns of charts where there is no terminal


def known(steps: Steps) -> list[str]:
    """The metrics that some step has."""
    return [name for name, values in steps.metrics.items() if not np.isnan(values).all()]


def usual(steps: Steps) -> list[str]:
    """Those that are shown unasked."""
    columns = {name: metric(name) for name in known(steps)}
    if steps.logged:
        return [name for name in columns if steps.watch(name) is not None] or [*columns]
    return [name for name, one in columns.items() if one is None or one.usual]


def print_steps(
    console: Console,
    screen: Screen,
    steps: Steps,
    fields: Sequence[str] | None,
    limit: int,
    findings: Sequence[Finding] = (),
    onsets: Sequence[int] = (),
) -> None:
    """Prints a line a step under a line of sparks.

    Where there are many: the first and last, and those around where something began (``onsets``).
    """
    places = _picked(steps.numbers, limit, onsets)
    shown_unasked = {*usual(steps), *(one.metric for one in findings[:1])}
    names = [name for name in known(steps) if name in shown_unasked] if fields is None else fields
    columns, nothing = [], np.full(len(steps), np.nan)
    own: Mapping[str, Sequence[Any]] = {
        "step": steps.numbers,
        "file": steps.files,
    }
    for name in ("step", *names):
        values = [own[name][at] for at in places] if name in own else steps.values(name, places)
        series = steps.metrics.get(name, nothing)
        line = None if len(steps) == 1 else "" if name in own else spark(series, 8)
        columns.append(_column(name, values, line, places))
    found = [one.metric for one in findings]
    spare = () if fields else sparing(names, found, logged=steps.logged)
    kept, hidden = fitting(columns, spare, screen.width)
    console.print(grid(kept))
    if len(places) < len(steps):
        between = len(steps) - len(places)
        plural = "" if between == 1 else "s"
        console.print(Text(f"… {between:,} step{plural} not shown (--full)", "dim"))
    print_hidden(console, screen, hidden)


_LAST = ("reward_mean", "loss")
"""What everybody looks at: in any log, under the names that it has there."""
_UNWATCHED = 99
"""The ``spare`` of a series of a log that no rule watches."""


def sparing(
    names: Sequence[str],
    found: Sequence[str] = (),
    *,
    logged: bool = False,
) -> list[str]:
    """The columns that a narrow terminal goes without, the first to go first.

    Args:
        names: all of them.
        found: those with a finding, the first in front: that one, reward and loss go last.
        logged: whether they are of a log, where each has the place of the metric that it is.
    """
    rows = {name: watch_logged(name) for name in names}

    def spare(name: str) -> int:
        row = rows[name] if logged else None
        one = METRICS.get(name if row is None else row.name)
        return _UNWATCHED if one is None or (logged and row is None) else one.spare

    order = [*reversed(names)]
    order.sort(key=spare, reverse=True)
    last = {*found[:1]}
    last |= {name for name, row in rows.items() if row and row.name in _LAST}
    order.sort(key=lambda name: 2 if name in last else int(name in found))
    return order


def _column(name: str, values: Sequence[Any], sparks: str | None, places: Sequence[int]) -> Column:
    """A column in four significant digits, with a line wherever steps are left out."""
    numeric = not any(isinstance(one, str) for one in values)
    made = column(name, [*values], show=brief, numeric=numeric)
    cells = [] if sparks is None else [Text(sparks, "cyan")]
    for at, cell in enumerate(made.cells):
        if at and places[at] > places[at - 1] + 1:
            cells.append(Text("⋮".rjust(cell.cell_len) if name == "step" else "", "dim"))
        cells.append(cell)
    return Column(made.name, cells, made.numeric)


def _picked(numbers: Sequence[int], limit: int, onsets: Sequence[int]) -> list[int]:
    """Which steps are shown, by their places."""
    count = len(numbers)
    if not limit or count <= limit:
        return [*range(count)]
    places = {number: at for at, number in enumerate(numbers)}
    begun = [places[onset] for onset in onsets if onset in places]
    around = (near for at in begun for near in (at, at - 1, at + 1) if 0 <= near < count)
    kept = [*dict.fromkeys(around)][: max(limit // 2, min(3, limit))]
    gaps = sum(after > before + 1 for before, after in pairwise(sorted(kept)))  # a line each
    room = max(limit - len(kept) - gaps, 0)
    return sorted({*kept, *range(room // 2), *range(count - (room - room // 2), count)})


_DETAILS = ((_OTHERS, None), (2, None), (1, None), (0, None), (0, 1), (0, 0))
"""Sentences of an event on series that followed (more are named, but for 0), and commands of each,
from the longest to the shortest, so that there is room for steps; None: all."""


def _events(screen: Screen, answer: Trend, most: int | None, commands: int | None) -> str:
    """What happened, each event with the series that followed and the commands that show where.

    Of the main event the head has the title, the fix and the numbers. Series that numbers above
    count are printed where all details are.
    """
    console, events, main = screen.console(), answer.events, main_event(answer.events)
    wrong = [] if main is None else [main, *other_events(events)]
    for event in wrong:
        console.print()
        above = event.in_numbers if most is not None else []
        found = [one for one in event.findings if one.severity == WARNING and one not in above]
        shown_found = found if most is None else found[: most + 1]
        checked = (event.checked if most is None else event.news) if commands != 0 else []
        if len(wrong) > 1 or (commands != 0 and (checked or shown_found)):
            title = event.title if len(wrong) > 1 else "details"
            console.print(wrapped(Text(visible(title), "bold"), screen.reading, 2))
        for name, text in () if event is main else event.facts:
            _print_fact(console, screen, name, text)
        for each in checked:
            of_step = "check of the step", event.rest_of(each)
            later = f"check, step {each.step}", each.message
            _print_fact(console, screen, *(of_step if each.step is None else later))
        for one in shown_found:
            print_finding(console, screen, one)
        if unsaid := found[len(shown_found) :] if most else []:
            names = ", ".join(visible(one.metric) for one in unsaid)
            more = Text(f"  and {len(unsaid)} more: {names}", "dim")
            console.print(wrapped(more, screen.reading, 4))
        there = [] if answer.steps.logged else event.commands[:commands]
        if there:
            console.print(Text("look at", "bold"))
        for words in there:
            console.print(as_command(f"  {visible(words)}", screen.edge), style="cyan")
    moved = [one for event in events if event.severity == INFO for one in event.findings]
    if moved and wrong and commands != 0:
        console.print()
        named = "; ".join(one.sentence.partition(" (")[0] for one in moved[:_OTHERS])
        rest = f"; {len(moved) - _OTHERS} more in --json" if len(moved) > _OTHERS else ""
        line = Text(f"changes that are not a fault by themselves: {visible(named)}{rest}", "dim")
        console.print(wrapped(line, screen.reading, 2))
    return written(console)


def _print_fact(console: Console, screen: Screen, name: str, text: str) -> None:
    line = Text.assemble("  ", (f"{name}:", "bold"), f" {visible(text)}")
    console.print(wrapped(line, screen.reading, 4))


def print_finding(console: Console, screen: Screen, finding: Finding) -> None:
    """Prints what was found, in words."""
    line = Text.assemble("  ", (finding.kind, "magenta"), f"  {visible(finding.sentence)}")
    console.print(wrapped(line, screen.reading, 4))


def verdict_of(one: Comparison) -> tuple[str, str]:
    """Whether a logged series agrees with what was recomputed of it, and the rest of the line."""
    if one.agrees:
        return "agrees", f"{one.name}, {one.steps} steps"
    if one.first is None:
        return "unknown", f"{one.name}: {one.because}"
    why = one.because or "no recomputed series explains it"
    values = f"{shown(one.logged)} in the log, {shown(one.recomputed)} recomputed"
    return "differs", f"{one.name} from step {one.first}: {values}; {why}"


# ---- in each format -----------------------------------------------------------------------------

_CONTEXT = ("step", "file")
_USUAL_LIMIT, _LEAST_LIMIT, _LEAST_STEPS = 12, 5, 3
"""The most steps that are shown unasked, the least for which all else is shortened, and the least
where it cannot be shorter: those around where something began."""
_AROUND = 10
"""The lines that are no steps: the table's head, its sparks, what it leaves out, and the prompt."""


def write(stream: BinaryIO, kind: str, answer: Trend, columns: Sequence[str] | None) -> None:
    """Writes an answer in a format that is no table."""
    if kind == "json":
        stream.write(as_json(answer) + b"\n")
    else:
        steps = answer.steps
        every = [*steps.metrics] if steps else [*METRICS]
        names = columns
        if names is None:
            names = every if kind == "jsonl" else known(steps)
        write_rows(stream, kind, steps, [*_CONTEXT, *names])


def print_answer(
    stream: BinaryIO,
    answer: Trend,
    columns: Sequence[str] | None,
    notes: Collection[str],
    *,
    plot: bool,
    limit: int | None,
    quiet: bool,
    brief: bool,
) -> None:
    """Prints what happened, then the steps, as many as the screen has room for.

    Args:
        notes: that are going to be printed below.
        plot: charts in the place of the table.
        limit: the most steps; None: as many as there is room for, with --full all.
        quiet: without what was not computed, and the signature.
        brief: the verdict alone.
    """
    screen = screen_of(stream)
    height = None if chosen().full else screen.height
    noted = sum(lines_of(f"grpo: note: {note}", screen) for note in notes)
    head = _head(screen, answer, brief=brief)
    for detail in [(None, None)] if chosen().full else _DETAILS:  # the last if none fits
        events = _events(screen, answer, *detail)
        basis = _basis(screen, answer, quiet=quiet)
        around = lines_of(head + events + basis, screen) + noted + _AROUND
        if height is None or around + _LEAST_LIMIT <= height:
            break

    def draw(console: Console, screen: Screen) -> None:
        console.file.write(head)
        if brief:
            return
        console.file.write(events)
        console.print()
        if plot:
            _print_charts(console, screen, answer, columns)
        else:
            room = _USUAL_LIMIT if height is None else height - around
            most = min(max(room, _LEAST_STEPS), _USUAL_LIMIT) if limit is None else limit
            most = 0 if chosen().full else most
            main, found = main_event(answer.events), answer.findings
            begun = [one.onset for one in sorted(found, key=lambda one: one.severity == INFO)]
            begun = begun if main is None or main.first.kind == TREND else [main.step, *begun]
            print_steps(console, screen, answer.steps, columns, most, found, begun)
        console.file.write(basis)

    print_page(stream, draw, "page" if limit is not None or plot else "cut", notes=notes)


def _head(screen: Screen, answer: Trend, *, brief: bool) -> str:
    """The verdict, and below it numbers or what it is based on; ``brief``: without these."""
    console, main = screen.console(), main_event(answer.events)
    if brief:
        style = "bold" if main is None else "bold red"
        console.print(wrapped(Text(visible(answer.verdict), style), screen.reading))
        return written(console)
    covered = answer.coverage
    lines = covered.verdict(answer.events) if main is None else [main.title + main.until]
    sure = covered.steps >= LEAST and covered.watched
    style = "bold red" if main is not None else "bold green" if sure else "bold"
    if covered.ungrouped:
        console.print(wrapped(Text(visible(covered.ungrouped), "bold"), screen.reading, 2))
    console.print(wrapped(Text(visible(lines[0]), style), screen.reading, 2))
    for line in lines[1:]:
        console.print(wrapped(Text(f"  {visible(line)}"), min(screen.reading, _NUMBERS), 4))
    for name, text in () if main is None else main.facts:
        _print_fact(console, screen, name, text)
    others = other_events(answer.events)
    for one in others[:_OTHERS]:
        console.print(wrapped(Text(f"also {visible(one.title)}", style), screen.reading, 2))
    if len(others) > _OTHERS:
        console.print(Text(f"and {len(others) - _OTHERS:,} more", style))
    if main is not None:
        good, count = answer.last_good_step, f"{covered.steps:,} steps"
        console.print(count if good is None else f"last good step: {good:,} ({count} in all)")
    return written(console)


def _print_charts(
    console: Console, screen: Screen, answer: Trend, fields: Sequence[str] | None
) -> None:
    """Prints small multiples, as many side by side as there is room."""
    steps = answer.steps
    places = {number: at for at, number in enumerate(steps.numbers)}
    series = [
        Series(
            name,
            steps.values(name),
            [places[one.onset] for one in answer.findings if one.metric == name],
        )
        for name in (usual(steps) if fields is None else fields)
        if name != "file"
    ]
    for line in small_multiples(series, steps.numbers, screen.width or _EDGES):
        console.print(Text(line))


def _basis(screen: Screen, answer: Trend, *, quiet: bool) -> str:
    """What the answer lacks, and the signature, unless ``quiet``; and the comparison with a log."""
    console = screen.console()
    lacks = [] if quiet else [_UNKNOWN] * answer.steps.logged + answer.coverage.gaps
    signed = ""
    if answer.signatures and not quiet:
        first, *later = answer.signatures
        more = f" and {len(later):,} more (see --json)" if later else ""
        begin = "signature  "
        short = short_signature(visible(first), screen.width, len(begin) + len(more))
        signed = f"{begin}{short}{more}"
    if lacks:
        console.print()
    for sentence in lacks:
        console.print(wrapped(Text(sentence, "dim"), screen.reading, 2))
    if signed:
        console.print()
        console.print(wrapped(Text(signed, "dim"), screen.edge, 11, bars=True))
    if answer.log is not None:
        _print_log_comparison(console, screen, answer.log)
    return written(console)


def _print_log_comparison(console: Console, screen: Screen, compared: LogComparison) -> None:
    """Prints each logged series with what was recomputed of it, and why they differ."""
    console.print(Text(f"\nthe log, under the names of {compared.framework}", "bold"))
    if not compared.series:
        console.print(Text("the log has no series that grpo recomputes", "bold"))
    if compared.alignment:
        console.print(Text(compared.alignment))
    styles = {"agrees": "green", "unknown": "dim", "differs": "bold red"}
    for one in compared.series:
        verdict, words = verdict_of(one)
        line = Text.assemble((f"{verdict} ", styles[verdict]), words)
        console.print(wrapped(line, screen.reading, 2))
