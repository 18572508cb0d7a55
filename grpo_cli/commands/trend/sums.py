"""What steps add up to, in columns with a row a step. Tables merge, so that no cut changes a bit.

Thousands of steps cost some arrays, not thousands of objects. A sum is kept as numbers that add up
to it exactly: those of its responses or, where these are many, two or three that say the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.objective.arithmetic.exact_sums import ExactSum

NO_NUMBER = float("nan")
EACH = "rewards/"
"""Before the name of a reward function, as TRL logs it and its hook records it."""
DECILES = tuple(f"decile_{number}" for number in range(1, 11))
LOGGED = ("clip_low", "clip_high", "clip_region", "clip", "kl", "ppo_kl", "entropy")
"""What frameworks average by sample or by record."""
KINDS = ("length", "nll", "gradient", "ratio", "kl", "mismatch")
"""What a step is worst in: each has a place."""
_KNOWN = {
    *("tokens", "samples", "cut_off", "endings", "lag", "versions", "repetition", "records"),
    *("evaluated_tokens", "clipped_low", "clipped_high", "ratio", "kl_records", "kl_unknown"),
    *("log_prob", "entropy", "ratio_squared", "kl", "kl_k1", "kl_k3", *DECILES),
    *("mismatch", "mismatch_d", "mismatch_weight", "mismatch_size", "mismatch_both"),
    *("mismatch_square", "inverse_weight", "probs_diff", "probs_diff_2", "new_k3", "weights"),
    *("policy_counted", "kl_counted", "entropy_counted", "sample_logp_difference"),
    *(f"{unit}_{name}" for unit in ("sample", "record") for name in LOGGED),
}
_FEW = 8
"""Numbers of a sum, or of a distribution, that are kept as they are."""
_FEW_BINS = 4096


class Ragged(NamedTuple):
    """Some numbers of each step.

    Attributes:
        widths: [S] how many it has.
        values: all of them, step after step.
        times: how often each counts; None: once.
    """

    widths: I64
    values: NDArray[Any]
    times: I64 | None = None

    def lists(self) -> Iterator[list[Any]]:
        """The numbers of each step."""
        values = self.values.tolist()
        for start, stop in pairwise(accumulate(self.widths.tolist(), initial=0)):
            yield values[start:stop]

    def sums(self) -> F64:
        """[S] each step's sum, rounded once."""
        if (self.widths == 1).all():
            return self.values + 0.0
        return np.array([exact_sum(one) for one in self.lists()], dtype=np.float64)

    def reduced(self, by: np.ufunc, empty: float) -> NDArray[Any]:
        """[S] a ufunc over each step's numbers; ``empty`` where it has none."""
        found = np.full(len(self.widths), empty, dtype=self.values.dtype)
        filled = self.widths > 0
        if filled.any():
            starts = np.cumsum(self.widths) - self.widths
            found[filled] = by.reduceat(self.values, starts[filled])
        return found

    def taken(self, rows: I64) -> Ragged:
        """The numbers of some rows, in their order."""
        widths = self.widths[rows]
        starts = (np.cumsum(self.widths) - self.widths)[rows]
        places = np.repeat(starts - (np.cumsum(widths) - widths), widths)
        places += np.arange(len(places))
        times = None if self.times is None else self.times[places]
        return Ragged(widths, self.values[places], times)


def exact_sum(values: list[float]) -> float:
    """A sum that is rounded once."""
    try:
        return math.fsum(values) + 0.0
    except (OverflowError, ValueError):  # on the way, or infinite both ways
        exact = ExactSum()
        exact.add(np.array(values))
        return exact.value()


def _shortened(values: list[float]) -> list[float]:
    """The sum as the fewest doubles that add up to it exactly; all of them if it is not finite."""
    try:
        total, found = math.fsum(values), list[float]()
        while total and math.isfinite(total):
            found.append(total)
            total = math.fsum([*values, *(-one for one in found)])
    except (OverflowError, ValueError):
        return values
    return values if total else found or [0.0]


class Places(NamedTuple):
    """Where each step is worst in something.

    Attributes:
        values: [S] how bad; NaN where it has no such place.
        responses, tokens: [S] the place in the record; -1 for a response as a whole.
        records: source, line and name of each record; None where there is no place.
    """

    values: F64
    responses: I64
    tokens: I64
    records: list[tuple[str, int | None, str | int | float] | None]

    @classmethod
    def nowhere(cls, count: int) -> Places:
        """Those of steps that have none."""
        none = np.zeros(count, dtype=np.int64)
        return cls(np.full(count, NO_NUMBER), none, none, [None] * count)

    def taken(self, rows: I64) -> Places:
        """Those of some rows."""
        records = [self.records[row] for row in rows.tolist()]
        return Places(self.values[rows], self.responses[rows], self.tokens[rows], records)


