"""Which batch a record belongs to: the fields that ``--batch`` names, and those that say a step."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from grpo_cli.errors import InputError
from grpo_cli.records.choose.grouping import hashable
from grpo_cli.records.choose.paths import Missing, Path, look_up, read_path, spelled
from grpo_cli.records.decode.chunks import DecodedChunk, RawLines
from grpo_cli.records.places import got
from grpo_cli.records.record import Raw

STEP_FIELDS = (
    *("step", "global_step", "training_step", "train_step", "trainer_step", "export_step"),
    *("iteration", "rollout_id"),
)
"""Fields that say a record's step, the first that is there."""

FILE = "file"
"""Stands for the file that a record is in, where the record has no field of this name."""


def batch_fields(batch: str) -> tuple[Path, ...]:
    """Returns the fields that ``--batch`` names; none for ``input`` and ``record``.

    Raises:
        UsageError: for what is no field.
    """
    if batch in ("input", "record"):
        return ()
    return tuple(read_path(one.strip(), "--batch") for one in batch.split(","))


def batch_of(raw: Raw, made: Raw, fields: Sequence[Path]) -> Mapping[str, Any]:
    """Returns field → value of the batch that a record belongs to.

    Args:
        raw: the object as it was decoded.
        made: the record that it was translated to.
        fields: as ``batch_fields`` gives them.

    Raises:
        InputError: where a field is missing, or is no number or text.
    """
    return {spelled(field): _value(raw, made, field) for field in fields}


def key_of(batch: Mapping[str, Any] | None) -> Hashable:
    """Returns what records of one batch have in common."""
    return tuple(map(hashable, (batch or {}).values()))


def _value(raw: Raw, made: Raw, field: Path) -> Any:
    for value in (raw.value, made.value):
        try:
            found = look_up(value, field)
        except Missing:
            continue
        found = found.item() if isinstance(found, np.generic) else found
        if isinstance(found, list | np.ndarray) and len(found) == 1:
            found = found[0]  # as a table's cell of one response is read
        if isinstance(found, str | int | float):
            return found
        raise _at(raw, field, f"expected a number or text to batch by, got {got(found)}")
    if field == (FILE,):
        return raw.source
    raise _at(raw, field, "missing; --batch needs it in every record")


def _at(raw: Raw, field: Path, message: str) -> InputError:
    path = raw.prefix + spelled(field)
    return InputError(message, path=path, source=raw.source, line=raw.line)


def steps_in(few: DecodedChunk) -> dict[str, set[Any]]:
    """Returns a field that says steps → the steps of some records, as they have them."""
    if few.columns is not None:
        rows = few.columns.rows.batch
        name = next((name for name in STEP_FIELDS if name in rows.schema.names), None)
        return {} if name is None else {name: set(_scalars(rows[name].unique().to_pylist()))}
    if few.keys is not None:
        name = next((name for name in STEP_FIELDS if name in few.keys), None)
        if name is None:
            return {}
        if few.shown is not None:
            return {name: set(_scalars(few.shown.get(name, ())))}
        return {name: set(_scalars(value.get(name) for value in _objects(few)))}
    found: dict[str, set[Any]] = {}
    for value in _objects(few):
        name = next((name for name in STEP_FIELDS if name in value), None)
        if name is not None:
            found.setdefault(name, set()).update(_scalars([value[name]]))
    return found


def _objects(few: DecodedChunk) -> Iterable[Mapping[str, Any]]:
    items = few.items
    values = (
        items.values
        if isinstance(items, RawLines)
        else [item.value for item in items if isinstance(item, Raw)]
    )
    return [value for value in values if isinstance(value, dict)]


def _scalars(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if isinstance(value, str | int | float)]
