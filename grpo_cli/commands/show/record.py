"""One record, evaluated alone: its tokens in colours, as an SVG whose text is text."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from rich.cells import cell_len

from grpo_cli.commands.page.page import completions_of, text_fields
from grpo_cli.commands.show.batch import Shown
from grpo_cli.commands.show.picture import (
    MARKS,
    Picture,
    Response,
    moves_clipped,
    picture,
)
from grpo_cli.engine import Reader
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.engine.rows.fields import EXTRAS
from grpo_cli.engine.rows.rows import rows
from grpo_cli.engine.rows.source import Source
from grpo_cli.engine.totals import record_sizes
from grpo_cli.records import Raw
from grpo_cli.terminal.numbers import markup, shown
from grpo_cli.terminal.palette import Rgb, background, ink
from grpo_cli.variants.plan import Plan


@dataclass(frozen=True)
class ShownRecord(Shown):
    """The tokens of one record that stand out; a notebook shows all its tokens in colours too.

    Attributes:
        picture: the record to be drawn.
    """

    picture: Picture | None = None

    def fields(self) -> dict[str, Any]:
        """The fields by their JSON keys."""
        return {name: value for name, value in super().fields().items() if name != "picture"}

    def _repr_html_(self) -> str:
        """The tokens in colours, and the table."""
        assert self.picture is not None
        encoded = b64encode(figure(self.picture)[0].encode()).decode()  # as an image its styles
        drawn = f'<img alt="tokens" src="data:image/svg+xml;base64,{encoded}">'  # stay its own
        return drawn + super()._repr_html_()


def with_picture(found: Shown, reader: Reader, plan: Plan, by: str) -> ShownRecord:
    """The answer of an input of one record, with its picture, coloured ``by`` what ranks it."""
    raw, record = next(reader.records())
    breakdown = Chunk.of([record]).run(Evaluator(plan).evaluate)
    source = Source([record], breakdown, lambda: record_sizes(breakdown))
    return ShownRecord(**vars(found), picture=picture_of(source, raw, by, None))


def picture_of(source: Source, raw: Raw, by: str | None, only: Sequence[int] | None) -> Picture:
    """The record of a source, to be drawn; ``only`` some of its responses."""
    asked = [name for name in EXTRAS["token"] if name != "log_prob" or by == name]
    (row,) = rows(source, "token", asked)
    moved, mover = moves_clipped(source.breakdown)
    starts = source.breakdown.batch.responses.starts[1:]
    for response, part in zip(row["responses"], np.split(moved, starts), strict=True):
        response["tokens"]["moved"] = part
    texts = completions_of(text_fields(raw.value), len(row["responses"]))
    return picture(row, color_by=by, only=only or None, mover=mover, completions=texts)


# ---- the figure ----------------------------------------------------------------------------------

_COLUMNS = 104
_CELL, _LINE = 6.6, 18.0
"""The width of a letter in a monospaced font of 11 px, and the height of a line."""
_EDGE = 12.0
_WIDTH = _COLUMNS * _CELL + 2 * _EDGE
_MOST = 4_000
"""Tokens drawn; a page holds them all."""

_STYLE = (
    "text{font:11px 'DejaVu Sans Mono',Menlo,Consolas,monospace;white-space:pre}"
    ".name{font-weight:bold}.faint{fill:#555}.low,.high{stroke:#c05000;stroke-width:1.6}"
)


class _Word(NamedTuple):
    """A token, or its part on one line: its text, place, colour and clip side."""

    text: str
    column: int
    line: int
    step: int
    clip: str | None


def figure(picture: Picture) -> tuple[str, int]:
    """The figure, and how many tokens it left out."""
    parts = [*_scale(picture)]
    top, room = 4 * _LINE, _MOST
    for response in picture.responses:
        words = [*_laid_out(picture, response, max(room, 0))]
        room -= len(response.texts)
        parts.append(_label(_EDGE, top, response.title, "name"))
        parts += _drawn(words, top + 1.3 * _LINE)
        top += _LINE * (2.8 + max((word.line for word in words), default=0))
    signature = picture.record["signature"]
    caption = [""]
    for part in signature.replace("|", "|\0").split("\0"):
        if caption[-1] and len(caption[-1]) + len(part) > _COLUMNS:
            caption.append("")
        caption[-1] += part
    for number, line in enumerate(caption):
        parts.append(_label(_EDGE, top + number * _LINE, line, "faint"))
    width, height = f"{_WIDTH:.0f}", f"{top + _LINE * (1 + len(caption)):.0f}"
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    title = f"record {shown(picture.record['id'])}: tokens by {picture.color_by.replace('_', ' ')}"
    text = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n'
        f"<title>{markup(title)}</title>\n<style>{_STYLE}</style>\n"
        f'<rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )
    return text, max(-room, 0)


def _laid_out(picture: Picture, response: Response, most: int) -> Iterator[_Word]:
    """The tokens in lines; one that is longer than a line goes on in the next."""
    column = line = 0
    steps = [picture.step(value) for value in response.values[:most].tolist()]
    gap = 0 if response.named else 1
    clips = response.row["tokens"]["clip"]
    for text, step, clip in zip(response.texts, steps, clips, strict=False):
        for part in text.splitlines() or [text]:
            for piece in _pieces(part):
                width = cell_len(piece)
                if column + width > _COLUMNS:
                    column, line = 0, line + 1
                yield _Word(piece, column, line, step, clip)
                column += width + gap
        if text.endswith("\n"):
            column, line = 0, line + 1


def _pieces(text: str) -> Iterator[str]:
    while cell_len(text) > _COLUMNS:
        cut = _COLUMNS // 2  # no letter is wider than two cells
        yield text[:cut]
        text = text[cut:]
    yield text


def _drawn(words: list[_Word], top: float) -> Iterator[str]:
    """Backgrounds first, then lines of text, so that no letter is covered."""
    for word in words:
        left, base = _EDGE + word.column * _CELL, top + word.line * _LINE
        width = cell_len(word.text) * _CELL
        if word.step:
            yield _box(left, base - 11.5, width, 15.0, background(word.step))
        if word.clip:
            y = base + 4.4 if word.clip == "low" else base - 12.4
            end = left + width - 0.8
            yield f'<path class="{word.clip}" d="M{left + 0.8:.1f} {y:.1f}H{end:.1f}"/>'
    for line in range(max((word.line for word in words), default=-1) + 1):
        spans = "".join(_span(word) for word in words if word.line == line)
        yield f'<text y="{top + line * _LINE:.1f}" xml:space="preserve">{spans}</text>'


def _span(word: _Word) -> str:
    color = f' fill="{ink(word.step)}"' if ink(word.step) != "#000000" else ""
    left = _EDGE + word.column * _CELL
    return f'<tspan x="{left:.1f}"{color}>{markup(word.text)}</tspan>'


def _scale(picture: Picture) -> Iterator[str]:
    """The ten steps between the numbers at their ends, and the marks."""
    low, high = picture.ends
    yield _label(_EDGE, _LINE, picture.heading)
    yield _label(_EDGE, 2 * _LINE, low)
    left = _EDGE + _CELL * (len(low) + 1)
    for at, step in enumerate(picture.steps):
        yield _box(left + at * 12, 2 * _LINE - 10, 12, 13, background(step))
    left += 12 * len(picture.steps) + _CELL
    yield _label(left, 2 * _LINE, high)
    left += _CELL * (len(high) + 3)
    for side, mark in MARKS.items():
        words = f"{mark} clipped {side}"
        y = 2 * _LINE + (4.4 if side == "low" else -12.4)
        yield _label(left, 2 * _LINE, words)
        yield f'<path class="{side}" d="M{left:.1f} {y:.1f}h{len(words) * _CELL:.1f}"/>'
        left += _CELL * (len(words) + 3)


def _label(left: float, base: float, text: str, kind: str = "") -> str:
    """Text at a place: the start of its base line."""
    attribute = f' class="{kind}"' if kind else ""
    return f'<text{attribute} x="{left:.1f}" y="{base:.1f}">{markup(text)}</text>'


def _box(left: float, top: float, width: float, height: float, color: Rgb) -> str:
    red, green, blue = color
    fill = f"#{red:02x}{green:02x}{blue:02x}"
    place = f'x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {place} fill="{fill}"/>'
