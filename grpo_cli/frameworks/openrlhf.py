"""OpenRLHF's advantages, KL estimates, rejections, denominator and losses.

Scores stand on the last token, less the KL of the tokens to come. Its corrections by the ratio are
everybody's: level token with mode clip is ``token-truncate`` and with mode mask ``token-mask``,
level seq ``geometric-mask``; the rejections here go by the trainer's divergence from the engine.
Denominators span an optimiser step and all ranks: openrlhf/utils/loss_utils.py,
iter_grad_accum_global_norm.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.frameworks.framework import Framework
from grpo_cli.objective.advantage.batch import Advantage, over_batch
from grpo_cli.objective.advantage.group import group_mean, group_std, leave_one_out
from grpo_cli.objective.advantage.tokens import less_kl_to_come, whiten_floored
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import ByToken, choice, table
from grpo_cli.objective.correction import binary_kl
from grpo_cli.objective.kl import Estimator, clamped, k1, k2, k3
from grpo_cli.objective.results import Correction, Kl, Moments, Sample, Weights, per_token
from grpo_cli.objective.row import Row, Use, executed, use, words


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
        moments: mean and std of r over the responses of the batch, whatever its group.
        reward_clip: bound on the centred score.

    References:
        OpenRLHF 0.11.2, for one response per prompt.
    """
    return less_kl_to_come(task_rewards - moments.mean, token_penalty, responses, reward_clip)


_CLAMP = 10.0  # on the estimate, and on the weight of its gradient


def unbiased(estimator: Estimator) -> Callable[..., Kl]:
    """The clamped estimate with the slope min(π_θ/π_old, 10)·d."""

    def penalty(log_ratio_ref: F64, token_log_ratio: F64, *, beta: ByToken) -> Kl:
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


def _vllm(choice: str) -> Use:
    """A correction with the bounds that OpenRLHF's three kinds share."""
    return use(choice, is_low=0.5, is_high=5.0)


_READS = words(
    "epsilon_low epsilon_high dual_clip beta reward_clip is_low is_high rejection_threshold"
)
"""Of PolicyLoss, reward.clip_range and kl.init_coef; the clamps on log ratios and on the KL are
constants (openrlhf/models)."""

PPO = Row(
    title="OpenRLHF's PPO loss with group_norm advantages (its GRPO)",
    paper="2402.03300",
    aliases=("openrlhf/grpo", "openrlhf/group_norm"),
    advantage=use("openrlhf/group_norm"),
    ratio=use("token", log_ratio_clamp=20.0),
    surrogate=use("clip", epsilon_low=0.2, epsilon_high=0.2),
    kl=use("k1-in-reward", beta=0.01, kl_output_clamp=10.0),
    correction=use("none"),
    aggregate=use("token-mean"),
    kl_aggregate=use("token-mean"),
    entropy=use("bonus", entropy_coef=0.0),
    entropy_aggregate=use("token-mean"),
    reads=_READS,
    checked="executed",
    version="openrlhf 0.11.2",
    note="By default the KL is in the reward: after the group norm, the KL of a token and of all "
    "that follow it is subtracted. For --algo.kl.use_loss, use --kl k1, k2 or k3; with "
    "unbiased_gradient (since 0.11.1), --kl openrlhf/k1+. For loss_agg_mode (since 0.11.2), use "
    "--aggregate openrlhf/seq-mean-token-mean; KL and entropy stay token means. OpenRLHF clips "
    "the score to ±10 after normalising, AReaL before. The default estimator, gae, is not "
    "covered: it needs a critic.",
)

ROWS = {
    "openrlhf/ppo": PPO,
    "openrlhf/gspo": executed(
        PPO, ratio=use("sequence"), aggregate=use("openrlhf/response-mean")
    ).named(
        "OpenRLHF's GSPO loss",
        "The policy term is averaged over responses, a KL in the loss over tokens. Empty "
        "responses do not count. The paper's ε of 3e-4 and 4e-4 is not the default.",
        paper="2507.18071",
    ),
    "openrlhf/gspo-is": executed(
        PPO, ratio=use("rollout-sequence"), aggregate=use("openrlhf/response-mean")
    ).named(
        "OpenRLHF's GSPO loss with its importance-sampling correction switched on",
        "Any is_correction_level except off (before 0.11.2: enable_vllm_is_correction) uses the "
        "engine's log-probs instead of π_old in the ratio. There is no other weight; slime and "
        "NeMo-RL multiply by one.",
        paper="2507.18071",
    ),
    "openrlhf/dr_grpo": executed(PPO, advantage=use("openrlhf/dr_grpo")).named(
        "OpenRLHF's PPO loss with dr_grpo advantages",
        "Only the advantage is Dr. GRPO's: the loss still averages over tokens.",
        paper="2503.20783",
    ),
    "openrlhf/rloo": executed(PPO, advantage=use("openrlhf/rloo")).named(
        "OpenRLHF's PPO loss with rloo advantages",
        "The baseline excludes the response itself. The ratio is per token; in TRL's RLOO it is "
        "per response.",
        paper="2402.14740",
    ),
    "openrlhf/reinforce_baseline": executed(
        PPO, advantage=use("openrlhf/reinforce_baseline")
    ).named(
        "OpenRLHF's PPO loss with REINFORCE++-baseline advantages",
        "The KL of a token is summed over the following tokens, and the std has ddof 0. slime "
        "whitens with ddof 1, NeMo-RL with ddof 0; in both, each token has only its own KL.",
        paper="2501.03262",
    ),
    "openrlhf/tis": executed(PPO, correction=_vllm("token-truncate")).named(
        "OpenRLHF's PPO loss with is_correction_level token and mode clip (its tis)",
        "ρ = π_old/π_rollout is clamped to [0.5, 5] per token; slime and open-instruct clamp to "
        "[0, 2]. Before 0.11.2 the option was vllm_is_correction_type tis, with the same numbers.",
    ),
    "openrlhf/icepop": executed(PPO, correction=_vllm("token-mask")).named(
        "OpenRLHF's PPO loss with is_correction_level token (its icepop)",
        "Tokens outside [0.5, 5] get weight 0 and stay in the denominator.",
        paper="2510.18855",
    ),
    "openrlhf/seq-mask-tis": executed(PPO, correction=_vllm("geometric-mask")).named(
        "OpenRLHF's PPO loss with is_correction_level seq (its seq-mask-tis)",
        "The geometric mean decides if a response is kept; its tokens are weighted by their own "
        "unclamped ρ. AReaL and open-instruct use the mean as the weight.",
    ),
    "openrlhf/flash_reinforce": executed(
        PPO,
        advantage=use("openrlhf/flash_reinforce"),
        correction=use("openrlhf/seq-binary-kl-mask"),
    ).named(
        "OpenRLHF's FlashREINFORCE",
        "For one response per prompt. The baseline is the mean of the batch, without whitening. A "
        "response is dropped if its mean binary KL to the engine exceeds is_correction_threshold "
        "(-p rejection_threshold=…, no default). The options are advantage.estimator, "
        "is_correction_level seq and is_correction_gating binary_kl.",
        paper="",
    ),
}


FRAMEWORK = Framework(name="openrlhf", rows=ROWS, accumulation="whole step")
