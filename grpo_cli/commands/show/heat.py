"""The tokens of a record as coloured text, in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from grpo_cli.commands.show.picture import COLORS, MARKS, Picture, Response, ranked_by
from grpo_cli.commands.show.ranking import COLUMN
from grpo_cli.commands.show.view import print_signature, print_tokens
from grpo_cli.terminal.numbers import counted, shown
from grpo_cli.terminal.palette import style
from grpo_cli.terminal.prose import wrapped
from grpo_cli.terminal.screen import Screen

_MOST = 4_000
"""Tokens printed, and responses; a page holds them all."""


def print_heat(
    console: Console, screen: Screen, picture: Picture, rows: Sequence[Mapping[str, Any]]
) -> None:
    """Prints the record, its legend, the tokens, and a table of those that stand out."""
    for line in _head(picture, screen):
        console.print(line)
    if picture.numbers:
        console.print(Text(f"tokens by their {picture.numbers} (the record has no token strings)"))
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
    if any(row[COLUMN.get(picture.color_by, picture.color_by)] for row in rows):
        words = ranked_by(picture.color_by)
        console.print(Text(f"\nthe {counted(len(rows), 'token')} with {words}", "bold"))
        print_tokens(console, screen, rows, picture.color_by, of_record=True)
    print_signature(console, screen, picture.record["signature"])


def left_out(picture: Picture) -> int:
    """How many tokens are not printed."""
    return max(sum(len(response.texts) for response in picture.responses) - _MOST, 0)


def _head(picture: Picture, screen: Screen) -> Iterator[Text]:
    record = picture.record
    numbers = ("objective", "loss", "gradient_norm")
    totals = ", ".join(f"{name.replace('_', ' ')} {shown(record[name])}" for name in numbers)
    name = Text.assemble((f"record {shown(record['id'])}", "bold"), f": {totals}")
    yield wrapped(name, screen.width, 2)
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
    low, high = (f" {end} " for end in picture.ends)
    first, *between, last = picture.steps
    bar = [(low, style(first)), *(("  ", style(step)) for step in between), (high, style(last))]
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
