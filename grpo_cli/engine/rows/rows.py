"""Breakdown → the rows of a level: as columns, or as one dict per record with all that is in it.

Every flat format and data frame is made of columns; what many rows have in common, such as the id
of their record, is read once for all of them. In dicts arrays stay arrays (contiguous slices), so
that no loop runs over tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress, islice, pairwise, repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import Segments
from grpo_cli.engine.rows.fields import (
    EXTRA,
    FIELDS,
    KINDS,
    RECORD,
    RECORD_CONTEXT,
    RESPONSE,
    RESPONSE_CONTEXT,
    SHARES,
    SIDES,
    TABLE,
    Level,
)
from grpo_cli.engine.rows.source import LEVELS, Field, Source, bounds
from grpo_cli.errors import Listing, UsageError, checked, did_you_mean, nearest
from grpo_cli.records.choose.where import ASKED, Condition, read_conditions, spelled

Row = dict[str, Any]


def record_fields(source: Source) -> tuple[Field, ...]:
    """The fields of a record: those that name its batch, then the others of ``RECORD``."""

    def field(name: str) -> Field:
        return Field(name, lambda s: [(one.batch or {}).get(name) for one in s.records], kind="any")

    return (*map(field, source.by), *(one for one in RECORD if one.name not in source.by))


def rows(
    source: Source, level: Level, asked: Collection[str] = (), chosen: Sequence[str] | None = None
) -> list[Row]:
    """One dict per record, in the order of its fields.

    At level ``trajectory`` each has ``trajectories``. At level ``response``, ``turn`` and ``token``
    each has ``responses``, and at level ``turn`` each of those has ``turns``, at level ``token``
    ``tokens``: a dict of columns. ``token``, ``token_id`` and ``correction`` are there
    only where there are any, and so is the ``step`` of a record. A record has its contribution at
    these levels.

    Args:
        source: the records. Those without a row that is wanted are left out.
        asked: which of the ``EXTRA`` fields rows have.
        chosen: the fields of a row, in this order; None for all of them. A record that holds rows
            keeps its ``id``, and a response its number.
    """
    if not source.records:
        return []
    tables: list[Sequence[Field]]
    if chosen is not None:
        tables = [_picked(table, chosen, level) for table, _ in _tables(source, level)]
    else:
        outer, extra = record_fields(source), [one for one in EXTRA[level] if one.name in asked]
        tables = [(*outer, *extra)]
        if level != "record":
            between = [RESPONSE] if level in ("turn", "token") else []
            contribution = EXTRA["record"][0]
            tables = [(*outer, contribution), *between, (*TABLE[level], *extra)]
    result, wanted = _rows(tables[0], source, "record"), source.mask
    if chosen is None and "step" not in source.by:
        for row in result:
            if row["step"] is None:
                del row["step"]
    if level == "record":
        return _wanted(result, wanted)
    if level in ("turn", "token"):
        inner, key, owners = _rows(tables[1], source, "response"), "responses", source.batch.records
        if level == "turn":
            _put(inner, "turns", _rows(tables[2], source, level), source.turn_responses, wanted)
        else:
            tokens = _tokens(source, tables[2], whole=chosen is not None)
            for row, columns in zip(inner, tokens, strict=True):
                row["tokens"] = columns
        if wanted is not None:
            wanted = source.rows_of_responses(level).sum(wanted.astype(int)) > 0
    else:
        inner, owners = _rows(tables[1], source, level), source.rows_of_records(level)
        key = "responses" if level == "response" else "trajectories"
    _put(result, key, inner, owners, wanted)
    return [row for row in result if wanted is None or row[key]]


def _picked(table: Sequence[Field], chosen: Sequence[str], level: Level) -> list[Field]:
    """The chosen fields of a table, with what distinguishes rows within rows."""
    known = {field.name: field for field in table}
    keys = [] if level == "record" else [key for key in ("id", "response") if key in known]
    wanted = [name for name in chosen if name in known]
    return [known[name] for name in (*(key for key in keys if key not in wanted), *wanted)]


def _put(
    outer: list[Row], key: str, inner: list[Row], owners: Segments, wanted: NDArray[np.bool_] | None
) -> None:
    """Puts rows that are wanted into those that they belong to, one for each of ``owners``."""
    for row, (begin, end) in zip(outer, pairwise(bounds(owners)), strict=True):
        row[key] = _wanted(inner[begin:end], None if wanted is None else wanted[begin:end])


def _wanted(rows: list[Row], mask: NDArray[np.bool_] | None) -> list[Row]:
    return rows if mask is None else [*compress(rows, mask.tolist())]


def _tokens(source: Source, fields: Sequence[Field], *, whole: bool) -> Iterator[dict[str, Any]]:
    """The columns of each response's tokens; None for what its record lacks if they are whole."""
    columns = {field.name: field.read(source) for field in fields}
    if "clip" in columns:
        columns["clip"] = SIDES[columns["clip"]].tolist()
    cuts = pairwise(bounds(source.batch.responses))
    if source.mask is not None:
        columns = {name: _kept(values, source.mask) for name, values in columns.items()}
        cuts = pairwise(bounds(_fewer(source.batch.responses, source.mask)))
    optional = {name for name in _OPTIONAL if columns.get(name) is None}
    for record in source.records:
        written = {"token": record.tokens, "token_id": record.token_ids}
        absent = optional | {name for name, values in written.items() if values is None}
        for begin, end in islice(cuts, len(record.widths)):
            yield {
                name: None if values is None or name in absent else values[begin:end]
                for name, values in columns.items()
                if whole or name not in absent
            }


