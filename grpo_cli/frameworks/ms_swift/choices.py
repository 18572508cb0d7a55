"""What ms-swift computes otherwise than TRL and the papers.

Its corrections weigh the KL too. The entropy mask takes a token out of the policy term alone. A
response that the off-policy mask removes is gone from the policy term, from the KL and from the
token counts (bnpo's, and each response's own), but still counts as a response.
"""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64, Segments
from grpo_cli.frameworks.trl.aggregate import ITEMS, over_items
from grpo_cli.frameworks.trl.choices import MASKS, behind_engine, top_entropy
from grpo_cli.objective.advantage.batch import sample_rewards, scaled
from grpo_cli.objective.advantage.group import group_std, leave_one_out
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import ByResponse, ByToken, choice
from grpo_cli.objective.correction import (
    Weigh,
    by_mean,
    by_token,
    chain,
    masked,
    own_by_mean,
    truncated,
)
from grpo_cli.objective.results import Correction, Kl, Moments, PerToken, Surrogate, Weights
from grpo_cli.objective.surrogate.joint import of_labels


@choice("advantage", "ms-swift/rloo-group", std_eps=1e-4)
def rloo_group(rewards: F64, groups: Groups, *, std_eps: float) -> F64:
    """``leave-one-out`` over the group's σ(r) + eps: advantage_estimator rloo, by group."""
    sizes = groups.sizes[groups.index]
    scores = group_std(rewards, groups, std_ddof=1, std_eps=std_eps, std_min=0.0)
    return scores * (sizes / np.maximum(sizes - 1, 1))


@choice("advantage", "ms-swift/rloo-batch", measure=sample_rewards, std_eps=1e-4)
def rloo_batch(rewards: F64, groups: Groups, moments: Moments, *, std_eps: float) -> F64:
    """``leave-one-out`` over σ_batch(r) + eps: advantage_estimator rloo, by batch."""
    return scaled(leave_one_out(rewards, groups), moments, std_ddof=1, std_eps=std_eps)


@choice(
    "advantage",
    "ms-swift/rlsd",
    std_eps=1e-4,
    rlsd_lambda=0.5,
    rlsd_clip_range=0.2,
    rlsd_negative_only=0,
)
def rlsd(
    rewards: F64,
    groups: Groups,
    log_probs_old: F64,
    log_probs_ref: F64,
    responses: Segments,
    *,
    std_eps: float,
    rlsd_lambda: float,
    rlsd_clip_range: float,
    rlsd_negative_only: int,
) -> PerToken:
    """Aₜ = A·(1 − λ + λ·clip((π_ref/π_old)^sign(A), 1 − ε_w, 1 + ε_w)), A being ``group-std``.

    Args:
        log_probs_old: [N]; log_probs_ref: [N] the teacher's, which saw the answer.
        rlsd_lambda, rlsd_clip_range: λ, of this step; ε_w.
        rlsd_negative_only: 1: responses with A >= 0 keep their advantage.

    References:
        ms-swift 4.6.0, ``apply_rlsd_reweight`` (advantage_reweight rlsd), after RLSD's own code.
    """
    scores = group_std(rewards, groups, std_ddof=1, std_eps=std_eps, std_min=0.0)
    own = responses.spread(scores)
    weight = np.exp(np.sign(own) * (log_probs_ref - log_probs_old))
    bounded = np.clip(weight, 1.0 - rlsd_clip_range, 1.0 + rlsd_clip_range)
    factor = 1.0 - rlsd_lambda + rlsd_lambda * bounded
    return PerToken(np.where(own < 0, own * factor, own if rlsd_negative_only else own * factor))


@choice("surrogate", "ms-swift/real", scales=False, real_tau=0.5)
def real(
    log_ratio: F64, advantage: F64, responses: Segments, groups: Groups, *, real_tau: float
) -> Surrogate:
    """``real``, but a fully masked response counts as bad, with s̄ = 0.

    It adds e⁰ = 1 to the sum over bad responses, so a group with otherwise only good responses has
    a loss.

    Args:
        log_ratio: [N] log ρ, at any level.
        advantage: [N] A, of which only the sign counts.
        real_tau: τ > 0.
    """
    good = responses.mean(advantage) > 0
    return of_labels(log_ratio, good, ~good, responses, groups, real_tau)


@choice("kl", "ms-swift/k1-in-reward", in_reward=True)
def k1_in_reward(log_probs_old: F64, log_probs_ref: F64, *, beta: ByToken) -> F64:
    """ms-swift's ``kl_in_reward``: k1 = log π_old − log π_ref is subtracted from the reward.

    The clamps of ms-swift's KL in the loss do not apply.
    """
    return beta * (log_probs_old - log_probs_ref)


_FARTHEST = 20.0


def off_policy_mask(
    advantage: F64,
    token_log_ratio: F64,
    responses: Segments,
    log_probs_new: F64 | None = None,
    log_probs_rollout: F64 | None = None,
    *,
    off_policy_mask_threshold: float | None,
) -> Correction | None:
    """Takes far responses of a mean A < 0 out of the policy term, the KL and the token counts."""
    if off_policy_mask_threshold is None:
        return None
    behind = behind_engine(token_log_ratio, log_probs_new, log_probs_rollout)
    far = responses.mean(behind) > off_policy_mask_threshold
    kept = np.repeat(~(far & (responses.mean(advantage) < 0)), responses.lengths)
    weight = kept.astype(np.float64)
    return Correction(weight, weight, kept, unmasked=kept)


