"""Records side by side → one Batch, with the last checks that are cheaper on whole columns."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Batch, Segments
from grpo_cli.errors import InputError
from grpo_cli.records import places
from grpo_cli.records.parse import mistaken
from grpo_cli.records.parse.numbers import LARGEST, WITHIN
from grpo_cli.records.record import Record

Mask = NDArray[np.bool_]

_BOUNDS: dict[str, tuple[float, float, str]] = {
    "log_probs_new": (-np.inf, 0.0, "log-prob <= 0"),
    "log_probs_old": (-np.inf, 0.0, "log-prob <= 0"),
    "log_probs_ref": (-np.inf, 0.0, "log-prob <= 0"),
    "log_probs_rollout": (-np.inf, 0.0, "log-prob <= 0"),
    "entropies": (0.0, np.inf, "entropy >= 0"),
    "values": (-LARGEST, LARGEST, WITHIN.removeprefix("a ")),
    "sum_pi_squared": (0.0, 1.0, "sum of squared probabilities in [0, 1]"),
    "token_advantages": (-LARGEST, LARGEST, WITHIN.removeprefix("a ")),
}
_ANY = (-np.inf, np.inf, "number")


def layout(record: Record) -> Hashable:
    """What records must have in common to be assembled together."""
    rewards = record.rewards
    first = rewards[0] if rewards else None
    return (
        tuple(record.columns),
        record.derived,
        len(first) if isinstance(first, list) else type(first),
        record.reward_names,
        type(record.reward_baselines),
        type(record.advantages),
        tuple(record.hyperparameters.items()),
        tuple(record.misnamed.items()),
    )


def assemble(records: Sequence[Record]) -> Batch:
    """Lays records of one layout side by side, without the tokens that do not count.

    Raises:
        InputError: for the first record with a value that counts and is out of range; its
            ``record`` is the index in ``records``.
    """
    first = records[0]
    counts = _integers([len(record.widths) for record in records])
    widths = _integers(chain.from_iterable([record.widths for record in records]))
    mask = _join_masks(records)
    columns = {name: _join(records, name) for name in first.columns}
    if isinstance(first.advantages, bytes):
        columns["token_advantages"] = _join_advantages(records)
    _check(records, columns, mask)
    if mask is not None:
        columns = {name: column[mask] for name, column in columns.items()}
    if "log_probs_new" in columns:
        columns.setdefault("log_probs_old", columns["log_probs_new"])
    lengths, positions = kept_lengths(widths, mask)
    groups, group_count = grouped([record.groups for record in records], counts)
    return Batch(
        responses=Segments(lengths),
        records=Segments(counts),
        groups=groups,
        group_count=group_count,
        rewards=_rewards(records),
        reward_names=first.reward_names,
        reward_baselines=_per_response(records, "reward_baselines"),
        advantages=_per_response(records, "advantages"),
        positions=positions,
        last_masked=last_masked(widths, mask),
        misnamed=first.misnamed,
        **columns,
    )


def _integers(values: Any) -> I64:
    return np.fromiter(values, dtype=np.int64)


def _join(records: Sequence[Record], name: str) -> F64:
    return np.frombuffer(b"".join([record.columns[name] for record in records]))


def _join_advantages(records: Sequence[Record]) -> F64:
    each: list[Any] = [record.advantages for record in records]
    return np.frombuffer(b"".join(each))


def _join_masks(records: Sequence[Record]) -> Mask | None:
    """[N as written] which tokens count; None if all do."""
    if all(record.mask is None for record in records):
        return None
    whole = [record.mask or b"\1" * sum(record.widths) for record in records]
    return np.frombuffer(b"".join(whole), dtype=np.bool_)


def kept_lengths(widths: I64, mask: Mask | None) -> tuple[I64, I64 | None]:
    """[R] tokens that count, and [N] their positions, None if those are 0, 1, 2 and so on."""
    if mask is None:
        return widths, None
    written = Segments(widths)
    lengths = np.bincount(written.index[mask], minlength=written.count)
    positions = _counted(written)[mask]
    natural = np.array_equal(positions, _counted(Segments(lengths)))
    return lengths, None if natural else positions


def last_masked(widths: I64, mask: Mask | None) -> Mask | None:
    """[R] the responses whose last token as written is masked; None if there is none."""
    if mask is None or not len(mask):
        return None
    found = (widths > 0) & ~mask[np.maximum(np.cumsum(widths) - 1, 0)]
    return found if found.any() else None


def _counted(segments: Segments) -> I64:
    """[N] each element's index in its segment."""
    return np.arange(segments.total) - np.repeat(segments.starts, segments.lengths)


