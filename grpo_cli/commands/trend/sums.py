"""What steps add up to, in columns with a row a step. Tables merge, so that no cut changes a bit.

Thousands of steps cost some arrays, not thousands of objects. A sum is kept as numbers that add up
to it exactly: those of its responses or, where these are many, two or three that say the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, chain, groupby, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.objective.arithmetic.exact_sums import segment_sums

NO_NUMBER = float("nan")
EACH = "rewards/"
"""Before the name of a reward function, as TRL logs it and its hook records it."""
OF_ENVIRONMENT = "reward_mean/"
"""Before the field and the name of an environment, or prompt, whose mean reward it is."""
OF_SPREAD = "reward_group_std/"
"""Before the name of a prompt whose rewards' standard deviation it is."""
PROMPT = "prompt="
"""Before the name of a prompt in that of its series."""
MOST_ENVIRONMENTS = 12
"""Values of a field, beyond which none of them has a mean reward."""
KINDS = ("length", "nll", "gradient", "ratio", "kl", "mismatch")
"""What a step is worst in: each has a place."""
_ROWS = {
    "reward": "f8",
    "advantage": "f8",
    "log_ratio": "f8",
    "length": "i8",
    "hash": "i8",
    "first": "i8",
    "first_ref": "f8",
    "group": "i8",
    "label": "O",
    "prompt": "O",
}
"""What is kept of each response, or group, and its type."""
PLACE = np.dtype([("value", "f8"), ("response", "i8"), ("token", "i8"), ("record", "O")])
"""How bad something is, and where: the record's source, line and name; a token of -1 is none."""
_SHORT = 8
"""Numbers of a sum, or of a distribution, that are kept as they are."""
_MOST_BINS = 4096


class Ragged(NamedTuple):
    """Some numbers of each step.

    Attributes:
        widths: [S] how many it has.
        values: all of them, step after step.
        times: how often each counts, or the coefficient that multiplies it; None: once.
    """

    widths: I64
    values: NDArray[Any]
    times: NDArray[Any] | None = None

    def lists(self) -> Iterator[list[Any]]:
        """The numbers of each step."""
        values = self.values.tolist()
        for start, stop in pairwise(accumulate(self.widths.tolist(), initial=0)):
            yield values[start:stop]

    def sums(self) -> F64:
        """[S] each step's sum, rounded once."""
        return segment_sums(self.values.astype(np.float64, copy=False), self.widths)

    def reduced(self, by: np.ufunc, empty: float) -> NDArray[Any]:
        """[S] a ufunc over each step's numbers; ``empty`` where it has none."""
        found = np.full(len(self.widths), empty, dtype=self.values.dtype)
        filled = self.widths > 0
        if filled.any():
            starts = np.cumsum(self.widths) - self.widths
            found[filled] = by.reduceat(self.values, starts[filled])
        return found

    def by_coefficient(self) -> tuple[I64, F64, Ragged]:
        """The step and the coefficient of those that have both in common, and their numbers."""
        steps = np.repeat(np.arange(len(self.widths)), self.widths)
        times = np.zeros(0) if self.times is None else self.times
        order = np.lexsort((times, steps))
        steps, times = steps[order], times[order]
        new = np.ones(len(order), dtype=np.bool_)
        new[1:] = (np.diff(steps) != 0) | (times[1:] != times[:-1])
        firsts = np.flatnonzero(new)
        widths = np.diff(firsts, append=len(order))
        return steps[firsts], times[firsts], Ragged(widths, self.values[order])

    def taken(self, rows: I64) -> Ragged:
        """The numbers of some rows, in their order."""
        widths = self.widths[rows]
        starts = (np.cumsum(self.widths) - self.widths)[rows]
        places = np.repeat(starts - (np.cumsum(widths) - widths), widths)
        places += np.arange(len(places))
        times = None if self.times is None else self.times[places]
        return Ragged(widths, self.values[places], times)

    @classmethod
    def stacked(cls, parts: Sequence[Ragged]) -> Ragged:
        """The rows of several tables."""
        times = None
        if any(one.times is not None for one in parts):
            ones = (np.ones(len(one.values), dtype=np.int64) for one in parts)
            pairs = zip((one.times for one in parts), ones, strict=True)
            times = np.concatenate([one if many is None else many for many, one in pairs])
        widths, values = (np.concatenate([one[at] for one in parts]) for at in (0, 1))
        return cls(widths, values, times)

    def merged(self, firsts: I64) -> Ragged:
        """Neighbours together, those from each of these rows on."""
        return self._replace(widths=np.add.reduceat(self.widths, firsts))


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


@dataclass
class StepSums:
    """The sums of steps.

    Attributes:
        numbers: [S] the steps.
        sources: the first file that has records of each, and the field of these that holds the
            step; None where the file's name does.
        columns: by their family and name.
            count: whole numbers, which add up; largest: numbers of which the largest is kept.
            sum: numbers that add up to it; product: to a part of the gradient's square; term: of
            a term of J, with its coefficient for each.
            bins: distributions, as ``bins`` counts them; worst: each a ``PLACE``, of which the
            largest is kept.
            row: of each response its reward (NaN: none), its mean log-ratio (NaN: none), its length
            (-1: unknown), its first token and the reference's log-prob of that (NaN: none) and the
            number of its group in the step; and "label", what the user calls each of these groups,
            and "prompt", this or the id of its record; None where there is none.
        functions: the names of single reward functions, in the order in which they come.
    """

    numbers: I64
    sources: list[tuple[str, str | None]]
    columns: dict[tuple[str, Any], Ragged] = field(default_factory=dict)
    functions: dict[str, None] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.numbers)

    @classmethod
    def without_responses(cls, number: int, source: tuple[str, str | None]) -> StepSums:
        """The sums of a step whose records cannot be used."""
        none = np.zeros(1, dtype=np.int64)
        rows = {("row", name): Ragged(none, np.zeros(0, kind)) for name, kind in _ROWS.items()}
        return cls(np.array([number]), [source], rows)

    def family(self, name: str) -> dict[Any, Ragged]:
        """The columns of a family, by their names."""
        return {key[1]: column for key, column in self.columns.items() if key[0] == name}

    def count(self, name: str) -> NDArray[Any]:
        """[S] a count; 0 where nothing was counted."""
        found = self.columns.get(("count", name))
        return np.zeros(len(self), dtype=np.int64) if found is None else found.reduced(np.add, 0)

    def add_count(self, name: str, counts: NDArray[Any]) -> None:
        """Adds whole numbers of each step."""
        counts = self.count(name) + counts
        self.columns["count", name] = Ragged(np.ones(len(self), dtype=np.int64), counts)

    def sum(self, name: str) -> F64:
        """[S] a sum; 0 where nothing was added."""
        found = self.columns.get(("sum", name))
        return np.zeros(len(self)) if found is None else found.sums()

    def add_sum(self, name: Any, more: Ragged) -> None:
        """Adds numbers of each step to a sum."""
        known = self.columns.get(("sum", name))
        if known is not None:
            pairs = np.arange(2 * len(self)).reshape(2, -1).T.ravel()
            more = Ragged.stacked([known, more]).taken(pairs).merged(np.arange(0, len(pairs), 2))
        self.columns["sum", name] = more

    def taken(self, rows: I64) -> StepSums:
        """Some rows, in their order."""
        sources = [self.sources[row] for row in rows.tolist()]
        columns = {key: column.taken(rows) for key, column in self.columns.items()}
        return StepSums(self.numbers[rows], sources, columns, self.functions)


def joined(tables: Sequence[StepSums]) -> StepSums:
    """One table, with a row for each step, by number; what comes first in the input is first.

    The columns are taken out of the tables, so that they are not in memory twice.
    """
    whole = tables[0] if len(tables) == 1 else _stacked(tables)
    order = np.argsort(whole.numbers, kind="stable")
    numbers = whole.numbers[order]
    firsts = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 1)) if len(order) else order
    if len(firsts) < len(whole) or (np.diff(order) != 1).any():
        whole = _merged(whole.taken(order), firsts)
    return shortened(whole)


def shortened(table: StepSums) -> StepSums:
    """The table with no more numbers than its columns need, and no more environments."""
    more = {
        name for names in environments_by_field(table) for name in names[MOST_ENVIRONMENTS + 1 :]
    }
    columns = {
        key: _SHORTEN[key[0]](one) if key[0] in _SHORTEN and one.widths.max(initial=0) > 1 else one
        for key, one in table.columns.items()
        if key[1] not in more
    }
    return replace(table, columns=columns)


def environments_by_field(table: StepSums) -> Iterator[list[str]]:
    """The names of the environments' series, those of a field together."""
    sums = (str(name) for name in table.family("sum"))
    found = sorted(name for name in sums if name.startswith(OF_ENVIRONMENT))
    for _, names in groupby(found, key=lambda name: name.partition("=")[0]):
        yield [*names]


def _stacked(tables: Sequence[StepSums]) -> StepSums:
    """The rows of all tables."""
    kinds = {key: one.values[:0] for table in tables for key, one in table.columns.items()}
    columns = {}
    for key, none in kinds.items():
        nothing = (Ragged(np.zeros(len(one), dtype=np.int64), none) for one in tables)
        pairs = zip(tables, nothing, strict=True)
        columns[key] = Ragged.stacked([one.columns.pop(key, empty) for one, empty in pairs])
    functions = {name: None for table in tables for name in table.functions}
    numbers = np.concatenate([one.numbers for one in tables])
    sources = [*chain.from_iterable(one.sources for one in tables)]
    return StepSums(numbers, sources, columns, functions)


def _merged(table: StepSums, firsts: I64) -> StepSums:
    """Sorted rows put together, those of a step being neighbours."""
    groups, labels = table.columns["row", "group"], table.columns["row", "label"].widths
    before = np.cumsum(labels) - labels  # labels of the rows before, which are then of this step
    before -= np.repeat(before[firsts], np.diff(np.append(firsts, len(table))))
    later = groups._replace(values=groups.values + np.repeat(before, groups.widths))
    columns = table.columns | {("row", "group"): later}
    return StepSums(
        table.numbers[firsts],
        [table.sources[row] for row in firsts.tolist()],
        {key: column.merged(firsts) for key, column in columns.items()},
        table.functions,
    )


def first_largest(values: F64, segments: Segments) -> I64:
    """[S] the place of the largest number of each segment, the first of equal ones.

    NaN is none; an empty segment has 0.
    """
    filled, places = segments.lengths > 0, np.zeros(segments.count, dtype=np.int64)
    starts = segments.starts[filled]
    if len(starts):
        if np.isnan(values.min()):
            values = np.where(np.isnan(values), -np.inf, values)
        largest = np.repeat(np.maximum.reduceat(values, starts), segments.lengths[filled])
        found = np.flatnonzero(values == largest)
        places[filled] = found[np.searchsorted(found, starts)]
    return places


def _reduced(by: np.ufunc, empty: float, one: Ragged) -> Ragged:
    """One number a step."""
    return Ragged(np.ones_like(one.widths), one.reduced(by, empty))


def _largest_place(one: Ragged) -> Ragged:
    """The first of the largest places of each step that has one."""
    filled = one.widths > 0
    places = first_largest(one.values["value"], Segments(one.widths))[filled]
    return Ragged(filled.astype(np.int64), one.values[places])


def short_sums(one: Ragged) -> Ragged:
    """Sums of fewer numbers, where there are many."""
    if one.widths.max(initial=0) <= _SHORT:
        return one
    short = [each if len(each) <= _SHORT else _shortened(each) for each in one.lists()]
    widths = np.fromiter(map(len, short), dtype=np.int64, count=len(short))
    return Ragged(widths, np.fromiter(chain.from_iterable(short), dtype=np.float64))


def _short_terms(one: Ragged) -> Ragged:
    """Sums of fewer numbers, where there are many of one coefficient."""
    if one.widths.max(initial=0) <= _SHORT:
        return one
    steps, coefficients, numbers = one.by_coefficient()
    short = short_sums(numbers)
    widths = np.bincount(steps, short.widths, len(one.widths)).astype(np.int64)
    return Ragged(widths, short.values, np.repeat(coefficients, short.widths))