_OPTIONAL = ("token", "token_id", "correction")
"""Columns of tokens that are not there where no record has one; an unknown KL is None."""


def _rows(fields: Sequence[Field], source: Source, level: Level) -> list[Row]:
    if not fields:
        return [{} for _ in range(source.count(level))]
    names = [field.name for field in fields]
    columns = [field.read(source) for field in fields]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


class Column(NamedTuple):
    """A column of rows.

    Attributes:
        values: a value for each row, or for each owner; None where no row has one.
        owners: the rows of each record or response whose value this is; None: rows have their own.
    """

    values: Any
    owners: Segments | None = None

    def kept(self, mask: NDArray[np.bool_]) -> Column:
        """The column of some of the rows."""
        if self.owners is None:
            return Column(_kept(self.values, mask))
        return Column(self.values, _fewer(self.owners, mask))

    def spread(self) -> Iterable[Any]:
        """A value for each row."""
        if self.owners is None:
            return self.values
        counts = self.owners.lengths.tolist()
        return chain.from_iterable(map(repeat, self.values, counts))


def _kept(values: Any, mask: NDArray[np.bool_]) -> Any:
    if values is None or isinstance(values, np.ndarray):
        return None if values is None else values[mask]
    return [*compress(values, mask.tolist())]


def _fewer(owners: Segments, mask: NDArray[np.bool_]) -> Segments:
    """The segments with some of their elements."""
    return Segments(owners.sum(mask.astype(np.int64)))


def row_segments(source: Source) -> Segments:
    """The responses' tokens that are rows."""
    responses = source.batch.responses
    return responses if source.mask is None else _fewer(responses, source.mask)


def columns(source: Source, level: Level, names: Collection[str]) -> dict[str, Column]:
    """The columns with these names, of the rows of a level that are wanted."""
    found, mask = all_columns(source, level, names), source.mask
    if mask is None:
        return found
    return {name: column.kept(mask) for name, column in found.items()}


def all_columns(source: Source, level: Level, names: Collection[str]) -> dict[str, Column]:
    """The columns with these names, of all rows of a level. Sides of the clip are codes."""
    return {
        field.name: Column(field.read(source), owners)
        for table, owners in _tables(source, level)
        for field in table
        if field.name in names
    }


