"""What the metrics of a run are, each in a line with its unit."""

from __future__ import annotations

import re
from collections.abc import Mapping

LEGEND: Mapping[str, str] = {
    "reward_mean": "mean reward of the responses",
    "reward_std": "standard deviation of all rewards of the step",
    "reward_group_std": "standard deviation of rewards, mean over groups",
    "reward_length_corr": "correlation of reward and length within groups",
    "reward_advantage_corr": "correlation of reward and recorded advantage within groups",
    "groups_equal": "share of groups whose rewards are all equal",
    "groups_all_0": "share of groups without a right answer",
    "groups_all_1": "share of groups with right answers only",
    "pass_at_1": "share of responses that are right",
    "pass_at_k": "share of prompts with a right response",
    "length_mean": "mean length of responses, in tokens",
    "length_p95": "length that 95 % of responses do not exceed, in tokens",
    "at_longest": "share of responses as long as the longest",
    "truncated": "share of responses that were cut off",
    "repetition": "share of 4-grams that the response already had",
    "entropy": "mean entropy of the next token, in nats",
    "nll": "mean −log π of the sampled tokens, in nats (0: certain)",
    "objective": "J, which training maximises",
    "loss": "−J, which training minimises",
    "recorded_loss": "the loss that the records hold, which grpo did not compute",
    "kl": "KL from the reference as the loss averages it, in nats",
    "kl_k1": "k1 estimate of the KL from the reference, in nats per token",
    "kl_k3": "k3 estimate of the KL from the reference, in nats per token",
    "clip_low": "share of tokens clipped at the lower bound",
    "clip_high": "share of tokens clipped at the upper bound",
    "clip_fraction": "share of tokens clipped at either bound",
    "gradient_norm": "norm of the gradient of the loss with respect to the tokens' log π",
    "longest_quarter": "share of the gradient in the longest quarter",
    "ratio_mean": "mean ratio π_θ / π_old",
    "ratio_p999": "ratio π_θ / π_old that 99.9 % of tokens are below",
    "ess": "effective sample size of the ratios (1: all equal)",
    "staleness": "versions of the weights from sampling to training",
    "mismatch.k1": "k1 of the trainer against the engine, in nats per token",
    "mismatch.k3": "k3 of the trainer against the engine, in nats per token",
    "mismatch.chi2": "χ² of the trainer against the engine",
    "mismatch.ess": "effective sample size of π_trainer / π_engine (1: all equal)",
    "mismatch.mean_abs": "mean |log π_trainer − log π_engine|, in nats",
    "mismatch.mult": "mean of the larger of π_trainer / π_engine and its inverse",
    "mismatch.p999": "|log π_trainer − log π_engine| that 99.9 % of tokens are below, in nats",
    "left_out": "records left out because they hold NaN",
}
"""Column of ``trend`` → what it is."""

_D = "d = log π_old − log π_rollout of each token (log π_θ where log_probs_old is missing)"
FORMULAS: Mapping[str, str] = {
    "reward_std": "with n − 1",
    "reward_group_std": "each with n − 1",
    "kl": "Σ w·k, with w of the aggregation and k of the KL's estimator",
    "kl_k1": "the mean of log π_θ − log π_ref",
    "kl_k3": "the mean of e^x − 1 − x, with x = log π_ref − log π_θ",
    "gradient_norm": "√Σ (∂J/∂log π_θ)² over the tokens",
    "longest_quarter": "Σ |∂J/∂log π_θ| of its tokens, divided by that of all",
    "ess": "(Σ ρ)² / (n·Σ ρ²), with the ratio ρ = π_θ / π_old of each of n tokens",
    "mismatch.k1": f"the mean of −d, {_D}",
    "mismatch.k3": f"the mean of e^d − 1 − d, {_D}",
    "mismatch.chi2": f"the mean of e^2d − 1, {_D}",
    "mismatch.ess": f"(Σ e^d)² / (n·Σ e^2d) over n tokens, {_D}",
    "mismatch.mean_abs": f"the mean of |d|, {_D}",
    "mismatch.mult": f"the mean of e^|d|, {_D}",
    "mismatch.p999": f"the quantile of |d|, {_D}",
}
"""Column of ``trend`` → how it is computed, where its legend does not say."""


def described(name: str) -> str:
    """What a column is, with its formula; "" of one that ``trend`` has not."""
    return f"{legend(name)}: {FORMULAS[name]}" if name in FORMULAS else legend(name)


def unit(name: str) -> str:
    """The unit of a column, for its axis; "" where it has none, or its name says it."""
    about = legend(name)
    found = re.search(r"in (nats per token|nats|tokens)\b", about)
    return found[1] if found else "share" if about.startswith("share ") else ""


def legend(name: str) -> str:
    """What a column is; "" of one that a log has under another name."""
    if found := re.fullmatch(r"mismatch\.decile_(\d+)", name):
        return f"mean |log π_trainer − log π_engine| in tenth {found[1]} of responses, in nats"
    if found := re.fullmatch(r"rewards/(.+)/mean", name):
        return f"mean reward of the function {found[1]}"
    return LEGEND.get(name, "")
