"""The KL estimators, as penalties in the loss.

With d = log π_θ − log π_ref at a token that π_θ's predecessor sampled, each estimator returns its
value k(d) and its slope k′(d) = ∂k/∂log π_θ.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.objective.choice import Bound, Choice
from grpo_cli.objective.results import Kl, times

Estimator = Callable[[F64], tuple[F64, F64]]


def k1(difference: F64) -> tuple[F64, F64]:
    """k1 = d, d = log π_θ − log π_ref: unbiased, of either sign.

    Its slope is 1 at every token, whatever the reference says.

    References:
        Schulman, Approximating KL Divergence, 2020.
    """
    return difference, np.ones_like(difference)


def k2(difference: F64) -> tuple[F64, F64]:
    """k2 = d²/2, d = log π_θ − log π_ref, with slope d: its gradient is that of the reverse KL."""
    return 0.5 * difference * difference, difference


def k3(difference: F64) -> tuple[F64, F64]:
    """k3 = e^(−d) + d − 1, d = log π_θ − log π_ref: never negative, with slope 1 − e^(−d).

    References:
        Shao et al., DeepSeekMath, 2024 (arXiv 2402.03300), its unbiased estimator of the KL.
    """
    shrunk = np.expm1(-difference)
    return shrunk + difference, -shrunk


def absolute(difference: F64) -> tuple[F64, F64]:
    """|d|, d = log π_θ − log π_ref, with slope sign(d)."""
    return np.abs(difference), np.sign(difference)


def in_loss(estimator: Estimator) -> Callable[..., Kl]:
    """The estimator as a penalty in the loss: J takes −β·k."""

    def penalty(
        log_ratio_ref: F64,
        ratio: F64,
        token_log_ratio: F64 | None = None,
        *,
        beta: float,
        kl_weight: str,
        kl_input_clamp: float | None,
        kl_output_clamp: float | None,
    ) -> Kl:
        del beta  # the pipeline multiplies by it
        value, slope = _clamped(estimator, log_ratio_ref, kl_input_clamp, kl_output_clamp)
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


def _clamped(
    estimator: Estimator, difference: F64, inside: float | None, outside: float | None
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


def none() -> None:
    """No KL term."""


def left_out() -> None:
    """No KL penalty: no record has a reference, and β comes from the variant alone."""


NO_REFERENCE = Bound("none(no reference)", Choice(left_out), {})
"""Replaces a KL penalty that no record has a reference for; its value is unknown, not 0."""

_USUAL = {"kl_weight": "none", "kl_input_clamp": None, "kl_output_clamp": None}

CHOICES = {
    "none": Choice(none, absent=True),
    "k1": Choice(in_loss(k1), _USUAL),
    "k2": Choice(in_loss(k2), _USUAL),
    "k3": Choice(in_loss(k3), _USUAL),
    "abs": Choice(in_loss(absolute), _USUAL),
}
ALIASES = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}
