"""Stage 4, KL: how far from the reference?

With d = log π_θ − log π_ref at a token that π_θ's predecessor sampled, each estimator returns its
value k(d) and its slope k′(d) = ∂k/∂log π_θ; as a penalty in the loss, J takes −β·k.

A penalty on the reward is measured when the responses are scored. Nothing differentiates it: the
policy under the estimate is π_old, d = log π_old − log π_ref. What is taken off, β·k per token, is
the column ``token_penalty``; how it reaches the advantage (summed over the response, over the
tokens to come, or token by token) is the advantage's business.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.objective.choice import Bound, ByToken, Choice, Usual, choice
from grpo_cli.objective.results import Kl, times

Estimator = Callable[[F64], tuple[F64, F64]]


@choice("kl", "none", absent=True)
def none() -> None:
    """No KL term."""


def in_loss(estimator: Estimator) -> Callable[..., Kl]:
    """The estimator as a penalty in the loss: J takes −β·k."""

    def penalty(
        log_ratio_ref: F64,
        ratio: F64,
        token_log_ratio: F64 | None = None,
        *,
        beta: ByToken,
        kl_weight: str,
        kl_input_clamp: ByToken | None,
        kl_output_clamp: ByToken | None,
    ) -> Kl:
        del beta  # the pipeline multiplies by it
        value, slope = clamped(estimator, log_ratio_ref, kl_input_clamp, kl_output_clamp)
        if kl_weight == "none":
            return Kl(value, slope, None)
        if kl_weight == "token-ratio":
            assert token_log_ratio is not None
            own = np.exp(token_log_ratio)
            return Kl(times(own, value), times(own, value + slope), None)
        weighted = times(ratio, value)
        return Kl(weighted, times(ratio, slope), weighted)

    penalty.__doc__ = estimator.__doc__
    return penalty


def clamped(
    estimator: Estimator, difference: F64, inside: ByToken | None, outside: ByToken | None
) -> tuple[F64, F64]:
    """The estimate with d clamped to ±inside and k to ±outside; one that binds cuts the slope."""
    if inside is not None:
        within = np.abs(difference) <= inside
        value, slope = estimator(np.clip(difference, -inside, inside))
        slope = np.where(within, slope, 0.0)
    else:
        value, slope = estimator(difference)
    if outside is not None:
        slope = np.where(np.abs(value) <= outside, slope, 0.0)
        value = np.clip(value, -outside, outside)
    return value, slope


_FREE: Usual = {"kl_input_clamp": None, "kl_output_clamp": None}


def estimator(name: str, *aliases: str) -> Callable[[Estimator], Estimator]:
    """Registers an estimator as a penalty in the loss."""

    def register(function: Estimator) -> Estimator:
        choice("kl", name, *aliases, kl_weight="none", **_FREE)(in_loss(function))
        return function

    return register


@estimator("k1", "kl")
def k1(difference: F64) -> tuple[F64, F64]:
    """k1 = d, d = log π_θ − log π_ref: unbiased, of either sign.

    Its slope is 1 at every token, so as a loss it ignores the reference.

    References:
        Schulman, Approximating KL Divergence, 2020.
    """
    return difference, np.ones_like(difference)


@estimator("k2", "mse")
def k2(difference: F64) -> tuple[F64, F64]:
    """k2 = d²/2, d = log π_θ − log π_ref, with slope d: its gradient is that of the reverse KL."""
    return 0.5 * difference * difference, difference


@estimator("k3", "low_var_kl")
def k3(difference: F64) -> tuple[F64, F64]:
    """k3 = e^(−d) + d − 1, d = log π_θ − log π_ref: never negative, with slope 1 − e^(−d).

    References:
        Shao et al., DeepSeekMath, 2024 (arXiv 2402.03300), its unbiased estimator of the KL.
    """
    shrunk = np.expm1(-difference)
    return shrunk + difference, np.negative(shrunk, out=shrunk)


@estimator("abs")
def absolute(difference: F64) -> tuple[F64, F64]:
    """|d|, d = log π_θ − log π_ref, with slope sign(d)."""
    return np.abs(difference), np.sign(difference)


absolute.__name__ = "abs"  # as the choice is called, in summaries made from it


def weighed_then_clamped(value: F64, slope: F64, ratio: F64 | None) -> Kl:
    """ρ·k clamped to ±10, for frameworks that weigh before they clamp.

    Args:
        value, slope: [N] k and k′.
        ratio: [N] ρ, which is differentiated; None: no weight.

    Returns:
        A clamp that binds cuts the gradient, that of the ratio too.
    """
    weighed = value if ratio is None else times(ratio, value)
    within = np.abs(weighed) <= 10.0
    slope = slope if ratio is None else times(ratio, slope)
    by_ratio = None if ratio is None else np.where(within, weighed, 0.0)
    return Kl(np.clip(weighed, -10.0, 10.0), np.where(within, slope, 0.0), by_ratio)


def left_out() -> None:
    """No KL penalty: no record has a reference, so the variant's β is left out."""


