"""The base of the answers: what a command finds, Python users get, and ``--json`` prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib import import_module
from io import BytesIO
from itertools import accumulate
from math import isfinite
from typing import Any, ClassVar, NoReturn

from grpo_cli.errors import did_you_mean
from grpo_cli.terminal.numbers import aligned, counted, markup, shown, visible


class Answer:
    """A frozen dataclass whose fields are the keys of its JSON.

    If a key is a keyword of Python, the field's name ends with an underscore (``global_``).

    Attributes:
        notices: the command's notes; not in the JSON, unless a class says so.
        of_views: attributes that views need, and ``dir`` does not list.
    """

    notices: Sequence[str] = ()
    of_views: ClassVar[Sequence[str]] = ()

    def __init_subclass__(cls) -> None:
        if "__repr__" not in vars(cls):
            cls.__repr__ = Answer.__repr__  # type: ignore[method-assign]  # not the dataclass's
        if "ok" in vars(cls).get("__annotations__", ()):
            cls.__bool__ = _refuse_truth  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> Any:
        """A value of the row that is shown; only names that are no attribute come here."""
        row = {} if name.startswith("_") or hasattr(type(self), name) else self.fields()
        if name in row:
            return row[name]
        hint = did_you_mean(name, row)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{hint}")

    def __dir__(self) -> list[str]:
        """The attributes but those that the views need, and the names of the row."""
        return sorted({*super().__dir__(), *self.fields()} - {*_OF_VIEWS, *self.of_views})

    @property
    def headline(self) -> str:
        """One line, as a title: the short fields as they are, the others by their size."""
        values = ((name, _in_short(value)) for name, value in self.fields().items())
        return ", ".join(f"{name}={text}" for name, text in values)

    def table(self) -> Sequence[Mapping[str, Any]]:
        """The rows that a prompt and a notebook show below the headline."""
        return ()

    def __repr__(self) -> str:
        """The headline, the table and how many notices there are."""
        rows = self.table()
        parts = [f"{type(self).__name__}({self.headline})", *([text_of_rows(rows)] if rows else [])]
        return "\n".join([*parts, *notice_line(self.notices)])

    def __str__(self) -> str:
        """As at a prompt; without a table the numbers and words a line each, and all lists."""
        if self.table():
            return repr(self)
        named = self.fields()
        plain = [(name, value) for name, value in named.items() if _is_plain(value)]
        rows = {name: [*map(as_row, value)] for name, value in named.items() if _has_rows(value)}
        tables = [f"{name}\n{text_of_rows(value)}" for name, value in rows.items()]
        return "\n\n".join([*([text_table(plain)] if plain else []), *tables])

    def fields(self) -> dict[str, Any]:
        """The fields by their JSON keys; answers among the values stay answers."""
        assert is_dataclass(self)
        return {one.name.rstrip("_"): getattr(self, one.name) for one in fields(self)}

    def to_dict(self) -> dict[str, Any]:
        """The JSON of ``--json`` as dicts and lists."""
        return {name: _as_document(value) for name, value in self.fields().items()}

    def _repr_html_(self) -> str:
        """HTML for notebooks: the headline, the table or else all lists, the notices."""
        named = {"": self.table()} if self.table() else self.fields()
        lists = {name: [*map(as_row, rows)] for name, rows in named.items() if _has_rows(rows)}
        tables = [html_rows(rows, name.replace("_", " ")) for name, rows in lists.items()]
        return html_page(self.headline, tables, self.notices)


class Printed(Answer):
    """An answer that Python and notebooks print as its command: by ``draw`` of the room's view."""

    def view(self) -> Any:
        """The module that prints the answer: it imports this class, and so is imported late."""
        return import_module(f"{type(self).__module__.rpartition('.')[0]}.view")

    def __str__(self) -> str:
        """What the command prints into a pipe, and how many notices there are."""
        from grpo_cli.terminal.screen import screen_of, written  # rich, slow to import

        screen = screen_of(BytesIO())
        console = screen.console()
        self.view().draw(console, screen, self)
        return "\n".join([written(console).strip("\n"), *notice_line(self.notices)])

    def _repr_html_(self) -> str:
        lines = "\n".join(map(markup, str(self).splitlines()))
        return f"<div><pre>{lines}</pre></div>"


_OF_VIEWS = ("fields", "of_views", "table", "view")


def _refuse_truth(answer: Answer) -> NoReturn:
    """Refuses ``assert verify(…)``, which any object would pass.

    Raises:
        ValueError: always, as an array of numpy does.
    """
    raise ValueError(f"the truth of {type(answer).__name__} is ambiguous: use .ok")


def what_was_counted(numbers: Mapping[str, Any]) -> str:
    """How many records, groups, … and tokens some totals are of."""
    found = ((one, f"{one}s".replace("ys", "ies")) for one in _COUNTED)
    return ", ".join(counted(numbers[many], one, many) for one, many in found if many in numbers)


_COUNTED = ("record", "group", "trajectory", "response", "turn", "token")


def notice_line(notices: Sequence[str]) -> list[str]:
    """How many notices there are, and the first; no line where there are none."""
    if not notices:
        return []
    more = f" (and {len(notices) - 1} more in .notices)" if len(notices) > 1 else ""
    return [f"{counted(len(notices), 'notice')}: {cut(notices[0])}{more}"]


