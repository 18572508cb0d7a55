"""The formats of ``eval``: each encodes records, in any process, and writes what is around them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import orjson

from grpo_cli.commands.emit import BARE, TEXT_FORMATS, TextFormat
from grpo_cli.commands.eval.lines import encode_lines, encode_nested
from grpo_cli.commands.eval.printing import ONLY, Printing
from grpo_cli.commands.eval.run import (
    ROWS,
    Run,
    limited,
    row_notes,
    rows_of,
    total_notes,
    totals_of,
)
from grpo_cli.engine.evaluation import Encode
from grpo_cli.engine.rows.fields import SHARES, UNDIVIDED, Level
from grpo_cli.terminal.destination import naming
from grpo_cli.terminal.display import chosen
from grpo_cli.terminal.messages import say

if TYPE_CHECKING:  # rich is imported where it prints
    from rich.console import Console

    from grpo_cli.terminal.screen import Screen


class Format(NamedTuple):
    """A format.

    Attributes:
        encode: makes the encoder of a breakdown's records: one piece for each, or one for all.
        write: writes the pieces and what is around them.
        streams: whether it writes as it goes, so that a progress bar would be in the way.
    """

    encode: Callable[[Printing], Encode]
    write: Callable[[Run, Printing, BinaryIO], None]
    streams: bool = True


def format_of(name: str) -> Format:
    """The format that ``--format`` calls so, or that of ``--only``."""
    if name == ONLY or name in TEXT_FORMATS:
        text = TEXT_FORMATS.get(name, BARE)
        return Format(partial(_encode_text, text), partial(write_text, text))
    if name == "parquet":
        from grpo_cli.commands.eval import parquet  # pyarrow comes with it

        return Format(parquet.encode, parquet.write)
    return {"json": _JSON, "table": _TABLE}[name]


def _nesting(printing: Printing) -> dict[str, Any]:
    return {"level": printing.level, "fields": printing.fields, "asked": printing.asked}


# ---- text: one line for each row ---------------------------------------------------------------


def _encode_text(text: TextFormat, printing: Printing) -> Encode:
    if printing.nest:
        return partial(encode_nested, **_nesting(printing), lines=True)
    return partial(encode_lines, level=printing.level, fields=printing.names, lines=text)


def write_text(text: TextFormat, run: Run, printing: Printing, stream: BinaryIO) -> None:
    """Writes the head where there is anything to print, then the rows as they are computed."""
    first = text.head(printing.names)
    for pieces in limited(run, printing.limit, first_quoted if text.multiline else _first_lines):
        if pieces:
            stream.writelines([first, *pieces])
            stream.flush()
            first = b""
    if run.empty or (printing.level == "batch" and not run.complete):
        return
    if printing.level != "batch":
        stream.write(first)
        return
    rows = totals_of(run, printing)
    stream.write(text.head([*rows[0]] if rows else printing.names))
    for row in rows:
        stream.write(text.row(row.values(), [*row]))


def _first_lines(piece: bytes, most: int) -> tuple[bytes, int]:
    lines = piece.splitlines(keepends=True)[:most]
    return b"".join(lines), len(lines)


def first_quoted(piece: bytes, most: int) -> tuple[bytes, int]:
    """The first rows of a piece of csv; a quoted cell may contain line ends."""
    rows, start, quoted = 0, 0, False
    for line in piece.splitlines(keepends=True):
        quoted ^= line.count(b'"') % 2 == 1
        start += len(line)
        rows += not quoted
        if rows == most:
            break
    return piece[:start], rows


# ---- json: one document ------------------------------------------------------------------------


_IN_MEMORY = 16 * 2**20


def _write_json(run: Run, printing: Printing, stream: BinaryIO) -> None:
    """Writes the totals, then the records.

    The totals are known last, so the records wait in a temporary file, which is in memory while
    it is small: memory stays flat whatever the input.
    """
    from tempfile import SpooledTemporaryFile  # slow to import, and rarely needed

    separator = b""
    with SpooledTemporaryFile(max_size=_IN_MEMORY) as spool:
        for pieces in limited(run, printing.limit, lambda piece, _: (piece, 1)):
            for piece in pieces:
                with naming("a temporary file"):
                    spool.write(separator + piece)
                separator = b",\n"
        if run.empty or (printing.level == "batch" and not run.complete):
            return
        head: dict[str, Any] = {
            "variant": run.plan.variant,
            "signature": run.signature,
            "total": None,
        }
        if run.complete:
            fields = printing.fields if printing.level == "batch" else None
            head["total"] = _chosen(run.total, fields)
            if printing.by:  # the total is the mean over these
                head["batches"] = [_chosen(row, fields) for row in printing.wanted(run.batches)]
        stream.write(orjson.dumps(head, option=orjson.OPT_SERIALIZE_NUMPY)[:-1])
        if printing.level != "batch":
            stream.write(b',"records":[\n')
            spool.seek(0)
            shutil.copyfileobj(spool, stream, 2**20)
            stream.write(b"\n]" if separator else b"]")
        stream.write(b"}\n")


def _chosen(row: Mapping[str, Any], fields: Sequence[str] | None) -> Mapping[str, Any]:
    return row if fields is None else {name: row[name] for name in fields if name in row}


_JSON = Format(
    lambda printing: partial(encode_nested, **_nesting(printing)), _write_json, streams=False
)


# ---- table: totals, then the first rows --------------------------------------------------------

_LIMIT = {"token": 200}
_USUAL_LIMIT = 50
_ANY_VARIANT = "-v chooses another"
_ALONE = "contributions add up to the objective; other columns are of each record alone"


def _next(run: Run) -> str:
    """What to ask next of the same files."""
    if run.of_steps:
        # of several steps, explain alone takes the last
        loss = "this" if run.plan.batch in ("input", "record") else "the last batch's"
        explain = f"grpo explain FILE --batch {run.plan.batch} (why {loss} loss)"
        return f"next: grpo trend FILE (what changed when), {explain}"
    return "next: grpo explain FILE (why this loss), grpo show FILE (which tokens)"


def _encode_table(printing: Printing) -> Encode:
    # A table chooses its columns itself, and needs the others to say what they mean.
    usual = {"token": SHARES[:1], "record": ("group", UNDIVIDED.name)}.get(printing.level, ())
    asked = printing.asked or usual
    return partial(encode_nested, level=printing.level, fields=None, asked=asked)


def _write_table(run: Run, printing: Printing, stream: BinaryIO) -> None:
    """Writes totals, then one row per record or response, or one table per response."""
    from rich.text import Text

    from grpo_cli.commands.eval.view import print_batches, print_rows, print_totals
    from grpo_cli.terminal.paging import draw_fitting, fits, print_page
    from grpo_cli.terminal.prose import wrapped

    level, limit = printing.level, printing.limit
    if limit is None:
        limit = 0 if chosen().full else _LIMIT.get(level, _USUAL_LIMIT)
    first = limited(run, limit, lambda piece, _: (piece, _count_rows(piece, level)))
    records = [orjson.loads(piece) for pieces in first for piece in pieces]
    if run.empty or not run.complete:
        return
    together = run.plan.batch != "record" and run.total["records"] > 1
    added_up = level == "record" and printing.fields is None and together
    for row in records if added_up else ():
        row["contribution"] = run.sums.batches.contribution(row)
    shown_in_table = run.in_table(printing)
    below = [one for one in [*run.notices, *row_notes(run, printing)] if one not in shown_in_table]
    notes = () if printing.quiet else below
    shown, batches = 0, run.batches

    def draw_head(console: Console, screen: Screen, *, brief: bool = False) -> None:
        chosen = printing.fields if level == "batch" else None
        if run.ungrouped is not None and not printing.quiet:
            console.print(wrapped(Text(f"note: {run.ungrouped}", "magenta"), screen.width, 2))
        if not (printing.by and chosen):
            print_totals(
                console,
                screen,
                chosen,
                run.total,
                run.signature,
                run.sums.batches.whole.signed,
                advice=(run.other_row or _ANY_VARIANT) if run.by_default else None,
                pooled=run.pooled,
                notes=total_notes(run),
                batches=len(batches),
                short=brief,
            )

    def draw_batches(console: Console, screen: Screen, most: int = 0) -> None:
        console.print()
        print_batches(console, screen, printing, batches, most)
        if level == "batch" or most:
            draw_next(console, screen)

    def draw_next(console: Console, screen: Screen) -> None:
        if printing.fields is None and not printing.quiet:
            console.print(wrapped(Text(_next(run), "dim"), screen.width, 2))

    def draw_rows(console: Console, screen: Screen, most: int) -> None:
        nonlocal shown
        size = run.sums.batches.size if printing.weighs else None
        shown = print_rows(console, screen, printing, records, most, size)
        if added_up:
            console.print(wrapped(Text(_ALONE, "dim"), screen.width, 2))
        draw_next(console, screen)

    def draw_all(console: Console, screen: Screen) -> None:
        draw_head(console, screen)
        if printing.by:
            draw_batches(console, screen)
        if level != "batch":
            draw_rows(console, screen, limit)

    def draw(console: Console, screen: Screen) -> None:
        nonlocal shown
        draw_brief = partial(draw_head, brief=True)
        if fits(draw_all, screen, notes) or (level == "batch" and not printing.by):
            draw_all(console, screen)
        elif printing.by and level in ("batch", "record"):
            shown, most = 0, len(batches)
            draw_fitting(console, screen, draw_head, draw_brief, draw_batches, most, notes)
        else:
            draw_fitting(console, screen, draw_head, draw_brief, draw_rows, limit, notes)

    cut = print_page(stream, draw, "cut", notes=notes)
    if level != "batch" and not cut:
        all_rows = rows_of(run, level) if printing.having is None else run.sums.shown
        if more := all_rows - shown:
            beyond = "--limit 0" if printing.limit else "--full or --format jsonl"
            how = beyond if shown == limit else "--full"
            rows = ROWS[level] if more > 1 else level
            say(f"… {more:,} more {rows} (use {how})")


def _count_rows(piece: bytes, level: Level) -> int:
    """The rows of a level within a record."""
    if level == "record":
        return 1
    record = orjson.loads(piece)
    if level in ("trajectory", "response"):
        return len(record[ROWS[level]])
    inside = (response[ROWS[level]] for response in record["responses"])
    return sum(len(one["position"] if level == "token" else one) for one in inside)


_TABLE = Format(_encode_table, _write_table, streams=False)
