"""AReaL's advantages, clip by response, denominator, and KL in the reward.

Its decoupled loss takes the KL of the engine that sampled.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.errors import InputError
from grpo_cli.objective.advantage.batch import Advantage, over_batch
from grpo_cli.objective.advantage.group import group_std
from grpo_cli.objective.advantage.tokens import less_kl_to_come
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import ByToken, Usual, choice, holding
from grpo_cli.objective.kl import Estimator, in_reward, k1, k2, k3
from grpo_cli.objective.results import Moments, Surrogate, Weights
from grpo_cli.objective.surrogate.clip import clip

_USUAL: Usual = {"reward_bias": -0.5, "reward_scaling": 10.0, "reward_clip": 20.0, "std_eps": 1e-5}


def _whiten(values: F64, moments: Moments, *, std_eps: float) -> F64:
    sigma = np.where(moments.count > 1.0, moments.std(1), 1.0)
    return (values - moments.mean) / (sigma + std_eps)


def _on_last_token(
    task_rewards: F64,
    groups: Groups,
    token_penalty: F64,
    responses: Segments,
    last_masked: NDArray[np.bool_] | None = None,
    *,
    reward_bias: float,
    reward_scaling: float,
    reward_clip: float,
    std_eps: float,
) -> Advantage:
    mapped = np.clip((task_rewards + reward_bias) * reward_scaling, -reward_clip, reward_clip)
    scores = group_std(mapped, groups, std_ddof=1, std_eps=std_eps, std_min=0.0)
    if last_masked is not None:
        scores = np.where(last_masked, 0.0, scores)
    return less_kl_to_come(scores, token_penalty, responses, None)


choice("advantage", "areal/grpo", **_USUAL)(
    over_batch(
        _whiten,
        doc="""
    AReaL's GRPO: clip((r + bias)·scaling), group-normalised, then normalised over all tokens.

    Both normalisations are (x − m)/(σ + eps), with the mean m and the standard deviation σ (ddof
    1) of x. The second one is over all tokens of the batch. Between the two, the KL of this and
    all later tokens is subtracted if the KL is in the reward.

    Args:
        task_rewards, token_penalty: [R] r without the KL; [N] β·k of each token.
        moments: mean and std of the group-normalised advantages, over tokens.
        reward_bias, reward_scaling: the affine map that rewards go through first.
        reward_clip: bound on the reward before it is normalised; OpenRLHF clips after.

    References:
        Fu et al., AReaL, 2025 (arXiv 2505.24298); its examples/math/gsm8k_grpo.yaml.
    """,
    )(holding(_on_last_token, None, last_masked=None))
)
choice("advantage", "areal/on-last-token", **_USUAL)(
    over_batch(
        _whiten,
        doc="""``areal/grpo``, but a response whose last token as written is masked has no score.

    AReaL puts the score on the last token that is not padding and ignores masked tokens. If that
    token is masked, the score is 0 before the second normalisation. Use this for records without
    padding.

    Args:
        task_rewards, token_penalty: [R] r without the KL; [N] β·k of each token.
        moments: mean and std of the scores that are left, less the KL, over tokens.
        last_masked: [R] the responses whose last token is masked; None: none.

    References:
        AReaL cbff54d, ``PPOActor._compute_advantages``.
    """,
    )(_on_last_token)
)


@choice(
    "surrogate",
    "areal/sequence-clip",
    window="product",
    epsilon_low=0.2,
    epsilon_high=0.2,
    delta=None,
    dual_clip=None,
)
def sequence_clip(
    ratio: F64,
    advantage: F64,
    responses: Segments,
    response_advantage: F64 | None = None,
    *,
    epsilon_low: ByToken,
    epsilon_high: ByToken,
    delta: ByToken | None,
    dual_clip: ByToken | None,
) -> Surrogate:
    """``clip`` with the mean of a response's advantages, where those differ between its tokens.

    Advantages differ with a KL in the reward. The mean is over the tokens that the rejection keeps.

    References:
        AReaL cbff54d, ``_compute_sequence_level_ratio_and_advantages``.
    """
    if response_advantage is None:
        advantage = responses.spread(responses.mean(advantage))
    return clip(
        ratio,
        advantage,
        epsilon_low=epsilon_low,
        epsilon_high=epsilon_high,
        delta=delta,
        dual_clip=dual_clip,
    )


def of_rollout(estimator: Estimator) -> Callable[..., F64]:
    """β times the estimate with d = log π_rollout − log π_ref, [N]."""
    of_old = in_reward(estimator)

    def penalty(
        log_probs_ref: F64,
        log_probs_rollout: F64 | None = None,
        *,
        beta: float,
        kl_input_clamp: float | None,
        kl_output_clamp: float | None,
    ) -> F64:
        if log_probs_rollout is None:
            if beta:
                raise InputError(
                    "missing; the KL of AReaL's decoupled loss uses the engine's log-probs; "
                    "--kl k1-in-reward uses the old policy, as AReaL does without that loss",
                    path="log_probs_rollout",
                    record=0,
                )
            return np.zeros_like(log_probs_ref)
        penalties: F64 = of_old(
            log_probs_rollout,
            log_probs_ref,
            beta=beta,
            kl_input_clamp=kl_input_clamp,
            kl_output_clamp=kl_output_clamp,
        )
        return penalties

    penalty.__doc__ = f"""{estimator.__name__} of π_rollout against π_ref, in the reward.

    It is computed from d = log π_rollout − log π_ref and subtracted from the reward.

    References:
        AReaL with use_decoupled_loss. Without it AReaL uses the old policy
        (``{estimator.__name__}-in-reward``).
    """
    return penalty


for _of in (k1, k2, k3):
    choice(
        "kl",
        f"areal/{_of.__name__}-in-reward",
        in_reward=True,
        kl_input_clamp=None,
        kl_output_clamp=10.0,
    )(of_rollout(_of))


@choice("aggregate", "areal/token-mean")
def areal_token_mean(lengths: I64, responses: Segments, records: Segments) -> Weights:
    """AReaL's token mean: over a record's kept tokens; records are weighted by all their tokens.

    A record is treated as a micro-batch. The result differs from ``token-mean`` only if a
    correction such as ``areal/m2po`` removes tokens from the denominator.

    Args:
        lengths: [R] tokens that the correction kept.
        responses: has [R] all of their tokens.
    """
    whole = responses.lengths.astype(np.float64)
    share: F64 = records.sum(whole) / np.maximum(records.sum(lengths), 1)
    unit = np.repeat(share, records.lengths)
    return Weights(
        unit, whole, 1.0, "kept tokens of each record; records weighted by all their tokens"
    )
