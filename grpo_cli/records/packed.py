"""Records as columns: what every reader fills, and how they are laid side by side as one Batch.

Decoded objects are packed by ``from_objects``, records that were checked one by one by
``parse/assemble``.
"""

from __future__ import annotations

import marshal
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Batch, Segments, count_turns, cut_turns
from grpo_cli.records.fields import NO_FIELDS, Fields
from grpo_cli.records.settings import Settings, join_settings
from grpo_cli.records.unread import Misnamed

Mask = NDArray[np.bool_]

LARGEST = 1e100
"""The largest reward or advantage: beyond it the squares in a variance are not finite."""

LOG_PROBS = ("log_probs_new", "log_probs_old", "log_probs_ref", "log_probs_rollout")
PLAIN_COLUMNS = (
    *(*LOG_PROBS, "entropies", "values", "sum_pi_squared"),
    *("turn_ids", "token_rewards"),
)
"""Token columns that are read as they are."""
PLAIN = {
    *PLAIN_COLUMNS,
    *("rewards", "advantages", "mask", "group_ids", "tokens", "token_ids"),
    *("trajectory_ids", "roles"),
    *("id", "expected", "hyperparameters"),
}
"""Fields of records that are packed many at once."""

_BOUNDS: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(LOG_PROBS, (-np.inf, 0.0)),
    "entropies": (0.0, np.inf),
    "sum_pi_squared": (0.0, 1.0),
    **dict.fromkeys(("values", "token_advantages", "token_rewards"), (-LARGEST, LARGEST)),
    "turn_ids": (-(2.0**53), 2.0**53),
}
"""The finite numbers that a token column may hold; any, where it is not here."""


class Unusual(Exception):  # noqa: N818 - nothing is wrong with the records yet
    """These records have to be read one at a time."""


@dataclass(slots=True, eq=False)
class Packed:
    """M records of one layout as columns; R responses, N tokens as written.

    Attributes:
        counts: [M] responses of each record.
        widths: [R] tokens of each response.
        columns: token column → [N] numbers; advantages given by token are ``token_advantages``.
        mask: [N] which tokens count; None if all do.
        scores: ``rewards``, ``reward_baselines`` and ``advantages`` → [R] numbers; rewards of
            several functions are [R, K].
        groups: [R] the number of each response's group; no two records share one.
        group_count: how many groups there are.
        trajectories: [R] the number of each response's trajectory, likewise; None if each response
            is one.
        trajectory_count: how many trajectories there are.
        of_turns: ``turn_rewards`` and ``state_ids`` → [R] how many turns of each response have one,
            and these; states are numbers, those of two records may be the same.
        versions: [N] the weights that sampled each token, -1 if unknown; None if all are.
        reward_names: the reward functions' names where they have any.
        derived: the columns of log-probs that were computed from probabilities or ratios.
        misnamed: the columns of log-probs that the records lack → the key that resembles each.
        settings: the hyperparameters that the records give.
        fields: what the records' keys mean.
    """

    counts: I64
    widths: I64
    columns: dict[str, F64]
    mask: Mask | None
    scores: dict[str, F64]
    groups: I64
    group_count: int
    trajectories: I64 | None = None
    trajectory_count: int = 0
    of_turns: Mapping[str, tuple[I64, F64]] = field(default_factory=dict)
    versions: I64 | None = None
    reward_names: tuple[str, ...] = ()
    derived: tuple[str, ...] = ()
    misnamed: Mapping[str, Misnamed] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)
    fields: Fields = NO_FIELDS

    def range_of(self, name: str) -> tuple[float, float]:
        """The smallest and the largest number that a token column may hold."""
        return _BOUNDS.get(name, _ANY) if name not in self.derived else _ANY

    def cut(self, ends: Sequence[int]) -> Iterator[Packed]:
        """The records up to each end, from the end before it; turns have no fields of theirs."""
        if len(ends) == 1:
            yield self
            return
        rows = _before(self.counts)
        tokens = _before(self.widths)[rows]
        for records in map(slice, [0, *ends], ends):
            of_rows = slice(*rows[[records.start, records.stop]].tolist())
            of_tokens = slice(*tokens[[records.start, records.stop]].tolist())
            groups = self.groups[of_rows] - self.groups[of_rows.start]
            more: dict[str, Any] = {}
            if self.trajectories is not None:
                own = self.trajectories[of_rows] - self.trajectories[of_rows.start]
                more |= {"trajectories": own, "trajectory_count": int(own.max()) + 1}
            if self.versions is not None:
                more["versions"] = self.versions[of_tokens]
            yield replace(
                self,
                **more,
                counts=self.counts[records],
                widths=self.widths[of_rows],
                columns={name: one[of_tokens] for name, one in self.columns.items()},
                mask=None if self.mask is None else self.mask[of_tokens],
                scores={name: one[of_rows] for name, one in self.scores.items()},
                groups=groups,
                group_count=int(groups.max()) + 1,
                settings=self.settings.cut(records),
            )


def _before(lengths: I64) -> I64:
    """What comes before each length, and before the end."""
    return np.cumsum(np.concatenate((_NOTHING, lengths)))


