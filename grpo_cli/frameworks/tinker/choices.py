"""The Tinker cookbook's advantage, and the KL penalty that it adds to the advantages."""

from __future__ import annotations

from grpo_cli.batch import F64, Segments
from grpo_cli.objective.advantage.tokens import less_own_kl
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import choice, reading

choice("advantage", "tinker/group-mean")(
    reading(
        less_own_kl,
        """A = r − r̄ over the group, minus each token's own penalty (``--kl tinker/centred``).

    Args:
        task_rewards: [R] r, without the KL.
        groups, responses: which responses answer the same prompt; cut the tokens.
        token_penalty: [N] what the KL takes off at each token.

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
    beta: float,
) -> F64:
    """Subtracts β·(d − d̄) from each token's advantage, d = log π_rollout − log π_ref.

    d̄ is the mean over the tokens of a record, which is treated as the training batch. The penalty
    therefore sums to 0 and does not change the mean advantage.

    Args:
        log_probs_rollout: [N] of the policy that sampled, nats.
        log_probs_ref: [N] of the base model, nats.
        responses, records: cut the tokens into responses, and the responses into records.
        beta: ``kl_penalty_coef``.

    References:
        tinker-cookbook 0.6.1, ``incorporate_kl_penalty`` with kl_discount_factor 0; its discount
        also counts masked positions, which records do not have.
    """
    difference = log_probs_rollout - log_probs_ref
    tokens = Groups(responses.spread(records.index), records.count)
    means = tokens.sum(difference) / tokens.sizes.clip(min=1)
    return beta * (difference - means[tokens.index])
