"""verl's ratio, policy losses (negated), KL penalties and loss aggregation, ``agg_loss``.

A penalty called ``+`` has the value of one estimator with the gradient of k2.

A denominator is counted from the data (``None``), or is the whole mini-batch's, as verl's trainers
pass it: ``batch_num_tokens`` or ``global_batch_size``, over ``dp_size`` since DDP averages the
ranks. Counted from the data, responses without a token are left out; ``global_batch_size`` counts
them. A batch without any token gives 0 here, nan in verl.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.hyperparameters import HyperparameterError
from grpo_cli.objective.choice import ByResponse, ByToken, Usual, choice, holding
from grpo_cli.objective.kl import (
    PLUS_STOPS,
    Estimator,
    absolute,
    in_loss,
    in_reward,
    k1,
    k2,
    k3,
    straight_through,
)
from grpo_cli.objective.results import Ratio, Surrogate, Weights, side
from grpo_cli.objective.surrogate.joint import BAND, clip_cov, kl_cov


@choice(
    "ratio",
    "verl/sequence-token",
    stops_gradient="each token's own log-prob moves the sequence's ratio",
    log_ratio_max=10.0,
)
def sequence_token(
    token_log_ratio: F64, responses: Segments, *, log_ratio_max: ByResponse
) -> Ratio:
    """``sequence-token`` with an upper bound on log ρ, above which the gradient is 0.

    verl's and SkyRL's gspo have a bound of 10. ``log_ratio_clamp`` bounds both sides.

    References:
        Zheng et al., GSPO, 2025 (arXiv 2507.18071), section on GSPO-token.
    """
    mean = responses.mean(token_log_ratio)
    inside = responses.spread(mean <= log_ratio_max)
    bounded = np.minimum(mean, log_ratio_max)
    return Ratio(
        np.repeat(bounded, responses.lengths),
        np.repeat(np.exp(bounded), responses.lengths),
        lambda slope: np.where(inside, slope, 0.0),
    )


_DPPO: Usual = {"epsilon_low": 0.2, "epsilon_high": 0.2, "dual_clip": 3.0}
_DPPO_STOPS = "the truncated ratio is a constant weight of log π_θ"

choice("surrogate", "verl/kl_cov", scales=False, kl_cov_ratio=0.0002, ppo_kl_coef=0.1)(kl_cov)
choice("surrogate", "verl/clip_cov", scales=False, **BAND, clip_cov_seed=0)(clip_cov)


@choice("surrogate", "verl/dppo_tv", stops_gradient=_DPPO_STOPS, **_DPPO)
def dppo_tv(
    ratio: F64,
    advantage: F64,
    log_probs_new: F64,
    log_probs_old: F64,
    *,
    epsilon_low: ByToken,
    epsilon_high: ByToken,
    dual_clip: ByToken,
) -> Surrogate:
    """DPPO, binary TV: s = A·sg[min(ρ, c)]·log π_θ, or 0 if π_θ has moved too far.

    A token is kept if π_θ − π_old <= ε_high (for A > 0) or >= −ε_low (for A <= 0).

    Args:
        epsilon_low: bound on the fall of the probability, not of the ratio.
        epsilon_high: bound on its rise.
        dual_clip: c, the cap on the ratio (verl's ``clip_ratio_c``): 3 by verl's configuration, 20
            by its code, 10000 by its example.

    References:
        Qi et al., DPPO, 2026 (arXiv 2602.04879), which compares with the rollout policy.
    """
    moved = np.exp(log_probs_new) - np.exp(log_probs_old)
    outside = np.where(advantage > 0, moved > epsilon_high, moved < -epsilon_low)
    return _divergence(ratio, advantage, log_probs_new, outside, dual_clip)


@choice("surrogate", "verl/dppo_kl", stops_gradient=_DPPO_STOPS, **_DPPO)
def dppo_kl(
    ratio: F64,
    advantage: F64,
    log_probs_new: F64,
    log_probs_old: F64,
    *,
    epsilon_low: ByToken,
    epsilon_high: ByToken,
    dual_clip: ByToken,
) -> Surrogate:
    """DPPO, binary KL: ``verl/dppo_tv`` with the binary KL as the distance.

    A token is dropped if the KL exceeds ε_high and π_θ rose (for A > 0), or exceeds ε_low and π_θ
    fell (for A <= 0).

    References:
        Qi et al., DPPO, 2026 (arXiv 2602.04879).
    """
    divergence, risen = padded_binary_kl(log_probs_old, log_probs_new)
    outside = np.where(
        advantage > 0,
        (divergence > epsilon_high) & (risen > 0),
        (divergence > epsilon_low) & (risen < 0),
    )
    return _divergence(ratio, advantage, log_probs_new, outside, dual_clip)


def padded_binary_kl(log_probs_old: F64, log_probs_new: F64) -> tuple[F64, F64]:
    """[N] KL of (p, 1 − p) against (q, 1 − q) with 1e-8 inside its second logarithm; [N] q − p."""
    new, old = np.exp(log_probs_new), np.exp(log_probs_old)
    others = np.log((1.0 - old + 1e-8) / (1.0 - new + 1e-8))
    return old * (log_probs_old - log_probs_new) + (1.0 - old) * others, new - old


def _divergence(
    ratio: F64, advantage: F64, log_probs_new: F64, outside: NDArray[np.bool_], cap: ByToken
) -> Surrogate:
    slope = np.where(outside, 0.0, np.minimum(ratio, cap) * advantage)
    bound = side(outside & (advantage > 0), outside & (advantage < 0))
    return Surrogate(slope * log_probs_new, bound, None, slope)


@choice("surrogate", "verl/geo_mean", epsilon_low=0.2, epsilon_high=0.2)
def geo_mean(
    token_log_ratio: F64,
    advantage: F64,
    responses: Segments,
    *,
    epsilon_low: ByToken,
    epsilon_high: ByToken,
) -> Surrogate:
    """GMPO: s = Ā·exp(mean of d′), d′ = min(d, ε_high) if A > 0, max(d, −ε_low) if A < 0.

    ε bounds the log ratio: ρ is clipped to [e^−ε_low, e^ε_high]. All tokens of a response share
    one value. Ā and the mean divide by |oᵢ| + 1e-8.

    References:
        Zhao et al., GMPO, 2025 (arXiv 2507.20673), whose clip is wider: ε = 0.4.
    """
    high = (token_log_ratio > epsilon_high) & (advantage > 0)
    low = (token_log_ratio < -epsilon_low) & (advantage < 0)
    kept = np.where(high, epsilon_high, np.where(low, -epsilon_low, token_log_ratio))
    count = responses.lengths + 1e-8
    mean = responses.sum(np.where(advantage == 0, 0.0, kept)) / count
    value = responses.spread(responses.sum(advantage) / count * np.exp(mean))
    share = responses.spread(responses.lengths / count)
    slope = np.where(high | low | (advantage == 0), 0.0, value * share)
    return Surrogate(value, side(high, low), None, slope)


def _clamps(estimator: Estimator) -> dict[str, float | None]:
    """The clamps of ``low_var_kl`` are constants, so that no other row's reach these choices."""
    inside, outside = (20.0, 10.0) if estimator is k3 else (None, None)
    return {"kl_input_clamp": inside, "kl_output_clamp": outside}


_ESTIMATORS = (("kl", k1, "k1"), ("abs", absolute, ""), ("mse", k2, "k2"), ("low_var_kl", k3, "k3"))
"""verl's name of each, the estimator, and verl's other name."""

for _name, _of, _other in _ESTIMATORS:
    _bounds = ", d clamped to ±20 and the estimate to 10" if _of is k3 else ""
    _doc = f"verl's {_of.__name__} as a penalty in the loss{_bounds}."
    _held = {"ratio": None, "token_log_ratio": None, "kl_weight": "none", **_clamps(_of)}
    _names = [f"verl/{_other}"] if _other else []
    choice("kl", f"verl/{_name}", *_names)(holding(in_loss(_of), _doc, **_held))
for _name, _of, _other in _ESTIMATORS:
    _stops = "" if _of is k2 else PLUS_STOPS  # the slope of k2 is mse's own
    _names = [f"verl/{_other}+"] if _other else []
    _doc = f"verl's {_of.__name__}+: its value, with the slope d of k2."
    _penalty = holding(straight_through(_of), _doc, **_clamps(_of))
    choice("kl", f"verl/{_name}+", *_names, stops_gradient=_stops)(_penalty)
for _name, _of, _other in _ESTIMATORS:
    _names = [f"verl/{_other}-in-reward"] if _other else []
    _doc = f"verl's {_of.__name__} of log π_old − log π_ref, subtracted from the reward."
    _penalty = holding(in_reward(_of), _doc, **_clamps(_of))
    choice("kl", f"verl/{_name}-in-reward", *_names, in_reward=True)(_penalty)


@choice("aggregate", "verl/token-mean", batch_num_tokens=None, dp_size=1)
def token_mean(lengths: I64, *, batch_num_tokens: ByResponse | None, dp_size: int) -> Weights:
    """Mean over all tokens: w = 1 / Σᵢ|oᵢ|, or dp_size / batch_num_tokens."""
    ones = np.ones(len(lengths))
    if batch_num_tokens is None:
        return Weights(ones, lengths.astype(np.float64), 1.0 / dp_size, "tokens / dp_size")
    return Weights(ones, None, batch_num_tokens / dp_size, "batch_num_tokens / dp_size")


@choice("aggregate", "verl/token-sum", total=True, dp_size=1)
def token_sum(lengths: I64, *, dp_size: int) -> Weights:
    """Sum over all tokens: w = dp_size."""
    return Weights(np.ones(len(lengths)), None, 1.0 / dp_size, "1 / dp_size")


@choice("aggregate", "verl/seq-mean-token-sum", total=True, global_batch_size=None, dp_size=1)
def seq_mean_token_sum(
    lengths: I64, *, global_batch_size: ByResponse | None, dp_size: int
) -> Weights:
    """Mean of the token sums over responses that have tokens, or Σ·dp_size / global_batch_size."""
    return _over_responses(np.ones(len(lengths)), lengths, global_batch_size, dp_size, 1.0, "")


@choice(
    "aggregate",
    "verl/seq-mean-token-sum-norm",
    total=True,
    loss_scale_factor=None,
    response_length=None,
    global_batch_size=None,
    dp_size=1,
)
def seq_mean_token_sum_norm(
    lengths: I64,
    *,
    loss_scale_factor: ByResponse | None,
    response_length: ByResponse | None,
    global_batch_size: ByResponse | None,
    dp_size: int,
) -> Weights:
    """``verl/seq-mean-token-sum`` over ``loss_scale_factor``, or else the padded width.

    Raises:
        HyperparameterError: when neither is given; the data have no padded width.
    """
    scale = response_length if loss_scale_factor is None else loss_scale_factor
    of = "response_length" if loss_scale_factor is None else "loss_scale_factor"
    if scale is None:
        raise HyperparameterError(
            "loss_scale_factor", "expected it, or response_length (the padded width); got neither"
        )
    ones = np.ones(len(lengths))
    return _over_responses(ones, lengths, global_batch_size, dp_size, scale, f" × {of}")


@choice("aggregate", "verl/seq-mean-token-mean", global_batch_size=None, dp_size=1)
def seq_mean_token_mean(
    lengths: I64, *, global_batch_size: ByResponse | None, dp_size: int
) -> Weights:
    """Mean of the token means Σₜ/(|oᵢ| + 1e-8) over responses that have tokens."""
    own = 1.0 / (np.maximum(lengths, 1) + 1e-8)
    more = ", of token means"
    return _over_responses(own, lengths, global_batch_size, dp_size, 1.0, more)


def _over_responses(
    unit: F64, lengths: I64, total: ByResponse | None, dp_size: int, scale: ByResponse, more: str
) -> Weights:
    if total is None:
        filled = (lengths > 0).astype(np.float64)
        return Weights(unit, filled, scale / dp_size, f"responses with tokens / dp_size{more}")
    return Weights(unit, None, total * scale / dp_size, f"global_batch_size / dp_size{more}")
