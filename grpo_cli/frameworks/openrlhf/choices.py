"""OpenRLHF's advantages, KL estimates, rejections and denominator.

Scores stand on the last token, less the KL of the tokens to come. Its corrections by the ratio are
everybody's: level token with mode clip is ``token-truncate`` and with mode mask ``token-mask``,
level seq ``geometric-mask``; the rejections here go by the trainer's divergence from the engine.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.objective.advantage.batch import Advantage, over_batch
from grpo_cli.objective.advantage.group import group_mean, group_std, leave_one_out
from grpo_cli.objective.advantage.tokens import less_kl_to_come, whiten_floored
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import choice, table
from grpo_cli.objective.correction import binary_kl
from grpo_cli.objective.kl import Estimator, clamped, k1, k2, k3
from grpo_cli.objective.results import Correction, Kl, Moments, Sample, Weights, per_token


@choice("advantage", "openrlhf/group_norm", "group_norm", std_eps=1e-09, reward_clip=10.0)
def group_norm(
    task_rewards: F64,
    groups: Groups,
    token_penalty: F64,
    responses: Segments,
    *,
    std_eps: float,
    reward_clip: float | None,
) -> Advantage:
    """OpenRLHF's GRPO: clip((r − r̄)/(σ + eps), ±reward_clip) − the KL of this and later tokens.

    Args:
        task_rewards: [R] r, without the KL.
        groups: which responses answer the same prompt; σ with ddof 1.
        token_penalty: [N] β·k of each token.
        responses: cuts the tokens into responses.
        std_eps: added to σ.
        reward_clip: bound on the score after it is normalised; AReaL clips the reward before.
    """
    scores = group_std(task_rewards, groups, std_ddof=1, std_eps=std_eps, std_min=0.0)
    return less_kl_to_come(scores, token_penalty, responses, reward_clip)


@choice("advantage", "openrlhf/dr_grpo", reward_clip=10.0)
def dr_grpo(
    task_rewards: F64,
    groups: Groups,
    token_penalty: F64,
    responses: Segments,
    *,
    reward_clip: float | None,
) -> Advantage:
    """OpenRLHF's dr_grpo: clip(r − r̄, ±reward_clip), minus the KL of this and all later tokens."""
    return less_kl_to_come(group_mean(task_rewards, groups), token_penalty, responses, reward_clip)


@choice("advantage", "openrlhf/rloo", reward_clip=10.0)
def rloo(
    task_rewards: F64,
    groups: Groups,
    token_penalty: F64,
    responses: Segments,
    *,
    reward_clip: float | None,
) -> Advantage:
    """OpenRLHF's rloo: clip(r − mean of the others), minus the KL of this and all later tokens."""
    return less_kl_to_come(
        leave_one_out(task_rewards, groups), token_penalty, responses, reward_clip
    )


choice("advantage", "openrlhf/reinforce_baseline", reward_clip=10.0)(
    over_batch(
        whiten_floored,
        doc="""OpenRLHF's REINFORCE++-baseline: its dr_grpo, whitened over the tokens of the batch.

    Whitening is (A − m)/√max(v, 1e-8), v with ddof 0.

    References:
        Hu et al., REINFORCE++, 2025 (arXiv 2501.03262).
    """,
    )(dr_grpo)
)


def _each_once(task_rewards: F64) -> Sample:
    return Sample(task_rewards, np.ones(len(task_rewards)))


@choice(
    "advantage", "openrlhf/flash_reinforce", "flash_reinforce", measure=_each_once, reward_clip=10.0
)
def flash_reinforce(
    task_rewards: F64,
    token_penalty: F64,
    responses: Segments,
    moments: Moments,
    *,
    reward_clip: float | None,
) -> Advantage:
    """OpenRLHF's flash_reinforce: clip(r − batch mean), minus the KL of this and later tokens.

    Args:
        task_rewards: [R] r, without the KL.
        token_penalty: [N] β·k of each token.
        responses: cuts the tokens into responses.
        moments: of r over the responses of the batch; groups play no part.
        reward_clip: bound on the centred score.

    References:
        OpenRLHF 0.11.2, for one response per prompt.
    """
    return less_kl_to_come(task_rewards - moments.mean, token_penalty, responses, reward_clip)


