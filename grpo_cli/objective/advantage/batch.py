"""Advantages that are scaled by a statistic of the whole batch, and GDPO's.

A batch statistic of one element is never divided by: a response alone has offset 0, and 0 stays
exactly 0 whatever the std (where torch's std would be nan).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import HyperparameterError
from grpo_cli.objective.advantage.group import group_std
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import ByResponse, Composed, Parameters, call, choice, parameters
from grpo_cli.objective.results import Moments, PerToken, Sample

Advantage = F64 | PerToken


def over_batch(
    normalise: Callable[..., F64],
    each: Literal["response", "token"] = "token",
    doc: str | None = None,
) -> Callable[[Callable[..., Advantage]], Composed]:
    """Makes of an advantage x one that is normalised with the moments of x over the batch.

    Args:
        normalise: gets x and its moments, both per response [R] or token [N], as x is; its
            keyword-only parameters are hyperparameters.
        each: what counts once in the moments where x is one per response; where x differs between
            the tokens of a response it is always the token.
        doc: the docstring; None: that of x.
    """

    def made(advantage: Callable[..., Advantage]) -> Composed:
        own, how = parameters(advantage), parameters(normalise).hyperparameters
        read = own | Parameters(("responses",))
        takes = read | Parameters(("moments",), hyperparameters=how)

        def sample(columns: Mapping[str, Any], values: Mapping[str, Any]) -> Sample:
            found, responses = call(advantage, columns, values), columns["responses"]
            if isinstance(found, PerToken):
                return Sample(found.values, np.ones(responses.total), per_token=True)
            if each == "token":
                return Sample(found, responses.lengths.astype(np.float64))
            return Sample(found, np.ones(responses.count))

        def normalised(columns: Mapping[str, Any], values: Mapping[str, Any]) -> Advantage:
            found, moments = call(advantage, columns, values), columns["moments"]
            settings = {name: values[name] for name in how}
            if isinstance(found, PerToken):
                spread = Moments(*(columns["responses"].spread(part) for part in moments))
                return PerToken(normalise(found.values, spread, **settings))
            return normalise(found, moments, **settings)

        shown = advantage.__doc__ if doc is None else doc
        returns = advantage.__annotations__["return"]
        return Composed(takes, normalised, shown, returns, Composed(read, sample, shown))

    return made


def scaled(offsets: F64, moments: Moments, *, std_ddof: int, std_eps: ByResponse) -> F64:
    """Offsets [R or N] over σ + eps, ``moments`` having as many elements; 0 stays exactly 0.

    Raises:
        HyperparameterError: where the batch has not more elements than ``std_ddof``.
    """
    sigma = moments.std(std_ddof)
    moved = offsets != 0
    if np.isnan(sigma[moved]).any():
        count = int(moments.count[moved].min())
        raise HyperparameterError(
            "std_ddof", f"expected less than the {count} elements of the batch, got {std_ddof}"
        )
    return np.divide(offsets, sigma + std_eps, out=np.zeros_like(offsets), where=moved)


def standardised(values: F64, moments: Moments, *, std_ddof: int, std_eps: float) -> F64:
    """(x − x̄)/(σ + eps), as ``scaled``."""
    return scaled(values - moments.mean, moments, std_ddof=std_ddof, std_eps=std_eps)


def sample_rewards(rewards: F64) -> Sample:
    """The rewards, each response counting once."""
    return Sample(rewards, np.ones_like(rewards))


@choice("advantage", "batch-std", "batch", measure=sample_rewards, std_ddof=1, std_eps=1e-8)
def batch_std(
    rewards: F64, groups: Groups, moments: Moments, *, std_ddof: int, std_eps: ByResponse
) -> F64:
    """A = (r − r̄_group) / (σ_batch + eps), σ_batch over the rewards of the whole batch.

    References:
        Liu et al., Tricks or Traps? (Lite PPO), 2025 (arXiv 2508.08221). TRL: scale_rewards
        batch, ddof 1, eps 1e-4; ROLL: 1e-6.
    """
    return scaled(groups.offsets(rewards), moments, std_ddof=std_ddof, std_eps=std_eps)


@choice("advantage", "batch-whiten", std_ddof=1, std_eps=1e-8)
@over_batch(scaled, each="response")
def batch_whiten(rewards: F64, groups: Groups) -> F64:
    """A = x / (σ_batch(x) + eps), x = r − r̄_group, over the responses of the batch.

    The mean of x is 0, because it is 0 in each group.

    References:
        Hu et al., REINFORCE++ with baseline, 2025 (arXiv 2501.03262), over responses, as in TRL
        and ms-swift (``token-whiten`` is over tokens); Khatri et al., ScaleRL, 2025 (arXiv
        2510.13786).
    """
    return groups.offsets(rewards)


@choice("advantage", "token-whiten", "reinforce_plus_plus_baseline", std_ddof=1, std_eps=1e-8)
@over_batch(standardised)
def token_whiten(rewards: F64, groups: Groups) -> F64:
    """A = (x − x̄_batch) / (σ_batch(x) + eps), x = r − r̄_group, over the tokens of the batch.

    Longer responses count more, so x̄ is not 0, and a group with equal rewards has a nonzero
    advantage.

    Args:
        moments: mean and std of x = r − r̄_group over the tokens of the batch.

    References:
        Hu et al., REINFORCE++ with baseline, 2025 (arXiv 2501.03262), as its authors' OpenRLHF,
        verl and NeMo-RL compute it (OpenRLHF and NeMo-RL with ddof 0).
    """
    return groups.offsets(rewards)


def _live(rewards: F64, groups: Groups) -> Sample:
    spans = groups.reduce(lambda rows: np.ptp(rows, axis=1), rewards)
    return Sample((spans[groups.index] != 0).astype(np.float64), np.ones_like(rewards))


@choice("advantage", "live-mean", "gpg", measure=_live)
def live_mean(rewards: F64, groups: Groups, moments: Moments) -> F64:
    """A = α·(r − r̄_group), α = all responses / responses of groups whose rewards differ.

    Args:
        moments: mean and std of 1 for a response of a group whose rewards differ, else 0.

    References:
        Chu et al., GPG, 2025 (arXiv 2504.02546), α = B/(B−M), F_norm = 1. verl's α counts nonzero
        scores instead, so it depends on the reward values.
    """
    offsets = groups.offsets(rewards)
    return np.divide(offsets, moments.mean, out=np.zeros_like(offsets), where=offsets != 0)


@choice("advantage", "decoupled", "gdpo", "normalize_then_sum", std_ddof=1, std_eps=1e-8)
@over_batch(scaled, each="response")
def decoupled(
    reward_columns: F64,
    groups: Groups,
    reward_weights: F64 | None = None,
    *,
    std_ddof: int,
    std_eps: float,
) -> F64:
    """A = S/(σ_batch(S) + eps), S = Σₖ wₖ·(rₖ − r̄ₖ)/(σₖ + eps) over the group.

    Each reward function is normalised within the group before the sum, so its scale does not
    matter. The paper also subtracts the mean of S, which is 0. A KL in the reward is not part of
    S.

    Args:
        moments: mean and std of S over the batch, one element per response.
        reward_weights: [K] wₖ; None: ones.

    References:
        GDPO, 2026 (arXiv 2601.05242). TRL: eps 1e-4 in both steps; ms-swift: 1e-8; verl: 1e-6,
        then whitens over tokens; NeMo-RL: leave-one-out in the first step, no eps in the second.
    """
    total = np.zeros(len(reward_columns))
    for k, column in enumerate(reward_columns.T):
        given = ~np.isnan(column)  # a function that gave no reward counts nothing
        among = Groups(groups.index[given], groups.count)
        own = np.zeros(len(column))
        own[given] = group_std(
            column[given], among, std_ddof=std_ddof, std_eps=std_eps, std_min=0.0
        )
        total += own if reward_weights is None else reward_weights[k] * own
    return total


def of_every_function(reward_columns: F64) -> F64:
    """[K, R] the reward functions, for a GDPO that has no rule for one that gave none.

    Raises:
        InputError: where one gave none.
    """
    if np.isnan(reward_columns).any():
        raise InputError(
            "expected a reward from every function, got null from one: this GDPO does not define "
            "that case (--advantage decoupled ignores it, as TRL does)",
            path="rewards",
        )
    return reward_columns.T
