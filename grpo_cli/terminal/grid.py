"""Columns of text → one table, as wide as its numbers need."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from grpo_cli.terminal.display import chosen
from grpo_cli.terminal.numbers import aligned, brief, shown, visible
from grpo_cli.terminal.prose import wrapped
from grpo_cli.terminal.screen import Screen, mark_rows

GAP = 2
"""Spaces between columns."""

_READABLE, _LEAST, _MOST = 44, 16, 64
"""Cells that a column of words has, if others can be left out; at least; and at most."""

_NAMED = 2
"""Hidden columns that are named where a line has no room for all: those that went last."""

_HARDLY = 2
"""Letters that are no word of a header."""

Style = Callable[[Any], str]


class Column(NamedTuple):
    """One column: its field, its cells, and whether it holds numbers."""

    name: str
    cells: Sequence[Text]
    numeric: bool

    @property
    def header(self) -> Text:
        """The field's name, a word to the line."""
        return Text(_header(self.name), "bold")

    @property
    def width(self) -> int:
        """The widest of its lines."""
        lines = (line for cell in self.cells for line in cell.plain.split("\n"))
        return max([_header_width(self.name), *map(cell_len, lines)])


def column(
    name: str,
    values: Sequence[Any],
    *,
    show: Callable[[Any], str] = shown,
    style: Style | None = None,
    numeric: bool | None = None,
) -> Column:
    """A column of values: numbers with their points under each other, or text."""
    if numeric is None:
        numeric = show in (shown, brief) and all(
            (value is None or isinstance(value, int | float)) for value in values
        )
    texts = [show(value) for value in values]
    if numeric:
        width = _header_width(name)
        texts = [text.rjust(width) for text in aligned(texts)]
    styles = ["" if style is None else style(value) for value in values]
    return Column(name, [Text(t, s) for t, s in zip(texts, styles, strict=True)], numeric)


def _header(name: str) -> str:
    """A name, a word to the line; very short words share a line."""
    lines: list[str] = []
    for word in visible(name).split("_"):
        if lines and min(len(word), len(lines[-1])) <= _HARDLY:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return "\n".join(lines)


def _header_width(name: str) -> int:
    return max(map(cell_len, _header(name).split("\n")))


def fitting(
    columns: Sequence[Column], spare: Sequence[str], width: int | None
) -> tuple[list[Column], list[str]]:
    """The columns that there is room for.

    Args:
        columns: all of them.
        spare: the names of those that can be left out, the first to go first.
        width: the room; None for no limit.

    Returns:
        The columns to show, and the names of those left out.
    """
    if width is None:
        return [*columns], []
    widths: dict[str, int] = {}
    for one in columns:
        widths[one.name] = widths.get(one.name, 0) + one.width + GAP
    used = sum(widths.values()) - GAP
    hidden: dict[str, None] = {}
    for name in spare:
        if used <= width:
            break
        if name in widths and name not in hidden:
            used -= widths[name]
            hidden[name] = None
    return [one for one in columns if one.name not in hidden], [*hidden]


def broken(
    columns: Sequence[Column], repeated: Sequence[str], width: int | None
) -> list[list[str]]:
    """The names of the columns, cut into tables that fit; each begins with the repeated ones."""
    first = [one for one in columns if one.name in repeated]
    tables = [[*first]]
    for one in columns:
        if one.name in repeated:
            continue
        full = width is not None and total_width([*tables[-1], one]) > width
        if full and len(tables[-1]) > len(first):
            tables.append([*first])
        tables[-1].append(one)
    return [[one.name for one in table] for table in tables]


_SHORT_NAME = 10
"""Letters of a long name that are kept at least."""


def with_short_names(
    columns: Sequence[Column], name: str, spare: Sequence[str], screen: Screen
) -> list[Column]:
    """The columns; on a terminal without room for all, with the beginnings of long names alone.

    Args:
        columns: all of them.
        name: the column whose texts may be cut, as far as they stay different.
        spare: the columns that can be left out.
        screen: where they are shown.
    """
    if not (screen.terminal and fitting(columns, spare, screen.width)[1]):
        return [*columns]
    return [_shortened(one) if one.name == name and not one.numeric else one for one in columns]


def _shortened(names: Column) -> Column:
    texts = {cell.plain for cell in names.cells}
    length = _SHORT_NAME
    while len({text[:length] for text in texts}) < len(texts):
        length += 1
    cells = [
        Text(f"{cell.plain[:length]}…") if cell.cell_len > length + 1 else cell
        for cell in names.cells
    ]
    return names._replace(cells=cells)


_SHORT_TEXT, _SHORTEST_TEXT = 12, 8
"""Cells of a long text that are kept before a column is left out, and on any screen."""


def fitting_texts(
    columns: Sequence[Column], name: str, spare: Sequence[str], width: int | None
) -> tuple[list[Column], list[str]]:
    """As ``fitting``, where one column's texts are cut to the room that the others leave."""
    short = [_cut(one, _SHORT_TEXT) if one.name == name else one for one in columns]
    kept, hidden = fitting(short, spare, width)
    names = {one.name for one in kept}
    whole = [one for one in columns if one.name in names]
    over = 0 if width is None else max(total_width(whole) - width, 0)
    return [_cut(one, one.width - over) if one.name == name else one for one in whole], hidden