def _tables(source: Source, level: Level) -> Iterator[tuple[Sequence[Field], Segments | None]]:
    """The fields that rows of a level may have, and the rows that have a value in common."""
    records, extra = record_fields(source), EXTRA[level]
    if level == "record":
        yield (*records, *extra), None
        return
    known = (*source.by, *RECORD_CONTEXT)
    yield [field for field in records if field.name in known], source.rows_of_records(level)
    if level in ("turn", "token"):
        context = [field for field in RESPONSE if field.name in RESPONSE_CONTEXT]
        yield context, source.rows_of_responses(level)
    yield (*TABLE[level], *extra), None


# ---- --having: which rows of output are wanted, in the language of --where --------------------


class Having(NamedTuple):
    """What rows of a level must hold. It travels between processes.

    Attributes:
        level: of the rows.
        conditions: all of them; each path begins with the name of a column.
    """

    level: Level
    conditions: tuple[Condition, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are read."""
        return tuple(str(one.path[0]) for one in self.conditions)

    @property
    def needs_shares(self) -> bool:
        """Whether it reads a share."""
        return bool({*SHARES} & {*self.names})

    def mask(self, source: Source) -> NDArray[np.bool_]:
        """Whether each row of the level is wanted."""
        found = all_columns(source, self.level, self.names)
        wanted = np.ones(source.count(self.level), dtype=np.bool_)
        for name, condition in zip(self.names, self.conditions, strict=True):
            column, within = found[name], condition._replace(path=condition.path[1:])
            values = column.values
            if values is None:
                wanted &= condition.compares(None)
                continue
            if not isinstance(values, np.ndarray):
                fits = np.array([within.holds(value) for value in values], dtype=np.bool_)
            elif name == "clip":
                fits = np.array([within.compares(side) for side in SIDES.tolist()])[values]
            else:
                fits = within.fits(values)
            wanted &= fits if column.owners is None else column.owners.spread(fits)
        return wanted

    def holds(self, row: Mapping[str, Any]) -> bool:
        """Whether a row that is complete is wanted."""
        return all(one.holds(row) for one in self.conditions)


def _of_clip(condition: Condition, flag: str) -> Condition:
    """The condition on the side of the clip, where ``none`` is a token that is not clipped."""
    sides = [None if one.wanted == "none" else one.wanted for one in condition.each]
    for side in sides:
        if side not in (*SIDES.tolist(), None):
            raise UsageError(
                f"{flag}: clip is high, low or null (a token that is not clipped), got {side!r}"
            )
    return condition._replace(wanted=tuple(sides) if condition.test == "in" else sides[0])


def _where_it_is(name: str, names: Sequence[str]) -> str:
    """The near match of a column that a level lacks, or the levels that have it; or ""."""
    near = nearest(name, KINDS)
    levels = [level for level in LEVELS if near in FIELDS[level]]
    elsewhere = f"; {near} is a column of --level {', '.join(levels)}" if levels else ""
    here = did_you_mean(name, names)
    return elsewhere or here if near == name else here or elsewhere


def read_having(
    texts: Iterable[str] | None, level: Level, names: Iterable[str], flag: str = "--having"
) -> Having | None:
    """``clip=="high" && share>0.01`` for rows of a level that have these columns.

    Raises:
        UsageError: for anything else, or a column that does not exist.
    """
    names = [*names]

    def check(one: Condition) -> Condition:
        if one is ASKED:
            raise Listing(dict.fromkeys(names, ""))
        known = [name for name in names if name in (one.path[0], spelled(one.path))]
        if not known:
            name = spelled(one.path)
            hint = _where_it_is(name, names) or f" ({flag} '?' lists them)"
            raise UsageError(f"{flag} at --level {level}: there is no column {name!r}{hint}")
        if known[-1] == "clip":
            one = _of_clip(one, flag)
        if isinstance(one.wanted, str) and one.test not in ("==", "!="):
            raise UsageError(
                f"{flag}: {known[-1]} {one.test} needs a number to compare with, got {one.wanted!r}"
            )
        whole = known[-1] == spelled(one.path)
        return one._replace(path=(known[-1],) if whole else one.path)

    conditions = checked(check, read_conditions(texts, flag))
    return Having(level, tuple(conditions)) if conditions else None
