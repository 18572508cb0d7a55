"""Decoded objects → views of records with one layout: packed at once, or read one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from grpo_cli.commands.check.record_view import Place, View
from grpo_cli.errors import InputError
from grpo_cli.records import DecodedChunk, Packed, Raw, Record, pack, record
from grpo_cli.records.packed import PLAIN_COLUMNS, number_groups
from grpo_cli.records.parse.assemble import layout
from grpo_cli.records.parse.record import record_id

_TOGETHER = 1 << 20
"""Bytes of text in one view: enough that numpy's overhead is small."""


def views(decoded: Iterable[DecodedChunk]) -> Iterator[View | InputError]:
    """Yields views of the records in order, and errors in the places of unreadable records."""
    waiting: list[Raw] = []
    keys: tuple[str, ...] | None = None
    size = 0
    for chunk in decoded:
        if waiting and (chunk.keys is None or chunk.keys != keys or size >= _TOGETHER):
            yield from _alike(waiting)
            waiting, size = [], 0
        if chunk.keys is None:
            yield from _unlike(chunk.items)
            continue
        keys = chunk.keys
        waiting += chunk.items  # type: ignore[arg-type]  # a chunk with keys has no errors
        size += sum([raw.size for raw in chunk.items])  # type: ignore[misc,union-attr]
    if waiting:
        yield from _alike(waiting)


def _unlike(items: Iterable[Raw | InputError]) -> Iterator[View | InputError]:
    """Yields views of records whose keys differ or were not compared."""
    for keys, run in groupby(items, _keys):
        if keys is None:
            yield from _one_by_one(run)
        else:
            yield from _alike([raw for raw in run if isinstance(raw, Raw)])


def _keys(raw: Raw | InputError) -> tuple[str, ...] | None:
    plain = isinstance(raw, Raw) and isinstance(raw.value, dict)
    if not plain or None in raw.value.values():  # type: ignore[union-attr]
        return None
    return tuple(raw.value)  # type: ignore[union-attr]


def _alike(raws: list[Raw]) -> Iterator[View | InputError]:
    """Yields views of records with the same keys, packed at once if possible."""
    packed = pack([raw.value for raw in raws])
    if packed is None:
        yield from _one_by_one(raws)
    else:
        yield _of_packed(packed, raws)


def _of_packed(packed: Packed, raws: Sequence[Raw]) -> View:
    names = packed.fields.names
    return View(
        places=[_place(raw) for raw in raws],
        values=[raw.value for raw in raws],
        counts=packed.counts,
        widths=packed.widths,
        columns={name: one for name, one in packed.columns.items() if name in PLAIN_COLUMNS},
        mask=packed.mask,
        groups=packed.groups,
        names=names,
        rewards=packed.scores.get("rewards"),
        advantages=packed.scores.get("advantages"),
        advantages_given="advantages" in names,
    )


def _place(raw: Raw) -> Place:
    name = record_id(raw.value)
    name = raw.number if name is None else name
    return Place(name, raw.source, raw.line, raw.number, _claims(raw.value))


_ONCE = (("num_iterations", 1), ("ppo_epochs", 1))


def _claims(value: Mapping[str, Any]) -> str:
    """Returns the setting by which a record claims to be of a batch's first pass; else ""."""
    for name, once in _ONCE:
        if name in value and value[name] == once and not value.get("mini_batch"):
            return f"{name} {once}"
    return ""


# ---- one by one -----------------------------------------------------------------------------


def _one_by_one(items: Iterable[Raw | InputError]) -> Iterator[View | InputError]:
    waiting: list[tuple[Raw, Record]] = []
    for item in items:
        found = item if isinstance(item, InputError) else record(item)
        if waiting and (isinstance(found, InputError) or _kind(found) != _kind(waiting[0][1])):
            yield of_records(waiting)
            waiting = []
        if isinstance(found, InputError):
            yield found
        else:
            assert isinstance(item, Raw)
            waiting.append((item.with_lists(), found))
    if waiting:
        yield of_records(waiting)


def _kind(found: Record) -> object:
    return layout(found)[:-2], tuple(found.names.items()), found.shape is None  # type: ignore[index]


def of_records(pairs: Sequence[tuple[Raw, Record]]) -> View:
    """Returns a view of records with one layout."""
    raws, records = zip(*pairs, strict=True)
    first: Record = records[0]
    counts = np.array([len(found.widths) for found in records], dtype=np.int64)
    names = dict(first.names)
    if first.shape is not None:
        names.setdefault("group_ids", "")
    return View(
        places=[_place(raw) for raw in raws],
        values=[raw.value for raw in raws],
        counts=counts,
        widths=np.array([width for found in records for width in found.widths], dtype=np.int64),
        columns={
            name: np.frombuffer(b"".join([found.columns[name] for found in records]))
            for name in first.columns
        },
        mask=_mask(records),
        groups=number_groups([found.groups for found in records], counts)[0],
        names=names,
        derived=first.derived,
        rewards=_scores([found.rewards for found in records]),
        advantages=_scores([found.advantages for found in records]),
        advantages_given=first.advantages is not None,
    )


def _mask(records: Sequence[Record]) -> Any:
    if all(found.mask is None for found in records):
        return None
    parts = [found.mask or b"\1" * sum(found.widths) for found in records]
    return np.frombuffer(b"".join(parts), dtype=np.bool_)


def _scores(each: Sequence[Any]) -> Any:
    if not all(isinstance(rows, list) for rows in each):
        return None
    return np.array([row for rows in each for row in rows], dtype=np.float64)