def _cut(texts: Column, room: int) -> Column:
    cells = [cell.copy() for cell in texts.cells]
    for cell in cells:
        cell.truncate(max(room, _SHORTEST_TEXT), overflow="ellipsis")
    return texts._replace(cells=cells)


def total_width(columns: Collection[Column]) -> int:
    """The columns and the gaps between them."""
    return sum(one.width for one in columns) + GAP * (len(columns) - 1)


def with_words(
    columns: Sequence[Column], spare: Sequence[str], width: int | None
) -> tuple[list[Column], list[str]]:
    """As ``fitting``, where the last column is words: it stays, and is broken into lines."""
    *others, last = columns
    room = None if width is None else width - GAP - min(last.width, _READABLE)
    kept, hidden = fitting(others, spare, room)
    if width is None:
        return [*kept, last], hidden
    used = total_width(kept) + GAP
    left = min(max(width - used, _LEAST), _MOST)
    texts = [wrapped(cell, left).plain for cell in last.cells]
    return [*kept, column(last.name, texts, show=str, numeric=False)], hidden


def grid(columns: Sequence[Column], rows: slice | None = None) -> Text:
    """The table, or some rows of it as wide as all. Nothing in it wraps or is cut.

    Rich's own table fits every cell into its column, which takes a millisecond a row.
    """
    widths = [one.width for one in columns]
    headers = [[*one.header.split("\n")] for one in columns]
    depth = max(map(len, headers))
    for one, width, lines in zip(columns, widths, headers, strict=True):
        for line in lines if one.numeric else ():
            line.pad_left(width - line.cell_len)
    table = Text(no_wrap=True, overflow="ignore")
    for row in zip(*([Text()] * (depth - len(one)) + one for one in headers), strict=True):
        _add_line(table, row, widths)
    table.append("\n" + "─" * (sum(widths) + GAP * (len(widths) - 1)))
    for row in zip(*(one.cells[rows or slice(None)] for one in columns), strict=True):
        if any("\n" in cell.plain for cell in row):
            for line in zip_longest(*(cell.split("\n") for cell in row), fillvalue=Text()):
                _add_line(table, line, widths)
        else:
            _add_line(table, row, widths)
    return table


def _add_line(table: Text, cells: Sequence[Text], widths: Sequence[int]) -> None:
    if table:
        table.append("\n")
    for cell, width in zip(cells, widths, strict=True):
        table.append_text(cell)
        table.append(" " * (width + GAP - cell.cell_len))


def print_fitting(
    console: Console,
    screen: Screen,
    columns: Sequence[Column],
    spare: Sequence[str],
    noun: str,
) -> None:
    """Prints the columns that there is room for, a ``noun`` a row, and the names of the others."""
    kept, hidden = fitting(columns, spare, screen.width)
    console.print(grid(kept))
    mark_rows(console, noun, [1] * len(columns[0].cells))
    print_hidden(console, screen, hidden, "see --json")


def print_hidden(
    console: Console, screen: Screen, names: Collection[str], remedy: str = "--fields '?'"
) -> None:
    """Says in a line which columns there was no room for and where they are; --full names all."""
    if names:
        names = [*map(visible, names)]
        listed = ", ".join(names)
        room = (screen.width or 0) - len(f"hidden:  ({remedy})")
        for kept in range(min(_NAMED, len(names) - 1), 0, -1):
            if len(listed) > room and not chosen().full:
                listed = f"{', '.join(names[: -kept - 1 : -1])}, {len(names) - kept} more"
        text = Text(f"hidden: {listed} ({remedy})", "dim")
        above = "" if screen.terminal else "\n"  # on a small screen, rows are worth more
        console.print(Text(above) + wrapped(text, screen.width, GAP))


def print_list(
    console: Console,
    screen: Screen,
    rows: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    spare: Sequence[str] = (),
) -> list[str]:
    """Prints what can be named, a row each, and returns the columns that there is no room for.

    Args:
        console, screen: where to.
        rows: what is listed.
        names: the columns: the name first, words last; those that are empty are left out.
        spare: those that a narrow screen leaves out, the first to go first.
    """
    filled = [name for name in names if any(row.get(name) for row in rows)]
    columns = [
        column(name, [row.get(name) for row in rows], show=_words, style=_NAME if not at else None)
        for at, name in enumerate(filled)
    ]
    kept, hidden = with_words(columns, spare, screen.width)
    console.print(grid(kept))
    return hidden


_NAME: Style = lambda _: "cyan"  # noqa: E731


def _words(value: Any) -> str:
    """Texts as they are, several between commas; nothing as nothing."""
    if isinstance(value, str | int | None):
        return "\n".join(map(visible, str("" if value is None else value).split("\n"))).replace(
            "``", ""
        )
    return ", ".join(map(_words, value))