def grouped(each: Sequence[list[int] | None], counts: I64) -> tuple[I64, int]:
    """[R] group numbers that no two records share, and how many there are.

    Args:
        each: for each record the dense group numbers of its responses; None for a single group.
        counts: [M] how many responses each record has.
    """
    if each.count(None) == len(each):
        return np.repeat(np.arange(len(each)), counts), len(each)
    whole = [one or [0] * count for one, count in zip(each, counts.tolist(), strict=True)]
    sizes = _integers([max(groups) + 1 for groups in whole])
    before = np.repeat(np.cumsum(sizes) - sizes, counts)
    return _integers(chain.from_iterable(whole)) + before, int(sizes.sum())


def _rewards(records: Sequence[Record]) -> F64 | None:
    if records[0].rewards is None:
        return None
    rows: Any = chain.from_iterable([record.rewards or [] for record in records])
    if isinstance(records[0].rewards[0], list):
        return np.array(list(rows), dtype=np.float64)
    return np.fromiter(rows, dtype=np.float64)


def _per_response(records: Sequence[Record], name: str) -> F64 | None:
    if not isinstance(getattr(records[0], name), list):
        return None
    each: Any = chain.from_iterable([getattr(record, name) or [] for record in records])
    return np.fromiter(each, dtype=np.float64)


def _check(records: Sequence[Record], columns: dict[str, F64], mask: Mask | None) -> None:
    """Raises for the first record with a value out of range, at its first such column."""
    faults = []
    for order, (name, column) in enumerate(columns.items()):
        low, high, wanted = _ANY if name in records[0].derived else _BOUNDS.get(name, _ANY)
        if _inside(column if mask is None else column[mask], low, high):
            continue
        good = (column >= low) & (column <= high) & np.isfinite(column)
        at = int(np.argmin(good if mask is None else good | ~mask))
        record, within = _locate(records, at)
        faults.append((record, order, name, within, float(column[at]), wanted))
    if faults:
        record, _, name, within, value, wanted = min(faults)
        message = _expectation(value, wanted)
        if name.startswith("log_probs"):
            message += mistaken.values(_of_record(records, columns[name], record))
        raise _fault(records[record], record, name, within, message)


def _inside(values: F64, low: float, high: float) -> bool:
    if not values.size:
        return True
    # A NaN makes both extremes NaN, of which no comparison holds.
    least, greatest = values.min(), values.max()
    return bool(least >= low and greatest <= high and np.isfinite(least) and np.isfinite(greatest))


def _locate(records: Sequence[Record], at: int) -> tuple[int, int]:
    """The record of a token as written, and the token's index in it."""
    starts = [0, *accumulate(sum(record.widths) for record in records)]
    number = bisect_right(starts, at) - 1
    return number, at - starts[number]


def _expectation(value: float, wanted: str) -> str:
    kind = wanted if np.isfinite(value) else "finite number"
    article = "an" if kind.startswith("e") else "a"
    return f"expected {article} {kind}, got {places.got(value)}"


def _of_record(records: Sequence[Record], column: F64, number: int) -> F64:
    """The record's own part: what is said of it must not depend on what it stands beside."""
    sizes = [sum(record.widths) for record in records[: number + 1]]
    return column[sum(sizes[:-1]) : sum(sizes)]


def _fault(record: Record, number: int, name: str, at: int, message: str) -> InputError:
    place = places.index(at, record.nested, record.widths, record.shape)
    name = "advantages" if name == "token_advantages" else name
    path = f"{record.prefix}{record.names.get(name, name)}{place}"
    line = record.line
    error = InputError(message, path=path, source=record.source, line=line, record=number)
    if record.origin is not None:
        record.origin.place(error, record.prefix)
    return error
