"""Decoded objects → views of records with one layout: packed at once, or read one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from grpo_cli.commands.check.view import Place, View
from grpo_cli.errors import InputError
from grpo_cli.records import DecodedChunk, Packed, Raw, Record, pack, record
from grpo_cli.records.parse.assemble import layout, pack_records
from grpo_cli.records.parse.record import record_id

_TOGETHER = 1 << 20
"""Bytes of text in one view: enough that numpy's overhead is small."""

_BY_TOKEN = "token_advantages"
"""The column that is not compared."""


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
        yield _view(packed, raws, packed.fields.names)


def _view(packed: Packed, raws: Sequence[Raw], names: Mapping[str, str]) -> View:
    return View(
        places=[_place(raw) for raw in raws],
        values=[raw.value for raw in raws],
        counts=packed.counts,
        widths=packed.widths,
        columns={name: packed.columns[name] for name in packed.columns if name != _BY_TOKEN},
        mask=packed.mask,
        groups=packed.groups,
        names=names,
        derived=packed.derived,
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
            yield _of_records(waiting)
            waiting = []
        if isinstance(found, InputError):
            yield found
        else:
            assert isinstance(item, Raw)
            waiting.append((item.with_lists(), found))
    if waiting:
        yield _of_records(waiting)


def _of_records(pairs: Sequence[tuple[Raw, Record]]) -> View:
    raws, records = zip(*pairs, strict=True)
    names = dict(records[0].names)
    if records[0].shape is not None:
        names.setdefault("group_ids", "")
    return _view(pack_records(records), raws, names)


def _kind(found: Record) -> object:
    return layout(found)[:-2], tuple(found.names.items()), found.shape is None  # type: ignore[index]
