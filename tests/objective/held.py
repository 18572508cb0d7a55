"""What a stage holds fixed when it is differentiated, so that finite differences see the same.

Where a formula stops the gradient, its gradient is not that of its value. The tables below say, for
every choice that does, what stands still; the finite differences are then taken of the objective
with just that held at the point where the gradient is wanted. A choice that is in no table claims
that its gradient is its value's.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace
from functools import partial, wraps
from typing import Any, NamedTuple

import numpy as np

from grpo_cli.objective.choice import Bound, Choice
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.results import Kl, Ratio

FIXED: dict[tuple[str, str], tuple[str, ...]] = {
    ("surrogate", "cispo"): ("ratio",),
    ("surrogate", "topr"): ("ratio",),
    ("surrogate", "vespo"): ("ratio", "log_ratio"),
    ("surrogate", "fipo"): ("token_log_ratio",),
    ("surrogate", "trl/cispo"): ("ratio",),
    ("surrogate", "trl/vespo"): ("token_log_ratio",),
    ("surrogate", "trl/vespo-token-truncate"): ("token_log_ratio",),
    ("surrogate", "trl/vespo-token-mask"): ("token_log_ratio",),
    ("surrogate", "trl/vespo-sequence-truncate"): ("token_log_ratio",),
    ("surrogate", "trl/vespo-sequence-mask"): ("token_log_ratio",),
    ("advantage", "prime-rl/ref_kl"): ("log_ratio_ref",),
    ("surrogate", "verl/dppo_tv"): ("ratio",),
    ("surrogate", "verl/dppo_kl"): ("ratio",),
    ("surrogate", "prime-rl/ref_kl"): ("log_ratio_ref",),
    ("correction", "verl/bypass"): ("log_probs_new",),
    ("correction", "verl/bypass-rejection"): ("log_probs_new",),
    ("correction", "nemo-rl/on-policy-token-truncate"): ("log_probs_new",),
    ("correction", "nemo-rl/on-policy-token-mask"): ("log_probs_new",),
    ("correction", "nemo-rl/on-policy-geometric-mask"): ("log_probs_new",),
    ("correction", "nemo-rl/on-policy-sequence-truncate"): ("log_probs_new",),
    ("correction", "nemo-rl/on-policy-sequence-mask"): ("log_probs_new",),
}
"""(stage, choice) → the columns that it reads as constants."""

ALONG = {"skyrl/rollout_is": "log_probs_rollout"}
"""Surrogate → the column that moves along with log π_θ, so that their ratio stands still."""

LEAKY = {"ce-gppo"}
"""Surrogates that are multiplied with ρ/sg[ρ], 1 with a slope, where they are clipped."""

STRAIGHT = {"sequence-token", "verl/sequence-token", "on-policy", "rollout-sequence-token"}
"""Ratio choices with the value of something else and the slope of the token's own log-prob."""

KL_OF_K2 = {"k1+", "abs+", "k3+", "verl/kl+", "verl/abs+", "verl/low_var_kl+"}
"""KL choices with the value of one estimator and the slope of k2."""

KL_OF_WEIGHTED_K2 = {"openrlhf/k1+", "openrlhf/k2+", "openrlhf/k3+"}
"""The same with the slope of sg[min(ρ, 10)]·k2; their second column is log ρ."""

SCORED = {"nemo-rl/k1", "nemo-rl/k2", "nemo-rl/k3"}
"""KL choices weighed with π_θ/sg[π_θ], which is 1 and has a slope."""


GATED = {"ms-swift/sdar"}
"""KL choices that are log π_θ − log π_ref times a gate, which stands still."""


def stopped() -> list[tuple[str, str]]:
    """(stage, choice) of every choice whose gradient is not its value's."""
    others = {
        "surrogate": {*ALONG, *LEAKY},
        "ratio": STRAIGHT,
        "kl": KL_OF_K2 | KL_OF_WEIGHTED_K2 | SCORED | GATED,
    }
    return [*FIXED, *((stage, name) for stage, names in others.items() for name in names)]


