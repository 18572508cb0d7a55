"""Breakdown → the rows of a level: as columns, or as one dict per record with all that is in it.

Every flat format and data frame is made of columns; what many rows have in common, such as the id
of their record, is read once for all of them. In dicts arrays stay arrays (contiguous slices), so
that no loop runs over tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice, pairwise, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

from grpo_cli.batch import Segments
from grpo_cli.engine.rows.fields import (
    CONTRIBUTION,
    RECORD,
    RECORD_CONTEXT,
    RESPONSE,
    RESPONSE_CONTEXT,
    SIDES,
    TOKEN,
    Field,
    Level,
)
from grpo_cli.engine.rows.source import Source, bounds

if TYPE_CHECKING:
    from grpo_cli.objective.breakdown import Breakdown
    from grpo_cli.records.record import Record

Row = dict[str, Any]


def record_fields(source: Source) -> tuple[Field, ...]:
    """The fields of a record: those that name its batch, ``RECORD``, its contribution."""
    by = (Field(name, partial(_of_batch, name), kind="any") for name in source.by)
    return (*by, *RECORD, CONTRIBUTION)


def _of_batch(name: str, source: Source) -> list[Any]:
    return [None if record.batch is None else record.batch[name] for record in source.records]


def rows(
    records: Sequence[Record], breakdown: Breakdown, level: Level, *, weighs: bool = False
) -> list[Row]:
    """One dict per record, in the order of its fields.

    At level ``response`` and ``token`` each has ``responses``, and at level ``token`` each of
    those has ``tokens``: a dict of columns. ``token``, ``token_id`` and ``correction`` are there
    only where there are any. A record has its contribution at these levels, and where ``weighs``
    says that it is wanted.
    """
    if not records:
        return []
    source = Source(records, breakdown)
    fields = record_fields(source)
    result = _rows(fields if weighs or level != "record" else fields[:-1], source)
    if level in ("response", "token"):
        responses = _rows(RESPONSE, source)
        if level == "token":
            for row, tokens in zip(responses, _tokens(source), strict=True):
                row["tokens"] = tokens
        for row, (begin, end) in zip(result, pairwise(bounds(source.summary.records)), strict=True):
            row["responses"] = responses[begin:end]
    return result


def _tokens(source: Source) -> Iterator[dict[str, Any]]:
    """The columns of each response's tokens, of those that its record has."""
    columns = {field.name: field.read(source) for field in TOKEN}
    columns["clip"] = SIDES[columns["clip"]].tolist()
    optional = {name for name in _OPTIONAL if columns[name] is None}
    cuts = pairwise(bounds(source.summary.responses))
    for record in source.records:
        written = {"token": record.tokens, "token_id": record.token_ids}
        absent = optional | {name for name, values in written.items() if values is None}
        present = {name: values for name, values in columns.items() if name not in absent}
        for begin, end in islice(cuts, len(record.widths)):
            yield {
                name: None if values is None else values[begin:end]
                for name, values in present.items()
            }


_OPTIONAL = ("token", "token_id", "correction")
"""Columns of tokens that are not there where no record has one; an unknown KL is None."""


def _rows(fields: Sequence[Field], source: Source) -> list[Row]:
    names = [field.name for field in fields]
    columns = [field.read(source) for field in fields]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


# ---- columns -----------------------------------------------------------------------------------


class Column(NamedTuple):
    """A column of rows.

    Attributes:
        values: a value for each row, or for each owner; None where no row has one.
        owners: the rows of each record or response whose value this is; None: rows have their own.
    """

    values: Any
    owners: Segments | None = None

    def spread(self) -> Iterable[Any]:
        """A value for each row."""
        if self.owners is None:
            return self.values
        counts = self.owners.lengths.tolist()
        return chain.from_iterable(map(repeat, self.values, counts))


def columns(source: Source, level: Level, names: Collection[str]) -> dict[str, Column]:
    """The columns with these names, of the rows of a level. Sides of the clip are codes."""
    return {
        field.name: Column(field.read(source), owners)
        for table, owners in _tables(source, level)
        for field in table
        if field.name in names
    }


def _tables(source: Source, level: Level) -> Iterator[tuple[Sequence[Field], Segments | None]]:
    """The fields that rows of a level may have, and the rows that have a value in common."""
    records = record_fields(source)
    if level == "record":
        yield records, None
        return
    summary = source.summary
    context = _named(records, (*source.by, *RECORD_CONTEXT))
    if level == "response":
        yield context, summary.records
        yield RESPONSE, None
        return
    yield context, summary.record_tokens
    yield _named(RESPONSE, RESPONSE_CONTEXT), summary.responses
    yield TOKEN, None


def _named(table: Sequence[Field], names: Sequence[str]) -> list[Field]:
    return [field for field in table if field.name in names]
