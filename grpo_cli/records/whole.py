"""Packed records → ``Record``, with their numbers, without parsing each one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from grpo_cli.errors import InputError
from grpo_cli.records.from_objects import headers
from grpo_cli.records.packed import LARGEST, Packed, is_inside
from grpo_cli.records.parse.record import record
from grpo_cli.records.record import Raw, Record, listed
from grpo_cli.records.unread import misnamed_in


def read_records(
    items: Sequence[Raw | InputError], packed: Packed | None
) -> list[Record | InputError]:
    """The records of decoded objects, and errors in the places of bad ones.

    Args:
        items: the objects.
        packed: their columns; None where they have to be read one at a time.
    """
    scores = [] if packed is None else packed.scores.values()
    if packed is None or not all(is_inside(one, -LARGEST, LARGEST) for one in scores):
        return [item if isinstance(item, InputError) else record(item) for item in items]
    return [*whole_records(items, packed)]  # type: ignore[arg-type]  # what is packed is no error


def whole_records(raws: Sequence[Raw], packed: Packed) -> list[Record]:
    """The records as ``record`` reads them, whose columns ``pack`` has checked."""
    found = headers(raws, packed)
    fields, columns = packed.fields, {name: one.tobytes() for name, one in packed.columns.items()}
    by_token = columns.pop("token_advantages", None)
    mask = None if packed.mask is None else packed.mask.tobytes()
    scores = {name: one.tolist() for name, one in packed.scores.items()}
    rows = np.cumsum(packed.counts).tolist()
    tokens = np.cumsum(packed.widths)[np.array(rows) - 1].tolist()
    row = token = 0
    for made, raw, settings, end, last in zip(
        found, raws, packed.settings, rows, tokens, strict=True
    ):
        own, numbers = slice(row, end), slice(8 * token, 8 * last)
        made.columns = {name: data[numbers] for name, data in columns.items()}
        made.unknown, made.hyperparameters = fields.unknown, settings
        groups = (packed.groups[own] - packed.groups[row]).tolist()
        made.groups = groups if any(groups) else None
        for name, values in scores.items():
            setattr(made, name, values[own])
        if by_token is not None:
            made.advantages = by_token[numbers]
        if mask is not None and 0 in (kept := mask[token:last]):
            made.mask = kept
        if made.trajectory_labels is not None and packed.trajectories is not None:
            made.trajectories = (packed.trajectories[own] - packed.trajectories[own].min()).tolist()
        if packed.versions is not None and (packed.versions[token:last] >= 0).any():
            made.versions = packed.versions[token:last]
        if fields.misnamed:
            made.misnamed = misnamed_in(raw.plain(), fields.names, fields.misnamed)
        if "expected" in fields.names:
            expected: Any = raw.value["expected"]
            made.expected = listed(expected) if raw.arrays else expected
        row, token = end, last
    return found