@dataclass
class StepSums:
    """The sums of steps.

    Attributes:
        numbers: [S] the steps.
        files: the first file that has records of each.
        keys: the field of these that holds the step; None where the file's name does.
        counts: whole numbers, by name.
        sums: numbers that add up to each sum; of terms and products under tuples.
        bins: distributions, as ``tails`` counts them.
        extremes: the largest, by name; NaN where there is none.
        worst: the places of the largest, by name.
        rows: of each response its reward (NaN: none), its length (-1: unknown), Σ |gradient| over
            its tokens (NaN: not comparable) and the number of its group in the step.
        labels: what the user calls each of these groups; None where it has no name.
        functions: reward functions of a record, in its order → the first step that has them.
    """

    numbers: I64
    files: list[str]
    keys: list[str | None]
    rows: dict[str, Ragged]
    labels: Ragged
    counts: dict[str, NDArray[Any]] = field(default_factory=dict)
    sums: dict[Any, Ragged] = field(default_factory=dict)
    bins: dict[str, Ragged] = field(default_factory=dict)
    extremes: dict[str, F64] = field(default_factory=dict)
    worst: dict[str, Places] = field(default_factory=dict)
    functions: dict[tuple[str, ...], int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.numbers)

    def count(self, name: str) -> NDArray[Any]:
        """[S] a count; 0 where nothing was counted.

        Raises:
            KeyError: for a name that nothing counts under.
        """
        if name not in self.counts and name not in _KNOWN and not name.startswith(EACH):
            raise KeyError(name)
        return self.counts.get(name, np.zeros(len(self), dtype=np.int64))

    def add_count(self, name: str, counts: NDArray[Any]) -> None:
        """Adds whole numbers of each step."""
        self.counts[name] = self.count(name) + counts

    def add_sum(self, name: Any, more: Ragged) -> None:
        """Adds numbers of each step to a sum."""
        known = self.sums.get(name)
        if known is not None:
            pairs = np.arange(2 * len(self)).reshape(2, -1).T.ravel()
            both = _concatenated([known, more]).taken(pairs)
            more = both._replace(widths=both.widths.reshape(-1, 2).sum(axis=1))
        self.sums[name] = more

    def sum(self, name: str) -> F64:
        """[S] a sum; 0 where nothing was added.

        Raises:
            KeyError: for a name that nothing is added to.
        """
        found = self.sums.get(name)
        return self.count(name).astype(np.float64) * 0.0 if found is None else found.sums()

    def each(self) -> Iterator[StepSums]:
        """Each step alone, in order."""
        for at in range(len(self)):
            yield self.taken(np.array([at]))

    def before(self, number: int) -> StepSums:
        """The steps below a number."""
        return self.taken(np.flatnonzero(self.numbers < number))

    def taken(self, rows: I64) -> StepSums:
        """Some rows, in their order."""
        picked = rows.tolist()
        return StepSums(
            self.numbers[rows],
            [self.files[row] for row in picked],
            [self.keys[row] for row in picked],
            {name: one.taken(rows) for name, one in self.rows.items()},
            self.labels.taken(rows),
            {name: one[rows] for name, one in self.counts.items()},
            {name: one.taken(rows) for name, one in self.sums.items()},
            {name: one.taken(rows) for name, one in self.bins.items()},
            {name: one[rows] for name, one in self.extremes.items()},
            {name: one.taken(rows) for name, one in self.worst.items()},
            self.functions,
        )


def joined(tables: Sequence[StepSums]) -> StepSums:
    """One table, with a row for each step, by number; what comes first in the input is first."""
    whole = tables[0] if len(tables) == 1 else _stacked(tables)
    order = np.argsort(whole.numbers, kind="stable")
    numbers = whole.numbers[order]
    firsts = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 1)) if len(order) else order
    if len(firsts) < len(whole) or (np.diff(order) != 1).any():
        whole = _merged(whole.taken(order), firsts)
    sums = {name: _short_sums(one) for name, one in whole.sums.items()}
    return replace(whole, sums=sums, bins={n: _short_bins(one) for n, one in whole.bins.items()})


