"""Decoded objects → views of records with one layout: packed at once, or read one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from grpo_cli.commands.check.record_view import Place, View
from grpo_cli.engine.packing import packed_runs
from grpo_cli.errors import InputError
from grpo_cli.records import DecodedChunk, Packed, Raw, Record, record
from grpo_cli.records.packed import LOG_PROBS, are_scores
from grpo_cli.records.parse.assemble import layout, pack_records
from grpo_cli.records.parse.record import record_id

_TOGETHER = 1 << 20
"""Bytes of text in one view: enough that numpy's overhead is small."""

_BY_TOKEN = "token_advantages"
"""The column that is not compared."""


def views(decoded: Iterable[DecodedChunk]) -> Iterator[View | InputError]:
    """Yields views of the records in order, and errors in the places of unreadable records."""
    for chunk in _together(decoded):
        for items, packed in packed_runs(chunk):
            if packed is None or _has_wrong_scores(packed):
                yield from _one_by_one(items)
            else:
                raws: Any = items  # what is packed is no error
                yield _view(packed, raws, packed.fields.names)


def _has_wrong_scores(packed: Packed) -> bool:
    """Whether rewards or advantages are an error.

    Of records of log-probs alone they are not: what is wrong with one hides no finding of others.
    """
    more = not packed.columns.keys() <= {*LOG_PROBS, _BY_TOKEN}
    return more and not are_scores(packed.scores.values())


def _together(decoded: Iterable[DecodedChunk]) -> Iterator[DecodedChunk]:
    """Puts chunks with the same keys together."""
    waiting: list[Raw | InputError] = []
    keys: tuple[str, ...] | None = None
    size = 0
    for chunk in decoded:
        if waiting and (chunk.keys != keys or size >= _TOGETHER):
            yield DecodedChunk(waiting, keys)
            waiting, size = [], 0
        if chunk.keys is None:
            yield chunk
            continue
        keys = chunk.keys
        waiting += chunk.items
        size += sum([raw.size for raw in chunk.items if isinstance(raw, Raw)])
    if waiting:
        yield DecodedChunk(waiting, keys)


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
