"""What a step adds up to: sums that merge, so that no cut and no worker changes a bit."""

from __future__ import annotations

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.trend.step import Place
from grpo_cli.commands.trend.tails import Tail
from grpo_cli.engine.totals import Totals
from grpo_cli.objective.arithmetic.exact_sums import ExactSum

NO_NUMBER = float("nan")
EACH = "rewards/"
"""Before the name of a reward function, as TRL logs it and its hook records it."""
DECILES = tuple(f"decile_{number}" for number in range(1, 11))
LOGGED = ("clip_low", "clip_high", "clip_region", "clip", "kl", "ppo_kl", "entropy")
"""What frameworks average by sample or by record."""
_COUNTS = {
    *("tokens", "samples", "cut_off", "endings", "lag", "versions", "repetition"),
    *("log_prob", "entropy", "kl", "mismatch", "probs_diff", "probs_diff_2", "new_k3", "weights"),
    *("sample_logp_difference", *DECILES),
    *(f"{unit}_{name}" for unit in ("sample", "record") for name in LOGGED),
}
_WAITING = 2048
"""Responses whose numbers wait to be added up."""


class Counts(Counter[str]):
    """Whole numbers by name, 0 where nothing was counted; an unknown name is a ``KeyError``."""

    def __missing__(self, name: str) -> int:
        if name in _COUNTS or name.startswith(EACH):
            return 0
        raise KeyError(name)


class NamedSums:
    """Exact sums by name.

    What is known of each response is added for all names at once, and waits as it is: most steps
    have few responses, and ``math.fsum`` is soon done with them.
    """

    __slots__ = ("_held", "_sums", "_waiting")

    def __init__(self) -> None:
        self._sums: dict[str, ExactSum] = defaultdict(ExactSum)
        self._waiting: list[tuple[tuple[str, ...], F64]] = []
        self._held = 0

    def add(self, name: str, values: F64) -> None:
        """Adds the elements of an array, which must not change any more."""
        self._sums[name].add(values)

    def add_rows(self, names: tuple[str, ...], rows: F64) -> None:
        """Adds a row of numbers to each of several sums; they must not change any more."""
        self._waiting.append((names, rows))
        self._held += rows.shape[1]
        if self._held > _WAITING:
            for waiting_names, waiting in self._waiting:
                for name, row in zip(waiting_names, waiting, strict=True):
                    self._sums[name].add(row)
            self._waiting, self._held = [], 0

    def merge(self, later: NamedSums) -> None:
        """Adds other sums."""
        for name, part in later._sums.items():
            self._sums[name].merge(part)
        for names, rows in later._waiting:
            self.add_rows(names, rows)

    def values(self) -> Mapping[str, float]:
        """All of them, each rounded once."""
        waiting: dict[str, list[float]] = {}
        for names, rows in self._waiting:
            for name, row in zip(names, rows.tolist(), strict=True):
                waiting[name] = waiting[name] + row if name in waiting else row
        found = {name: _rounded(row) for name, row in waiting.items() if name not in self._sums}
        for name, part in self._sums.items():
            total = ExactSum()
            total.merge(part)
            total.add(np.array(waiting.get(name, ())))
            found[name] = total.value()
        return found


def _rounded(values: list[float]) -> float:
    """Their sum, rounded once."""
    try:
        total = math.fsum(values) + 0.0
    except (OverflowError, ValueError):
        total = math.nan
    if math.isfinite(total):
        return total
    exact = ExactSum()
    exact.add(np.array(values))
    return exact.value()


@dataclass
class Rows:
    """A line for each response: a few bytes, where its tokens were kilobytes.

    Attributes:
        rewards: NaN where there is none.
        lengths: tokens that count; -1 where they are not known.
        gradients: Σ |gradient| over its tokens; NaN where it is not comparable.
        groups: the number of the response's group within its own record, over all records.
        labels: what the user calls each of these groups; None where it has no name.
    """

    rewards: array[float] = field(default_factory=lambda: array("d"))
    lengths: array[int] = field(default_factory=lambda: array("q"))
    gradients: array[float] = field(default_factory=lambda: array("d"))
    groups: array[int] = field(default_factory=lambda: array("q"))
    labels: list[Any] = field(default_factory=list)

    def add(self, rewards: list[float | None], lengths: list[int | None], label: Any) -> None:
        """Adds the responses of a group without log-probs."""
        self.rewards.extend(NO_NUMBER if one is None else one for one in rewards)
        self.lengths.extend(-1 if one is None else one for one in lengths)
        self.gradients.extend([NO_NUMBER] * len(rewards))
        self.groups.extend([len(self.labels)] * len(rewards))
        self.labels.append(label)

    def merge(self, later: Rows) -> None:
        """Adds the responses of records that follow."""
        first = len(self.labels)
        self.rewards += later.rewards
        self.lengths += later.lengths
        self.gradients += later.gradients
        self.groups.extend(number + first for number in later.groups)
        self.labels += later.labels


@dataclass
class StepSums:
    """The sums of one step.

    Attributes:
        file: the first file that has records of it.
        key: the field of these that holds the step; None where the file's name does.
        totals: as ``grpo eval`` has them; None where the objective cannot be evaluated.
        rows: the responses.
        sums: of token quantities, by name.
        counts: what those are means over, and other whole numbers, by name.
        tails: distributions, by name.
        worst: the places of the largest, by name.
        extremes: the largest, by name.
    """

    file: str
    key: str | None = None
    totals: Totals | None = None
    rows: Rows = field(default_factory=Rows)
    sums: NamedSums = field(default_factory=NamedSums)
    counts: Counts = field(default_factory=Counts)
    tails: dict[str, Tail] = field(default_factory=dict)
    worst: dict[str, Place] = field(default_factory=dict)
    extremes: dict[str, float] = field(default_factory=dict)

    def merge(self, later: StepSums) -> None:
        """Adds those of records that follow."""
        if later.totals is not None:
            self.totals = self.totals or Totals(later.totals.batch)
            self.totals.merge(later.totals)
        self.rows.merge(later.rows)
        self.sums.merge(later.sums)
        self.counts.update(later.counts)
        for name, tail in later.tails.items():
            self.tails.setdefault(name, Tail()).merge(tail)
        for name, place in later.worst.items():
            self.add_place(name, place)
        for name, value in later.extremes.items():
            self.add_extreme(name, value)

    def add_values(self, name: str, values: F64) -> None:
        """Adds numbers to a sum, and how many there are to the count of its name."""
        self.sums.add(name, values)
        self.counts[name] += len(values)

    def add_extreme(self, name: str, value: float) -> None:
        """Keeps a number if it is larger than the one before."""
        self.extremes[name] = max(value, self.extremes.get(name, value))

    def add_place(self, name: str, place: Place) -> None:
        """Keeps a place if it is worse than the one before; of equal ones the first."""
        known = self.worst.get(name)
        if known is None or place.value > known.value:
            self.worst[name] = place
