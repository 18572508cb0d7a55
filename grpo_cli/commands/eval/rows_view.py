"""The rows of a table: records, responses, or the tokens of each response."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from rich.console import Console
from rich.text import Text

from grpo_cli.commands.eval.totals_view import SUMS, chosen, summary
from grpo_cli.engine.rows.fields import (
    COLUMNS,
    RECORD_CONTEXT,
    RESPONSE_CONTEXT,
    TABLE,
    Level,
    spare,
)
from grpo_cli.engine.rows.lists import same
from grpo_cli.terminal.grid import Column, Style, column, fitting, grid, print_hidden
from grpo_cli.terminal.numbers import shown, shown_among, token_text
from grpo_cli.terminal.screen import Screen

Row = Mapping[str, Any]

ROWS: Mapping[Level, str] = {"record": "records", "response": "responses", "token": "tokens"}
"""What the rows of a level are called, and counted as in the totals."""


def print_totals(
    console: Console,
    screen: Screen,
    level: Level,
    fields: tuple[str, ...] | None,
    total: Row,
    signature: str,
) -> None:
    """Prints the totals; at level batch those fields alone that were asked for."""
    only = fields if level == "batch" else None
    console.print(summary(total, signature, screen.edge) if only is None else chosen(total, only))


def print_rows(
    console: Console,
    screen: Screen,
    level: Level,
    fields: tuple[str, ...] | None,
    records: Sequence[Row],
    limit: int,
) -> int:
    """Prints at most ``limit`` rows of the records (0 for all) and returns how many it printed."""
    tables = _tables(level, fields, records, limit)
    hidden: dict[str, None] = {}
    printed = 0
    for title, columns in tables:
        kept, left_out = fitting(columns, () if fields else spare(level), screen.width)
        hidden |= dict.fromkeys(left_out)
        console.print(Text(f"\n{title}" if title else "", "bold"))
        console.print(grid(kept))
        printed += len(kept[0].cells)
    print_hidden(console, screen, hidden, "--fields")
    return printed


def _tables(
    level: Level, fields: tuple[str, ...] | None, records: Sequence[Row], limit: int
) -> Iterator[tuple[str, list[Column]]]:
    if level == "token":
        yield from _token_tables(fields, records, limit)
        return
    rows = list(records if level == "record" else _responses(records))[: limit or None]
    if rows:
        columns = [_column(name, rows) for name in fields or COLUMNS[level]]
        yield "", columns if fields is not None else [*_telling(columns, rows, level)]


def _column(name: str, rows: Sequence[Row]) -> Column:
    if name in SUMS and all("gradient_norm" in row for row in rows):
        texts = [shown_among(row[name], row["gradient_norm"]) for row in rows]
        return column(name, texts, show=str, numeric=True)
    return column(name, [row[name] for row in rows])


def _responses(records: Sequence[Row]) -> Iterator[Row]:
    for record in records:
        about = {name: record[name] for name in RECORD_CONTEXT}
        yield from (about | response for response in record["responses"])


def _telling(columns: Sequence[Column], rows: Sequence[Row], level: Level) -> Iterator[Column]:
    """The columns that say something of these rows."""
    fields = {field.name: field for field in TABLE[level]}
    for shown_column in columns:
        field = fields.get(shown_column.name)
        values = [row[shown_column.name] for row in rows]
        equal = all(value == values[0] for value in values)
        if (field is not None and field.hidden) or (equal and values[0] is None):
            continue
        if field is None or not equal or field.usual not in (same, values[0]):
            yield shown_column


def _token_tables(
    fields: tuple[str, ...] | None, records: Sequence[Row], limit: int
) -> Iterator[tuple[str, list[Column]]]:
    room = limit or None
    for record in records:
        whole = sum(abs(one) for one in _gradients(record))
        for response in record["responses"]:
            count = len(response["tokens"]["position"])
            count = count if room is None else min(count, room)
            if count:
                yield (
                    _title(record, response),
                    _token_columns(fields, record, response, count, whole),
                )
            room = None if room is None else room - count


def _gradients(record: Row) -> Iterator[float]:
    return chain.from_iterable(one["tokens"]["gradient"] for one in record["responses"])


def _title(record: Row, response: Row) -> str:
    parts = [f"record {shown(record['id'])}", f"response {response['response']}"]
    if record["groups"] > 1:
        parts.append(f"group {shown(response['group'])}")
    for name in ("reward", "advantage", "contribution"):
        if response[name] is not None:
            parts.append(f"{name} {shown(response[name])}")
    return ", ".join(parts)


def _token_columns(
    fields: tuple[str, ...] | None, record: Row, response: Row, count: int, whole: float
) -> list[Column]:
    tokens = response["tokens"]
    names = fields or [name for name in COLUMNS["token"] if tokens.get(name) is not None]
    columns = []
    for name in names:
        if name in (*RECORD_CONTEXT, *RESPONSE_CONTEXT):
            values = [(record if name in RECORD_CONTEXT else response)[name]] * count
        else:
            values = (tokens.get(name) or [None] * count)[:count]
        columns.append(_token_column(name, values))
    if fields is None:
        columns.append(
            _share(tokens["gradient"][:count], whole, sum(map(_size, record["responses"])))
        )
    return columns


def _size(response: Row) -> int:
    return len(response["tokens"]["position"])


def _token_column(name: str, values: Sequence[Any]) -> Column:
    if name == "token":
        return column(name, values, show=lambda text: token_text(text or ""))
    if name == "clip":
        return column(name, values, show=_side, style=_SIDE_STYLES.__getitem__)
    return column(name, values)


def _side(clip: str | None) -> str:
    return clip or "·"


_SIDE_STYLES = {"low": "bold cyan", None: "dim", "high": "bold magenta"}


def _share(gradients: Sequence[float], whole: float, tokens: int) -> Column:
    """Each token's part of the record's update, |gradient| / Σ |gradient|, in percent."""
    parts = [abs(one) / whole if whole else 0.0 for one in gradients]
    style: Style = lambda part: _share_style(part * tokens)  # noqa: E731
    return column("share", parts, show=lambda part: f"{part:.2%}", style=style, numeric=True)


def _share_style(times_usual: float) -> str:
    """The colour of a share, by how many times an equal share it is."""
    if times_usual >= 4:
        return "bold red"
    if times_usual >= 2:
        return "red"
    return "dim" if times_usual < 0.25 else ""
