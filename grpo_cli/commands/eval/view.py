"""An evaluation as tables: the totals, the rows, and notes on what the totals hide."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from grpo_cli.commands.answer import what_was_counted
from grpo_cli.commands.eval.printing import Printing
from grpo_cli.engine.rows.fields import (
    ACCUMULATED,
    COLUMNS,
    EXTRA,
    KINDS,
    RECORD,
    RECORD_CONTEXT,
    RESPONSE_CONTEXT,
    SHARES,
    TABLE,
    Level,
    spare,
)
from grpo_cli.engine.rows.source import same
from grpo_cli.engine.totals import is_mean
from grpo_cli.objective.signature import MIXED, Parts, plain
from grpo_cli.terminal.display import chosen
from grpo_cli.terminal.grid import (
    Column,
    column,
    fitting,
    fitting_texts,
    grid,
    print_hidden,
    with_short_names,
)
from grpo_cli.terminal.numbers import (
    aligned,
    brief,
    counted,
    percent,
    record_name,
    shown,
    shown_among,
    token_text,
)
from grpo_cli.terminal.prose import wrapped
from grpo_cli.terminal.screen import Screen

Row = Mapping[str, Any]
Size = Callable[[Row], Sequence[float]]


# ---- totals ------------------------------------------------------------------------------------

_LABEL = len("gradient norm") + 2
_NARROWEST = 20
SUMS = ("objective", "loss", "policy")
"""Totals that may be 0 but for rounding while the gradient is not."""

_ALIGNED = (*SUMS, "kl")
_SPARE_LINES = ("policy", "denominator", "objective", "ratio", "evaluated")
"""Totals that a short terminal goes without: the last one above a table of batches."""


def print_totals(
    console: Console,
    screen: Screen,
    names: Sequence[str] | None,
    total: Row,
    signature: str,
    parts: Parts,
    *,
    advice: str | None = None,
    pooled: str | None = None,
    notes: Iterable[str] = (),
    batches: int = 0,
    short: bool = False,
) -> None:
    """Prints the totals that were asked for, or all, with the objective and what they hide.

    Args:
        console, screen: where to.
        names: the totals that were asked for; None for all.
        total: the numbers by name.
        signature, parts: the objective, as a line and in its pieces.
        advice: what to do about the variant, where nobody asked for it.
        pooled: that the totals are of several steps, where they are.
        notes: what the totals hide.
        batches: how many batches the totals are the mean of; 0 where all is one batch.
        short: whether to leave out what is seldom needed.
    """
    lines = Table.grid(padding=(0, 2, 0, 0))
    lines.add_column(no_wrap=True)
    lines.add_column(no_wrap=True)
    if names is not None:
        row = {"variant": parts[0].name, "signature": signature, **total}
        for name in names:
            value, show = row.get(name), SHOW.get(name, shown)
            lines.add_row(_label(name), Text(value if isinstance(value, str) else show(value)))
        console.print(lines)
        return
    width = screen.width
    room = None if width is None else max(width - _LABEL, _NARROWEST)
    left_out = (_SPARE_LINES if batches else _SPARE_LINES[:4]) if short else ()
    size = total["gradient_norm"]
    texts = [shown_among(total[name], size if name in SUMS else None) for name in _ALIGNED]
    numbers = aligned([text if text.startswith("-") else f" {text}" for text in texts])
    for name, number in zip(_ALIGNED, numbers, strict=True):
        if name not in left_out:
            lines.add_row(_label(name), Text(number, "bold" if name in _ALIGNED[:2] else ""))
    for name, text in _details(total, pooled, of_mean=is_mean(total)):
        if name not in left_out:
            lines.add_row(_label(name), wrapped(Text(f" {text}"), room, 1))
    lines.add_row(_label("variant"), wrapped(Text(f" {_objective(parts, advice)}"), room, 1))
    lines.add_row(_label("signature"), Text(f" {short_signature(signature, screen.width, _LABEL)}"))
    for note in notes:
        lines.add_row(Text("note", "magenta"), wrapped(Text(f" {note}"), room, 1))
    if batches:
        console.print(Text(f"mean of {counted(batches, 'batch', 'batches')}", "bold"))
    elif is_mean(total):
        console.print(Text(f"mean of {counted(total['records'], 'record')}, each a batch", "bold"))
    console.print(lines)
    if left_out:
        line = Text(f"not shown: {', '.join(left_out)} (see --full)", "dim")
        console.print(wrapped(line, screen.width, 2))


def short_signature(signature: str, width: int | None, begin: int) -> str:
    """A signature in one line: as many of its parts as fit, unless all are asked for."""
    if width is None or chosen().full or begin + len(signature) <= width:
        return signature
    kept = signature[: max(width - begin - len(_WHOLE) - 1, 0)].rpartition("|")[0]
    return f"{kept}|{_WHOLE}"


_WHOLE = "… (--full)"


def _objective(parts: Parts, advice: str | None) -> str:
    """The variant with its clip and its KL, which change the loss most, and the advice."""
    stages = {part.key: part for part in parts}
    values = {key: dict(part.values) for key, part in stages.items()}
    low, high = (values["surrogate"].get(f"epsilon_{side}") for side in ("low", "high"))
    beta = values["kl"].get("beta")
    clip = f"clip {plain(low)}" if low == high else f"clip {plain(low)} low, {plain(high)} high"
    weighted = " weighted by the ratio" if "ratio" in str(values["kl"].get("kl_weight")) else ""
    kl = f"KL {stages['kl'].name}{weighted}, β = {plain(beta)}" if beta else "no KL"
    kl = "β = 0" if beta == 0.0 else kl
    if MIXED in (stages["kl"].name, beta):
        kl = "KL by the settings of each record"
    if MIXED in (stages["surrogate"].name, low, high):
        clip = "clip by the settings of each record"
    words = parts[0].name if advice is None else f"{parts[0].name} (default)"
    words = f"{words}, {kl}" if low is None and high is None else f"{words}, {clip}, {kl}"
    return words if advice is None else f"{words}; {advice}"


def _label(name: str) -> Text:
    return Text(name.replace("_", " "), "cyan")


def _details(total: Row, pooled: str | None, *, of_mean: bool) -> Iterator[tuple[str, str]]:
    if total["entropy"] is not None:
        yield "entropy", brief(total["entropy"])
    yield "denominator", f"{shown(total['denominator'])} ({total['denominator_of']})"
    if total["tokens"]:
        yield (
            "clip_fraction",
            f"{brief(total['clip_fraction'])} "
            f"(low {brief(total['clip_fraction_low'])}, high {brief(total['clip_fraction_high'])})",
        )
        yield (
            "ratio",
            f"mean {brief(total['ratio_mean'])}, "
            f"min {brief(total['ratio_min'])}, max {brief(total['ratio_max'])}",
        )
    of = " (of the mean loss, not the mean of the norms)" if of_mean else ""
    yield "gradient_norm", f"{brief(total['gradient_norm'])}{of}"
    yield "evaluated", what_was_counted(total) + (f"; {pooled}" if pooled else "")


def print_batches(
    console: Console, screen: Screen, printing: Printing, batches: Sequence[Row], most: int = 0
) -> None:
    """Prints a line of totals for each batch: of more than ``most`` the first and the last."""
    of_batches = printing.level == "batch"
    wanted = printing.wanted(batches) if of_batches else batches
    rows = wanted[: printing.limit or None]
    of_totals = printing if of_batches else Printing(level="batch", by=printing.by)
    fields = of_totals.fields
    columns = _columns_of(of_totals.names_of_totals(batches), rows, "batch", fields, printing.by)
    kept, hidden = fitting(columns, () if fields else spare("batch"), screen.width)
    if 0 < most < len(rows):
        kept = [_ends(one, most, "⋮" if one is kept[0] else "") for one in kept]
    if kept:
        console.print(grid(kept))
    if more := len(wanted) - len(rows):
        console.print(Text(f"… {counted(more, 'more batch', 'more batches')} (use --limit 0)"))
    print_hidden(console, screen, dict.fromkeys(hidden))


def _ends(whole: Column, most: int, between: str) -> Column:
    """A column's first and last cells, ``most`` in all, and a mark between them.

    Of one the last is in the place of the mark.
    """
    last = max(most // 2, 1)
    first, rest = whole.cells[: most - most // 2], whole.cells[-last:]
    mark = [Text(between.rjust(whole.width), "dim")] if most > 1 else []
    return whole._replace(cells=[*first, *mark, *rest])


def print_rows(
    console: Console,
    screen: Screen,
    printing: Printing,
    records: Sequence[Row],
    limit: int,
    size: Size | None = None,
) -> int:
    """Prints at most ``limit`` rows of the records (0 for all) and returns how many it printed.

    Args:
        console, screen: where to.
        printing: which rows.
        records: those that hold them.
        limit: how many rows; 0 for all.
        size: what the tokens of a record's batch add up to, which ``share`` is of; None where the
            batch was not read whole.
    """
    left = () if printing.fields else spare(printing.level)
    columns, tables = _columns(printing, records, limit, size)
    columns = with_short_names(columns, "id", left, screen)
    kept, hidden = fitting_texts(columns, "token", left, screen.width)
    end = 0
    for title, count in tables:
        console.print()
        if title:
            console.print(wrapped(Text(title, "bold"), screen.width, 2))
        console.print(grid(kept, slice(end, end + count)))
        end += count
    print_hidden(console, screen, hidden)
    return end


def _columns(
    printing: Printing, records: Sequence[Row], limit: int, size: Size | None
) -> tuple[list[Column], list[tuple[str, int]]]:
    """The columns of all rows, and the title and the number of rows of each table."""
    level, fields = printing.level, printing.fields
    if level == "token":
        return _token_columns(fields, [*_responses(records, limit)], size)
    by = printing.by
    rows = list(records if level == "record" else _within(records, level, by))[: limit or None]
    names = printing.names
    if fields is None and level == "record" and rows and "contribution" in rows[0]:
        names = tuple(_IN_BATCH.get(name, name) for name in names if name not in _OF_RECORD)
    numbered = fields is None and level == "record" and all(type(row["id"]) is int for row in rows)
    if numbered and any(row["group"] is not None for row in rows):
        names = (*names[: (at := names.index("id") + 1)], "group", *names[at:])
    return _columns_of(names, rows, level, fields), [("", len(rows))] if rows else []


_SUMMED = (*SUMS, "contribution", ACCUMULATED[-1])
_IN_BATCH = {"objective": "contribution"}
_OF_RECORD = ("loss", "policy", "entropy", "denominator")
"""Columns of a record alone, which no batch is made of, and what the others have there."""


def _column(name: str, rows: Sequence[Row]) -> Column:
    if name in _SUMMED and all("gradient_norm" in row for row in rows):
        texts = [shown_among(row.get(name), row["gradient_norm"]) for row in rows]
        return column(name, texts, show=str, numeric=True)
    return _cells(name, [row.get(name) for row in rows])


def _within(records: Sequence[Row], level: Level, by: Sequence[str]) -> Iterator[Row]:
    """The rows of trajectories, responses or turns, with what their records say of themselves."""
    for record in records:
        about = {name: record.get(name) for name in (*by, *RECORD_CONTEXT)}
        for row in record["trajectories" if level == "trajectory" else "responses"]:
            if level == "turn":
                context = about | {name: row[name] for name in RESPONSE_CONTEXT}
                yield from (context | turn for turn in row["turns"])
            else:
                yield about | row


def _columns_of(
    names: Sequence[str],
    rows: Sequence[Row],
    level: Level,
    asked: Sequence[str] | None,
    by: Sequence[str] = (),
) -> list[Column]:
    """The columns of rows: those that are asked for, or else that say something; ``by``: keys."""
    fields = {one.name: one for one in (*RECORD, *TABLE[level]) if one.name not in by}

    def says_something(name: str) -> bool:
        field, values = fields.get(name), [row.get(name) for row in rows]
        equal = all(value == values[0] for value in values)
        if asked is not None or field is None:
            return asked is not None or not equal or values[0] is not None
        unknown = values[0] is None or field.usual in (same, values[0])
        return not (field.hidden or (equal and unknown))

    return [_column(name, rows) for name in names if rows and says_something(name)]


def _responses(records: Sequence[Row], limit: int) -> Iterator[tuple[Row, Row, int]]:
    """Records, their responses that have tokens, and how many of these are printed."""
    room = limit or None
    for record in records:
        for response in record["responses"]:
            count = len(response["tokens"]["position"])
            count = count if room is None else min(count, room)
            if count:
                yield record, response, count
            room = None if room is None else room - count


def _title(record: Row, response: Row) -> str:
    parts = [record_name(record["id"], record["line"]), f"response {response['response']}"]
    if record["groups"] > 1:
        parts.append(f"group {shown(response['group'])}")
    for name in ("reward", "advantage", "contribution"):
        if response[name] is not None:
            parts.append(f"{name} {shown(response[name])}")
    return ", ".join(parts)


_OF_TOKENS = {field.name for field in (*TABLE["token"], *EXTRA["token"])}
"""The fields of a token's own, also those that are there where they are asked for."""


