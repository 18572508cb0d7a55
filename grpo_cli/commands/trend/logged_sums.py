"""What frameworks log is rarely a mean over a step's tokens: the sums that their means are made of.

TRL and verl average a micro-batch (a record), and then the micro-batches; slime averages a
sample, and then the samples, those without a token that counts as 0.
"""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.trend.sums import Sums
from grpo_cli.engine.chunk import Chunk
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.summary import Summary

EXTREMES = ("min", "max")


def measure_logged(sums: Sums, chunk: Chunk, breakdown: Breakdown | None) -> None:
    """Adds a chunk to the sums that frameworks' metrics are made of."""
    batch = chunk.batch
    sums.counts["samples"] += batch.responses.count
    if not batch.responses.total:
        return
    if batch.log_probs_rollout is not None and batch.log_probs_new is not None:
        _add_engine(sums, chunk, batch.log_probs_new - batch.log_probs_rollout)
    if breakdown is None:
        return
    bound = breakdown.clip * (np.sign(breakdown.advantage) == breakdown.clip)
    columns = {
        "clip_low": (bound < 0).astype(np.float64),
        "clip_high": (bound > 0).astype(np.float64),
        "clip_region": (bound != 0).astype(np.float64),
        "clip": (breakdown.clip != 0).astype(np.float64),
    }
    if breakdown.kl is not None:
        columns["kl"] = breakdown.kl
    if batch.log_probs_old is not None and batch.log_probs_new is not None:
        columns["ppo_kl"] = batch.log_probs_old - batch.log_probs_new
    if batch.entropies is not None:
        columns["entropy"] = batch.entropies
    tokens, responses = Summary(breakdown).record_tokens, batch.responses
    for name, values in columns.items():
        sums.sums.add(f"sample_{name}", responses.mean(values))
        sums.counts[f"sample_{name}"] += responses.count
        if name == "ppo_kl":  # as verl's compute_policy_loss has it; slime does not clamp
            values = np.clip(values, -20.0, 20.0)
        _add_means(sums, f"record_{name}", tokens.mean(values), tokens.lengths > 0)
    if breakdown.correction is not None:
        _add_weights(sums, breakdown, breakdown.correction)


def _add_means(sums: Sums, name: str, means: F64, filled: np.ndarray) -> None:
    sums.sums.add(name, means[filled])
    sums.counts[name] += int(filled.sum())


def _add_engine(sums: Sums, chunk: Chunk, difference: F64) -> None:
    """The policy, and the policy before the update, against the engine."""
    batch = chunk.batch
    assert batch.log_probs_rollout is not None
    old = batch.log_probs_new if batch.log_probs_old is None else batch.log_probs_old
    assert old is not None
    apart = np.abs(np.exp(old) - np.exp(batch.log_probs_rollout))
    with np.errstate(over="ignore"):
        k3 = np.exp(difference) - difference - 1.0
    for name, values in {"probs_diff": apart, "probs_diff_2": apart * apart, "new_k3": k3}.items():
        sums.sums.add(name, batch.responses.sum(values))
        sums.counts[name] += len(values)
    sums.extreme("probs_diff_max", float(apart.max()))
    d = old - batch.log_probs_rollout
    with np.errstate(over="ignore"):
        sums.sums.add("inverse_weight", batch.responses.sum(np.exp(-d)))
    sums.extreme("logp_difference_max", float(np.abs(d).max()))
    sums.sums.add("sample_logp_difference", batch.responses.mean(np.abs(d)))
    sums.counts["sample_logp_difference"] += batch.responses.count


def _add_weights(sums: Sums, breakdown: Breakdown, weights: F64) -> None:
    """TRL's ratios as they are after truncation, one a token, or one a sequence."""
    if "sequence" in breakdown.objective.correction.name:
        responses = breakdown.batch.responses
        weights = responses.mean(weights)[responses.lengths > 0]
    sums.sums.add("weights", weights)
    sums.counts["weights"] += len(weights)
    sums.extreme("weights_max", float(weights.max()))
    sums.extreme("weights_min", -float(weights.min()))
