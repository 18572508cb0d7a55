"""Advantages by the sign of the reward alone, or among the responses that a filter keeps."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64, I64
from grpo_cli.objective.advantage.group import group_std
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import choice


@choice("advantage", "signed", "psr_nsr", positive_weight=1.0, negative_weight=1.0)
def signed(rewards: F64, *, positive_weight: float, negative_weight: float) -> F64:
    """A = w₊ if r > 0, else −w₋: positive and negative sample reinforcement.

    Only the sign of the reward counts; rewards 1 and 0 give the same as 1 and −1.

    Args:
        positive_weight: w₊: 1 for PSR, 0 for NSR, λ for W-REINFORCE.
        negative_weight: w₋: 0 for PSR, 1 for NSR and W-REINFORCE.

    References:
        Zhu et al., The Surprising Effectiveness of Negative Reinforcement in LLM Reasoning, 2025
        (arXiv 2506.01347), λ = 0.1. The released code does this for scores of 1 and 0 and uses any
        other score as the advantage.
    """
    return np.where(rewards > 0, positive_weight, -negative_weight) + 0.0


@choice("advantage", "shortest", gfpo_keep=8, std_ddof=0, std_eps=0.0)
def shortest(
    rewards: F64, lengths: I64, groups: Groups, *, gfpo_keep: int, std_ddof: int, std_eps: float
) -> F64:
    """GFPO: A = (r − r̄_S)/(σ_S + eps) over the k shortest responses S of the group; 0 for others.

    Responses as long as the k-th shortest are kept too.

    Args:
        gfpo_keep: k; a group that has fewer is kept whole.
        std_ddof: 0 divides by |S|, as the paper does.

    References:
        Shrivastava et al., Sample More to Think Less (GFPO), 2025 (arXiv 2508.09726). TRL's
        GFPOTrainer, until 1.7.1: ddof 1, eps 1e-4.
    """
    return _among(rewards, -lengths.astype(np.float64), groups, gfpo_keep, std_ddof, std_eps)


@choice("advantage", "token-efficient", gfpo_keep=8, std_ddof=0, std_eps=0.0)
def token_efficient(
    rewards: F64, lengths: I64, groups: Groups, *, gfpo_keep: int, std_ddof: int, std_eps: float
) -> F64:
    """GFPO by token efficiency: keeps the k responses with the largest r/|o|.

    Args:
        rewards, lengths, groups, gfpo_keep, std_ddof, std_eps: as for ``shortest``; a response
            without tokens counts as one token long.

    References:
        Shrivastava et al., Sample More to Think Less (GFPO), 2025 (arXiv 2508.09726).
    """
    scores = rewards / np.maximum(lengths, 1)
    return _among(rewards, scores, groups, gfpo_keep, std_ddof, std_eps)


def _among(
    rewards: F64, scores: F64, groups: Groups, keep: int, std_ddof: int, std_eps: float
) -> F64:
    """``group_std`` of the best-scored ``keep`` of each group alone."""
    least = groups.reduce(lambda rows: np.sort(rows, axis=1)[:, -min(keep, rows.shape[1])], scores)
    kept = scores >= least[groups.index]
    inside = Groups(groups.index[kept], groups.count)
    advantage = np.zeros_like(rewards)
    advantage[kept] = group_std(
        rewards[kept], inside, std_ddof=std_ddof, std_eps=std_eps, std_min=0.0
    )
    return advantage
