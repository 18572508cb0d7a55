"""The formats of all answers: JSON, and rows as JSONL, CSV, Markdown or bare values.

``PageOptions.write`` writes answers that are complete; the rows of ``eval`` stream.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import orjson

from grpo_cli.commands.answer import Answer, as_row
from grpo_cli.terminal.numbers import escaped, escaped_json, shown, visible

Row = Mapping[str, Any]
Names = Sequence[str]


class TextFormat(NamedTuple):
    """A format that has one line of text for each row.

    Attributes:
        cell: formats a value.
        marks: what a line begins with, what separates its cells, and what it ends with.
        named: whether each cell has the name of its field; the names are above the rows otherwise.
        rule: a cell of the line below the names; "" for no such line, None for no names.
        infinite: whether it can express an infinite number.
        as_json: whether numbers are formatted as in JSON.
        multiline: whether a cell may contain line ends.
    """

    cell: Callable[[Any], str]
    marks: tuple[str, str, str]
    named: bool = False
    rule: str | None = None
    infinite: bool = True
    as_json: bool = True
    multiline: bool = False

    def line(self, cells: Sequence[str], names: Names) -> str:
        """A row of cells, given the names of its fields; without the line's end."""
        begin, between, end = self.marks
        if self.named:
            pairs = zip(names, cells, strict=True)
            cells = [f"{_json_cell(name)}:{cell}" for name, cell in pairs]
        return f"{begin}{between.join(cells)}{end}"

    def row(self, values: Iterable[Any], names: Names) -> bytes:
        """A row with its line's end."""
        return self.line([self.cell(value) for value in values], names).encode() + b"\n"

    def head(self, names: Names) -> bytes:
        """The lines above the rows."""
        if self.rule is None:
            return b""
        rule = self.line([self.rule] * len(names), names) + "\n" if self.rule else ""
        return self.row(names, names) + rule.encode()


def _is_infinite(value: Any) -> bool:
    return isinstance(value, float) and math.isinf(value)


def _json_cell(value: Any) -> str:
    return escaped_json(orjson.dumps(value)).decode()


def _csv_cell(value: Any) -> str:
    """Empty for null, and ``inf``, which JSON cannot express."""
    if value is None:
        return ""
    if _is_infinite(value):
        return repr(value)
    text = escaped(value if isinstance(value, str) else orjson.dumps(value).decode())
    if any(mark in text for mark in ',"\n'):
        return '"' + text.replace('"', '""') + '"'
    return text


def _markdown_cell(value: Any) -> str:
    """As in a table (6 significant digits), but strings are not cut."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = visible(value) if isinstance(value, str) else shown(value)
    return _MARKS.sub(r"\1\1\\\2", text)


_MARKS = re.compile(r"(\\*)([|<]|(?<=\])\()")
"""What would end a cell, begin HTML or a link, and backslashes before it, which would be for it."""


def _bare_cell(value: Any) -> str:
    """A value without quotes; nothing in it moves the cursor or ends the line."""
    if value is None:
        return ""
    if _is_infinite(value):
        return repr(value)
    return visible(value if isinstance(value, str) else orjson.dumps(value).decode())


JSONL = TextFormat(_json_cell, ("{", ",", "}"), named=True, infinite=False)
CSV = TextFormat(_csv_cell, ("", ",", ""), rule="", multiline=True)
MARKDOWN = TextFormat(_markdown_cell, ("| ", " | ", " |"), rule="---", as_json=False)
BARE = TextFormat(_bare_cell, ("", "\t", ""))
"""``--only``: values for shell variables, separated by tabs."""

TEXT_FORMATS = {"jsonl": JSONL, "csv": CSV, "markdown": MARKDOWN}
"""The name for ``--format`` → the format."""


def as_json(document: Any) -> bytes:
    """A document, an answer or a list of them as JSON, without a line's end."""
    option = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_INDENT_2
    return escaped_json(orjson.dumps(document, default=_fields, option=option))


def _fields(value: Any) -> Row:
    if isinstance(value, Answer):
        return value.fields()
    if is_dataclass(value):
        return {one.name: getattr(value, one.name) for one in fields(value)}
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def write_rows(stream: BinaryIO, kind: str, rows: Iterable[Row | Answer], names: Names) -> None:
    """Writes rows in a text format, with null for the fields that a row does not have."""
    format = TEXT_FORMATS[kind]
    stream.write(format.head(names))
    for row in map(as_row, rows):
        values = (row.get(name) for name in names)
        plain = (one.item() if isinstance(one, np.generic) else one for one in values)
        stream.write(format.row(plain, names))
