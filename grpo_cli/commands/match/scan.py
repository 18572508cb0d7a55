"""The value of every combination of conventions on the data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.match import sums
from grpo_cli.commands.match.search_space import Axes, Option, combined
from grpo_cli.commands.match.sums import Data
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.errors import GrpoError
from grpo_cli.objective.terms import ENTROPY, KL
from grpo_cli.variants.plan import Plan

_BARE = Option({"kl": "none", "aggregate": "sum"})
_SUMMED = Option({"aggregate": "sum"})
_WITHOUT_KL = Option({"kl": "none"})
_NOTHING = Option({})
"""What stands at the stages whose sums are not asked for."""

T = TypeVar("T")
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
        return Scan(nothing, nothing, np.zeros(0, np.int64), lambda _: base, scanner.reasons)
    policy, kl, weight = map(_stacked, (policies, kls, weights))
    kl_weight = scanner.own_weights(KL, weight)
    bonus = scanner.bonus(weight)
    values = (policy @ weight.T)[:, None, :] - (kl @ kl_weight.T)[None, :, :] + bonus
    scales = (np.abs(policy) @ np.abs(weight).T)[:, None, :] + np.abs(bonus)
    scales = scales + (np.abs(kl) @ np.abs(kl_weight).T)[None, :, :]
    values[~np.array([[_fits(p, k) for _, k in kls] for _, p in policies])] = np.nan
    shape = values.shape

    def plan_of(at: int) -> Plan:
        p, k, a = np.unravel_index(at, shape)
        return combined(base, *policies[p][1], kls[k][1][0], *weights[a][1])

    costs = _costs(policies)[:, None, None] + _costs(kls)[None, :, None] + _costs(weights)
    return Scan(values.ravel(), scales.ravel(), costs.ravel(), plan_of, scanner.reasons)


def _policy_weights(data: Data, plan: Plan) -> F64:
    found = sums.weights(data, plan)
    assert found is not None
    return found


def _stacked(axis: Axis) -> F64:
    return np.array([vector for vector, _ in axis])


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
            (option, found[0])
            for option in self._distinct(axes.advantages, _BARE, "advantage")
            if (found := self._try(sums.advantages, option, _BARE))
        ]
        axis: Axis = []
        for pair in self._distinct(axes.pairs, _BARE, "ratio", "surrogate"):
            sides = self._try(sums.sides, pair, _BARE)
            for option, advantage in advantages:
                if sides and sides[0] is not None and advantage is not None:
                    axis.append((sums.from_sides(sides[0], advantage), (option, pair)))
                elif found := self._try(sums.direct, option, pair, _BARE):
                    axis.append((found[0], (option, pair)))
        return axis

    def kls(self, axes: Axes) -> Axis:
        """[R] β·Σ k for each estimate; one that the ratio weighs, for each pair."""
        axis: Axis = []
        pairs = self._distinct(axes.pairs, _BARE, "ratio", "surrogate")
        for option in self._distinct(axes.kls, _SUMMED, "kl"):
            bound = Evaluator(combined(self._base, option, _SUMMED)).objective(self._data.chunks[0])
            if bound.kl_in_reward:
                continue
            weighted = bound.kl.values.get("kl_weight") == "ratio"
            for pair in pairs if weighted else [None]:
                options = (option,) if pair is None else (option, pair)
                if found := self._try(sums.penalties, *options, _SUMMED):
                    axis.append((found[0], options))
        return axis

    def weights(self, axes: Axes) -> Axis:
        """[R] the weights of each aggregation."""
        return [
            (found[0], (option,))
            for option in self._distinct(axes.aggregates, _WITHOUT_KL, "aggregate")
            if (found := self._try(_policy_weights, option, _WITHOUT_KL))
        ]

    def own_weights(self, term: str, shared: F64) -> F64:
        """[A, R] a term's weights for each aggregation: its own, if it has one, for all of them."""
        objective = Evaluator(self._base).objective(self._data.chunks[0])
        if getattr(objective, f"{term}_aggregate") is None:
            return shared
        found = self._try(lambda data, plan: sums.weights(data, plan, term), _NOTHING)
        own = None if found is None else found[0]
        return shared if own is None else np.repeat(own[None, :], len(shared), axis=0)

    def bonus(self, shared: F64) -> F64:
        """[A] the entropy's part of J."""
        found = self._try(sums.bonuses, _NOTHING)
        if found is None or not found[0].any():
            return np.zeros(len(shared))
        product: F64 = self.own_weights(ENTROPY, shared) @ found[0]
        return product

    def _try(self, function: Callable[[Data, Plan], T], *options: Option) -> tuple[T] | None:
        """The function's result, in a tuple; None where the data cannot serve the options."""
        try:
            return (function(self._data, combined(self._base, *options)),)
        except GrpoError as error:
            self.reasons.setdefault(_name(options[0]), str(error))
            return None

    def _distinct(self, options: Sequence[Option], rest: Option, *stages: str) -> list[Option]:
        """The options whose bound choices differ; the first stands for those like it."""
        found: dict[object, Option] = {}
        for option in options:
            try:
                plan = combined(self._base, _outside(rest, stages), option)
                objective = Evaluator(plan).objective(self._data.chunks[0])
            except GrpoError as error:
                self.reasons.setdefault(_name(option), str(error))
                continue
            bound = [objective.stages[stage] for stage in stages]
            key = tuple((one.name, tuple(one.values.items())) for one in bound)
            found.setdefault(key, option)
        return list(found.values())


def _outside(rest: Option, stages: Sequence[str]) -> Option:
    return Option({stage: name for stage, name in rest.stages.items() if stage not in stages})


def _name(option: Option) -> str:
    return " ".join(option.stages.values()) or "the variant's own"
