"""Tinker's losses, as its documentation writes them, and its cookbook's advantage and KL penalty.

Losses are sums over tokens (metric loss:sum), and forward_backward calls add up until optim_step.
"""

from __future__ import annotations

from grpo_cli.batch import F64, Segments
from grpo_cli.frameworks.framework import Framework
from grpo_cli.objective.advantage.tokens import less_own_kl
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import ByToken, choice, reading
from grpo_cli.objective.row import Row, use, vary

choice("advantage", "tinker/group-mean")(
    reading(
        less_own_kl,
        """A = r − r̄ over the group, minus each token's own penalty (``--kl tinker/centred``).

    Args:
        task_rewards: [R] r, without the KL.

    References:
        tinker-cookbook 0.6.1, ``compute_advantages`` and ``incorporate_kl_penalty``.
    """,
    )
)


@choice("kl", "tinker/centred", "tinker/kl_penalty", in_reward=True)
def centred(
    log_probs_rollout: F64,
    log_probs_ref: F64,
    responses: Segments,
    records: Segments,
    *,
    beta: ByToken,
) -> F64:
    """Subtracts β·(d − d̄) from each token's advantage, d = log π_rollout − log π_ref.

    d̄ is the mean over the tokens of a record, which is treated as the training batch. The penalty
    therefore sums to 0 and does not change the mean advantage.

    Args:
        log_probs_rollout: [N] of the policy that sampled, nats.
        log_probs_ref: [N] of the base model, nats.
        beta: ``kl_penalty_coef``.

    References:
        tinker-cookbook 0.6.1, ``incorporate_kl_penalty`` with kl_discount_factor 0; its discount
        also counts masked positions, which records do not have.
    """
    difference = log_probs_rollout - log_probs_ref
    tokens = Groups(responses.spread(records.index), records.count)
    means = tokens.sum(difference) / tokens.sizes.clip(min=1)
    return beta * (difference - means[tokens.index])


IMPORTANCE_SAMPLING = Row(
    title="Tinker's importance_sampling",
    paper="",
    advantage=use("tinker/group-mean"),
    ratio=use("rollout"),
    surrogate=use("unclipped"),
    kl=use("none"),
    correction=use("none"),
    aggregate=use("sum"),
    reads=frozenset({"epsilon_low", "epsilon_high", "dro_beta"}),
    checked="read",
    version="cookbook 9dfcc3a (2026-08-19), docs/losses.mdx a2b1b82",
    note="The ratio uses the sampler's log-probs, and the loss is a plain sum over tokens: scale "
    "the advantages instead. For the cookbook's kl_penalty_coef, use --kl tinker/centred --beta. "
    "stable_reinforce, the default since 0.6, has no variant: its formula is not published, nor "
    "are the numbers it needs, which the sampler records.",
)

ROWS = {
    "tinker/importance_sampling": IMPORTANCE_SAMPLING,
    "tinker/ppo": vary(
        IMPORTANCE_SAMPLING, surrogate=use("clip", epsilon_low=0.2, epsilon_high=0.2)
    ).named(
        "Tinker's ppo",
        "Tinker's options are the bounds themselves, clip_low_threshold 0.8 and "
        "clip_high_threshold 1.2, not their distance from 1.",
        paper="1707.06347",
    ),
    "tinker/gspo": vary(
        IMPORTANCE_SAMPLING,
        version="tinker 0.38.0, docs/losses/gspo",
        ratio=use("rollout-sequence-token"),
        surrogate=use("clip", epsilon_low=0.2, epsilon_high=0.2),
    ).named(
        "Tinker's gspo (GSPO-token)",
        "The mean is over the tokens of sequence_ratio_mask; here over all unmasked tokens. "
        "Tinker's options are the bounds themselves, clip_low_threshold and clip_high_threshold. "
        "0.8 and 1.2 are ppo's; the paper's are 1 − 3e-4 and 1 + 4e-4.",
        paper="2507.18071",
    ),
    "tinker/cispo": vary(
        IMPORTANCE_SAMPLING, surrogate=use("cispo", epsilon_low=1.0, epsilon_high=3.0)
    ).named(
        "Tinker's cispo",
        "The bounds are clip_low_threshold 0 and clip_high_threshold 4 by default; an older "
        "example in Tinker's documentation uses 0.8 and 1.2.",
        paper="2506.13585",
    ),
    "tinker/dro": vary(IMPORTANCE_SAMPLING, surrogate=use("dro-rollout", dro_beta=0.05)).named(
        "Tinker's dro",
        "β has no documented default; 0.05 is from Tinker's example. There is no ratio. Prompt "
        "tokens are assumed to be masked.",
        paper="2405.19107",
    ),
}


FRAMEWORK = Framework(name="tinker", rows=ROWS, accumulation="sum")