def _stacked(tables: Sequence[StepSums]) -> StepSums:
    """The rows of all tables."""

    def stack(pick: Callable[[StepSums], Mapping[Any, Any]], empty: Callable[[int], Any]) -> Any:
        names = dict.fromkeys(chain.from_iterable(map(pick, tables)))
        each = {
            name: [
                found if (found := pick(one).get(name)) is not None else empty(len(one))
                for one in tables
            ]
            for name in names
        }
        return {name: _concatenated(parts) for name, parts in each.items()}

    functions: dict[tuple[str, ...], int] = {}
    for table in tables:
        for names, step in table.functions.items():
            functions[names] = min(step, functions.get(names, step))
    return StepSums(
        np.concatenate([one.numbers for one in tables]),
        [*chain.from_iterable(one.files for one in tables)],
        [*chain.from_iterable(one.keys for one in tables)],
        stack(lambda one: one.rows, _nothing),
        _concatenated([one.labels for one in tables]),
        stack(lambda one: one.counts, lambda count: np.zeros(count, dtype=np.int64)),
        stack(lambda one: one.sums, _nothing),
        stack(lambda one: one.bins, _nothing),
        stack(lambda one: one.extremes, lambda count: np.full(count, NO_NUMBER)),
        stack(lambda one: one.worst, Places.nowhere),
        functions,
    )


def _nothing(count: int) -> Ragged:
    return Ragged(np.zeros(count, dtype=np.int64), np.zeros(0, dtype=np.int32))


def _concatenated(parts: Sequence[Any]) -> Any:
    first = parts[0]
    if isinstance(first, np.ndarray):
        return np.concatenate(parts)
    if isinstance(first, Places):
        values, responses, tokens = (np.concatenate([one[at] for one in parts]) for at in range(3))
        return Places(values, responses, tokens, [*chain(*(one.records for one in parts))])
    times = None
    if any(one.times is not None for one in parts):
        ones = (np.ones(len(one.values), dtype=np.int64) for one in parts)
        each = (one.times for one in parts)
        times = np.concatenate([b if a is None else a for a, b in zip(each, ones, strict=True)])
    widths, values = (np.concatenate([one[at] for one in parts]) for at in (0, 1))
    return Ragged(widths, values, times)


def _merged(table: StepSums, firsts: I64) -> StepSums:
    """Sorted rows put together, those of a step being neighbours."""
    lengths = np.diff(np.append(firsts, len(table)))

    def merge(one: Ragged) -> Ragged:
        return one._replace(widths=np.add.reduceat(one.widths, firsts))

    rows, groups = dict(table.rows), table.rows["groups"]
    before = np.cumsum(table.labels.widths) - table.labels.widths
    before -= np.repeat(before[firsts], lengths)
    rows["groups"] = groups._replace(values=groups.values + np.repeat(before, groups.widths))
    return replace(
        table,
        numbers=table.numbers[firsts],
        files=[table.files[row] for row in firsts.tolist()],
        keys=[table.keys[row] for row in firsts.tolist()],
        rows={name: merge(one) for name, one in rows.items()},
        labels=merge(table.labels),
        counts={name: np.add.reduceat(one, firsts) for name, one in table.counts.items()},
        sums={name: merge(one) for name, one in table.sums.items()},
        bins={name: merge(one) for name, one in table.bins.items()},
        extremes={name: np.fmax.reduceat(one, firsts) for name, one in table.extremes.items()},
        worst={
            name: one.taken(first_largest(one.values, Segments(lengths)))
            for name, one in table.worst.items()
        },
    )


def first_largest(values: F64, segments: Segments) -> I64:
    """[S] the place of the largest number of each segment, the first of equal ones.

    NaN is none; an empty segment has 0.
    """
    filled, places = segments.lengths > 0, np.zeros(segments.count, dtype=np.int64)
    starts = segments.starts[filled]
    if len(starts):
        values = np.where(np.isnan(values), -np.inf, values)
        largest = np.repeat(np.maximum.reduceat(values, starts), segments.lengths[filled])
        found = np.flatnonzero(values == largest)
        places[filled] = found[np.searchsorted(found, starts)]
    return places


def _short_sums(one: Ragged) -> Ragged:
    """Sums of fewer numbers, where there are many."""
    if one.widths.max(initial=0) <= _FEW:
        return one
    short = [each if len(each) <= _FEW else _shortened(each) for each in one.lists()]
    widths = np.fromiter(map(len, short), dtype=np.int64, count=len(short))
    return Ragged(widths, np.fromiter(chain.from_iterable(short), dtype=np.float64))


def _short_bins(one: Ragged) -> Ragged:
    """Distributions with each bin once, where they have many."""
    if one.widths.max(initial=0) <= _FEW_BINS:
        return one
    times = np.ones(len(one.values), dtype=np.int64) if one.times is None else one.times
    ends = [0, *np.cumsum(one.widths).tolist()]
    values, counts = [], []
    for part in (slice(*pair) for pair in pairwise(ends)):
        found, index = one.values[part], times[part]
        if len(found) > _FEW_BINS:
            found, places = np.unique(found, return_inverse=True)
            index = np.bincount(places, times[part]).astype(np.int64)
        values.append(found)
        counts.append(index)
    widths = np.fromiter(map(len, values), dtype=np.int64, count=len(values))
    return Ragged(widths, np.concatenate(values), np.concatenate(counts))
