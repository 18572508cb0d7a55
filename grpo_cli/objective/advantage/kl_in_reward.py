"""Group advantages from which a KL in the reward is taken off token by token.

A response's score stands on its last token and β·k is taken off every token; a token's advantage
is then the sum over the tokens to come (``returns``), or has its own β·k taken off alone
(``own_penalty``). Without a KL in the reward the advantage is one per response.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from grpo_cli.batch import F64, Segments
from grpo_cli.objective.advantage.group import group_mean
from grpo_cli.objective.arithmetic.groups import Groups, suffix_sums
from grpo_cli.objective.choice import positional
from grpo_cli.objective.results import Moments, PerToken, Sample

Advantage = F64 | PerToken


def returns(scores: F64, token_penalty: F64, responses: Segments, clip: float | None) -> Advantage:
    """The score of each response, less the penalty of each token and of those after it."""
    if clip is not None:
        scores = np.clip(scores, -clip, clip)
    if not token_penalty.any():
        return scores
    to_come = suffix_sums(token_penalty, responses, 1.0)
    return PerToken(responses.spread(scores) - to_come)


def own_penalty(
    task_rewards: F64, groups: Groups, token_penalty: F64, responses: Segments
) -> Advantage:
    """R − r̄ less each token's own penalty."""
    scores = group_mean(task_rewards, groups)
    if not token_penalty.any():
        return scores
    return PerToken(responses.spread(scores) - token_penalty)


def over_tokens(advantage: Callable[..., Advantage]) -> Callable[..., Sample]:
    """The measure that has every token's advantage, before it is scaled, in the sample."""
    place = positional(advantage).index("responses")

    @wraps(advantage)
    def measured(*columns: Any, **values: Any) -> Sample:
        responses, found = columns[place], advantage(*columns, **values)
        if isinstance(found, PerToken):
            return Sample(found.values, np.ones(responses.total), per_token=True)
        return Sample(found, responses.lengths.astype(np.float64))

    return measured


def scaled(advantage: Advantage, responses: Segments, moments: Moments, scale: F64) -> Advantage:
    """(A − m) / scale; ``scale`` [R] is of the batch that each response belongs to."""
    if isinstance(advantage, PerToken):
        centre, scale = responses.spread(moments.mean), responses.spread(scale)
        return PerToken((advantage.values - centre) / scale)
    return (advantage - moments.mean) / scale


def floored_std(moments: Moments) -> F64:
    """[R] √max(v, 1e-8), v with ddof 0."""
    return np.sqrt(np.maximum(moments.squares / np.maximum(moments.count, 1.0), 1e-8))
