"""Records that were read one by one, side by side; and which of their values are out of range."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from grpo_cli.batch import F64, Batch, Segments, count_turns, cut_turns
from grpo_cli.errors import InputError
from grpo_cli.records import places
from grpo_cli.records.packed import (
    LOG_PROBS,
    Packed,
    counted_turns,
    integers,
    kept_lengths,
    lay,
    number_groups,
    wrong_turns,
)
from grpo_cli.records.parse.columns import guess_values
from grpo_cli.records.parse.scores import WITHIN
from grpo_cli.records.parse.turns import TURN_FIELDS
from grpo_cli.records.record import Record

_EXPECTED = {
    **dict.fromkeys(LOG_PROBS, "a log-prob <= 0"),
    "entropies": "an entropy >= 0",
    "values": WITHIN,
    "sum_pi_squared": "a sum of squared probabilities in [0, 1]",
    "token_advantages": WITHIN,
    "token_rewards": WITHIN,
    "turn_ids": "a whole number",
}


def layout(record: Record) -> Hashable:
    """The key that records must have in common to be assembled together."""
    rewards = record.rewards
    first = rewards[0] if rewards else None
    return (
        tuple(record.columns),
        record.derived,
        len(first) if isinstance(first, list) else type(first),
        record.reward_names,
        type(record.reward_baselines),
        type(record.advantages),
        tuple(record.of_turns),
        tuple(record.hyperparameters.items()),
        tuple(record.misnamed.items()),
    )


def assemble(records: Sequence[Record]) -> Batch:
    """Lays records of one layout side by side, without the tokens that do not count.

    Raises:
        InputError: for the first record with a value that counts and is out of range; its
            ``record`` is the index in ``records``.
    """
    batch = lay([pack_records(records)])
    if batch is None:
        raise min(find_faults(records).items())[1]
    return batch


def pack_records(records: Sequence[Record]) -> Packed:
    """The columns of records of one layout, masked tokens included."""
    first = records[0]
    counts = integers([len(record.widths) for record in records])
    columns = {name: _join([record.columns[name] for record in records]) for name in first.columns}
    if isinstance(first.advantages, bytes):
        columns["token_advantages"] = _join([record.advantages for record in records])
    mask = None
    if any(record.mask is not None for record in records):
        whole = [record.mask or b"\1" * sum(record.widths) for record in records]
        mask = np.frombuffer(b"".join(whole), dtype=np.bool_)
    groups, group_count = number_groups([record.groups for record in records], counts)
    trajectories: tuple[Any, int] = (None, 0)
    if any(record.trajectories is not None for record in records):
        each = [record.trajectories or [*range(len(record.widths))] for record in records]
        trajectories = number_groups(each, counts)
    of_turns = {}
    for name in first.of_turns:
        rows = [row for record in records for row in record.of_turns[name]]
        of_turns[name] = integers(map(len, rows)), np.array([*chain.from_iterable(rows)], float)
    versions = None
    if any(record.versions is not None for record in records):
        versions = np.concatenate(
            [
                np.full(sum(record.widths), -1) if record.versions is None else record.versions
                for record in records
            ]
        )
    return Packed(
        counts=counts,
        widths=integers(chain.from_iterable([record.widths for record in records])),
        columns=columns,
        mask=mask,
        scores={
            name: np.array([one for record in records for one in getattr(record, name)], np.float64)
            for name in ("rewards", "reward_baselines", "advantages")
            if isinstance(getattr(first, name), list)
        },
        groups=groups,
        group_count=group_count,
        trajectories=trajectories[0],
        trajectory_count=trajectories[1],
        of_turns=of_turns,
        versions=versions,
        reward_names=first.reward_names,
        derived=first.derived,
        misnamed=first.misnamed,
        settings=[record.hyperparameters for record in records],
    )


def _join(parts: Sequence[Any]) -> F64:
    return np.frombuffer(b"".join(parts))


def find_faults(records: Sequence[Record]) -> dict[int, InputError]:
    """The errors of those of some records of one layout whose values are out of range."""
    packed = pack_records(records)
    ends = np.cumsum([sum(record.widths) for record in records])
    found: dict[int, InputError] = {}
    for name, column in packed.columns.items():
        low, high = packed.range_of(name)
        bad = ~((column >= low) & (column <= high) & np.isfinite(column))
        if name == "turn_ids":
            lengths, _ = kept_lengths(packed.widths, packed.mask)
            counted = slice(None) if packed.mask is None else packed.mask
            bad[counted] |= wrong_turns(Segments(lengths), column[counted])
        at = np.flatnonzero(bad if packed.mask is None else bad & packed.mask)
        owners, first = np.unique(np.searchsorted(ends, at, side="right"), return_index=True)
        for record, token in zip(owners.tolist(), at[first].tolist(), strict=True):
            if record not in found:
                own = column[ends[record - 1] if record else 0 : ends[record]]
                begin = int(ends[record]) - len(own)
                found[record] = _fault(records[record], record, name, own, token - begin, packed)
    for number, record in enumerate(records):
        for name in record.of_turns:
            fault = _other_turns(record, name, pack_records([record]), number)
            found = found if fault is None else {number: fault} | found
    return found


def _other_turns(record: Record, name: str, packed: Packed, number: int) -> InputError | None:
    """The error of a record whose response has another number of rewards, or states, than turns."""
    lengths, positions = kept_lengths(packed.widths, packed.mask)
    responses, ids = Segments(lengths), packed.columns.get("turn_ids")
    counted = ids
    if ids is not None and packed.mask is not None:
        counted = ids[packed.mask]
    turns = count_turns(responses, cut_turns(responses, counted, positions))
    ends = np.cumsum(packed.widths)
    for at, row in enumerate(record.of_turns[name]):
        kept = len(row)
        if ids is not None and packed.mask is not None:
            own = slice(ends[at] - packed.widths[at], ends[at])
            kept = int(counted_turns(ids[own], packed.mask[own], kept).sum())
        if lengths[at] and turns[at] not in (len(row), kept):
            cut = "; without turn_ids, masked tokens separate turns" if ids is None else ""
            wanted = places.count(int(turns[at]), TURN_FIELDS[name].word)
            message = f"expected {wanted} (one per turn{cut})"
            path = f"{record.names[name]}{places.response(at, record.shape)}"
            return _placed(InputError(f"{message}, got {len(row)}", path=path), record, number)
    return None


def _placed(error: InputError, record: Record, number: int) -> InputError:
    error.path = record.prefix + error.path
    error.source, error.line, error.record = record.source, record.line, number
    if record.origin is not None:
        record.origin.place(error, record.prefix)
    return error


def _fault(record: Record, number: int, name: str, own: F64, at: int, packed: Packed) -> InputError:
    """The error for the number at ``at`` of a record's ``own`` ones of a column."""
    value = float(own[at])
    kind = _EXPECTED.get(name, "a number") if name not in packed.derived else "a number"
    kind = kind if np.isfinite(value) else "a finite number"
    message = f"expected {kind}, got {places.got(value)}"
    if name in LOG_PROBS:
        message += guess_values(own)  # of the record alone, whatever it is assembled with
    if name == "turn_ids" and value.is_integer() and abs(value) <= 2**53:
        message = f"expected no lower turn id than an earlier token's, got {places.got(value)}"
    place = places.index(at, record.nested, record.widths, record.shape)
    name = "advantages" if name == "token_advantages" else name
    path = f"{record.names.get(name, name)}{place}"
    return _placed(InputError(message, path=path), record, number)
