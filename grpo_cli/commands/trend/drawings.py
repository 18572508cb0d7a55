"""A run as a page, with its log, as ``report`` has it too; and its series as an SVG figure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from grpo_cli.commands.options.everywhere import command_line
from grpo_cli.commands.page.block import deflated, finite
from grpo_cli.commands.page.page import html
from grpo_cli.commands.show.figure import labelled, svg, wrapped
from grpo_cli.commands.trend.comparison import LogComparison
from grpo_cli.commands.trend.events import Event
from grpo_cli.commands.trend.metrics import metric
from grpo_cli.commands.trend.step import Finding, Steps
from grpo_cli.commands.trend.view import known, usual, verdict_of
from grpo_cli.terminal.numbers import counted, markup

Head = Mapping[str, Any]
Log = LogComparison | None


def head(
    steps: Steps, events: Sequence[Event], log: LogComparison | None, verdict: str
) -> dict[str, Any]:
    """What the page's script reads of a run of which no step's groups are kept."""
    return {
        "verdict": verdict,
        "steps": steps.numbers,
        "files": steps.files,
        "metrics": [
            {
                "name": name,
                "family": "log" if column is None else column.family,
                "usual": column is None or column.usual,
                "log": (row := steps.watch(name)) is not None and row.is_log,
                "values": steps.values(name),
            }
            for name in known(steps)
            for column in (metric(name),)
            if column is not None or steps.logged
        ],
        "findings": [
            _finding(one) | {"event": at}
            for at, event in enumerate(events)
            for one in event.findings
        ],
        "checks": [event.check for event in events],
        "log": None if log is None else _log(steps, log),
        "kept": {},
        "groups": {},
    }


def with_other(whole: Head, name: str, other: Steps) -> dict[str, Any]:
    """The head with another run's series, at the steps of this one."""
    series = {
        metric: dict(zip(other.numbers, other.values(metric), strict=True))
        for metric in other.metrics
    }
    metrics = [
        one | {"against": [series[one["name"]].get(step) for step in whole["steps"]]}
        if one["name"] in series
        else one
        for one in whole["metrics"]
    ]
    return dict(whole) | {"metrics": metrics, "against": name}


def _finding(finding: Finding) -> dict[str, Any]:
    """A finding, and what shows it best: a quantity that tokens can be coloured by."""
    column = metric(finding.metric)
    worst = None if column is None else column.worst
    return finite(asdict(finding)) | {"by": "log_prob" if worst == "nll" else worst}


def _log(steps: Steps, log: LogComparison) -> dict[str, Any]:
    """The logged series at the steps of the run, and whether each agrees with ours."""
    return {
        "framework": log.framework,
        "series": [
            {
                "name": f"log: {name}",
                "said": " ".join(verdict_of(compared[name])) if name in compared else "",
                "values": [values.get(number) for number in steps.numbers],
            }
            for compared in ({one.name: one for one in log.series},)
            for name, values in log.logged.items()
        ],
    }


def page(
    steps: Steps,
    places: Sequence[str],
    signatures: Sequence[str],
    head: Head,
    blocks: Sequence[tuple[str, str]] = (),
) -> Iterator[str]:
    """The page in parts; ``blocks``: the tokens of groups."""
    first, last = places[0], places[-1]
    yield from html(
        title=_title(steps, head["verdict"]),
        place=first if len(places) == 1 else f"{first} … {last} ({len(places):,} files)",
        command=command_line(),
        signature="\n".join(signatures),
        settings={"color_by": None, "top": 10},
        blocks=[("run", deflated(head)), *blocks],
    )


def _title(steps: Steps, verdict: str) -> str:
    """The first clause of the verdict: what changed first, and when."""
    return verdict.partition(";")[0] or f"a run of {counted(len(steps), 'step')}"


# ---- --svg --------------------------------------------------------------------------------------

_ACROSS, _WIDE, _HIGH, _GAP = 3, 260.0, 70.0, 46.0
_EDGE, _LEFT, _HEAD = 12.0, 74.0, 56.0
"""The border of the figure, the room for numbers left of a chart, and for the title above."""

_STYLE = (
    "path{fill:none;stroke:#205080;stroke-width:1.3}.axis{stroke:#bbb}.began{stroke:#c05000}"
    "text.began{stroke:none;fill:#a04000}"
)


def figure(
    steps: Steps,
    findings: Sequence[Finding],
    fields: Sequence[str] | None,
    signatures: Sequence[str],
    verdict: str = "",
) -> str:
    """The figure: a chart for each column; where none is named, what began and what is usual."""
    found = [one.metric for one in findings if one.metric in steps.metrics]
    asked = fields or dict.fromkeys((*found, *usual(steps)))
    names = [name for name in asked if name != "file"]
    numbers = steps.numbers
    title = _title(steps, verdict)
    parts = [labelled(_EDGE, _EDGE + 8, title, "name")]
    for at, name in enumerate(names):
        left = _EDGE + _LEFT + (at % _ACROSS) * (_WIDE + _LEFT)
        top = _HEAD + (at // _ACROSS) * (_HIGH + _GAP)
        begun = [numbers.index(one.onset) for one in findings if one.metric == name]
        parts += _chart(name, steps.values(name), numbers, begun, left, top)
    rows = -(-len(names) // _ACROSS)
    width = 2 * _EDGE + _ACROSS * (_WIDE + _LEFT)
    base = _HEAD + rows * (_HIGH + _GAP) - 4
    lines = [line for signature in signatures for line in wrapped(signature)]
    parts += (labelled(_EDGE, base + 16 * at, line, "faint") for at, line in enumerate(lines))
    height = base + 16 * len(lines)
    return svg(title, width, height, parts, _STYLE)


def _chart(
    name: str,
    values: Sequence[float | None],
    numbers: Sequence[int],
    begun: Sequence[int],
    left: float,
    top: float,
) -> Iterator[str]:
    given = [value for value in values if value is not None and math.isfinite(value)]
    yield labelled(left, top - 6, name, "name")
    if not given:
        return
    low, high = min(given), max(given)
    ends = [(high, top + 9), (low, top + _HIGH)]
    if low == high:
        ends = [(low, top + _HIGH / 2 + 4)]
        low, high = low - 1.0, high + 1.0
    elif 0.0 < low < high / 2:
        low = 0.0
        ends[1] = (low, top + _HIGH)
    last = max(len(values) - 1, 1)

    def x(at: int) -> float:
        return left + _WIDE * at / last

    yield f'<path class="axis" d="M{left:.1f} {top + _HIGH:.1f}h{_WIDE:.1f}"/>'
    for end, base in ends:
        yield labelled(left - 6, base, f"{end:.4g}", anchor="end")
    yield labelled(left, top + _HIGH + 14, str(numbers[0]))
    yield labelled(left + _WIDE, top + _HIGH + 14, str(numbers[-1]), anchor="end")
    for at in begun:
        yield f'<path class="began" d="M{x(at):.1f} {top:.1f}v{_HIGH:.1f}"/>'
        yield labelled(x(at), top + _HIGH + 14, f"▲ {numbers[at]}", "began", anchor="middle")
    pen, path = "M", ""
    for at, value in enumerate(values):
        if value is None or not math.isfinite(value):
            pen = "M"
            continue
        height = top + _HIGH * (1 - (value - low) / (high - low))
        path, pen = f"{path}{pen}{x(at):.1f} {height:.1f}", "L"
    yield f'<path d="{path}"><title>{markup(name)}</title></path>'
