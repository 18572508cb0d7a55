"""Stage 6, aggregate: what is the denominator? The aggregations that papers use."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import I64, Segments
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import ByResponse, choice
from grpo_cli.objective.results import Weights, per_token


@choice("aggregate", "response-mean", "seq-mean-token-mean")
def response_mean(lengths: I64) -> Weights:
    """Mean over responses of their token means: w = 1 / (R·|oᵢ|).

    A response without tokens contributes 0 but counts as a response.

    References:
        Shao et al., DeepSeekMath (GRPO), 2024 (arXiv 2402.03300). verl: seq-mean-token-mean.
    """
    return Weights(per_token(lengths), np.ones(len(lengths)), 1.0, "responses, of token means")


@choice("aggregate", "token-mean")
def token_mean(lengths: I64) -> Weights:
    """Mean over all tokens: w = 1 / Σᵢ|oᵢ|.

    References:
        Yu et al., DAPO, 2025 (arXiv 2503.14476); the paper averages over the tokens of a group
        (``prompt-mean``), most frameworks over those of the batch. TRL: bnpo, dapo.
    """
    return Weights(np.ones(len(lengths)), lengths.astype(np.float64), 1.0, "tokens")


@choice("aggregate", "token-sum", "seq-mean-token-sum", total=True)
def token_sum(lengths: I64) -> Weights:
    """Mean over responses of their token sums: w = 1 / R.

    References:
        Liu et al., Dr. GRPO, 2025 (arXiv 2503.20783). verl: seq-mean-token-sum.
    """
    return Weights(np.ones(len(lengths)), np.ones(len(lengths)), 1.0, "responses")


@choice("aggregate", "token-sum-norm", "seq-mean-token-sum-norm", total=True)
def token_sum_norm(lengths: I64, *, max_completion_length: ByResponse) -> Weights:
    """Mean over responses of their token sums, divided by a constant length: w = 1 / (R·L).

    References:
        Liu et al., Dr. GRPO, 2025 (arXiv 2503.20783), whose code divides by the generation limit.
        TRL: dr_grpo. verl: seq-mean-token-sum-norm.
    """
    ones = np.ones(len(lengths))
    return Weights(ones, ones, max_completion_length, "responses × max_completion_length")


@choice("aggregate", "prompt-mean")
def prompt_mean(lengths: I64, groups: Groups) -> Weights:
    """Mean over groups of their token means: w = 1 / (groups · tokens of the group).

    References:
        Yu et al., DAPO, 2025 (arXiv 2503.14476), its equation as written.
    """
    tokens = groups.count_tokens(lengths)
    return Weights(per_token(tokens), groups.firsts, 1.0, "groups, of token means")


@choice("aggregate", "turn-mean")
def turn_mean(
    responses: Segments, turns: Segments, counted: NDArray[np.bool_] | None = None
) -> Weights:
    """Mean over turns of their token means: w = 1 / (turns · tokens of the turn).

    Trajectories with more turns have more weight. A response without tokens contributes 0 but
    counts as a turn.

    Args:
        counted: [N] the tokens that the denominators count; None: all.

    References:
        Feng et al., GiGPO, 2025 (arXiv 2505.10978), its 1/(N·T). Equals ``response-mean`` on dumps
        with one response per turn, such as agent-lightning's and SkyRL's.
    """
    tokens = turns.lengths if counted is None else turns.sum(counted.astype(np.int64))
    number = np.bincount(responses.index[turns.starts], minlength=responses.count)
    return Weights(
        np.ones(responses.count),
        np.maximum(number, 1).astype(np.float64),
        1.0,
        "turns, of token means",
        turns.spread(per_token(tokens)),
    )


@choice("aggregate", "trajectory-mean")
def trajectory_mean(lengths: I64, trajectories: Groups) -> Weights:
    """Mean over trajectories of their token means: w = 1 / (trajectories · tokens of each).

    Equals ``response-mean`` if each trajectory is one response, but also works if it is several.

    References:
        agent-lightning's ``per_rollout_mean`` divides by the rows instead of the trajectories.
    """
    tokens = trajectories.count_tokens(lengths)
    return Weights(per_token(tokens), trajectories.firsts, 1.0, "trajectories, of token means")


@choice("aggregate", "response-sum")
def response_sum(lengths: I64) -> Weights:
    """Sum over responses of their token means: w = 1 / |oᵢ|.

    References:
        Yang et al., DCPO, 2025 (arXiv 2509.02333), "only token mean". In its released code, that
        name computes ``token-mean``.
    """
    return Weights(per_token(lengths), None, 1.0, "tokens of the response")


@choice("aggregate", "sum", total=True)
def total_sum(lengths: I64) -> Weights:
    """Plain sum over all tokens: w = 1.

    References:
        Tinker's losses; verl: token-sum.
    """
    return Weights(np.ones(len(lengths)), None, 1.0, "nothing: a plain sum")
