"""Advantages per token: returns, a critic's, and the KL in the reward at each token.

A response's score is on its last token and a KL in the reward is taken off every token; a
token's advantage is then the sum over the tokens to come (``returns``, ``less_kl_to_come``), or has
its own KL taken off alone (``less_own_kl``). Without a KL in the reward the latter two give one
advantage per response.
"""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64, Segments
from grpo_cli.errors import InputError
from grpo_cli.objective.advantage.batch import Advantage, over_batch, standardised
from grpo_cli.objective.advantage.group import group_mean
from grpo_cli.objective.arithmetic.groups import Groups, suffix_sums
from grpo_cli.objective.choice import choice
from grpo_cli.objective.results import Moments, PerToken

_TINY = 1e-8  # what verl adds to the count of a mean, and to the variance


def to_go(task_rewards: F64, token_penalty: F64, responses: Segments, gamma: float) -> F64:
    """[N] Σₖ γᵏ·R_{t+k}: R is the reward on a response's last token, less each token's penalty."""
    filled = responses.lengths > 0
    rewards = -token_penalty
    rewards[(np.cumsum(responses.lengths) - 1)[filled]] += task_rewards[filled]
    return suffix_sums(rewards, responses, gamma)


def whiten(values: F64, moments: Moments) -> F64:
    """(x − m)/√(v + 1e-8), with m = Σx/(n + 1e-8), v = Σ(x − m)²/(n + 1e-8) · n/(n − 1).

    Args:
        values: x, per response [R] or token [N], as the moments are.
        moments: mean and std of x over the n tokens of the batch.

    Raises:
        InputError: for a batch of a single token, as verl does.
    """
    count = moments.count
    if (count == 1.0).any():
        raise InputError("expected at least 2 tokens to whiten the advantages over, got 1")
    mean = moments.mean * (count / (count + _TINY))
    squares = moments.squares + count * np.square(moments.mean - mean)
    variance = squares / (count + _TINY) * (count / np.maximum(count - 1.0, 1.0))
    return (values - mean) / np.sqrt(variance + _TINY)


def less_kl_to_come(
    scores: F64, token_penalty: F64, responses: Segments, clip: float | None
) -> Advantage:
    """The score of each response, less the penalty of each token and of those after it."""
    if clip is not None:
        scores = np.clip(scores, -clip, clip)
    if not token_penalty.any():
        return scores
    to_come = suffix_sums(token_penalty, responses, 1.0)
    return PerToken(responses.spread(scores) - to_come)


def less_own_kl(
    task_rewards: F64, groups: Groups, token_penalty: F64, responses: Segments
) -> Advantage:
    """R − r̄ less each token's own penalty."""
    scores = group_mean(task_rewards, groups)
    if not token_penalty.any():
        return scores
    return PerToken(responses.spread(scores) - token_penalty)


def whiten_floored(values: F64, moments: Moments) -> F64:
    """(A − m)/√max(v, 1e-8), v with ddof 0."""
    variance = np.maximum(moments.squares / np.maximum(moments.count, 1.0), 1e-8)
    return (values - moments.mean) / np.sqrt(variance)


@choice("advantage", "returns", gamma=1.0)
def returns(
    task_rewards: F64, token_penalty: F64, responses: Segments, *, gamma: float
) -> PerToken:
    """Aₜ = Gₜ = γ^(T−t)·r − Σₛ≥ₜ γ^(s−t)·penaltyₛ: the return from each token on.

    The reward is on the last token, and a KL in the reward is on every token, so a token's return
    includes its own KL and that of all later tokens.

    Args:
        token_penalty: [N] β·k at each token, where the KL is in the reward; else 0.

    References:
        Williams, REINFORCE, 1992; Hu et al., REINFORCE++, 2025 (arXiv 2501.03262), γ = 1.
    """
    return PerToken(to_go(task_rewards, token_penalty, responses, gamma))


choice("advantage", "returns-whiten", "reinforce_plus_plus", gamma=1.0, std_ddof=1, std_eps=1e-8)(
    over_batch(
        standardised,
        doc="""Aₜ = (Gₜ − Ḡ)/(σ(G) + eps), the ``returns`` whitened over the tokens of the batch.

    Ḡ and σ are the mean and the standard deviation of the returns.

    Args:
        token_penalty: [N] β·k at each token, where the KL is in the reward; else 0.
        moments: mean and std of G over the batch, one element per token.

    References:
        Hu et al., REINFORCE++, 2025 (arXiv 2501.03262), "global advantage normalization".
        verl, slime: ddof 1, 1e-8 added to the variance; OpenRLHF: ddof 0, the variance at least
        1e-8.
    """,
    )(returns)
)


@choice("advantage", "gae", gamma=1.0, gae_lambda=0.95)
def gae(
    task_rewards: F64,
    token_penalty: F64,
    values: F64,
    responses: Segments,
    *,
    gamma: float,
    gae_lambda: float,
) -> PerToken:
    """GAE: Aₜ = Σₛ≥ₜ (γλ)^(s−t)·δₛ, δₜ = rₜ + γ·V(t+1) − V(t), V = 0 after the last token.

    V is the critic's value. rₜ is the reward (on the last token) minus the KL penalty of the
    token.

    Args:
        task_rewards: [R] the reward, on the last token of a response.
        responses: which tokens belong to each response; masked ones are skipped.
        gae_lambda: λ.

    References:
        Schulman et al., High-Dimensional Continuous Control Using GAE, 2015 (arXiv 1506.02438).
    """
    filled = responses.lengths > 0
    last = (np.cumsum(responses.lengths) - 1)[filled]
    following = np.append(values[1:], 0.0)[: len(values)]
    following[last] = 0.0
    errors = gamma * following - values - token_penalty
    errors[last] += task_rewards[filled]
    return PerToken(suffix_sums(errors, responses, gamma * gae_lambda))


@choice("advantage", "remax")
def remax(
    task_rewards: F64, reward_baselines: F64, token_penalty: F64, responses: Segments
) -> Advantage:
    """ReMax: A = r − b minus the KL of this and all later tokens; b is a greedy response's reward.

    Args:
        task_rewards: [R] r, without the KL.
        reward_baselines: [R] b.

    References:
        Li et al., ReMax, 2023 (arXiv 2310.10505), as verl 0.9.1 has it.
    """
    return less_kl_to_come(task_rewards - reward_baselines, token_penalty, responses, None)
