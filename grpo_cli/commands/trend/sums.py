"""What a step adds up to: sums that merge, so that no cut and no worker changes a bit."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from grpo_cli.commands.trend.step import Place
from grpo_cli.commands.trend.tails import Tail
from grpo_cli.engine.totals import Totals
from grpo_cli.objective.arithmetic.exact_sums import ExactSum

NO_NUMBER = float("nan")


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
        """Adds the responses of a group, of which nothing else is known."""
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
class Sums:
    """The sums of one step.

    Attributes:
        file: the first file that has records of it.
        totals: as ``grpo eval`` has them; None where the objective cannot be evaluated.
        rows: the responses.
        sums: of token quantities, by name.
        counts: what those are means over, and other whole numbers, by name.
        tails: distributions, by name.
        worst: the places of the largest, by name.
        extremes: the largest, by name.
    """

    file: str
    totals: Totals | None = None
    rows: Rows = field(default_factory=Rows)
    sums: dict[str, ExactSum] = field(default_factory=lambda: defaultdict(ExactSum))
    counts: Counter[str] = field(default_factory=Counter)
    tails: dict[str, Tail] = field(default_factory=lambda: defaultdict(Tail))
    worst: dict[str, Place] = field(default_factory=dict)
    extremes: dict[str, float] = field(default_factory=dict)

    def merge(self, later: Sums) -> None:
        """Adds those of records that follow."""
        if later.totals is not None:
            self.totals = self.totals or Totals(later.totals.batch)
            self.totals.merge(later.totals)
        self.rows.merge(later.rows)
        for name, part in later.sums.items():
            self.sums[name].merge(part)
        self.counts.update(later.counts)
        for name, tail in later.tails.items():
            self.tails[name].merge(tail)
        for name, place in later.worst.items():
            self.note(name, place)
        for name, value in later.extremes.items():
            self.extreme(name, value)

    def __getstate__(self) -> dict[str, Any]:
        """What travels: its sums as few objects, since a step has thirty of them."""
        own = {name: each.__getstate__() for name, each in self.sums.items()}
        tails = {name: each.__getstate__() for name, each in self.tails.items()}
        return self.__dict__ | {"sums": own, "tails": tails, "counts": dict(self.counts)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"counts": Counter(state["counts"])}
        self.sums, self.tails = defaultdict(ExactSum), defaultdict(Tail)
        for name, each in state["sums"].items():
            self.sums[name].__setstate__(each)
        for name, each in state["tails"].items():
            self.tails[name].__setstate__(each)

    def extreme(self, name: str, value: float) -> None:
        """Keeps a number if it is larger than the one before."""
        self.extremes[name] = max(value, self.extremes.get(name, value))

    def note(self, name: str, place: Place) -> None:
        """Keeps a place if it is worse than the one before; of equal ones the first."""
        known = self.worst.get(name)
        if known is None or place.value > known.value:
            self.worst[name] = place

    def mean(self, name: str, over: str) -> float | None:
        """A sum divided by a count; None where nothing was counted."""
        return self.sums[name].value() / self.counts[over] if self.counts[over] else None