_CLAMP = 10.0  # on the estimate, and on the weight of its gradient


def unbiased(estimator: Estimator) -> Callable[..., Kl]:
    """The clamped estimate with the slope min(π_θ/π_old, 10)·d."""

    def penalty(log_ratio_ref: F64, token_log_ratio: F64, *, beta: float) -> Kl:
        del beta  # the pipeline multiplies by it
        value, _ = clamped(estimator, log_ratio_ref, None, _CLAMP)
        weight = np.minimum(np.exp(token_log_ratio), _CLAMP)
        return Kl(value, weight * log_ratio_ref, None)

    penalty.__doc__ = f"""The value of {estimator.__name__} with the slope min(ρₜ, 10)·d.

    d = log π_θ − log π_ref and ρₜ = π_θ/π_old of the token. The expectation of the slope under
    π_old is the gradient of the reverse KL. The value is clamped to ±10, the slope is not.

    Args:
        log_ratio_ref: [N] d, nats.
        token_log_ratio: [N] log ρₜ, nats, whatever the ratio stage is.
        beta: the coefficient.

    References:
        OpenRLHF 0.11.2, ``kl.unbiased_gradient``; Tang and Munos, 2025 (arXiv 2506.09477).
    """
    return penalty


for _of in (k1, k2, k3):
    choice(
        "kl",
        f"openrlhf/{_of.__name__}+",
        stops_gradient="the estimate's own slope: the penalty's is min(ρₜ, 10)·d",
    )(unbiased(_of))


_EDGE = 1e-6  # probabilities are held this far from 0 and 1, so that the logarithms are finite


Divergence = Callable[[F64, F64], F64]


def tv(engine: F64, trainer: F64) -> F64:
    """[N] |p − q|."""
    return np.abs(engine - trainer)


def gated(of: Divergence, *, by_response: bool) -> Callable[..., Correction]:
    """Rejects a token by its divergence, or a response by the mean of its tokens'."""

    def correction(
        log_probs_old: F64,
        log_probs_rollout: F64,
        responses: Segments,
        *,
        rejection_threshold: float,
    ) -> Correction:
        logs = (log_probs_rollout, log_probs_old)
        found = of(*(np.clip(np.exp(one), _EDGE, 1.0 - _EDGE) for one in logs))
        kept = (
            responses.spread(responses.mean(found) <= rejection_threshold)
            if by_response
            else found <= rejection_threshold
        )
        return Correction(np.where(kept, np.exp(log_probs_old - log_probs_rollout), 0.0))

    correction.__doc__ = _described(
        of, "responses by the mean" if by_response else "tokens by their"
    )
    return correction


def _described(of: Divergence, what: str) -> str:
    name = of.__name__.replace("_", " ")
    return f"""Drops {what} {name}: c = ρₜ if it is ≤ rejection_threshold, else 0.

    ρₜ = π_old/π_rollout. The {name} compares the probability of the sampled token in the engine
    with that in the trainer, both clamped to [1e-6, 1 − 1e-6]. Dropped tokens still count in the
    denominators.

    Args:
        log_probs_old, log_probs_rollout: [N] nats.
        responses: cuts the tokens into responses.
        rejection_threshold: nats for the KL, probability for the TV.

    References:
        OpenRLHF 0.11.2, ``is_correction_gating``; its FlashREINFORCE drops responses by the
        binary KL.
    """


for _word, _divergence_of in (("binary-kl", binary_kl), ("tv", tv)):
    for _level in ("token", "seq"):
        choice("correction", f"openrlhf/{_level}-{_word}-mask")(
            gated(_divergence_of, by_response=_level == "seq")
        )


@choice("aggregate", "openrlhf/response-mean", "openrlhf/seq-mean-token-mean")
def nonempty_response_mean(lengths: I64) -> Weights:
    """OpenRLHF's sequence mean: ``response-mean`` over the responses that have tokens.

    As in OpenRLHF, 1e-8 is added to the number of tokens of each response.
    """
    counts = (lengths > 0).astype(np.float64)
    return Weights(per_token(lengths, 1e-8), counts, 1.0, "responses with tokens, of token means")


table("aggregate", "openrlhf").aliases["openrlhf/token-mean"] = "token-mean"