def _token_columns(
    fields: tuple[str, ...] | None, rows: Sequence[tuple[Row, Row, int]], size: Size | None
) -> tuple[list[Column], list[tuple[str, int]]]:
    """The columns of the tokens of all responses, and the title of each response's table."""
    usual_of = {field.name: field.usual for field in TABLE["token"]}
    there = {
        name
        for _, one, _ in rows
        for name, values in one["tokens"].items()
        if any(value != usual_of.get(name, ...) for value in values or ())
    }
    names = fields or [name for name in COLUMNS["token"] if name in there]
    columns = [
        _cells(name, [value for one in rows for value in _of_response(name, *one)])
        for name in names
        if rows
    ]
    if rows and fields is None and size is not None:
        shares = [share for one in rows for share in _shares(*one, size)]
        usual = [record["tokens"] for record, _, count in rows for _ in range(count)]
        columns.append(column("gradient_share", shares, show=percent, numeric=True))
        for cell, share, equal in zip(columns[-1].cells, shares, usual, strict=True):
            cell.style = _share_style(share * equal)  # so many equal shares are the whole
    return columns, [(_title(record, one), count) for record, one, count in rows]


def _of_response(name: str, record: Row, response: Row, count: int) -> Sequence[Any]:
    """A field of the first tokens of a response."""
    if name in RESPONSE_CONTEXT:
        return [response[name]] * count
    if name in _OF_TOKENS:
        return (response["tokens"].get(name) or [None] * count)[:count]
    return [record.get(name)] * count  # what the record says of itself and its batch


def _shares(record: Row, response: Row, count: int, size: Size) -> Sequence[float]:
    shares = response["tokens"]["share"][:count]
    if shares[0] is not None:
        return shares
    whole = size(record)[0] or 1.0  # the batch is larger than the record
    return [abs(one) / whole for one in response["tokens"]["gradient"][:count]]


def _cells(name: str, values: Sequence[Any]) -> Column:
    if name == "token":
        return column(name, values, show=lambda text: token_text(text or ""))
    if name == "clip":
        return column(name, values, show=lambda side: side or "·", style=_SIDE_STYLES.__getitem__)
    if name in SHARES:
        return column(name, values, show=percent, numeric=True)
    return column(name, values, show=SHOW.get(name, shown))


SHOW = {name: brief for name, kind in KINDS.items() if kind == "diagnostic"}
"""How fields are shown, except those with six digits."""

_SIDE_STYLES = {"low": "bold cyan", None: "dim", "high": "bold magenta"}


def _share_style(times_usual: float) -> str:
    """The colour of a share, by how many times an equal share it is."""
    if times_usual >= 4:
        return "bold red"
    if times_usual >= 2:
        return "red"
    return "dim" if times_usual < 0.25 else ""
