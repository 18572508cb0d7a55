"""Records that are one batch → one record with the responses of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, chain
from typing import Any

import numpy as np

from grpo_cli.errors import InputError
from grpo_cli.records.parse.assemble import layout
from grpo_cli.records.record import Record


def join(records: Sequence[Record]) -> Record:
    """Joins records, each with its own groups, under the name and place of the first.

    What they expect is not joined.

    Raises:
        InputError: for a record with other columns or hyperparameters than the first.
    """
    first = records[0]
    for one in records:
        if layout(one) != layout(first):
            before = "the first" if first.line is None else f"line {first.line}"
            message = (
                f"its columns or hyperparameters differ from those of {before}, in the same batch; "
                "--batch record compares each record alone"
            )
            raise InputError(message, path=one.prefix.rstrip("."), source=one.source, line=one.line)
    masked = any(one.mask is not None for one in records)
    return replace(
        first,
        widths=_rows(one.widths for one in records),
        columns={name: b"".join(one.columns[name] for one in records) for name in first.columns},
        nested=first.nested if first.shape is not None else 2,
        shape=None if first.shape is None else _rows(one.shape or [] for one in records),
        mask=b"".join(one.mask or b"\1" * sum(one.widths) for one in records) if masked else None,
        groups=_numbered([one.groups or [0] * len(one.widths) for one in records]),
        group_labels=_labels([one.group_labels for one in records]),
        trajectories=(
            None
            if all(one.trajectories is None for one in records)
            else _numbered([one.trajectories or [*range(len(one.widths))] for one in records])
        ),
        trajectory_labels=_labels([one.trajectory_labels for one in records]),
        of_turns={name: _rows(one.of_turns[name] for one in records) for name in first.of_turns},
        versions=(
            np.concatenate([one.versions for one in records if one.versions is not None])
            if all(one.versions is not None for one in records)
            else None
        ),
        rewards=_scores([one.rewards for one in records]),
        reward_baselines=_scores([one.reward_baselines for one in records]),
        advantages=_scores([one.advantages for one in records]),
        expected=None,
    )


def _rows(parts: Iterable[Sequence[Any]]) -> list[Any]:
    return [*chain.from_iterable(parts)]


def _scores(parts: Sequence[Any]) -> Any:
    """Lists or bytes of all records; None where the records have none."""
    if parts[0] is None:
        return None
    return b"".join(parts) if isinstance(parts[0], bytes) else _rows(parts)


def _numbered(parts: Sequence[Sequence[int]]) -> list[int]:
    """Dense numbers of each record, behind those of the records before it."""
    starts = accumulate((max(part) + 1 for part in parts), initial=0)
    return [start + one for start, part in zip(starts, parts, strict=False) for one in part]


def _labels(parts: Sequence[list[Any] | None]) -> list[Any] | None:
    """Labels in the order of the numbers; None where some are unnamed."""
    known = [part for part in parts if part is not None]
    return _rows(known) if len(known) == len(parts) else None