def held(objective: Objective) -> Objective:
    """The objective with what its tables name held where it is first evaluated."""
    stages = {}
    for stage, bound in objective.stages.items():
        if fixed := FIXED.get((stage, bound.name)):
            stages[stage] = _swap(bound, partial(_fixed, fixed))
    for stage, names, change in CHANGED:
        bound = objective.stages[stage]
        if bound.name in names:
            stages[stage] = _swap(bound, change)
    return replace(objective, **stages)


class Call(NamedTuple):
    """A choice's function, the columns now and at first, by name and in order, and its values."""

    bound: Bound
    now: dict[str, Any]
    first: dict[str, Any]
    values: dict[str, Any]

    def of(self, **columns: Any) -> Any:
        """What the choice gives for the columns now, but for these."""
        return self.bound.choice.function(*(self.now | columns).values(), **self.values)

    @property
    def moved(self) -> Any:
        """How far the column that moves is from where it was."""
        column = next(iter(self.now))
        return self.now[column] - self.first[column]


Change = Callable[[Call], Any]


def _swap(bound: Bound, change: Change) -> Bound:
    kept: dict[str, Any] = {}

    @wraps(bound.choice.function)
    def function(*columns: Any, **values: Any) -> Any:
        now = dict(zip(bound.choice.columns, columns, strict=True))
        kept.update({name: value for name, value in now.items() if name not in kept})
        return change(Call(bound, now, kept, values))

    return Bound(bound.name, Choice(function, measure=bound.choice.measure), bound.values)


def _fixed(names: tuple[str, ...], call: Call) -> Any:
    return call.of(**{name: call.first[name] for name in names})


def _along(call: Call) -> Any:
    column = ALONG[call.bound.name]
    apart = call.first[column] - call.first["log_probs_new"]
    return call.of(**{column: call.now["log_probs_new"] + apart})


def _minirl(call: Call) -> Any:
    """The mask and the weight stand still; log π_θ moves."""
    still = {name: call.first[name] for name in ("ratio", "log_probs_new")}
    found = call.of(**still)
    moved = call.now["log_probs_new"] - still["log_probs_new"]
    return found._replace(value=found.value + found.grad_log_prob * moved)


def _leaky(call: Call) -> Any:
    """s(x₀)·ρ(x)/ρ(x₀) where it is clipped at x₀."""
    found, first = call.of(), call.of(**call.first)
    through = first.value * call.now["ratio"] / call.first["ratio"]
    return found._replace(value=np.where(first.clip != 0, through, found.value))


def _straight(call: Call) -> Ratio:
    """log ρ(x) = log ρ(x₀) + (d − d₀), token by token."""
    log_ratio = call.of(**call.first).log_ratio + call.moved
    return Ratio(log_ratio, np.exp(log_ratio), call.of().pull)


def _of_k2(call: Call) -> Kl:
    """k(x) = k(x₀) + w₀·(d²/2 − d₀²/2), w being 1 or min(ρ, 10)."""
    (now, *_), (then, *rest) = call.now.values(), call.first.values()
    weighted = call.bound.name in KL_OF_WEIGHTED_K2
    weight = np.minimum(np.exp(rest[0]), 10.0) if weighted else 1.0
    value = call.of(**call.first).value + 0.5 * weight * (now**2 - then**2)
    return call.of()._replace(value=value)


def _scored(call: Call) -> Kl:
    """k(x)·exp(x − x₀), x being log π_θ."""
    found = call.of()
    return found._replace(value=found.value * np.exp(call.moved))


def _gated(call: Call) -> Kl:
    gate = call.of(**call.first).grad_log_prob
    (log_ratio_ref,) = call.now.values()
    return Kl(gate * log_ratio_ref, gate, None)


CHANGED: list[tuple[str, Container[str], Change]] = [
    ("surrogate", ALONG, _along),
    ("surrogate", {"minirl"}, _minirl),
    ("surrogate", LEAKY, _leaky),
    ("ratio", STRAIGHT, _straight),
    ("kl", KL_OF_K2 | KL_OF_WEIGHTED_K2, _of_k2),
    ("kl", SCORED, _scored),
    ("kl", GATED, _gated),
]
"""Stage, choices, and what is theirs instead."""
