"""Decoded objects → views of records with one layout: packed at once, or read one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from grpo_cli.commands.check.record_view import View, find_bad
from grpo_cli.commands.check.tokens import Place
from grpo_cli.engine.chunk import located
from grpo_cli.engine.packing import packed_runs
from grpo_cli.errors import InputError
from grpo_cli.records import DecodedChunk, Raw, Record, find_faults, record
from grpo_cli.records.fields import read_fields
from grpo_cli.records.packed import Packed, join_packed
from grpo_cli.records.parse.assemble import layout, pack_record
from grpo_cli.records.parse.record import record_id
from grpo_cli.records.settings import settings_of
from grpo_cli.records.unread import PROMPT_IDS, PROMPTS, STEP_FIELDS

_LAST_STEP = 1 << 40
_TOGETHER = 1 << 22
"""Bytes of text in one view: enough that numpy's overhead is small."""

Part = tuple[Sequence[Raw | InputError], Packed | None]


def views(decoded: Iterable[DecodedChunk]) -> Iterator[View | InputError]:
    """Yields views of the records in order, and errors in the places of unreadable records."""
    for items, packed in _together(chain.from_iterable(map(packed_runs, decoded))):
        if packed is None:
            yield from _one_by_one(items)
        else:
            yield _of_packed(items, packed)


def _of_packed(raws: Any, packed: Packed) -> View:
    """Returns the view of packed records, which alone keeps their objects and columns."""
    values = [raw.value for raw in raws]
    places = [*map(_place, raws, values)]
    for raw in raws:
        raw.drop()
    own = replace(packed, columns=dict(packed.columns))
    packed.columns.clear()
    return View.of(own, places, values, packed.fields.names)


def _together(parts: Iterable[Part]) -> Iterator[Part]:
    """Puts records of the same layout together, without what no rule reads as it was written."""
    waiting: list[Any] = []
    columns: list[Packed] = []
    kind: object = None
    size = 0
    for items, packed in parts:
        own = packed and (packed.fields, [*packed.columns], [*packed.scores])
        if waiting and (own != kind or size >= _TOGETHER):
            yield waiting, join_packed(columns) if columns else None
            waiting, columns, size = [], [], 0
        kind = own
        waiting += items
        size += sum([raw.size for raw in items if isinstance(raw, Raw)])
        if packed is not None:
            columns.append(packed)
            unread = (*packed.columns, "mask", "expected")
            keys = {packed.fields.names.get(name) for name in unread}
            raws: Any = items  # what is packed is no error
            for raw in raws:
                raw.kept = {key: one for key, one in raw.kept.items() if key not in keys}
    if waiting:
        yield waiting, join_packed(columns) if columns else None


def _place(raw: Raw, value: dict[str, Any]) -> Place:
    name = record_id(value)
    passes = () if value.get("mini_batch") else ("num_iterations", "ppo_epochs")
    differing = raw.row.keys() - value.keys() if raw.rows else set()
    step = next((value[key] for key in STEP_FIELDS if key in value), None)
    return Place(
        raw.number if name is None else name,
        raw.source,
        raw.line,
        raw.number,
        claims=next((f"{one} 1" for one in passes if one in value and value[one] == 1), ""),
        mixed=next((key for key in (*PROMPT_IDS, *PROMPTS) if key in differing), ""),
        step=step if type(step) is int and 0 <= step <= _LAST_STEP else -1,
    )


# ---- one by one -----------------------------------------------------------------------------


def _one_by_one(items: Iterable[Raw | InputError]) -> Iterator[View | InputError]:
    waiting: list[tuple[dict[str, Any], Place, Record]] = []
    for item in items:
        found = item if isinstance(item, InputError) else _read(item)
        if waiting and (isinstance(found, InputError) or _kind(found) != _kind(waiting[0][2])):
            yield _of_records(waiting)
            waiting = []
        if isinstance(found, InputError):
            first, *others = _faults(item, found) if isinstance(item, Raw) else [found]
            first.others = others
            yield first
        else:
            assert isinstance(item, Raw)
            value = item.plain()
            waiting.append((value, _place(item, value), found))
    if waiting:
        yield _of_records(waiting)


def _of_records(found: Sequence[tuple[dict[str, Any], Place, Record]]) -> View:
    values, places, records = zip(*found, strict=True)
    names = dict(records[0].names)
    if records[0].shape is not None:
        names.setdefault("group_ids", "")
    packed = join_packed([*map(pack_record, records)])
    packed.settings = settings_of([one.hyperparameters for one in records])
    return View.of(packed, places, values, names)


def _kind(found: Record) -> object:
    return layout(found)[:-2], tuple(found.names.items()), found.shape is None  # type: ignore[index]


def _read(raw: Raw) -> Record | InputError:
    """Reads a record; scores that are not finite are no error, since a rule reports them."""
    found = record(raw)
    if not isinstance(found, InputError):
        return found
    try:
        value = raw.plain()
        names = read_fields(value).names
        scores = {name: value[names[name]] for name in ("rewards", "advantages") if name in names}
        numbers = {name: np.array(given, np.float64) for name, given in scores.items()}
        keys = {names[name] for name in scores}
        bare = {key: one for key, one in value.items() if key not in keys}
        rest = record(replace(raw, kept=bare, arrays=False))
    except (InputError, TypeError, ValueError, AttributeError):
        return found
    if isinstance(rest, InputError) or not any(find_bad(one).any() for one in numbers.values()):
        return found
    if any(one.shape[:1] != (len(rest.widths),) for one in numbers.values()):
        return found
    return replace(rest, names=names, **{name: one.tolist() for name, one in numbers.items()})


def _faults(raw: Raw, first: InputError) -> list[InputError]:
    """Returns the errors of a bad record in the order of its lines, those of joined rows too."""
    found = [first]
    if len(raw.rows) > 1:
        others = (
            row
            for row in raw.rows
            if row.line != first.line or not first.path.startswith(row.prefix)
        )
        found += filter(None, map(_fault, others))
    return sorted(found, key=lambda one: one.line or 0)


def _fault(raw: Raw) -> InputError | None:
    """Returns the first error of a record, or of a value in it that counts."""
    found = record(raw)
    if isinstance(found, InputError):
        return found
    faults = find_faults([found])
    return located(faults[0], found) if faults else None
