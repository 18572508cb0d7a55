"""The conventions as flat arrays: which options each is made of, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.match.space import changes as space
from grpo_cli.commands.match.space.changes import Change
from grpo_cli.commands.match.space.options import Options
from grpo_cli.variants.plan import Plan

Index = NDArray[np.int32] | NDArray[np.int16]


@dataclass(frozen=True)
class Part:
    """A row and its changes, axis by axis; every combination of few changes is a convention.

    Attributes:
        plan: the row.
        axes: advantage, policy, KL and aggregation changes; the numbers of their options are in
            ``policy`` [A, P], ``kl`` [K, P], ``weight`` [W], −2 for what cannot be evaluated.
            A policy's number from ``DIRECT`` on is that of a direct one.
        kl_weight, entropy, entropy_weight: the row's own; −1 for none.
        beta: [K] the row's own β.
    """

    plan: Plan
    axes: tuple[Sequence[Change], ...]
    policy: Index
    kl: Index
    weight: Index
    kl_weight: int
    entropy: int
    entropy_weight: int
    beta: F64
    only_own_weight: bool


@dataclass
class Space:
    """All conventions.

    Attributes:
        options: what is evaluated.
        parts: where they come from.
        part, at: [C] which part, and which combination of it (flat over its four axes).
        columns: policy, kl, weight: [C] numbers of options.
        beta: [C] the row's own β.
        bits: [C] what each costs.
        reasons: what could not be tried, and why.
        same: a row's name → those of the rows that are the same on these records.
    """

    options: Options
    parts: list[Part] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    same: dict[str, list[str]] = field(default_factory=dict)
    part: Index = field(default_factory=lambda: np.zeros(0, np.int32))
    at: Index = field(default_factory=lambda: np.zeros(0, np.int32))
    columns: dict[str, Index] = field(default_factory=dict)
    beta: F64 = field(default_factory=lambda: np.zeros(0))
    bits: F64 = field(default_factory=lambda: np.zeros(0))

    def own(self, chosen: slice | NDArray[np.int64]) -> dict[str, Index]:
        """What conventions have of their row, [n] each: its entropy bonus, and own aggregations."""
        parts = self.part[chosen]
        return {
            name: np.array([getattr(one, name) for one in self.parts], np.int16)[parts]
            for name in ("kl_weight", "entropy", "entropy_weight")
        }

    def changes(self, convention: int) -> list[Change]:
        """What a convention changes in its row."""
        part = self.parts[self.part[convention]]
        shape = tuple(len(axis) for axis in part.axes)
        places = np.unravel_index(int(self.at[convention]), shape)
        return [axis[int(place)] for axis, place in zip(part.axes, places, strict=True)]

    def plan(self, convention: int, *more: Change) -> Plan:
        """A convention's plan, checked."""
        row = self.parts[self.part[convention]].plan
        return space.checked(space.changed(row, *self.changes(convention), *more))
