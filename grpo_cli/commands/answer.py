"""The base of the answers: what a command finds, Python users get, and ``--json`` prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from math import isfinite
from typing import Any

from grpo_cli.terminal.numbers import markup, shown


class Answer:
    """A frozen dataclass whose fields are the keys of its JSON.

    Where a key is a keyword of Python's the field's name ends with an underscore (``global_``).

    Attributes:
        notices: what the command prints as notes; no key of the JSON, unless a class says so.
    """

    notices: Sequence[str] = ()

    def __init_subclass__(cls) -> None:
        if "__repr__" not in vars(cls):
            cls.__repr__ = Answer.__repr__  # type: ignore[method-assign]  # not the dataclass's

    def __repr__(self) -> str:
        """The short fields as they are, the others by their size."""
        values = ((name, _in_short(value)) for name, value in self.fields().items())
        return f"{type(self).__name__}({', '.join(f'{name}={text}' for name, text in values)})"

    def __str__(self) -> str:
        """The numbers and words a line each, and the lists of rows as tables below."""
        named = self.fields()
        plain = [(name, value) for name, value in named.items() if _is_plain(value)]
        rows = {name: [*map(as_row, value)] for name, value in named.items() if _has_rows(value)}
        tables = [f"{name}\n{_text_of_rows(value)}" for name, value in rows.items()]
        return "\n\n".join([text_table(plain), *tables])

    def fields(self) -> dict[str, Any]:
        """The fields by their JSON keys; answers among the values stay answers."""
        assert is_dataclass(self)
        return {one.name.rstrip("_"): getattr(self, one.name) for one in fields(self)}

    def document(self) -> dict[str, Any]:
        """The JSON of ``--json`` as dicts and lists."""
        return {name: _as_document(value) for name, value in self.fields().items()}

    def _repr_html_(self) -> str:
        """HTML for notebooks: lists of rows as tables, the other fields below them."""
        named = self.document()
        rows = {name: value for name, value in named.items() if _is_rows(value)}
        rest = [f"{name}: {value}" for name, value in named.items() if name not in rows and value]
        tables = [html_table([*one[0]], ([*row.values()] for row in one)) for one in rows.values()]
        return html_page(tables, rest)


def _in_short(value: Any) -> str:
    if isinstance(value, list | tuple | dict) and not value:
        return "{}" if isinstance(value, dict) else "[]"
    if isinstance(value, list | tuple):
        return f"<{len(value)} {type(value[0]).__name__}>"
    if isinstance(value, Answer) or not isinstance(value, str | int | float | None):
        return f"<{type(value).__name__}>"
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


_LONGEST, _ROWS, _WIDTH = 60, 20, 100
_LONG = ("signature", "source", "file")
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
    return str(value) if isinstance(value, bool) else shown(value)


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float) and value != ""


def _has_rows(value: Any) -> bool:
    return isinstance(value, list | tuple) and any(isinstance(one, Answer | dict) for one in value)


def as_row(row: Mapping[str, Any] | Answer) -> Mapping[str, Any]:
    """The fields of a row by name."""
    return row.fields() if isinstance(row, Answer) else row


def _text_of_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """The first rows, and the first of their columns that hold numbers or words and fit."""
    listed = rows[:_ROWS]
    names = [name for name, one in listed[0].items() if name not in _LONG and _is_plain(one)]
    columns = [[name, *(_cell(row.get(name)) for row in listed)] for name in names]
    kept, used = [], 0
    for column in columns:
        used += max(map(len, column)) + 2
        if used <= _WIDTH:
            kept.append(column)
    more = [f"… {len(rows) - _ROWS} more"] if len(rows) > _ROWS else []
    return "\n".join([text_table([*zip(*kept, strict=True)]), *more])


def _as_document(value: Any) -> Any:
    if isinstance(value, Answer):
        return value.document()
    if isinstance(value, Mapping):
        return {name: _as_document(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_as_document(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: _as_document(getattr(value, one.name)) for one in fields(value)}
    return None if isinstance(value, float) and not isfinite(value) else value


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def html_table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """An HTML table; numbers are right-justified."""
    head = "".join(f"<th>{markup(name)}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(map(_html_cell, row))}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def html_page(parts: Sequence[str], notes: Iterable[str] = ()) -> str:
    """Tables, and lines of text below."""
    lines = "".join(f"<div><small>{markup(note)}</small></div>" for note in notes)
    return f"<div>{''.join(parts)}{lines}</div>"


def _html_cell(value: Any) -> str:
    if isinstance(value, float):
        return f'<td style="text-align:right" title="{value!r}">{value:.6g}</td>'
    if isinstance(value, int) and not isinstance(value, bool):
        return f'<td style="text-align:right">{value}</td>'
    return f'<td style="text-align:left">{markup("–" if value is None else str(value))}</td>'