_NOTHING = np.zeros(1, np.int64)
_ANY = (-np.inf, np.inf)


def join_packed(parts: Sequence[Packed]) -> Packed:
    """The records of several that have one layout."""
    first = parts[0]
    if len(parts) == 1:
        return first
    groups, group_count = numbered([(one.groups, one.group_count) for one in parts])
    more: dict[str, Any] = {}
    if any(one.trajectories is not None for one in parts):
        more["trajectories"], more["trajectory_count"] = numbered(
            [
                (np.arange(len(one.widths)), len(one.widths))
                if one.trajectories is None
                else (one.trajectories, one.trajectory_count)
                for one in parts
            ]
        )
    return replace(
        first,
        **more,
        counts=join([one.counts for one in parts]),
        widths=join([one.widths for one in parts]),
        columns={name: join([one.columns[name] for one in parts]) for name in first.columns},
        mask=_filled([one.mask for one in parts], parts, value=True),
        scores={name: join([one.scores[name] for one in parts]) for name in first.scores},
        groups=groups,
        group_count=group_count,
        of_turns={
            name: (
                join([one.of_turns[name][0] for one in parts]),
                join([one.of_turns[name][1] for one in parts]),
            )
            for name in first.of_turns
        },
        versions=_filled([one.versions for one in parts], parts, value=-1),
        settings=join_settings([one.settings for one in parts]),
    )


def _filled(each: Sequence[NDArray[Any] | None], parts: Sequence[Packed], *, value: Any) -> Any:
    """[N] numbers by token; some parts may lack them, and None: all do."""
    if all(one is None for one in each):
        return None
    return join(
        [
            np.full(part.widths.sum(), value) if one is None else one
            for one, part in zip(each, parts, strict=True)
        ]
    )


def lay(parts: Sequence[Packed]) -> Batch | None:
    """Lays packed records of one layout side by side, without the tokens that do not count.

    Returns:
        Their batch; None where a value that counts is out of its range.
    """
    packed = join_packed(parts)
    widths, mask = packed.widths, packed.mask
    columns: dict[str, Any] = dict(packed.scores)
    kept = None if mask is None else np.flatnonzero(mask)
    for name, column in packed.columns.items():
        columns[name] = column if kept is None else column[kept]
        if not is_inside(columns[name], *packed.range_of(name)):
            return None
    # Of several reward functions some may be missing; what else is there is finite.
    scores = packed.scores.values()
    if not all(one.ndim > 1 or is_inside(one, -LARGEST, LARGEST) for one in scores):
        return None
    if "log_probs_new" in columns:
        columns.setdefault("log_probs_old", columns["log_probs_new"])
    lengths, positions = kept_lengths(widths, mask)
    last_masked = None
    if mask is not None and len(mask):
        last_masked = (widths > 0) & ~mask[np.maximum(np.cumsum(widths) - 1, 0)]
    responses = Segments(lengths)
    if "turn_ids" in columns:
        if wrong_turns(responses, columns["turn_ids"]).any():
            return None
        columns["turn_ids"] = columns["turn_ids"].astype(np.int64)
    for name in packed.of_turns:
        turns = cut_turns(responses, columns.get("turn_ids"), positions)
        columns[name] = _of_turns(packed, name, responses, turns)
        if columns[name] is None:
            return None
    if packed.trajectories is not None:
        columns["trajectories"] = packed.trajectories
        columns["trajectory_count"] = packed.trajectory_count
    if packed.versions is not None:
        columns["weight_versions"] = packed.versions if kept is None else packed.versions[kept]
    return Batch(
        responses=responses,
        records=Segments(packed.counts),
        groups=packed.groups,
        group_count=packed.group_count,
        positions=positions,
        last_masked=last_masked if last_masked is not None and last_masked.any() else None,
        reward_names=packed.reward_names,
        misnamed=packed.misnamed,
        **columns,
    )


def numbered(parts: Sequence[tuple[I64, int]]) -> tuple[I64, int]:
    """Numbers that no two parts share, and how many there are."""
    before = np.cumsum([0, *(count for _, count in parts)]).tolist()
    numbers = [one + at if at else one for (one, _), at in zip(parts, before, strict=False)]
    return join(numbers), before[-1]


def wrong_turns(responses: Segments, given: F64) -> Mask:
    """[N] the tokens whose turn has no whole number, or a lower one than the token before."""
    bad: Mask = given != np.floor(given)
    back = np.diff(given) < 0
    back[responses.starts[(responses.lengths > 0) & (responses.starts > 0)] - 1] = False
    bad[1:] |= back
    return bad


