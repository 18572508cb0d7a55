"""Advantages per token: the return from each token on."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64, Segments
from grpo_cli.objective.advantage.batch import scaled
from grpo_cli.objective.advantage.whiten import to_go
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Moments, PerToken, Sample


def returns(
    task_rewards: F64, token_penalty: F64, responses: Segments, *, gamma: float
) -> PerToken:
    """Aₜ = Gₜ = γ^(T−t)·r − Σₛ≥ₜ γ^(s−t)·penaltyₛ: the return from each token on.

    The reward stands at the last token, a KL in the reward at every token; so a token pays for
    the KL of those behind it as well as its own.

    Args:
        task_rewards: [R] rewards, without the KL.
        token_penalty: [N] β·k at each token, where the KL is in the reward; else 0.
        responses: cuts the tokens into responses.
        gamma: discount per token.

    References:
        Williams, REINFORCE, 1992; Hu et al., REINFORCE++, 2025 (arXiv 2501.03262), γ = 1.
    """
    return PerToken(to_go(task_rewards, token_penalty, responses, gamma))


def returns_whiten(
    task_rewards: F64,
    token_penalty: F64,
    responses: Segments,
    moments: Moments,
    *,
    gamma: float,
    std_ddof: int,
    std_eps: float,
) -> PerToken:
    """Aₜ = (Gₜ − Ḡ)/(σ(G) + eps), the ``returns`` whitened over the tokens of the batch.

    G being the return of a token, Ḡ and σ the mean and the standard deviation of all of them.

    Args:
        task_rewards: [R] rewards, without the KL.
        token_penalty: [N] β·k at each token, where the KL is in the reward; else 0.
        responses: cuts the tokens into responses.
        moments: of G over the batch, one element per token.
        gamma: discount per token.
        std_ddof: degrees of freedom taken off in σ.
        std_eps: added to σ.

    References:
        Hu et al., REINFORCE++, 2025 (arXiv 2501.03262), "global advantage normalization".
        verl, slime: ddof 1, 1e-8 added to the variance; OpenRLHF: ddof 0, the variance at least
        1e-8.
    """
    values = to_go(task_rewards, token_penalty, responses, gamma)
    spread = Moments(*(np.repeat(column, responses.lengths) for column in moments))
    return PerToken(scaled(values - spread.mean, spread, std_ddof, std_eps))


def _measure(task_rewards: F64, token_penalty: F64, responses: Segments, *, gamma: float) -> Sample:
    values = to_go(task_rewards, token_penalty, responses, gamma)
    return Sample(values, np.ones_like(values), per_token=True)


_STD = {"gamma": 1.0, "std_ddof": 1, "std_eps": 1e-8}

CHOICES = {
    "returns": Choice(returns, {"gamma": 1.0}),
    "returns-whiten": Choice(returns_whiten, _STD, _measure),
}
ALIASES = {"reinforce_plus_plus": "returns-whiten"}