def entropy_mask(
    responses: Segments,
    records: Segments,
    entropies: F64 | None = None,
    *,
    top_entropy_quantile: float,
) -> Correction | None:
    """Takes all but the tokens of high entropy out of the policy term alone."""
    if top_entropy_quantile >= 1.0:
        return None
    return Correction(top_entropy(entropies, responses, records, top_entropy_quantile))


all_masks = chain(
    """Drops responses with mean A < 0 and mean log μ − log π_θ > threshold.

    μ is the rollout engine if its log-probs are given, else the old policy.

    Args:
        log_probs_rollout: [N] log μ, nats.
        off_policy_mask_threshold: nats per token; None: no mask.
        top_entropy_quantile: the share of a record's tokens, those of highest entropy, that keep
            their policy term; 1: all of them.

    References:
        DeepSeek-V3.2, 2025 (arXiv 2512.02556); ms-swift, off_policy_sequence_mask_delta and
        top_entropy_quantile.
    """,
    off_policy_mask,
    entropy_mask,
)
choice("correction", "ms-swift/off-policy-mask", **MASKS)(all_masks)
choice("correction", "ms-swift/real-mask", off_policy_mask_threshold=None)(
    chain(
        """``ms-swift/off-policy-mask`` of loss type real: a dropped response counts as a bad one.

    Its top_entropy_quantile has no effect.
    """,
        off_policy_mask,
    )
)


def _weighed(name: str, weigh: Weigh, doc: str) -> None:
    """Registers the masks times π_old/μ, which weighs policy term and KL alike."""

    def weight(
        log_probs_old: F64, log_probs_rollout: F64, responses: Segments, *, is_high: float | None
    ) -> Correction:
        difference = np.clip(log_probs_old - log_probs_rollout, -_FARTHEST, _FARTHEST)
        found = weigh(difference, responses, None, is_high)
        return Correction(found, found)

    made = chain(doc, off_policy_mask, entropy_mask, weight)
    choice("correction", f"ms-swift/{name}", **MASKS, is_high=2.0)(made)


_weighed(
    "token-truncate",
    by_token(truncated),
    "ms-swift's token_truncate: c = min(π_old/μ, C) per token.",
)
_weighed(
    "token-mask", by_token(masked), "ms-swift's token_mask: c = π_old/μ, 0 above C, per token."
)
_weighed(
    "sequence-truncate",
    by_mean(truncated),
    "ms-swift's sequence_truncate: c = min(ρ, C), ρ the geometric mean of π_old/μ.",
)
_weighed(
    "sequence-mask",
    own_by_mean,
    "ms-swift's sequence_mask: c = π_old/μ per token, 0 where the geometric mean > C.",
)


@choice("kl", "ms-swift/sdar", unweighted=True, stops_gradient="the gate", sdar_gate_beta=5.0)
def sdar(log_ratio_ref: F64, *, beta: ByToken, sdar_gate_beta: ByToken) -> Kl:
    """SDAR: k = −g·d, g = σ(−g_β·d) without a gradient, d = log π_θ − log π_ref of the teacher.

    σ is the logistic function; g is near 1 if the teacher gives the token a higher probability
    than the policy. SDAR replaces the KL penalty (SDAR requires β = 0) and is averaged over tokens
    (``--kl-aggregate``). Weights of a rollout correction do not apply to it.

    Args:
        beta: ``sdar_loss_coef``.
        sdar_gate_beta: g_β.

    References:
        ms-swift 4.6.0, ``compute_sdar_loss``, after SDAR's own code.
    """
    del beta  # the pipeline multiplies by it
    gate = 1.0 / (1.0 + np.exp(np.minimum(sdar_gate_beta * log_ratio_ref, 700.0)))
    return Kl(-gate * log_ratio_ref, -gate, None)


@choice("aggregate", "ms-swift/dapo", **ITEMS)
def swift_dapo(
    responses: Segments, *, num_items_in_batch: ByResponse | None, num_processes: int
) -> Weights:
    """ms-swift's dapo, cispo and fipo: Σ over tokens ÷ (num_items_in_batch ÷ processes).

    ms-swift cancels the division by gradient_accumulation_steps of Hugging Face's Trainer.
    num_items_in_batch includes tokens that masks remove from the loss.
    """
    return over_items(responses.lengths, num_items_in_batch, num_processes)


@choice("aggregate", "ms-swift/dapo-accumulated", **ITEMS, gradient_accumulation_steps=1)
def accumulated(
    responses: Segments,
    *,
    num_items_in_batch: ByResponse | None,
    num_processes: int,
    gradient_accumulation_steps: int,
) -> Weights:
    """ms-swift before 4.6: Σ over tokens ÷ (num_items_in_batch ÷ processes) ÷ accumulation steps.

    Hugging Face's Trainer also divides by gradient_accumulation_steps, so a step is that many
    times smaller than TRL's.
    """
    lengths, accumulation = responses.lengths, gradient_accumulation_steps
    return over_items(lengths, num_items_in_batch, num_processes, accumulation)