def _of_turns(packed: Packed, name: str, responses: Segments, turns: Segments) -> F64 | None:
    """[turns] the reward or state of each; None where a response has another number of them.

    Those of a turn, or a response, of which no token counts are left out.
    """
    counts, values = packed.of_turns[name]
    if not is_inside(values, -LARGEST, LARGEST):
        return None
    found = count_turns(responses, turns)
    kept = np.repeat(responses.lengths > 0, counts)
    other = np.flatnonzero((counts != found) & (responses.lengths > 0))
    if len(other):
        mask, ids = packed.mask, packed.columns.get("turn_ids")
        if mask is None or ids is None:
            return None
        written, given = Segments(packed.widths), Segments(counts)
        for at in other.tolist():
            tokens = slice(written.starts[at], written.starts[at] + written.lengths[at])
            turn = slice(given.starts[at], given.starts[at] + counts[at])
            kept[turn] = counted_turns(ids[tokens], mask[tokens], int(counts[at]))
    if not np.array_equal(Segments(counts).sum(kept.astype(np.int64)), found):
        return None
    return values if kept.all() else values[kept]


def counted_turns(ids: F64, mask: Mask, count: int) -> Mask:
    """[count] which of a response's turns have tokens that count, if its ids name as many turns."""
    _, firsts = np.unique(ids, return_index=True)
    named = ids[np.sort(firsts)]
    return np.isin(named, ids[mask]) if len(named) == count else np.ones(count, np.bool_)


def join(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The elements of all arrays, in order."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def integers(values: Any) -> I64:
    """An array of whole numbers."""
    return np.fromiter(values, dtype=np.int64)


def pack_floats(flat: Sequence[Any], mask: Mask | None = None) -> F64:
    """Numbers as an array, without a Python loop.

    Args:
        mask: [N] which of them count; those that do not may be booleans. None: all count.

    Raises:
        Unusual: where one of them is a boolean.
        struct.error, OverflowError: where one is no number, or beyond all floats.
    """
    numbers = np.frombuffer(struct.pack(f"{len(flat)}d", *flat))
    refuse_booleans(numbers, flat, mask)
    return numbers


def refuse_booleans(numbers: NDArray[Any], flat: Sequence[Any], mask: Mask | None = None) -> None:
    """Raises ``Unusual`` where a value that counts, packed as a number, is a boolean."""
    if not len(numbers) or numbers.max() < 0:
        return
    may_be = (numbers == 0) | (numbers == 1)
    found = np.flatnonzero(may_be if mask is None else may_be & mask).tolist()
    if bool in {type(flat[at]) for at in found}:
        raise Unusual


_MARSHALLED = {float: (ord("g"), "<f8"), int: (ord("i"), "<i4")}
"""The byte that marshal's version 2 writes before a number of a type, and how it writes that."""


def pack_rows(rows: Iterable[Any], kind: type) -> NDArray[Any] | None:
    """The numbers of long lists, one after another, looking once at each.

    Returns:
        float64, or int64; None where one is of another type, or an integer of more than 32 bits.
    """
    code, value = _MARSHALLED[kind]
    try:
        data = b"".join([marshal.dumps(row, 2)[_HEAD:] for row in rows])
        found = np.frombuffer(data, [("kind", np.uint8), ("value", value)])
    except ValueError:  # of another size, or what marshal does not write
        return None
    return found["value"].astype(np.dtype(kind)) if (found["kind"] == code).all() else None


_HEAD = 5
"""Bytes of a list's type and length."""


def pack_bits(flat: Sequence[Any]) -> bytes:
    """A byte for every element of a mask.

    Raises:
        Unusual, TypeError, ValueError: where one is not 0, 1, false or true.
    """
    data = bytes(flat)
    if data.strip(b"\0\1"):
        raise Unusual
    return data


def is_inside(values: F64, low: float, high: float) -> bool:
    """Whether all values are finite and between two bounds."""
    if not values.size:
        return True
    # A NaN makes both extremes NaN, of which no comparison holds.
    least, greatest = values.min(), values.max()
    return bool(least >= low and greatest <= high and np.isfinite(least) and np.isfinite(greatest))


def kept_lengths(widths: I64, mask: Mask | None) -> tuple[I64, I64 | None]:
    """[R] tokens that count, and [N] their positions, None if those are 0, 1, 2 and so on."""
    if mask is None:
        return widths, None
    kept, ends = np.flatnonzero(mask), np.cumsum(widths)
    before = np.searchsorted(kept, ends)
    lengths = np.diff(before, prepend=0)
    positions = kept - np.repeat(ends - widths, lengths)
    natural = (positions[before[lengths > 0] - 1] < lengths[lengths > 0]).all()
    return lengths, None if natural else positions


def number_labels(labels: list[Any]) -> list[int] | None:
    """The dense number of each label, in the order of their first; None for a single one."""
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    return [numbers[label] for label in labels] if len(numbers) > 1 else None


def number_groups(each: Sequence[list[int] | None], counts: I64) -> tuple[I64, int]:
    """[R] group numbers that no two records share, and how many there are.

    Args:
        each: for each record the dense group numbers of its responses; None for a single group.
        counts: [M] how many responses each record has.
    """
    if each.count(None) == len(each):
        return np.repeat(np.arange(len(each)), counts), len(each)
    whole = [one or [0] * count for one, count in zip(each, counts.tolist(), strict=True)]
    sizes = integers([max(groups) + 1 for groups in whole])
    before = np.repeat(np.cumsum(sizes) - sizes, counts)
    return integers(chain.from_iterable(whole)) + before, int(sizes.sum())
