"""The tokens of a record as coloured text, in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from grpo_cli.commands.show.picture import COLORS, MARKS, Picture, Response
from grpo_cli.terminal.grid import Column, column, fitting, grid
from grpo_cli.terminal.numbers import counted, shown, token_text
from grpo_cli.terminal.palette import STEPS, style
from grpo_cli.terminal.prose import wrapped
from grpo_cli.terminal.screen import Screen

_MOST = 4_000
"""Tokens printed, and responses; a page holds them all."""


def print_heat(console: Console, screen: Screen, picture: Picture, top: int) -> None:
    """Prints the record, its legend, the tokens, and a table of the ``top`` ones."""
    for line in _head(picture, screen):
        console.print(line)
    room = _MOST
    for response in picture.responses[:_MOST]:
        console.print()
        console.print(wrapped(Text(response.title, "bold"), screen.width, 2))
        shown_here = min(len(response.texts), max(room, 0))
        text = _text(picture, response, shown_here)
        console.print(text, overflow="fold", width=screen.width)
        room -= len(response.texts)
    if (more := len(picture.responses) - _MOST) > 0:
        console.print(Text(f"\n… {counted(more, 'more response')}", "dim"))
    if top:
        console.print()
        _print_top(console, screen, picture, top)


def left_out(picture: Picture) -> int:
    """How many tokens are not printed."""
    return max(sum(len(response.texts) for response in picture.responses) - _MOST, 0)


def _head(picture: Picture, screen: Screen) -> Iterator[Text]:
    record = picture.record
    numbers = ("objective", "loss", "gradient_norm")
    totals = ", ".join(f"{name.replace('_', ' ')} {shown(record[name])}" for name in numbers)
    name = Text.assemble((f"record {shown(record['id'])}", "bold"), f": {totals}")
    yield wrapped(name, screen.width, 2)
    yield wrapped(Text(record["signature"], "dim"), screen.edge, 2, bars=True)
    if picture.remark:
        yield wrapped(Text(picture.remark, "bold"), screen.width, 2)
    elif picture.clipped:
        yield wrapped(Text(picture.clipped), screen.width, 2)
    yield from _legend(picture, screen)


def _legend(picture: Picture, screen: Screen) -> Iterator[Text]:
    """The meaning of colours and marks; in two lines where one has no room for it."""
    marks = [(f"  {mark} clipped {side}", "underline") for side, mark in MARKS.items()]
    if not picture.scale:
        return
    low, _, high = picture.legend.split(" … ")
    bar = [
        (f" {low} " if step == -STEPS else f" {high} " if step == STEPS else "  ", style(step))
        for step in range(-STEPS, STEPS + 1)
    ]
    colors = Text.assemble(f"{COLORS[picture.color_by]}: ", *bar)
    line = Text.assemble(colors, *marks)
    fits = screen.width is None or line.cell_len <= screen.width
    yield from (line,) if fits else (colors, Text.assemble(*marks))


def _text(picture: Picture, response: Response, count: int) -> Text:
    text = Text()
    gap = "" if response.named else " "
    clips = response.row["tokens"]["clip"][:count]
    steps = [picture.step(value) for value in response.values[:count].tolist()]
    for word, step, clip in zip(response.texts, steps, clips, strict=False):
        ending = "\n" if word.endswith("\n") else ""
        look = " ".join(filter(None, (style(step), "underline" if clip else "")))
        text.append(word.removesuffix("\n"), look)
        text.append(MARKS.get(clip, "") + ending)
        if gap:
            text.append(gap)
    if not response.texts:
        text.append("(no token counts)", "dim")
    return text


def _print_top(console: Console, screen: Screen, picture: Picture, top: int) -> None:
    rows = ranked(picture, top)
    if rows:
        words = COLORS[picture.color_by]
        console.print(Text(f"the {len(rows)} tokens that matter most by {words}", "bold"))
        kept, hidden = fitting([*_columns(rows)], _SPARE, screen.width)
        console.print(grid(kept))
        if hidden:
            console.print(Text(f"hidden at {screen.width} columns: {', '.join(hidden)}", "dim"))


def ranked(picture: Picture, top: int) -> list[dict[str, Any]]:
    """The ``top`` tokens, the greatest in absolute value of what colours them first."""
    responses = picture.responses
    sizes = [np.abs(response.values) for response in responses]
    ends = np.cumsum([len(one) for one in sizes])
    order = np.argsort(-np.nan_to_num(np.concatenate([*sizes, []])), kind="stable")[:top]
    found = []
    for place in order.tolist():
        number = int(np.searchsorted(ends, place, side="right"))
        response = responses[number]
        at = place - int(ends[number]) + len(response.values)
        tokens = response.row["tokens"]
        row = {name: values[at] for name, values in tokens.items() if values is not None}
        found.append(row | {"response": response.row["response"], "text": response.texts[at]})
    return found


_TABLE = (
    "log_prob",
    "advantage",
    "ratio",
    "kl",
    "difference",
    "mismatch",
    "contribution",
    "gradient",
)
_SPARE = ("advantage", "kl", "difference", "position", "ratio", "gradient")
"""Columns that a narrow terminal leaves out, the first to go first."""


def _columns(rows: Sequence[dict[str, Any]]) -> Iterator[Column]:
    yield column("response", [row["response"] for row in rows])
    yield column("position", [int(row["position"]) for row in rows])
    texts = [row["text"].replace("↵\n", "↵") for row in rows]
    yield column("token", texts, show=token_text)
    for name in _TABLE:
        if name in rows[0]:
            yield column(name, [float(row[name]) for row in rows])
    yield column("clip", [row["clip"] or "·" for row in rows], show=str)
