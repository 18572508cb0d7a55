"""Importance weights of the old policy against the engine that sampled, bounded or masked.

With ρₜ = exp(log π_old − log π_rollout) at a token, each function returns the constant c that
multiplies the surrogate. The KL and the denominators keep every token.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from grpo_cli.batch import F64, Segments
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Correction


def token_truncate(
    log_probs_old: F64, log_probs_rollout: F64, *, is_low: float | None, is_high: float | None
) -> Correction:
    """Truncated importance sampling: c = clip(ρₜ, is_low, is_high), token by token.

    References:
        Yao et al., Your Efficient RL Framework Secretly Brings You Off-Policy RL Training, 2025,
        is_high 2 and no lower bound, as slime, verl and open-instruct have it; OpenRLHF [0.5, 5].
    """
    return Correction(_clip(np.exp(log_probs_old - log_probs_rollout), is_low, is_high))


def token_mask(
    log_probs_old: F64, log_probs_rollout: F64, *, is_low: float | None, is_high: float | None
) -> Correction:
    """IcePop: c = ρₜ where is_low ≤ ρₜ ≤ is_high, and 0 elsewhere, token by token.

    References:
        Ling Team, Every Step Evolves (IcePop), 2025 (arXiv 2510.18855), [0.5, 5]. verl and TRL
        take any bounds; ms-swift has no lower one.
    """
    return Correction(_mask(np.exp(log_probs_old - log_probs_rollout), is_low, is_high))


def sequence_truncate(
    log_probs_old: F64,
    log_probs_rollout: F64,
    responses: Segments,
    *,
    is_low: float | None,
    is_high: float | None,
) -> Correction:
    """The whole response's ratio, for all of its tokens: c = clip(Πₜ ρₜ, is_low, is_high).

    References:
        verl (rollout_is: sequence), TRL (sequence_truncate). ms-swift's sequence_truncate is
        ``geometric-truncate`` here.
    """
    whole = np.exp(responses.sum(log_probs_old - log_probs_rollout))
    return Correction(_clip(whole, is_low, is_high)[responses.index])


def sequence_mask(
    log_probs_old: F64,
    log_probs_rollout: F64,
    responses: Segments,
    *,
    is_low: float | None,
    is_high: float | None,
) -> Correction:
    """The whole response's ratio c = Πₜ ρₜ where that is between the bounds, and 0 elsewhere.

    References:
        TRL (sequence_mask, is_high 3). ms-swift masks by the geometric mean.
    """
    whole = np.exp(responses.sum(log_probs_old - log_probs_rollout))
    return Correction(_mask(whole, is_low, is_high)[responses.index])


def geometric_truncate(
    log_probs_old: F64,
    log_probs_rollout: F64,
    responses: Segments,
    *,
    is_low: float | None,
    is_high: float | None,
) -> Correction:
    """The geometric mean of a response's ratios, c = clip((Πₜ ρₜ)^(1/|o|), is_low, is_high).

    References:
        ms-swift (sequence_truncate), AReaL and open-instruct (sequence level).
    """
    whole = np.exp(responses.mean(log_probs_old - log_probs_rollout))
    return Correction(_clip(whole, is_low, is_high)[responses.index])


def geometric_mask(
    log_probs_old: F64,
    log_probs_rollout: F64,
    responses: Segments,
    *,
    is_low: float | None,
    is_high: float | None,
) -> Correction:
    """The token's ρₜ where its response's (Πₜ ρₜ)^(1/|o|) is between the bounds, else 0.

    References:
        Liu et al., When Speed Kills Stability, 2025; OpenRLHF and NeMo-RL (seq-mask-tis, bounds
        0.999 and 1.002). AReaL and open-instruct weigh what they keep with the mean itself.
    """
    log_weight = log_probs_old - log_probs_rollout
    kept = _mask(np.exp(responses.mean(log_weight)), is_low, is_high) > 0
    return Correction(np.where(kept[responses.index], np.exp(log_weight), 0.0))


def _clip(weight: F64, low: float | None, high: float | None) -> F64:
    return np.clip(weight, 0.0 if low is None else low, np.inf if high is None else high)


def _mask(weight: F64, low: float | None, high: float | None) -> F64:
    inside = (weight >= (0.0 if low is None else low)) & (
        weight <= (np.inf if high is None else high)
    )
    return np.where(inside, weight, 0.0)


def off_policy_mask(
    advantage: F64,
    log_probs_new: F64,
    log_probs_rollout: F64,
    responses: Segments,
    *,
    off_policy_mask_threshold: float,
) -> Correction:
    """0 where A < 0 and the response's mean of log π_rollout − log π_θ > threshold, else 1.

    A response that the policy has left far behind teaches nothing by being made less likely.

    Args:
        advantage: [N] A.
        log_probs_new, log_probs_rollout: [N] nats.
        responses: cuts the tokens into responses.
        off_policy_mask_threshold: nats per token.

    References:
        DeepSeek-V3.2, 2025 (arXiv 2512.02556): its π_old is the engine's own. slime compares with
        the trainer's π_old (``off-policy-mask-old``) and has threshold 1e-4; TRL with the engine
        where its log-probs are given. ms-swift takes the response out of the KL and of token
        counts too.
    """
    behind = log_probs_rollout - log_probs_new
    return _one_sided(advantage, behind, responses, off_policy_mask_threshold)


def off_policy_mask_old(
    advantage: F64,
    token_log_ratio: F64,
    responses: Segments,
    *,
    off_policy_mask_threshold: float,
) -> Correction:
    """``off-policy-mask`` with the trainer's old policy in the engine's place.

    References:
        DeepSeek-V3.2, 2025 (arXiv 2512.02556), as slime has it (use_opsm).
    """
    return _one_sided(advantage, -token_log_ratio, responses, off_policy_mask_threshold)


def _one_sided(advantage: F64, behind: F64, responses: Segments, threshold: float) -> Correction:
    far = (responses.mean(behind) > threshold)[responses.index]
    return Correction(np.where(far & (advantage < 0), 0.0, 1.0))


_Function = Callable[..., Correction]


def _bounded(function: _Function, low: float | None, high: float | None) -> Choice:
    return Choice(function, {"is_low": low, "is_high": high})


CHOICES = {
    "token-truncate": _bounded(token_truncate, None, 2.0),
    "sequence-truncate": _bounded(sequence_truncate, None, 2.0),
    "geometric-truncate": _bounded(geometric_truncate, None, 2.0),
    "token-mask": _bounded(token_mask, 0.5, 5.0),
    "sequence-mask": _bounded(sequence_mask, None, 3.0),
    "geometric-mask": _bounded(geometric_mask, 0.999, 1.002),
    "off-policy-mask": Choice(off_policy_mask, {"off_policy_mask_threshold": 1e-4}),
    "off-policy-mask-old": Choice(off_policy_mask_old, {"off_policy_mask_threshold": 1e-4}),
}
ALIASES = {
    "tis": "token-truncate",
    "token_truncate": "token-truncate",
    "sequence_truncate": "sequence-truncate",
    "icepop": "token-mask",
    "token_mask": "token-mask",
    "sequence_mask": "sequence-mask",
    "seq-mask-tis": "geometric-mask",
    "opsm": "off-policy-mask",
}
