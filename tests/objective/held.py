"""What a stage holds fixed when it is differentiated, so that finite differences see the same.

Where a formula stops the gradient, its gradient is not that of its value. The tables below say, for
every choice that does, what stands still; the finite differences are then taken of the objective
with just that held at the point where the gradient is wanted. A choice that is in no table claims
that its gradient is its value's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

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
        fixed = FIXED.get((stage, bound.name))
        if fixed is not None:
            stages[stage] = _swap(bound, _holding(bound.choice, fixed))
    column = ALONG.get(objective.surrogate.name)
    if column is not None:
        stages["surrogate"] = _swap(objective.surrogate, _along(objective.surrogate.choice, column))
    if objective.surrogate.name == "minirl":
        stages["surrogate"] = _swap(objective.surrogate, _minirl(objective.surrogate.choice))
    if objective.surrogate.name in LEAKY:
        stages["surrogate"] = _swap(objective.surrogate, _leaky(objective.surrogate.choice))
    if objective.ratio.name in STRAIGHT:
        stages["ratio"] = _swap(objective.ratio, _straight(objective.ratio.choice.function))
    if objective.kl.name in KL_OF_K2:
        stages["kl"] = _swap(objective.kl, _of_k2(objective.kl.choice.function))
    if objective.kl.name in KL_OF_WEIGHTED_K2:
        stages["kl"] = _swap(objective.kl, _of_k2(objective.kl.choice.function, weighted=True))
    if objective.kl.name in SCORED:
        stages["kl"] = _swap(objective.kl, _scored(objective.kl.choice.function))
    if objective.kl.name in GATED:
        stages["kl"] = _swap(objective.kl, _gated(objective.kl.choice.function))
    return replace(objective, **stages)


def _swap(bound: Bound, function: Callable[..., Any]) -> Bound:
    return Bound(bound.name, Choice(function, measure=bound.choice.measure), bound.values)


def _holding(choice: Choice, fixed: tuple[str, ...]) -> Callable[..., Any]:
    kept: dict[str, Any] = {}

    @wraps(choice.function)
    def function(*columns: Any, **values: Any) -> Any:
        named = dict(zip(choice.columns, columns, strict=True))
        for name in fixed:
            named[name] = kept.setdefault(name, named[name])
        return choice.function(*named.values(), **values)

    return function


def _along(choice: Choice, column: str) -> Callable[..., Any]:
    kept: list[Any] = []

    @wraps(choice.function)
    def function(*columns: Any, **values: Any) -> Any:
        named = dict(zip(choice.columns, columns, strict=True))
        if not kept:
            kept.append(named[column] - named["log_probs_new"])
        named[column] = named["log_probs_new"] + kept[0]
        return choice.function(*named.values(), **values)

    return function


def _minirl(choice: Choice) -> Callable[..., Any]:
    """The mask and the weight stand still; log π_θ moves."""
    kept: list[Any] = []

    @wraps(choice.function)
    def function(ratio: Any, advantage: Any, new: Any, rollout: Any, **values: Any) -> Any:
        if not kept:
            kept.extend((ratio, new))
        found = choice.function(kept[0], advantage, kept[1], rollout, **values)
        return found._replace(value=found.value + found.grad_log_prob * (new - kept[1]))

    return function


def _leaky(choice: Choice) -> Callable[..., Any]:
    """s(x₀)·ρ(x)/ρ(x₀) where it is clipped at x₀."""
    kept: list[Any] = []

    @wraps(choice.function)
    def function(ratio: Any, advantage: Any, **values: Any) -> Any:
        if not kept:
            kept.extend((ratio, choice.function(ratio, advantage, **values)))
        found = choice.function(ratio, advantage, **values)
        there, first = kept
        return found._replace(
            value=np.where(first.clip != 0, first.value * ratio / there, found.value)
        )

    return function


def _straight(ratio: Callable[..., Ratio]) -> Callable[..., Ratio]:
    """log ρ(x) = log ρ(x₀) + (d − d₀), token by token."""
    kept: list[Any] = []

    @wraps(ratio)
    def function(moving: Any, *rest: Any, **values: Any) -> Ratio:
        found = ratio(moving, *rest, **values)
        if not kept:
            kept.extend((found.log_ratio, moving))
        log_ratio = kept[0] + (moving - kept[1])
        return Ratio(log_ratio, np.exp(log_ratio), found.pull)

    return function


def _of_k2(kl: Callable[..., Kl], *, weighted: bool = False) -> Callable[..., Kl]:
    """k(x) = k(x₀) + w₀·(d²/2 − d₀²/2), w being 1 or min(ρ, 10)."""
    kept: list[Any] = []

    @wraps(kl)
    def function(log_ratio_ref: Any, *rest: Any, **values: Any) -> Kl:
        found = kl(log_ratio_ref, *rest, **values)
        if not kept:
            weight = np.minimum(np.exp(rest[0]), 10.0) if weighted else 1.0
            kept.extend((found.value, log_ratio_ref, weight))
        value = kept[0] + 0.5 * kept[2] * (log_ratio_ref**2 - kept[1] ** 2)
        return found._replace(value=value)

    return function


def _scored(kl: Callable[..., Kl]) -> Callable[..., Kl]:
    """k(x)·exp(x − x₀), x being log π_θ."""
    kept: list[Any] = []

    @wraps(kl)
    def function(log_ratio_ref: Any, *rest: Any, **values: Any) -> Kl:
        found = kl(log_ratio_ref, *rest, **values)
        if not kept:
            kept.append(log_ratio_ref)
        return found._replace(value=found.value * np.exp(log_ratio_ref - kept[0]))

    return function


def _gated(kl: Callable[..., Kl]) -> Callable[..., Kl]:
    gates: list[Any] = []

    @wraps(kl)
    def function(log_ratio_ref: Any, **values: Any) -> Kl:
        if not gates:
            gates.append(kl(log_ratio_ref, **values).grad_log_prob)
        return Kl(gates[0] * log_ratio_ref, gates[0], None)

    return function
