"""The value of every combination of conventions on the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.diagnose import sums
from grpo_cli.diagnose.axes import Axes, Option, combined
from grpo_cli.diagnose.evaluate import Runner, Unserved
from grpo_cli.diagnose.sums import Data
from grpo_cli.errors import GrpoError
from grpo_cli.objective.objective import STAGES
from grpo_cli.variants.plan import Plan

_BARE = Option({"kl": "none", "aggregate": "sum"})
"""What stands at the stages whose sums are not asked for."""

Options = tuple[Option, ...]
Axis = list[tuple[F64, Options]]


@dataclass(eq=False)
class Scan:
    """J of each combination, flat.

    Attributes:
        values: [C] J; nan for a combination that makes no sense.
        scales: [C] the sum of the magnitudes that J is made of, which its rounding is relative to.
        costs: [C] how far from the plan's own choices the combination is.
        plan: a combination's plan, by its index.
        reasons: what could not be tried, and why.
    """

    values: F64
    scales: F64
    costs: NDArray[np.int64]
    plan: Callable[[int], Plan]
    reasons: dict[str, str]


def scan(base: Plan, axes: Axes, data: Data) -> Scan:
    """Evaluates the product of the axes; options that the data cannot serve drop out."""
    scanner = _Scanner(base, data)
    policies, kls = scanner.policies(axes), scanner.kls(axes)
    weights = scanner.weights(axes)
    if not (policies and kls and weights):
        nothing = np.zeros(0)
        return Scan(nothing, nothing, np.zeros(0, np.int64), lambda at: base, scanner.reasons)
    policy, kl, weight = (np.array([vector for vector, _ in one]) for one in (policies, kls, weights))
    values = (policy @ weight.T)[:, None, :] - (kl @ weight.T)[None, :, :]
    size = np.abs(weight).T
    scales = (np.abs(policy) @ size)[:, None, :] + (np.abs(kl) @ size)[None, :, :]
    values[~np.array([[_fits(p, k) for _, k in kls] for _, p in policies])] = np.nan
    shape = values.shape

    def plan_of(at: int) -> Plan:
        p, k, a = np.unravel_index(at, shape)
        return combined(base, *policies[p][1], kls[k][1][0], *weights[a][1])

    costs = _costs(policies)[:, None, None] + _costs(kls)[None, :, None] + _costs(weights)
    return Scan(values.ravel(), scales.ravel(), costs.ravel(), plan_of, scanner.reasons)


def _costs(axis: Axis) -> NDArray[np.int64]:
    return np.array([sum(option.cost for option in options) for _, options in axis])


def _fits(policy: Options, kl: Options) -> bool:
    """Whether a KL that was weighted by a ratio has the ratio of this policy term."""
    return len(kl) == 1 or kl[1] is policy[1]


class _Scanner:
    """Evaluates the options of one axis at a time; remembers what the data could not serve."""

    def __init__(self, base: Plan, data: Data) -> None:
        self._base = base
        self._data = data
        self.reasons: dict[str, str] = {}

    def policies(self, axes: Axes) -> Axis:
        """[R] Σ c·s for each (advantage, (ratio, surrogate))."""
        advantages = [
            (option, found)
            for option in self._distinct(axes.advantages, "advantage")
            if (found := self._try(option, lambda plan: _maybe(sums.advantages, self._data, plan)))
        ]
        axis: Axis = []
        for pair in self._distinct(axes.pairs, "ratio", "surrogate"):
            sides = self._try(pair, lambda plan: _maybe(sums.sides, self._data, plan))
            for option, (advantage,) in advantages if sides else ():
                vector = self._policy(sides[0] if sides else None, advantage, option, pair)
                axis += [(vector, (option, pair))] if vector is not None else []
        return axis

    def _policy(
        self, sides: tuple[F64, F64] | None, advantage: F64 | None, option: Option, pair: Option
    ) -> F64 | None:
        if sides is not None and advantage is not None:
            return sums.from_sides(sides, advantage)
        try:
            return sums.direct(self._data, combined(self._base, option, pair, _BARE))
        except (Unserved, GrpoError):
            return None

    def kls(self, axes: Axes) -> Axis:
        """[R] β·Σ k for each estimate; one that the ratio weighs, for each pair."""
        axis: Axis = []
        for option in self._distinct(axes.kls, "kl"):
            plan = combined(self._base, option)
            bound = Runner(plan).objective(self._data.pieces[0])
            if bound.kl_in_reward:
                continue
            weighted = "ratio" in bound.kl.choice.columns and bound.kl.values.get("kl_weight") != "none"
            pairs = self._distinct(axes.pairs, "ratio", "surrogate") if weighted else [None]
            for pair in pairs:
                options = (option,) if pair is None else (option, pair)
                found = self._try(option, lambda plan: sums.penalties(self._data, plan), *options[1:])
                axis += [] if found is None else [(found, options)]
        return axis

    def weights(self, axes: Axes) -> Axis:
        """[R] the weights of each aggregation."""
        return [
            (found, (option,))
            for option in self._distinct(axes.aggregates, "aggregate")
            if (found := self._try(option, lambda plan: sums.weights(self._data, plan))) is not None
        ]

    def _distinct(self, options: Sequence[Option], *stages: str) -> list[Option]:
        """The options whose bound choices differ; the first stands for those like it."""
        found: dict[object, Option] = {}
        for option in options:
            try:
                objective = Runner(combined(self._base, option)).objective(self._data.pieces[0])
            except GrpoError as error:
                self.reasons[_name(option)] = str(error)
                continue
            bound = [objective.stages[stage] for stage in stages]
            key = tuple((one.name, tuple(one.values.items())) for one in bound)
            found.setdefault(key, option)
        return list(found.values())
