"""Breakdown → the columns of a level's rows, which every flat format and data frame is made of.

What many rows have in common, such as the id of their record, is read once for all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple

from grpo_cli.batch import Segments
from grpo_cli.engine.rows.fields import (
    RECORD_CONTEXT,
    RESPONSE,
    RESPONSE_CONTEXT,
    TOKEN,
    Field,
    Level,
)
from grpo_cli.engine.rows.rows import record_fields
from grpo_cli.engine.rows.source import Source


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