NO_REFERENCE = Bound("none(no reference)", Choice(left_out), {})
"""Replaces a KL penalty that no record has a reference for; its value is unknown, not 0."""


def straight_through(estimator: Estimator) -> Callable[..., Kl]:
    """The estimator's value with the slope d of k2, whose gradient is that of the reverse KL."""

    def penalty(
        log_ratio_ref: F64,
        *,
        beta: ByToken,
        kl_input_clamp: ByToken | None,
        kl_output_clamp: ByToken | None,
    ) -> Kl:
        del beta  # the pipeline multiplies by it
        value, _ = clamped(estimator, log_ratio_ref, kl_input_clamp, kl_output_clamp)
        return Kl(value, log_ratio_ref, None)

    penalty.__doc__ = f"""The value of {estimator.__name__} with the slope d of k2.

    The clamps bound only the value.

    References:
        Tang and Munos, 2025 (arXiv 2506.09477), on why the gradients of k1 and k3 are not that of
        the KL. verl: ``+``.
    """
    return penalty


def in_reward(estimator: Estimator) -> Callable[..., F64]:
    """β times the estimate, [N], which the reward stage takes off."""

    def penalty(
        log_probs_old: F64,
        log_probs_ref: F64,
        *,
        beta: ByToken,
        kl_input_clamp: ByToken | None,
        kl_output_clamp: ByToken | None,
    ) -> F64:
        difference = log_probs_old - log_probs_ref
        return beta * clamped(estimator, difference, kl_input_clamp, kl_output_clamp)[0]

    penalty.__doc__ = f"""{estimator.__name__} of π_old against the reference, in the reward.

    It is computed from d = log π_old − log π_ref and subtracted from the reward: no gradient.

    References:
        Ouyang et al., InstructGPT, 2022 (arXiv 2203.02155); OpenRLHF, slime, NeMo-RL and AReaL
        offer it, with clamps on k (OpenRLHF, AReaL: 10), on d and k (NeMo-RL: 20 and 10), or none.
    """
    return penalty


PLUS_STOPS = "the value of one estimator has the slope of k2"

choice("kl", "k1+", "kl+", stops_gradient=PLUS_STOPS, **_FREE)(straight_through(k1))
choice("kl", "abs+", stops_gradient=PLUS_STOPS, **_FREE)(straight_through(absolute))
choice("kl", "k3+", "low_var_kl+", stops_gradient=PLUS_STOPS, **_FREE)(straight_through(k3))
choice("kl", "abs-in-reward", in_reward=True, **_FREE)(in_reward(absolute))
choice("kl", "k1-in-reward", in_reward=True, **_FREE)(in_reward(k1))
choice("kl", "k2-in-reward", in_reward=True, **_FREE)(in_reward(k2))
choice("kl", "k3-in-reward", in_reward=True, **_FREE)(in_reward(k3))


@choice("kl", "square-rollout")
def square_rollout(log_probs_new: F64, log_probs_rollout: F64, *, beta: ByToken) -> Kl:
    """d² with d = log π_θ − log π_rollout, without the ½ of k2; slope 2d.

    References:
        Kimi-K2.5, 2026 (arXiv 2602.02276), which prime-rl adds to every loss.
    """
    del beta  # the pipeline multiplies by it
    difference = log_probs_new - log_probs_rollout
    return Kl(difference * difference, 2.0 * difference, None)
