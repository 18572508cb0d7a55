"""verl's KL penalties, and its ``+``: the value of one estimator with the gradient of k2.

The clamps of ``low_var_kl`` are verl's constants, so no other row's clamps reach these choices.
"""

from __future__ import annotations

from collections.abc import Callable

from grpo_cli.batch import F64
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.kl.estimate import Estimator, absolute, in_loss, k1, k2, k3
from grpo_cli.objective.kl.reward import in_reward
from grpo_cli.objective.kl.straight import straight_through
from grpo_cli.objective.results import Kl

_FREE: dict[str, float | None] = {"kl_input_clamp": None, "kl_output_clamp": None}
_BOUND: dict[str, float | None] = {"kl_input_clamp": 20.0, "kl_output_clamp": 10.0}


def _clamps(estimator: Estimator) -> dict[str, float | None]:
    return _BOUND if estimator is k3 else _FREE


def in_verl(estimator: Estimator) -> Callable[..., Kl]:
    """The estimator with verl's constants."""
    general, clamps = in_loss(estimator), _clamps(estimator)

    def penalty(log_ratio_ref: F64, *, beta: float) -> Kl:
        return general(log_ratio_ref, log_ratio_ref, beta=beta, kl_weight="none", **clamps)

    bounds = ", d clamped to ±20 and the estimate to 10" if estimator is k3 else ""
    penalty.__doc__ = f"verl's {estimator.__name__} as a penalty in the loss{bounds}."
    return penalty


def plus(estimator: Estimator) -> Callable[..., Kl]:
    """The straight-through estimator with verl's constants."""
    general, clamps = straight_through(estimator), _clamps(estimator)

    def penalty(log_ratio_ref: F64, *, beta: float) -> Kl:
        return general(log_ratio_ref, beta=beta, **clamps)

    penalty.__doc__ = f"verl's {estimator.__name__}+: its value, with the slope d of k2."
    return penalty


def off_reward(estimator: Estimator) -> Callable[..., F64]:
    """The estimate of π_old against the reference, taken off the reward."""
    general, clamps = in_reward(estimator), _clamps(estimator)

    def penalty(log_probs_old: F64, log_probs_ref: F64, *, beta: float) -> F64:
        return general(log_probs_old, log_probs_ref, beta=beta, **clamps)

    penalty.__doc__ = f"verl's {estimator.__name__} of d = log π_old − log π_ref, off the reward."
    return penalty


_NAMES = {"kl": k1, "abs": absolute, "mse": k2, "low_var_kl": k3}
_STOPS = dict.fromkeys(_NAMES, "the value of one estimator has the slope of k2") | {"mse": ""}
"""What the ``+`` stops; the slope of k2 is mse's own."""

_OTHERS = {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}

CHOICES = {
    **{f"verl/{name}": Choice(in_verl(one)) for name, one in _NAMES.items()},
    **{
        f"verl/{name}+": Choice(plus(one), stops_gradient=_STOPS[name])
        for name, one in _NAMES.items()
    },
    **{
        f"verl/{name}-in-reward": Choice(off_reward(one), in_reward=True)
        for name, one in _NAMES.items()
    },
}
ALIASES = {
    f"verl/{other}{end}": f"verl/{name}{end}"
    for other, name in _OTHERS.items()
    for end in ("", "+", "-in-reward")
}
