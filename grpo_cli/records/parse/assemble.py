"""Records that were read one by one, side by side; and which of their values are out of range."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, chain
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
    wrong_turns,
)
from grpo_cli.records.parse.columns import ROUNDING, guess_values
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


def layout(record: Record, free: Collection[str] = ()) -> Hashable:
    """The key that records must have in common to be assembled together.

    Args:
        record: a record.
        free: hyperparameters that may differ.
    """
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
        tuple(pair for pair in record.hyperparameters.items() if pair[0] not in free),
        tuple(record.misnamed.items()),
    )


def assemble(records: Sequence[Record]) -> Batch:
    """Lays records of one layout side by side, without the tokens that do not count.

    Raises:
        InputError: for the first record with a value that counts and is out of range; its
            ``record`` is the index in ``records``.
    """
    batch = lay([pack_record(record) for record in records])
    if batch is None:
        raise min(find_faults(records).items())[1]
    return batch


def pack_record(record: Record) -> Packed:
    """The columns of a record, masked tokens included, without its hyperparameters."""
    columns = {name: np.frombuffer(data) for name, data in record.columns.items()}
    if isinstance(record.advantages, bytes):
        columns["token_advantages"] = np.frombuffer(record.advantages)
    groups = record.groups or [0] * len(record.widths)
    trajectories = record.trajectories
    return Packed(
        counts=integers([len(record.widths)]),
        widths=integers(record.widths),
        columns=columns,
        mask=None if record.mask is None else np.frombuffer(record.mask, np.bool_),
        scores={
            name: np.array(values, np.float64)
            for name in ("rewards", "reward_baselines", "advantages")
            if isinstance(values := getattr(record, name), list)
        },
        groups=integers(groups),
        group_count=max(groups) + 1,
        trajectories=None if trajectories is None else integers(trajectories),
        trajectory_count=0 if trajectories is None else max(trajectories) + 1,
        of_turns={
            name: (integers(map(len, rows)), np.array([*chain.from_iterable(rows)], float))
            for name, rows in record.of_turns.items()
        },
        versions=record.versions,
        reward_names=record.reward_names,
        derived=record.derived,
        misnamed=record.misnamed,
    )


def find_faults(records: Sequence[Record]) -> dict[int, InputError]:
    """The errors of those of some records of one layout whose values are out of range."""
    faults = {at: _find_fault(record, at) for at, record in enumerate(records)}
    return {at: fault for at, fault in faults.items() if fault is not None}


def _find_fault(record: Record, number: int) -> InputError | None:
    packed = pack_record(record)
    for name, column in packed.columns.items():
        low, high = packed.range_of(name)
        bad = ~((column >= low) & (column <= high) & np.isfinite(column))
        if name == "turn_ids":
            lengths, _ = kept_lengths(packed.widths, packed.mask)
            counted = slice(None) if packed.mask is None else packed.mask
            bad[counted] |= wrong_turns(Segments(lengths), column[counted])
        at = np.flatnonzero(bad if packed.mask is None else bad & packed.mask)
        if len(at):
            return _fault(record, number, name, column, int(at[0]), packed)
    each = (_other_turns(record, name, packed, number) for name in record.of_turns)
    return next((fault for fault in each if fault is not None), None)


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
    advice = guess_values(own) if name in LOG_PROBS else ""  # of the record alone
    if not np.isfinite(value):
        way_out = "; mask such tokens or drop their responses"
        if name == "log_probs_rollout" and np.isnan(value):
            way_out += ", or write null where the engine did not score a token (weight 1)"
        kind, advice = "a finite number", advice or way_out
    elif name in LOG_PROBS and not advice:
        advice = f"; dump log_softmax at the sampled token{', clamped at 0' * (value <= ROUNDING)}"
    message = f"expected {kind}, got {places.got(value)}{advice}"
    if name == "turn_ids" and value.is_integer() and abs(value) <= 2**53:
        message = f"expected no lower turn id than an earlier token's, got {places.got(value)}"
    place = places.index(at, record.nested, record.widths, record.shape)
    name = "advantages" if name == "token_advantages" else name
    path = f"{record.names.get(name, name)}{place}"
    return _placed(InputError(message, path=path), record, number)


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
        token_ids=(
            _rows(one.token_ids or [] for one in records)
            if all(one.token_ids is not None for one in records)
            else None
        ),
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
