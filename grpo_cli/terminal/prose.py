"""Text in lines that fit, each word whole, and what continues a line indented."""

from __future__ import annotations

import re
from itertools import pairwise

from rich.cells import cell_len
from rich.text import Text

_WORD_ENDS = re.compile(r" +")
_QUOTED = re.compile("'[^']*'")
_KEPT, _COMMA = "\ue000", "\ue001"
"""A space and a comma at which no line ends."""
_WITH_VALUE = re.compile(r"( --?[a-z][\w-]*) (?=-?\d|[^-\s])")
_USUAL_WIDTH = 80
_PART_ENDS = re.compile(r"(?<=\|)| +")


def wrapped(text: Text, width: int | None, indent: int = 0, *, bars: bool = False) -> Text:
    """The text in lines of at most ``width`` cells; a longer word has a line of its own.

    Args:
        text: one line.
        width: the room; None for no limit.
        indent: the spaces before every line but the first.
        bars: whether it may be broken behind a bar too, as signatures are.
    """
    if width is None or text.cell_len <= width:
        return text
    lines: list[Text] = []
    for line in text.split("\n"):
        lines += _lines(line, width, indent, _PART_ENDS if bars else _WORD_ENDS)
    return Text("\n" + " " * indent).join(lines)


def as_command(line: str, width: int | None) -> Text:
    """A command in lines that a shell takes as one, and its comment in lines below.

    Without a width the command stays whole, and its comment is below where both are long.
    """
    if cell_len(line) <= (width or _USUAL_WIDTH):
        return Text(line)
    words, mark, comment = line.partition("  # ")
    if width is None:
        return Text(f"{words}\n    # {comment}" if mark else line)
    whole = _QUOTED.sub(lambda found: found[0].replace(" ", _KEPT), words)
    whole = _WITH_VALUE.sub(rf"\1{_KEPT}", whole).replace(",", _COMMA)
    lines = wrapped(Text(whole), width - len(" \\"), 4).plain.replace("\n", " \\\n")
    notes = wrapped(Text(comment), width - len("    # ")).plain.split("\n") if mark else []
    return Text(
        lines.replace(_KEPT, " ").replace(_COMMA, ",")
        + "".join(f"\n    # {line}" for line in notes)
    )


def _lines(text: Text, width: int, indent: int, ends: re.Pattern[str]) -> list[Text]:
    plain, start = text.plain, 0
    breaks: list[int] = []
    first = len(plain) - len(plain.lstrip())
    last = None
    for end in _ends(plain, first, width - indent, ends):
        room = width - (indent if breaks else 0)
        if last is not None and cell_len(plain[start:end].rstrip()) > room:
            breaks.append(last)
            start = last
        last = end
    lines = text.divide(breaks)
    for line in lines:
        line.rstrip()
    return list(lines)


def _ends(plain: str, first: int, room: int, ends: re.Pattern[str]) -> list[int]:
    """Where a line may end; in a word that has no room, behind its commas too."""
    found = [one.end() for one in ends.finditer(plain) if one.end() > first] + [len(plain)]
    for start, end in pairwise([first, *found]):
        if cell_len(plain[start:end].rstrip()) > room:
            found += [start + one.end() for one in re.finditer(",(?=.)", plain[start:end])]
    return sorted(set(found))
