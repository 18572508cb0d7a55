"""VESPO as TRL computes it: clamped, and with the rollout engine's mismatch inside its weight."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from grpo_cli.batch import F64, Segments
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Surrogate, unbound

Bounding = Callable[[F64, float, float], F64]

_LEAST = math.log(1e-8)
_MOST = 20.0
_LEAST_RATE = 1e-4


def trl_vespo(
    token_log_ratio: F64,
    advantage: F64,
    log_probs_new: F64,
    responses: Segments,
    *,
    vespo_k_pos: float,
    vespo_lambda_pos: float,
    vespo_k_neg: float,
    vespo_lambda_neg: float,
) -> Surrogate:
    """TRL's VESPO: s = sg[φ(W)]·A·log π_θ, φ(W) = Wᵏ·exp(λ·(1−W)), log W = Σₜ dₜ, clamped.

    dₜ is clamped to ±20, log W to [log 1e-8, 20] and λ to at least 1e-4; a φ that is not finite
    is 0. W is the product over the response whatever the ratio stage says; k and λ are those of
    the sign of A.

    Args:
        token_log_ratio: [N] d = log π_θ − log π_old, nats.
        advantage: [N] A.
        log_probs_new: [N] log π_θ, nats.
        responses: cuts the tokens into responses.
        vespo_k_pos: k where A >= 0.
        vespo_lambda_pos: λ where A >= 0.
        vespo_k_neg: k where A < 0.
        vespo_lambda_neg: λ where A < 0.

    References:
        Shen et al., VESPO, 2026 (arXiv 2602.10693); TRL, GRPOTrainer, loss_type vespo.
    """
    total = responses.sum(np.clip(token_log_ratio, -_MOST, _MOST))
    shapes = (vespo_k_pos, vespo_lambda_pos, vespo_k_neg, vespo_lambda_neg)
    return _faded(total, advantage, log_probs_new, responses, shapes)


def _faded(
    total: F64,
    advantage: F64,
    log_probs_new: F64,
    responses: Segments,
    shapes: tuple[float, float, float, float],
) -> Surrogate:
    k_pos, lambda_pos, k_neg, lambda_neg = shapes
    gaining = advantage >= 0
    power = np.where(gaining, k_pos, k_neg)
    rate = np.maximum(np.where(gaining, lambda_pos, lambda_neg), _LEAST_RATE)
    log_weight = np.repeat(np.clip(total, _LEAST, _MOST), responses.lengths)
    fade = np.exp(rate + power * log_weight - rate * np.exp(log_weight))
    weighted = np.where(np.isfinite(fade), fade, 0.0) * advantage
    return Surrogate(weighted * log_probs_new, unbound(len(weighted)), None, weighted)


def _with_mismatch(weigh: Callable[..., F64], doc: str) -> Callable[..., Surrogate]:
    """``trl_vespo`` with log W = Σₜ dₜ + the logarithm of the bounded π_old/μ, that too clamped."""

    def surrogate(
        token_log_ratio: F64,
        advantage: F64,
        log_probs_new: F64,
        log_probs_old: F64,
        log_probs_rollout: F64,
        responses: Segments,
        *,
        vespo_k_pos: float,
        vespo_lambda_pos: float,
        vespo_k_neg: float,
        vespo_lambda_neg: float,
        is_low: float | None,
        is_high: float | None,
    ) -> Surrogate:
        bounds = (-np.inf if is_low is None else is_low, np.inf if is_high is None else is_high)
        mismatch = weigh(log_probs_old - log_probs_rollout, responses, bounds)
        moved = responses.sum(np.clip(token_log_ratio, -_MOST, _MOST))
        shapes = (vespo_k_pos, vespo_lambda_pos, vespo_k_neg, vespo_lambda_neg)
        return _faded(moved + mismatch, advantage, log_probs_new, responses, shapes)

    surrogate.__doc__ = doc
    return surrogate


def _by_token(bound: Bounding) -> Callable[..., F64]:
    """[R] Σₜ log of each token's bounded ratio, clamped."""

    def logs(difference: F64, responses: Segments, bounds: tuple[float, float]) -> F64:
        return responses.sum(_clamped_log(bound(np.exp(difference), *bounds)))

    return logs


def _by_response(bound: Bounding) -> Callable[..., F64]:
    """[R] the logarithm of each response's bounded product, clamped."""

    def logs(difference: F64, responses: Segments, bounds: tuple[float, float]) -> F64:
        return _clamped_log(bound(np.exp(responses.sum(difference)), *bounds))

    return logs


def _clamped_log(ratio: F64) -> F64:
    with np.errstate(divide="ignore"):
        return np.clip(np.log(ratio), _LEAST, _MOST)


def _masked(ratio: F64, low: float, high: float) -> F64:
    return np.where((low <= ratio) & (ratio <= high), ratio, 0.0)


_STOPS = "the shaped ratio is a constant weight of log π_θ"
_SHAPES = {
    "vespo_k_pos": 2.0,
    "vespo_lambda_pos": 3.0,
    "vespo_k_neg": 3.0,
    "vespo_lambda_neg": 2.0,
}
_BOUNDS = {**_SHAPES, "is_low": None, "is_high": 3.0}

_REFUSED = """

    GRPOTrainer refuses this mode for vespo when it is built; its loss has this value where the
    mode is set afterwards."""

CHOICES = {
    "trl/vespo": Choice(trl_vespo, _SHAPES, stops_gradient=_STOPS),
    "trl/vespo-token-truncate": Choice(
        _with_mismatch(
            _by_token(np.clip), "TRL's VESPO with clip(π_old/μ, min, max) of each token in W."
        ),
        _BOUNDS,
        stops_gradient=_STOPS,
    ),
    "trl/vespo-token-mask": Choice(
        _with_mismatch(
            _by_token(_masked),
            "TRL's VESPO with π_old/μ of each token in W; 1e-8 outside [min, max].",
        ),
        _BOUNDS,
        stops_gradient=_STOPS,
    ),
    "trl/vespo-sequence-truncate": Choice(
        _with_mismatch(
            _by_response(np.clip),
            "TRL's VESPO with clip(Π π_old/μ, min, max) of the response in W." + _REFUSED,
        ),
        _BOUNDS,
        stops_gradient=_STOPS,
    ),
    "trl/vespo-sequence-mask": Choice(
        _with_mismatch(
            _by_response(_masked),
            "TRL's VESPO with Π π_old/μ of the response in W; 1e-8 outside [min, max]." + _REFUSED,
        ),
        _BOUNDS,
        stops_gradient=_STOPS,
    ),
}
