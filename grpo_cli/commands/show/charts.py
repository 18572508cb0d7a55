"""Inline SVG: bars of the responses, and a histogram of the ratios with the clip range."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.show.picture import Response
from grpo_cli.terminal.numbers import shown

_WIDTH, _ROW, _LABEL, _NUMBER = 720, 22, 210, 90
_BINS, _HEIGHT, _FOOT = 48, 140, 34


def bars(responses: Sequence[Response]) -> str:
    """One bar per response, from 0 to its contribution: right is up, left is down."""
    values = [float(one.row["contribution"]) for one in responses]
    size = max(map(abs, values), default=0.0) or 1.0
    middle = _LABEL + (_WIDTH - _LABEL - _NUMBER) / 2
    half = (_WIDTH - _LABEL - _NUMBER) / 2
    height = _ROW * len(values) + 6
    parts = [f'<line class="axis" x1="{middle}" x2="{middle}" y1="0" y2="{height}"/>']
    for number, (one, value) in enumerate(zip(responses, values, strict=True)):
        parts += _bar(one, value, number * _ROW + 4, middle, half * abs(value) / size)
    return _svg("bars", height, "contribution of each response", parts)


def _bar(one: Response, value: float, top: float, middle: float, length: float) -> Iterator[str]:
    kind = "up" if value >= 0 else "down"
    left = middle if value >= 0 else middle - length
    label = f"{one.row['response']}  " + ", ".join(
        f"{short} {shown(one.row[name])}"
        for name, short in (("reward", "r"), ("advantage", "A"))
        if isinstance(one.row[name], float | int)
    )
    yield f'<a href="#response-{one.row["response"]}">'
    yield f'<text class="label" x="4" y="{top + 12}">{escape(label)}</text>'
    yield (
        f'<rect class="{kind}" x="{left:.2f}" y="{top}" width="{max(length, 0.5):.2f}" '
        f'height="{_ROW - 8}"><title>{escape(one.title)}</title></rect>'
    )
    yield f'<text class="number" x="{_WIDTH - 4}" y="{top + 12}">{escape(shown(value))}</text></a>'


def histogram(log_ratios: F64, clip_range: tuple[float, float] | None) -> str:
    """How many tokens have which ratio, on log axes; those beyond an edge are in the last bin."""
    edge = _edge(log_ratios, clip_range)
    counts, _ = np.histogram(np.clip(log_ratios, -edge, edge), bins=_BINS, range=(-edge, edge))
    step, most = _WIDTH / _BINS, max(int(counts.max(initial=0)), 1)
    parts = []
    for number, count in enumerate(counts.tolist()):
        low = np.exp(-edge + 2 * edge * number / _BINS)
        high = np.exp(-edge + 2 * edge * (number + 1) / _BINS)
        tall = _HEIGHT * np.log1p(count) / np.log1p(most)
        parts.append(
            f'<rect class="bin" x="{number * step:.2f}" y="{_HEIGHT - tall:.2f}" '
            f'width="{step - 1:.2f}" height="{tall:.2f}">'
            f"<title>{count:,} tokens with a ratio of {low:.4g} to {high:.4g}</title></rect>"
        )
    parts += _range(edge, clip_range)
    parts += _ticks(edge)
    return _svg("histogram", _HEIGHT + _FOOT, "histogram of the ratios", parts)


def _edge(log_ratios: F64, clip_range: tuple[float, float] | None) -> float:
    """Room for 99.5 % of the tokens, and for the clip range."""
    sizes = np.abs(log_ratios[np.isfinite(log_ratios)])
    wide = float(np.quantile(sizes, 0.995)) if sizes.size else 0.0
    ends = [abs(np.log(end)) for end in clip_range or () if end > 0.05]
    return max(wide * 1.05, *[1.4 * float(end) for end in ends], 1e-6)


def _range(edge: float, clip_range: tuple[float, float] | None) -> Iterator[str]:
    for end, name in zip(clip_range or (), ("low", "high"), strict=False):
        if end <= 0 or abs(np.log(end)) > edge:
            continue
        place = _at(float(np.log(end)), edge)
        yield f'<line class="clip" x1="{place}" x2="{place}" y1="0" y2="{_HEIGHT}"/>'
        anchor = "end" if name == "low" else "start"
        shift = -4 if name == "low" else 4
        yield (
            f'<text class="clip" x="{place + shift:.2f}" y="12" text-anchor="{anchor}">'
            f"clip {end:.6g}</text>"
        )


def _ticks(edge: float) -> Iterator[str]:
    yield f'<line class="axis" x1="0" x2="{_WIDTH}" y1="{_HEIGHT}" y2="{_HEIGHT}"/>'
    for share in (-1.0, -0.5, 0.0, 0.5, 1.0):
        anchor = {-1.0: "start", 1.0: "end"}.get(share, "middle")
        yield (
            f'<text class="tick" x="{_at(share * edge, edge)}" y="{_HEIGHT + 16}" '
            f'text-anchor="{anchor}">{np.exp(share * edge):.4g}</text>'
        )


def _at(log_ratio: float, edge: float) -> float:
    return round(_WIDTH * (log_ratio + edge) / (2 * edge), 2)


def _svg(name: str, height: float, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg class="{name}" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )
