"""The columns of two records: the first number, token or setting that differs, and by what.

Numbers may differ by rounding, by the noise of an engine, or by a fault.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.answer import Answer
from grpo_cli.records import Record

COLUMNS: dict[str, str] = {
    "token_ids": "the sampled responses",
    "tokens": "the sampled responses",
    "mask": "the tokens that count",
    "groups": "the grouping of responses",
    "rewards": "the reward",
    "log_probs_rollout": "the engine's log-probs",
    "log_probs_old": "the trainer's log-probs before the update",
    "log_probs_ref": "the reference",
    "hyperparameters": "the settings",
    "advantages": "the advantage stage",
    "log_probs_new": "the policy's log-probs",
    "entropies": "the policy's entropies",
    "expected": "the trainer's own numbers",
}
"""What is compared, causes before effects: if columns differ together, the first is named."""
_FLOATS = {column for column in COLUMNS if column.startswith("log_probs") or column == "entropies"}
_EXACT = ("tokens", "token_ids", "groups", "mask", "hyperparameters", "expected")
_ROUNDING = 2.0**-18
"""Of the larger of 1 and the number: what single precision leaves of a sum over a vocabulary."""
_MEAN = 0.05
"""The largest mean distance, in nats, that engines in bfloat16 have been reported to have."""
_MOST, _LEAST_FAR, _FLOOR = 100.0, 0.5, 1e-3
"""Times the median distance, and nats: a token that is farther away is no noise, whose tails are
heavy. Distances are divided by 1 − p, as noise of the logits moves a log-prob by so much of it."""
_LEAST = 0.5
"""Of the numbers: noise is nearly everywhere, a fault is somewhere."""
_KNOWN, _GROWN = 200, 4.0
"""Numbers by which the median distance is known, and times that: more is another noise."""
_CENTRED = 5.0
"""Standard errors by which the mean of noise may be away from 0."""


@dataclass
class Noise(Answer):
    """How far a column differs where no difference is large.

    Attributes:
        column: its name.
        kind: "rounding" where single precision explains it, else "engine".
        numbers, differing: how many were compared, and how many of these differ.
        mean, largest: distance.
    """

    column: str
    kind: Literal["rounding", "engine"] = "rounding"
    numbers: int = 0
    differing: int = 0
    mean: float = 0.0
    largest: float = 0.0
    median: float = 0.0

    def fields(self) -> dict[str, object]:
        """What JSON has of it."""
        return {name: value for name, value in super().fields().items() if name != "median"}

    def outlier(self, first: F64, second: F64, *, engine: bool) -> int | None:
        """The place of the first number that is no noise; else they are added, and None.

        Args:
            first, second: of a record.
            engine: whether they may have an engine's noise: log-probs.
        """
        alike = (first == second) | (np.isnan(first) & np.isnan(second))
        difference = np.where(alike, 0.0, first - second)
        size = np.abs(difference)
        room = _ROUNDING * np.maximum(1.0, np.maximum(np.abs(first), np.abs(second)))
        beyond = ~alike & ~(size <= room)  # NaN is far from every number
        scaled = np.where(alike, 0.0, size / (_FLOOR - np.expm1(np.minimum(first, 0.0))))
        median = float(np.median(scaled)) if len(scaled) else 0.0
        known = self.numbers >= _KNOWN
        if beyond.any():
            grew = known and median > _GROWN * self.median
            if grew or not engine or not _is_noise(difference, first):
                return int(beyond.argmax())
            far = (scaled > _MOST * (self.median if known else median)) & (size > _LEAST_FAR)
            if far.any():
                return int(far.argmax())
            self.kind = "engine"
        self.differing += int(np.count_nonzero(size))
        self.largest = max(self.largest, float(size.max(initial=0.0)))
        self.add(len(size), median, float(size.sum()))
        return None

    def add(self, numbers: int, median: float = 0.0, total: float = 0.0) -> None:
        """Adds the numbers of a record, equal ones unless their distances are given."""
        self.median += (median - self.median) / (4 if self.numbers else 1)
        total += self.mean * self.numbers
        self.numbers += numbers
        self.mean = total / self.numbers if self.numbers else 0.0


def _is_noise(difference: F64, log_probs: F64) -> bool:
    """Whether differences are nearly everywhere, small, around 0, and know no log-prob."""
    count = len(difference)
    if not np.isfinite(difference).all() or np.count_nonzero(difference) < _LEAST * count:
        return False
    square = float(difference @ difference)
    offsets = log_probs - log_probs.mean()
    follows = float(offsets @ difference) ** 2 > _CENTRED**2 * float(offsets**2 @ difference**2)
    centred = abs(float(difference.sum())) <= _CENTRED * math.sqrt(square)
    return float(np.abs(difference).mean()) <= _MEAN and centred and not follows


class Found(NamedTuple):
    """The first difference in a record, with the values of both runs there."""

    values: tuple[Any, ...]
    response: int | None = None
    token: int | None = None
    difference: float | None = None


def there(one: object, other: object) -> Found:
    """What only one of the runs has."""
    return Found(tuple("absent" if each is None else "present" for each in (one, other)))


def groups_of(record: Record) -> Sequence[int]:
    """The number of each response's group."""
    return record.groups or [0] * len(record.widths)


@dataclass
class Comparer:
    """Compares columns, and remembers how far they differ by noise and which a run lacks.

    Attributes:
        tolerance: how far numbers may differ; None: as far as noise does.
        noise: of each column.
        had: whether either run had a column, in any record so far.
        lacking: column → the run that lacks it, and in how many records.
    """

    tolerance: float | None
    noise: dict[str, Noise] = field(default_factory=dict)
    had: set[tuple[str, int]] = field(default_factory=set)
    lacking: dict[str, tuple[int, int]] = field(default_factory=dict)

    def compare(self, column: str, both: tuple[Record, Record]) -> Found | None:
        """The first difference of two records in a column; None where there is none.

        A column that a run never had is none, but counted.
        """
        values = [_value(record, column) for record in both]
        self.had |= {(column, run) for run, value in enumerate(values, 1) if value is not None}
        if None not in values:
            return self._first_difference(column, both, *values)
        lacks = 1 if values[0] is None else 2
        if values == [None, None] or column == "expected":
            return None
        if (column, lacks) in self.had:
            return there(*values)
        self.lacking[column] = lacks, self.lacking.get(column, (lacks, 0))[1] + 1
        return None

    def _first_difference(
        self, column: str, both: tuple[Record, Record], first: Any, second: Any
    ) -> Found | None:
        if first == second and both[0].widths == both[1].widths:
            if self._is_noisy(column):
                number = len(first) // 8 if isinstance(first, bytes) else np.size(first)
                self.noise.setdefault(column, Noise(column)).add(number)
            return None
        if column in ("token_ids", "tokens"):
            return _compare_tokens(first, second)
        if column == "groups":
            return _compare_groups(first, second)
        if column in ("hyperparameters", "expected"):
            return self._compare_mappings(column, first, second)
        if isinstance(first, list) and isinstance(second, list):
            return self._compare_scores(column, first, second)
        return self._compare_numbers(column, both, first, second)

    def _is_noisy(self, column: str) -> bool:
        """Whether its numbers may differ by noise."""
        return self.tolerance is None and column not in _EXACT

    def _first_place(self, column: str, first: F64, second: F64) -> tuple[int, float | None] | None:
        """The first place that differs by more than it may, and the largest difference of all."""
        if not self._is_noisy(column):
            far = ~_near(first, second, self.tolerance or 0.0)
            place = int(far.argmax()) if far.any() else None
        else:
            noise = self.noise.setdefault(column, Noise(column))
            place = noise.outlier(first, second, engine=column.startswith("log_probs"))
        if place is None:
            return None
        size = np.where(_near(first, second, 0.0), 0.0, np.abs(first - second))
        return place, None if np.isnan(size).any() else float(size.max())

    def _compare_mappings(
        self, column: str, first: Mapping[str, Any], second: Mapping[str, Any]
    ) -> Found | None:
        """Settings, or what the trainer computed: the names that differ."""

        def differ(a: Any, b: Any) -> bool:
            if a == b or not all(isinstance(one, int | float) for one in (a, b)):
                return bool(a != b)
            values = np.array([a], dtype=np.float64), np.array([b], dtype=np.float64)
            return self._first_place(column, *values) is not None

        names = [name for name in {**first, **second} if differ(first.get(name), second.get(name))]
        short = (
            {name: "a list" if isinstance(v := one.get(name), list | dict) else v for name in names}
            for one in (first, second)
        )
        return Found(tuple(short)) if names else None

    def _compare_scores(self, column: str, first: Any, second: Any) -> Found | None:
        """A number, or several, for each response."""
        mine, yours = (np.array(value, dtype=np.float64) for value in (first, second))
        if mine.shape != yours.shape:
            return Found((f"shape {mine.shape}", f"shape {yours.shape}"))
        place = self._first_place(column, mine.ravel(), yours.ravel())
        if place is None:
            return None
        at, size = place
        values = float(mine.ravel()[at]), float(yours.ravel()[at])
        return Found(values, at // (mine.size // len(mine)), difference=size)

    def _compare_numbers(
        self, column: str, both: tuple[Record, Record], first: Any, second: Any
    ) -> Found | None:
        """A number for each token; one of a response is that of each of its tokens."""
        widths, others = (np.array(record.widths) for record in both)
        alike = widths == others
        kind = np.uint8 if column == "mask" else np.float64
        mine, yours = (
            (np.repeat(one, each) if isinstance(one, list) else np.frombuffer(one, dtype=kind))[
                np.repeat(alike, each)
            ].astype(np.float64)
            for one, each in ((first, widths), (second, others))
        )
        if column != "mask" and (masked := _masked(both, alike)) is not None:
            yours[masked] = mine[masked]
        place = self._first_place(column, mine, yours)
        if place is None:
            if alike.all():
                return None
            response = int(alike.argmin())
            return Found((f"{widths[response]} tokens", f"{others[response]} tokens"), response)
        at, size = place
        compared = np.flatnonzero(alike)
        ends = np.cumsum(widths[compared])
        response = int(np.searchsorted(ends, at, side="right"))
        token = int(at - (ends[response] - widths[compared][response]))
        return Found((float(mine[at]), float(yours[at])), int(compared[response]), token, size)


def _masked(both: tuple[Record, Record], alike: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
    """Which tokens, of responses of equal length, neither run counts; None where all count."""
    masks = [
        np.frombuffer(record.mask, dtype=np.bool_)[np.repeat(alike, record.widths)]
        for record in both
        if record.mask is not None
    ]
    return ~np.logical_or(*masks) if len(masks) == 2 else None


def _near(first: F64, second: F64, tolerance: float) -> NDArray[np.bool_]:
    both = (first == second) | (np.isnan(first) & np.isnan(second))
    near: NDArray[np.bool_] = both | (np.abs(first - second) <= tolerance)
    return near


def _value(record: Record, column: str) -> Any:
    if column == "groups":
        return groups_of(record)
    return record.columns.get(column) if column in _FLOATS else getattr(record, column)


def _compare_tokens(first: Any, second: Any) -> Found | None:
    """The first token, or id, that differs."""
    for response, (mine, yours) in enumerate(zip(first, second, strict=True)):
        for token, (a, b) in enumerate(zip_longest(mine, yours, fillvalue="no token")):
            if a != b:
                return Found((a, b), response, token)
    return None


def _first_seen(groups: Sequence[int]) -> list[int]:
    """The group of each response, numbered in the order in which groups first come."""
    number = {name: at for at, name in enumerate(dict.fromkeys(groups))}
    return [number[name] for name in groups]


def _compare_groups(first: Sequence[int], second: Sequence[int]) -> Found | None:
    """The first response that is in another group, whatever groups are called."""
    mine, yours = map(_first_seen, (first, second))
    for response, (a, b) in enumerate(zip(mine, yours, strict=True)):
        if a != b:
            names = (f"with response {each.index(each[response])}" for each in (mine, yours))
            return Found(tuple(names), response)
    return None


# ---- responses in another order -----------------------------------------------------------------

_BY_RESPONSE = ("groups", "rewards", "reward_baselines", "advantages", "tokens", "token_ids")


def reordered(first: Record, second: Record) -> Record | None:
    """The second record with its responses in the order of the first's.

    None where both have one order, or are no reordering of each other by what was sampled.
    """
    mine, yours = (one.token_ids if one.tokens is None else one.tokens for one in (first, second))
    if mine is None or yours is None or mine == yours:
        return None
    scored = sorted(first.columns.keys() & second.columns.keys())
    sampled = [
        sorted((repr(row), score, at) for at, (row, score) in enumerate(pairs))
        for pairs in (
            zip(mine, _sums(first, scored), strict=True),
            zip(yours, _sums(second, scored), strict=True),
        )
    ]
    if [row for row, *_ in sampled[0]] != [row for row, *_ in sampled[1]]:
        return None
    order = [other for _, other in sorted((a[2], b[2]) for a, b in zip(*sampled, strict=True))]
    ends = np.cumsum(second.widths)
    taken = np.concatenate([np.arange(ends[at] - second.widths[at], ends[at]) for at in order])
    changed: dict[str, Any] = {"widths": [second.widths[at] for at in order]}
    for name in _BY_RESPONSE:
        value = getattr(second, name)
        if isinstance(value, list):
            changed[name] = [value[at] for at in order]
    for name, kind in (("mask", np.uint8), ("advantages", np.float64)):
        value = getattr(second, name)
        if isinstance(value, bytes):
            changed[name] = np.frombuffer(value, dtype=kind)[taken].tobytes()
    changed["columns"] = {
        name: np.frombuffer(value, dtype=np.float64)[taken].tobytes()
        for name, value in second.columns.items()
    }
    return replace(second, **changed)


def _sums(record: Record, columns: Sequence[str]) -> list[tuple[float, ...]]:
    """The sums of columns over each response, which distinguish responses."""
    ends = np.cumsum(record.widths)[:-1]
    values = (np.frombuffer(record.columns[name], dtype=np.float64) for name in columns)
    sums = [[float(part.sum()) for part in np.split(one, ends)] for one in values]
    return [*zip(*sums, strict=True)] if sums else [()] * len(record.widths)
