"""``--names``: metrics as frameworks log them, under their names and computed as they do.

A new name is a line here.

References:
    trl 1.16.0, trainer/grpo_trainer.py:2296-2301, 2828-2896, 3268-3283.
    verl 0.9.1, trainer/ppo/metric_utils.py:556-576, utils/debug/metrics.py:66-122,
        trainer/ppo/rollout_corr_helper.py:949-1008.
    prime-rl 559b447, trainer/rl/loss.py:100-106, trainer/rl/train.py:500-515. ``reward/all/mean``
        is its name up to 9f425ff; since then ``train/agg/all/AGENT/reward/mean``.
    NeMo-RL, nemo_rl/algorithms/loss/loss_functions.py, the metrics of ClippedPGLossFn.
    slime 624b824, backends/megatron_utils/loss.py:1106-1154, model.py (train_one_step divides
        by the samples of the step).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.trend.metrics import METRICS, Read, StepValues, mean_of


def _of_micro_batches(name: str) -> Read:
    """Over the token means of the records, each of which counts as a micro-batch."""
    return mean_of(f"record_{name}")


def _of_samples(name: str) -> Read:
    """Over all samples of the step, where any has what it is made of."""
    return lambda step: step.mean(name, "samples") + 0.0 * step.count(name)


def _extreme(name: str, sign: float = 1.0) -> Read:
    return lambda step: sign * step.extreme(name)


def _probs_diff_std(step: StepValues) -> F64:
    """With n − 1, as torch.std."""
    count, total = step.count("probs_diff"), step.sum("probs_diff")
    squares = step.sum("probs_diff_2") - total * total / count
    return np.where(count > 1, np.sqrt(np.maximum(squares, 0.0) / (count - 1)), np.nan)


def _policy_kl_error(step: StepValues) -> F64:
    """Mean of e^−d + d − 1, with d = log π_trainer − log π_engine."""
    return (step.sum("inverse_excess") + step.sum("mismatch_d")) / step.count("mismatch")


def _shortest(step: StepValues) -> F64:
    return step.responses.of_lengths(np.minimum)


def _longest(step: StepValues) -> F64:
    return step.responses.of_lengths(np.maximum)


def _accumulated_loss(step: StepValues) -> F64:
    """TRL's loss of an optimiser step, its Trainer adding up those of micro-batches."""
    records = step.count("loss_averaged")
    found = step.sum("loss_averaged") / records + step.sum("loss_summed")
    return np.where(records == step.count("records"), found + 0.0, METRICS["loss"].read(step))


NAMES: Mapping[str, Mapping[str, Read]] = {
    "trl": {
        "reward": METRICS["reward_mean"].read,
        "reward_std": METRICS["reward_std"].read,
        "frac_reward_zero_std": METRICS["groups_equal"].read,
        "completions/mean_length": METRICS["length_mean"].read,
        "completions/min_length": _shortest,
        "completions/max_length": _longest,
        "entropy": _of_micro_batches("entropy"),
        "kl": _of_micro_batches("kl"),
        "clip_ratio/low_mean": _of_micro_batches("clip_low"),
        "clip_ratio/high_mean": _of_micro_batches("clip_high"),
        "clip_ratio/region_mean": _of_micro_batches("clip_region"),
        "sampling/sampling_logp_difference/mean": METRICS["mismatch.mean_abs"].read,
        "sampling/sampling_logp_difference/max": _extreme("mismatch"),
        "sampling/importance_sampling_ratio/min": _extreme("weights_min", -1.0),
        "sampling/importance_sampling_ratio/mean": mean_of("weights"),
        "sampling/importance_sampling_ratio/max": _extreme("weights_max"),
        "loss": _accumulated_loss,
    },
    "verl": {
        "critic/score/mean": METRICS["reward_mean"].read,
        "critic/score/max": lambda step: step.responses.of_rewards(np.maximum),
        "critic/score/min": lambda step: step.responses.of_rewards(np.minimum),
        "response_length/mean": METRICS["length_mean"].read,
        "response_length/max": _longest,
        "response_length/min": _shortest,
        "actor/entropy": _of_micro_batches("entropy"),
        "actor/kl_loss": _of_micro_batches("kl"),
        "actor/ppo_kl": _of_micro_batches("ppo_kl"),
        "actor/pg_clipfrac": _of_micro_batches("clip"),
        "training/rollout_probs_diff_mean": mean_of("probs_diff"),
        "training/rollout_probs_diff_max": _extreme("probs_diff_max"),
        "training/rollout_probs_diff_std": _probs_diff_std,
        "rollout_corr/kl": METRICS["mismatch.k1"].read,
        "rollout_corr/k3_kl": METRICS["mismatch.k3"].read,
        "rollout_corr/chi2_token": METRICS["mismatch.chi2"].read,
    },
    "prime-rl": {
        "reward/all/mean": METRICS["reward_mean"].read,
        "entropy/all/mean": METRICS["entropy"].read,
        "mismatch_kl/all/mean": mean_of("new_k3"),
    },
    "nemo-rl": {
        "reward": METRICS["reward_mean"].read,
        "probs_ratio": METRICS["ratio_mean"].read,
        "token_mult_prob_error": METRICS["mismatch.mult"].read,
        "gen_kl_error": METRICS["mismatch.k3"].read,
        "policy_kl_error": _policy_kl_error,
        "sampling_importance_ratio": lambda step: 1.0 + step.mean("mismatch_excess", "mismatch"),
    },
    "slime": {
        "rollout/raw_reward": METRICS["reward_mean"].read,
        "rollout/response_len/mean": METRICS["length_mean"].read,
        "train/entropy_loss": _of_samples("sample_entropy"),
        "train/kl_loss": _of_samples("sample_kl"),
        "train/ppo_kl": _of_samples("sample_ppo_kl"),
        "train/pg_clipfrac": _of_samples("sample_clip"),
        "train/train_rollout_logprob_abs_diff": _of_samples("sample_logp_difference"),
    },
}
"""Framework → the name that it logs → how it is computed."""
WHOLE = {
    name for each in NAMES.values() for name, read in each.items() if read in (_shortest, _longest)
}
"""The names of whole numbers."""


def logged_values(framework: str, step: StepValues) -> dict[str, F64]:
    """What a framework would have logged at each step, by its names."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return {name: read(step) for name, read in NAMES[framework].items()}
