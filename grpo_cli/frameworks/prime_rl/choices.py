"""prime-rl's advantages and surrogates; the ratio of these is ``rollout``, w = π_θ/π_rollout."""

from __future__ import annotations

import math

import numpy as np

from grpo_cli.batch import F64, I64
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import choice
from grpo_cli.objective.results import PerToken, Surrogate
from grpo_cli.objective.surrogate.gates import dropping


@choice("advantage", "prime-rl/length-penalty", num_output_tokens_weight=0.25)
def length_penalty(
    rewards: F64, lengths: I64, groups: Groups, *, num_output_tokens_weight: float
) -> F64:
    """A = x − x̄ over the group, x = r − w·r̄·|o|/max|o|: the longest response loses w·r̄.

    Args:
        rewards: [R] one per response.
        lengths: [R] tokens of each response.
        groups: which responses answer the same prompt.
        num_output_tokens_weight: w. Its other two terms, of input tokens and of turns, need the
            number of each, which records do not have.

    References:
        prime-rl's ``LinearLengthPenaltyConfig``.
    """
    tokens = lengths.astype(np.float64)
    longest = np.maximum(groups.reduce(lambda rows: rows.max(axis=1), tokens), 1.0)
    means = groups.sum(rewards) / np.maximum(groups.sizes, 1)
    share = tokens / longest[groups.index]
    return groups.offsets(rewards - means[groups.index] * (num_output_tokens_weight * share))


@choice("advantage", "prime-rl/ref_kl", stops_gradient="the distance to the teacher is a constant")
def from_teacher(log_ratio_ref: F64) -> PerToken:
    """On-policy distillation: A = sg[log π_ref − log π_θ], where π_ref is the teacher.

    References:
        Lu et al., On-Policy Distillation, 2025; prime-rl's ``opd``. NeMo-RL uses log π_old instead
        of log π_θ, Tinker log π_rollout.
    """
    return PerToken(-log_ratio_ref)


@choice("surrogate", "prime-rl/ipo", ipo_threshold=0.3)
def ipo(
    ratio: F64, advantage: F64, log_probs_new: F64, log_probs_rollout: F64, *, ipo_threshold: float
) -> Surrogate:
    """prime-rl's ipo: s = w·A, or 0 if |π_θ − π_rollout| > threshold, for either sign of A.

    It is not Identity Preference Optimization.

    Args:
        ratio: [N] w.
        advantage: [N] A.
        log_probs_new, log_probs_rollout: [N] nats.
        ipo_threshold: in probability; prime-rl's ``eps``.
    """
    moved = np.exp(log_probs_new) - np.exp(log_probs_rollout)
    high, low = moved > ipo_threshold, moved < -ipo_threshold
    return dropping(ratio, advantage, high & (advantage != 0), low & (advantage != 0))


@choice("surrogate", "prime-rl/icepop", is_low=0.2, is_high=5.0)
def icepop(
    ratio: F64,
    advantage: F64,
    log_probs_new: F64,
    log_probs_rollout: F64,
    *,
    is_low: float | None,
    is_high: float | None,
) -> Surrogate:
    """prime-rl's icepop: s = w·A, or 0 if w is outside [low, high].

    Args:
        ratio: [N] w.
        advantage: [N] A.
        log_probs_new, log_probs_rollout: [N] nats; their difference is compared, not w.
        is_low, is_high: prime-rl's ``ratio_low`` and ``ratio_high``; None: no bound.
    """
    least = math.log(is_low) if is_low else -math.inf
    most = math.inf if is_high is None else math.log(is_high) if is_high else -math.inf
    log_ratio = log_probs_new - log_probs_rollout
    high, low = log_ratio > most, log_ratio < least
    return dropping(ratio, advantage, high & (advantage != 0), low & (advantage != 0))


@choice(
    "surrogate",
    "prime-rl/ref_kl",
    stops_gradient="the distance to the teacher is a constant weight",
    divergence_low=0.2,
)
def ref_kl(
    ratio: F64,
    log_ratio_ref: F64,
    log_probs_new: F64,
    log_probs_rollout: F64,
    *,
    divergence_low: float,
) -> Surrogate:
    """prime-rl's on-policy distillation: s = w·sg[log π_ref − log π_θ]; rewards are not used.

    Tokens with π_θ − π_rollout < −δ_low are dropped.

    Args:
        ratio: [N] w.
        log_ratio_ref: [N] log π_θ − log π_ref, π_ref being the teacher, nats.
        log_probs_new, log_probs_rollout: [N] nats.
        divergence_low: δ, in probability.
    """
    low = np.exp(log_probs_new) - np.exp(log_probs_rollout) < -divergence_low
    return dropping(ratio, -log_ratio_ref, np.zeros_like(low), low)
