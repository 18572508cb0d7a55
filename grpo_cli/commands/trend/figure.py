"""The series of a run as a figure to print: small charts side by side, with what began in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from grpo_cli.commands.show.figure import labelled, svg, wrapped
from grpo_cli.commands.trend.step import Finding, Step
from grpo_cli.commands.trend.view import usual

_ACROSS, _WIDE, _HIGH, _GAP = 3, 260.0, 70.0, 46.0
_EDGE, _LEFT = 12.0, 74.0
"""The border of the figure, and the room for numbers left of a chart."""

_STYLE = (
    "path{fill:none;stroke:#205080;stroke-width:1.3}.axis{stroke:#bbb}.began{stroke:#c05000}"
    "text.began{stroke:none;fill:#a04000}"
)


def figure(
    steps: Sequence[Step],
    findings: Sequence[Finding],
    fields: Sequence[str] | None,
    signatures: Sequence[str],
) -> str:
    """The figure: a chart for each column; where none is named, what began and what is usual."""
    found = [one.metric for one in findings if steps and one.metric in steps[0].metrics]
    asked = fields or dict.fromkeys((*found, *usual(steps)))
    names = [name for name in asked if name != "file"]
    numbers = [step.number for step in steps]
    parts: list[str] = []
    for at, name in enumerate(names):
        left = _EDGE + _LEFT + (at % _ACROSS) * (_WIDE + _LEFT)
        top = _EDGE + 16 + (at // _ACROSS) * (_HIGH + _GAP)
        begun = [numbers.index(one.onset) for one in findings if one.metric == name]
        values = [step.metrics[name] for step in steps]
        parts += _chart(name, values, numbers, begun, left, top)
    rows = -(-len(names) // _ACROSS)
    width = 2 * _EDGE + _ACROSS * (_WIDE + _LEFT)
    base = _EDGE + rows * (_HIGH + _GAP) + 12
    lines = [line for signature in signatures for line in wrapped(signature)]
    parts += (labelled(_EDGE, base + 16 * at, line, "faint") for at, line in enumerate(lines))
    height = base + 16 * len(lines)
    return svg(f"a run of {len(steps):,} steps", width, height, parts, _STYLE)


def _chart(
    name: str,
    values: Sequence[float | None],
    numbers: Sequence[int],
    begun: Sequence[int],
    left: float,
    top: float,
) -> Iterator[str]:
    given = [value for value in values if value is not None]
    yield labelled(left, top - 6, name, "name")
    if not given:
        return
    low, high = min(given), max(given)
    if low == high:
        low, high = low - (abs(low) or 1.0), high + (abs(high) or 1.0)
    last = max(len(values) - 1, 1)

    def x(at: int) -> float:
        return left + _WIDE * at / last

    yield f'<path class="axis" d="M{left:.1f} {top + _HIGH:.1f}h{_WIDE:.1f}"/>'
    for end, base in ((high, top + 9), (low, top + _HIGH)):
        yield labelled(left - 6, base, f"{end:.4g}", anchor="end")
    yield labelled(left, top + _HIGH + 14, str(numbers[0]))
    yield labelled(left + _WIDE, top + _HIGH + 14, str(numbers[-1]), anchor="end")
    for at in begun:
        yield f'<path class="began" d="M{x(at):.1f} {top:.1f}v{_HIGH:.1f}"/>'
        yield labelled(x(at), top + _HIGH + 14, f"▲ {numbers[at]}", "began", anchor="middle")
    pen, path = "M", ""
    for at, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        height = top + _HIGH * (1 - (value - low) / (high - low))
        path, pen = f"{path}{pen}{x(at):.1f} {height:.1f}", "L"
    yield f'<path d="{path}"><title>{escape(name)}</title></path>'
