"""Which batch a record belongs to: the fields that ``--batch`` names, and those that say a step."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from grpo_cli.errors import InputError
from grpo_cli.records.choose.where import Missing, Path, hashable, look_up, read_path, spelled
from grpo_cli.records.places import got
from grpo_cli.records.record import BatchFields, DecodedChunk, MicroBatch, Raw, only_element
from grpo_cli.records.unread import STEP_FIELDS

RANK_FIELDS = (
    *("dp_rank", "data_parallel_rank"),
    *("rank", "global_rank", "process_index"),
)
"""Fields that say which data-parallel rank trained on a record, the first that is there.

Megatron and verl call it dp_rank; ``rank``, as prime-rl's token export has it, and accelerate's
process_index are the same without tensor and pipeline parallelism.
"""

MICRO_BATCH_FIELDS = (
    *("microbatch", "micro_batch", "micro_step"),
    *("microbatch_idx", "micro_batch_idx", "microbatch_id", "micro_batch_id", "micro_batch_index"),
)
"""Fields that say which micro-batch of its rank and step a record is of, the first that is there.

``microbatch`` is what grpo's hook for TRL writes, ``micro_step`` prime-rl's token export,
``micro_batch_idx`` is verl's name in its engines.
"""

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


def batch_of(raw: Raw, made: Raw, fields: Sequence[Path]) -> BatchFields:
    """Returns field → value of the batch that a record belongs to, and its micro-batch.

    Args:
        raw: the object as it was decoded.
        made: the record that it was translated to.
        fields: as ``batch_fields`` gives them.

    Raises:
        InputError: where a field is missing, or is no number or text.
    """
    found = BatchFields({spelled(field): _value(raw, made, field) for field in fields})
    rank, number = (
        _first(raw.value, [name for name in names if name not in found])
        for names in (RANK_FIELDS, MICRO_BATCH_FIELDS)
    )
    source = raw.source if rank is None and number is not None else ""
    found.micro_batch = MicroBatch(rank, number, source)
    return found


def _first(value: Any, names: Sequence[str]) -> Hashable:
    """The first of some fields that is there, if it is a number or text."""
    for name in names if isinstance(value, Mapping) else ():
        if value.get(name) is not None:
            found = _scalar(value[name])
            return hashable(found) if isinstance(found, str | int | float) else None
    return None


def _scalar(value: Any) -> Any:
    """A value; the only one of a table's cell of one response."""
    return only_element(value.item() if isinstance(value, np.generic) else value)


def key_of(batch: Mapping[str, Any] | None) -> Hashable:
    """Returns what records of one batch have in common."""
    return tuple(map(hashable, (batch or {}).values()))


def _value(raw: Raw, made: Raw, field: Path) -> Any:
    message = "missing; --batch and --by need it in every record"
    for value in (raw.value, made.value):
        try:
            found = _scalar(look_up(value, field))
        except Missing:
            continue
        if isinstance(found, str | int | float):
            return found
        message = f"expected a number or text (--batch, --by), got {got(found)}"
        break
    else:
        if field == (FILE,):
            return raw.source
    path = raw.prefix + spelled(field)
    raise InputError(message, path=path, source=raw.source, line=raw.line)


def steps_in(chunk: DecodedChunk) -> dict[str, set[Any]]:
    """Returns a field that says steps → the steps of some records, as they have them."""
    if chunk.keys is not None:
        name = next((name for name in STEP_FIELDS if name in chunk.keys), None)
        if name is None:
            return {}
        steps = [raw.value[name] for raw in chunk.items if isinstance(raw, Raw)]
        return {name: set(_scalars(steps))}
    found: dict[str, set[Any]] = {}
    for value in (item.value for item in chunk.items if isinstance(item, Raw)):
        if not isinstance(value, dict):
            continue
        for above, holder in (("", value), ("meta.", value.get("meta"))):
            known = holder if isinstance(holder, Mapping) else {}
            name = next((name for name in STEP_FIELDS if name in known), None)
            if name is not None:
                steps = known[name] if isinstance(known[name], list) else [known[name]]  # of rows
                found.setdefault(above + name, set()).update(_scalars(steps))
                break
    return found


def _scalars(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if isinstance(value, str | int | float)]
