"""The tokens of a record as coloured text, in a terminal."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from io import StringIO
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from grpo_cli.commands.show.picture import COLORS, MARKS, Picture, Response
from grpo_cli.terminal.grid import Column, column, fitting, grid
from grpo_cli.terminal.numbers import shown, token_text
from grpo_cli.terminal.palette import STEPS, style
from grpo_cli.terminal.screen import written

_PIPE = 100
"""The width of running text where there is no terminal."""
_MOST = 4_000
"""Tokens printed; a page holds them all."""


def console_of(*, width: int | None, color: bool) -> Console:
    """A console in memory with as many colours as the terminal has."""
    deep = os.environ.get("COLORTERM") in ("truecolor", "24bit")
    return Console(
        file=StringIO(),
        width=width or _PIPE,
        force_terminal=color,
        color_system=("truecolor" if deep else "256") if color else None,
        no_color=not color,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )


def print_heat(console: Console, picture: Picture, top: int, *, fit: bool = False) -> int:
    """Prints the record, its legend and its ``top`` tokens; returns how many tokens it left out.

    ``fit`` leaves out the columns of the table that the console has no room for.
    """
    for line in _head(picture):
        console.print(line, soft_wrap=True)
    room = _MOST
    for response in picture.responses:
        console.print()
        console.print(Text(response.title, "bold"), soft_wrap=True)
        shown_here = min(len(response.texts), max(room, 0))
        console.print(_text(picture, response, shown_here), overflow="fold")
        room -= len(response.texts)
    if top:
        console.print()
        _print_top(console, picture, top, fit=fit)
    return max(-room, 0)


def heat_text(
    picture: Picture, *, width: int | None, color: bool, top: int, fit: bool
) -> tuple[str, int]:
    """The same as text, and how many tokens it left out."""
    console = console_of(width=width, color=color)
    left_out = print_heat(console, picture, top, fit=fit)
    return written(console), left_out


def _head(picture: Picture) -> Iterator[Text]:
    record = picture.record
    yield Text.assemble(
        (f"record {shown(record['id'])}", "bold"),
        f": objective {shown(record['objective'])}, loss {shown(record['loss'])}, "
        f"gradient norm {shown(record['gradient_norm'])}",
    )
    yield Text(record["signature"], "dim")
    low, _, high = picture.legend.split(" … ")
    bar = [
        (f" {low} " if step == -STEPS else f" {high} " if step == STEPS else "  ", style(step))
        for step in range(-STEPS, STEPS + 1)
    ]
    marks = [(f"  {mark} clipped {side}", "underline") for side, mark in MARKS.items()]
    yield Text.assemble(f"{COLORS[picture.color_by]}: ", *bar, *marks)


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


def _print_top(console: Console, picture: Picture, top: int, *, fit: bool) -> None:
    rows = ranked(picture, top)
    if rows:
        words = COLORS[picture.color_by]
        console.print(Text(f"the {len(rows)} tokens that matter most by {words}", "bold"))
        width, console.width = console.width, 100_000
        kept, hidden = fitting([*_columns(rows)], _SPARE, width if fit else None)
        console.print(grid(kept))
        console.width = width
        if hidden:
            console.print(Text(f"hidden at {width} columns: {', '.join(hidden)}", "dim"))


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


_TABLE = ("advantage", "ratio", "kl", "difference", "mismatch", "contribution", "gradient")
_SPARE = ("advantage", "kl", "position", "ratio", "difference", "gradient")
"""What a narrow terminal goes without, the first to go first."""


def _columns(rows: Sequence[dict[str, Any]]) -> Iterator[Column]:
    yield column("response", [row["response"] for row in rows])
    yield column("position", [int(row["position"]) for row in rows])
    texts = [row["text"].replace("↵\n", "↵") for row in rows]
    yield column("token", texts, show=token_text)
    for name in _TABLE:
        if name in rows[0]:
            yield column(name, [float(row[name]) for row in rows])
    yield column("clip", [row["clip"] or "·" for row in rows], show=str)
