"""Advantages that are scaled by a statistic of the whole batch.

A batch statistic of one element is never divided by: a response alone has offset 0, and 0 stays
exactly 0 whatever the std (where torch's std would be nan).
"""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64, I64
from grpo_cli.hyperparameters import HyperparameterError
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Moments, Sample


def batch_std(
    rewards: F64, groups: Groups, moments: Moments, *, std_ddof: int, std_eps: float
) -> F64:
    """A = (r − r̄_group) / (σ_batch + eps), σ_batch over the rewards of the whole batch.

    Args:
        rewards: [R] one per response.
        groups: which responses answer the same prompt.
        moments: of the rewards of the batch, one element per response.
        std_ddof: degrees of freedom taken off; 1 is torch's default.
        std_eps: added to σ.

    References:
        Liu et al., Tricks or Traps? (Lite PPO), 2025 (arXiv 2508.08221). TRL: scale_rewards
        batch, ddof 1, eps 1e-4; ROLL: 1e-6.
    """
    return scaled(groups.offsets(rewards), moments, std_ddof, std_eps)


def batch_whiten(
    rewards: F64, groups: Groups, moments: Moments, *, std_ddof: int, std_eps: float
) -> F64:
    """A = x / (σ_batch(x) + eps) with x = r − r̄_group, each response counting once.

    The mean of x over the batch is 0, since it is 0 in every group.

    Args:
        rewards: [R] one per response.
        groups: which responses answer the same prompt.
        moments: of x over the batch, one element per response.
        std_ddof, std_eps: of σ.

    References:
        Hu et al., REINFORCE++ with baseline, 2025 (arXiv 2501.03262), read per response, as TRL
        and ms-swift do; Khatri et al., ScaleRL, 2025 (arXiv 2510.13786).
        ``token-whiten`` reads it per token.
    """
    return scaled(groups.offsets(rewards), moments, std_ddof, std_eps)


def token_whiten(
    rewards: F64, groups: Groups, moments: Moments, *, std_ddof: int, std_eps: float
) -> F64:
    """A = (x − x̄_batch) / (σ_batch(x) + eps), x = r − r̄_group, over the tokens of the batch.

    A response counts as often as it has tokens, so the mean is not 0 and a group of equal rewards
    has an advantage, the same for all of it.

    Args:
        rewards: [R] one per response.
        groups: which responses answer the same prompt.
        moments: of x = r − r̄_group over the tokens of the batch.
        std_ddof, std_eps: of σ.

    References:
        Hu et al., REINFORCE++ with baseline, 2025 (arXiv 2501.03262), as its authors' OpenRLHF,
        verl and NeMo-RL compute it (OpenRLHF and NeMo-RL with ddof 0).
    """
    return scaled(groups.offsets(rewards) - moments.mean, moments, std_ddof, std_eps)


def live_mean(rewards: F64, groups: Groups, moments: Moments) -> F64:
    """A = α·(r − r̄_group), α = responses of the batch / those in groups whose rewards differ.

    Args:
        rewards: [R] one per response.
        groups: which responses answer the same prompt.
        moments: of 1 for a response in a group whose rewards differ and 0 for any other.

    References:
        Chu et al., GPG, 2025 (arXiv 2504.02546), its α = B/(B−M) with F_norm = 1. verl's α counts
        the scores other than 0 instead, which depends on how rewards are coded.
    """
    offsets = groups.offsets(rewards)
    return np.divide(offsets, moments.mean, out=np.zeros_like(offsets), where=offsets != 0)


def scaled(offsets: F64, moments: Moments, std_ddof: int, std_eps: float) -> F64:
    """Offsets [R or N] over σ + eps, ``moments`` having as many elements; 0 stays exactly 0.

    Raises:
        HyperparameterError: where the batch has not more elements than ``std_ddof``.
    """
    sigma = moments.std(std_ddof)
    moved = offsets != 0
    if np.isnan(sigma[moved]).any():
        count = int(moments.count[moved].min())
        raise HyperparameterError(
            "std_ddof", f"expected less than the batch's {count} elements, got {std_ddof}"
        )
    return np.divide(offsets, sigma + std_eps, out=np.zeros_like(offsets), where=moved)


def _rewards(rewards: F64) -> Sample:
    return Sample(rewards, np.ones_like(rewards))


def _offsets(rewards: F64, groups: Groups) -> Sample:
    return Sample(groups.offsets(rewards), np.ones_like(rewards))


def _token_offsets(rewards: F64, groups: Groups, lengths: I64) -> Sample:
    return Sample(groups.offsets(rewards), lengths.astype(np.float64))


def _live(rewards: F64, groups: Groups) -> Sample:
    spans = groups.reduce(lambda rows: np.ptp(rows, axis=1), rewards)
    return Sample((spans[groups.index] != 0).astype(np.float64), np.ones_like(rewards))


_STD = {"std_ddof": 1, "std_eps": 1e-8}

CHOICES = {
    "batch-std": Choice(batch_std, _STD, _rewards),
    "batch-whiten": Choice(batch_whiten, _STD, _offsets),
    "token-whiten": Choice(token_whiten, _STD, _token_offsets),
    "live-mean": Choice(live_mean, measure=_live),
}
ALIASES = {
    "batch": "batch-std",
    "reinforce_plus_plus_baseline": "token-whiten",
    "gpg": "live-mean",
}