def _short_bins(one: Ragged) -> Ragged:
    """Distributions with each bin once, where they have many."""
    if one.widths.max(initial=0) <= _MOST_BINS:
        return one
    ends = [0, *np.cumsum(one.widths).tolist()]
    values, counts = [], []
    for part in (slice(*pair) for pair in pairwise(ends)):
        found, times = one.values[part], None if one.times is None else one.times[part]
        if len(found) > _MOST_BINS and times is None:
            found, times = np.unique(found, return_counts=True)
        elif len(found) > _MOST_BINS:
            found, places = np.unique(found, return_inverse=True)
            times = np.bincount(places, times).astype(np.int64)
        values.append(found)
        counts.append(np.ones(len(found), dtype=np.int64) if times is None else times)
    widths = np.fromiter(map(len, values), dtype=np.int64, count=len(values))
    return Ragged(widths, np.concatenate(values), np.concatenate(counts))


_SHORTEN: Mapping[str, Callable[[Ragged], Ragged]] = {
    "sum": short_sums,
    "product": short_sums,
    "term": _short_terms,
    "bins": _short_bins,
    "count": partial(_reduced, np.add, 0),
    "largest": partial(_reduced, np.fmax, NO_NUMBER),
    "worst": _largest_place,
}
"""The families whose columns can do with fewer numbers."""


# ---- distributions: counts of bins, which merge -------------------------------------------------

_DROPPED = 15
"""Bits of a single that are dropped: bins 1/256 wide, relative to the number."""
_NEGATIVE = 1 << (31 - _DROPPED)


def bins(values: F64) -> NDArray[np.int32]:
    """The bin of each number, in the order of the numbers: leading bits, right to 0.2 %."""
    found: NDArray[np.int32] = values.astype(np.float32).view(np.int32) >> _DROPPED
    negative = found < 0  # of negative numbers the greater one has the smaller bits
    if negative.any():
        found[negative] = -_NEGATIVE - 1 - found[negative]
    return found


def quantiles(found: Ragged, share: float, largest: F64) -> F64:
    """[S] the number that ``share`` of each step's do not exceed; NaN where there are none.

    It is the middle of its bin, right to 0.2 %; exact where it is the largest of the step, as it is
    for a share of 0.999 of fewer than 1,000 numbers.
    """
    ends, filled = np.cumsum(found.widths), found.widths > 0
    above = np.arange(len(found.widths)) << 32  # bins have 17 bits and a sign
    keys = np.repeat(above, found.widths) + found.values
    if found.times is None:
        keys.sort()  # numbers alone in a third of the time that their order takes
        reached = np.arange(len(keys) + 1)
    else:
        order = np.argsort(keys)
        keys, reached = keys[order], np.cumsum(np.append(0, found.times[order]))
    before, until = reached[(ends - found.widths)[filled]], reached[ends[filled]]
    place = np.maximum(np.ceil(share * (until - before)), 1.0).astype(np.int64) - 1
    numbers, most = np.full(len(filled), NO_NUMBER), largest[filled]
    at = np.searchsorted(reached[1:], before + place, side="right")
    middles = _middles((keys[at] - above[filled]).astype(np.int32))
    is_last = before + place == until - 1
    numbers[filled] = np.where(is_last, most, np.minimum(middles, most))
    return numbers


def _middles(keys: NDArray[np.int32]) -> F64:
    """The middle of each bin; the bins at 0 are 0."""
    first = np.where(keys >= 0, keys, -_NEGATIVE - 1 - keys) << _DROPPED
    both = np.array([first, first + ((1 << _DROPPED) - 1)], dtype=np.int32)
    with np.errstate(invalid="ignore"):  # the last bin has infinity and NaN
        low, high = both.view(np.float32).astype(np.float64)
    middle = np.where(np.isfinite(high), (low + high) / 2, low)
    return np.where(np.isin(keys, (0, -1)), 0.0, middle)  # zero, and what underflows to it