def cut(text: str, most: int = 160) -> str:
    """A text as a prompt shows it: no longer than that, since an attribute has it whole."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _in_short(value: Any) -> str:
    if isinstance(value, list | tuple | dict) and not value:
        return "{}" if isinstance(value, dict) else "[]"
    if isinstance(value, list | tuple):
        return f"<{len(value)} {type(value[0]).__name__}>"
    if isinstance(value, Answer) or not isinstance(value, str | int | float | None):
        return f"<{type(value).__name__}>"
    return cut(repr(value), _LONGEST)


_LONGEST, _CELL, _ROWS, _EDGE, _WIDTH = 60, 40, 20, 5, 100
_LONG = ("signature", "source", "file", "details")
"""Columns that leave no room for others."""


def text_table(rows: Sequence[Sequence[Any]]) -> str:
    """Lines of cells, each column as wide as its widest cell; numbers have six digits."""
    texts = [[x if isinstance(x, str) else _cell(x) for x in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in texts
    )


def _cell(value: Any) -> str:
    if isinstance(value, float):
        value += 0.0  # no negative zero
    return str(value) if isinstance(value, bool) else shown(value)


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float) and value != ""


def _has_rows(value: Any) -> bool:
    return isinstance(value, list | tuple) and any(isinstance(one, Answer | dict) for one in value)


def as_row(row: Mapping[str, Any] | Answer) -> Mapping[str, Any]:
    """The fields of a row by name."""
    return row.fields() if isinstance(row, Answer) else row


def text_of_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """The first and last rows as text, and the first columns that fit; says what it leaves out.

    Sentences in the last column are whole, since a terminal wraps them.
    """
    names, cells = _cut_rows(rows)
    columns = [[row[at] for row in cells] for at in range(len(names))]
    texts = [_column(name, column) for name, column in zip(names, columns, strict=True)]
    sentences = any(isinstance(x, str) and len(x) > _CELL for x in columns[-1])
    if sentences:
        texts[-1] = [names[-1], *map(_sentence, columns[-1])]
    widths = (len(text[0]) + 2 for text in (texts[:-1] if sentences else texts))
    count = sum(used <= _WIDTH + 2 for used in accumulate(widths))
    kept = [*texts[:count], *texts[count:][-1:]] if sentences else texts[:count]
    hidden = names[count : len(names) - sentences]
    lines = [line.rstrip() for line in map("  ".join, zip(*kept, strict=True))]
    if len(rows) > _ROWS:
        lines.insert(1 + _EDGE, f"… {len(rows) - 2 * _EDGE} more rows")
    if hidden:
        lines.append(f"… {counted(len(hidden), 'more column')}: {', '.join(hidden)}")
    return "\n".join(lines)


def _cut_rows(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """The columns that hold a number or a word, and the first and last rows of them."""
    listed = rows if len(rows) <= _ROWS else [*rows[:_EDGE], *rows[-_EDGE:]]
    known = [name for name in listed[0] if name not in _LONG]
    names = [
        name
        for name in known
        if any(_is_plain(x := row.get(name)) and x == x for row in listed)  # not NaN alone
    ]
    return names, [[row.get(name) for name in names] for row in listed]


def _column(name: str, values: Sequence[Any]) -> list[str]:
    """A column's cells, equally wide: decimal points in line, texts from the left."""
    texts = [*map(_cell, values)]
    numbers = not any(isinstance(x, str | bool) for x in values)
    if numbers:
        texts = aligned(texts)
    width = max(map(len, [name, *texts]))
    return [text.rjust(width) if numbers else text.ljust(width) for text in [name, *texts]]


def _sentence(value: Any) -> str:
    return visible(" ".join(value.split())) if isinstance(value, str) else _cell(value)


def text_of_numbers(numbers: Mapping[str, Any]) -> str:
    """Numbers with their names, a line each, decimal points in line."""
    names, values = _column("", [*numbers]), _column("", [*numbers.values()])
    lines = map("  ".join, zip(names, values, strict=True))
    return "\n".join(line.rstrip() for line in [*lines][1:])


def _as_document(value: Any) -> Any:
    if isinstance(value, Answer):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {name: _as_document(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_as_document(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: _as_document(getattr(value, one.name)) for one in fields(value)}
    return None if isinstance(value, float) and not isfinite(value) else value


def html_table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """An HTML table; numbers are right-justified."""
    rows = [*rows]
    numbers = [
        all(isinstance(x, int | float | None) for x in one) for one in zip(*rows, strict=True)
    ]
    sides = ["right" if one else "left" for one in numbers] or ["left"] * len(heads)
    head = "".join(
        f'<th style="text-align:{side};{_PADDING}">{markup(name)}</th>'
        for name, side in zip(heads, sides, strict=True)
    )
    body = "".join(f"<tr>{''.join(map(_html_cell, row))}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def html_rows(rows: Sequence[Mapping[str, Any]], heading: str = "") -> str:
    """A heading, and the first and last rows as an HTML table."""
    names, cells = _cut_rows(rows)
    if len(rows) > _ROWS:
        cells.insert(_EDGE, ["⋮"] * len(names))
    head = f"<div><b>{markup(heading)}</b></div>" if heading else ""
    return head + html_table(names, cells)


def html_page(headline: str, tables: Sequence[str], notes: Iterable[str] = ()) -> str:
    """A line of text, tables, and lines of text below."""
    lines = "".join(
        f"<div><small style='{_ANYWHERE}'>{markup(note)}</small></div>" for note in notes
    )
    return f"<div><div>{markup(headline)}</div>{''.join(tables)}{lines}</div>"


_PADDING = "padding:0.1em 0.6em"
_ANYWHERE = "overflow-wrap:anywhere"  # signatures have no spaces


def _html_cell(value: Any) -> str:
    if isinstance(value, float):
        return f'<td style="text-align:right;{_PADDING}" title="{value!r}">{value:.6g}</td>'
    if isinstance(value, int) and not isinstance(value, bool):
        return f'<td style="text-align:right;{_PADDING}">{value}</td>'
    text = markup("–" if value is None else str(value))
    return f'<td style="text-align:left;{_PADDING}">{text}</td>'
