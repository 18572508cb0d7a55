"""Logs alone, without tokens: what trainers write of their metrics, with known faults.

Every series is autocorrelated noise with heavy tails on what such a metric does in a healthy run,
positive ones on a logarithmic scale.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from running.kinds import DOWN, EITHER, UP, Kind, ramp
from running.simulate import F64, STEPS, Random, correlated

Series = dict[str, F64]

NAMES: Mapping[str, Mapping[str, str]] = {
    "trl": {
        "reward": "reward",
        "reward_std": "reward_std",
        "entropy": "entropy",
        "kl": "kl",
        "gradient": "grad_norm",
        "loss": "loss",
        "length": "completions/mean_length",
        "truncated": "completions/clipped_ratio",
        "dead": "frac_reward_zero_std",
        "clipped": "clip_ratio/region_mean",
        "mismatch": "sampling/sampling_logp_difference/mean",
        "rate": "learning_rate",
        "accuracy": "rewards/accuracy/mean",
        "format": "rewards/format/mean",
        "eval": "eval_reward",
    },
    "verl": {
        "reward": "critic/rewards/mean",
        "entropy": "actor/entropy",
        "kl": "actor/kl_loss",
        "gradient": "actor/grad_norm",
        "loss": "actor/pg_loss",
        "length": "response_length/mean",
        "truncated": "response_length/clip_ratio",
        "clipped": "actor/pg_clipfrac",
        "mismatch": "training/rollout_probs_diff_mean",
        "rate": "actor/lr",
        "eval": "val-core/math/reward/mean@1",
    },
    "prime-rl": {
        "reward": "reward/all/mean",
        "entropy": "entropy/all/mean",
        "kl": "kl_ent_ratio/mean",
        "gradient": "optim/grad_norm",
        "loss": "loss/mean",
        "length": "seq_len/all/mean",
        "truncated": "is_truncated/all/mean",
        "mismatch": "mismatch_kl/all/mean",
        "rate": "optim/lr",
        "eval": "eval/math/avg@1",
    },
}
"""Framework → the series here → the name that it logs."""


def healthy(random: Random) -> Series:
    """The series of a run that learns."""
    correlation, heavy = float(random.choice([0.0, 0.3, 0.6])), bool(random.random() < 0.5)

    def noise(size: float) -> F64:
        drawn = correlated(random, STEPS, correlation, heavy=heavy)
        return size * drawn.clip(-6.0, 6.0)

    time = np.arange(STEPS) / STEPS
    learnt = 1.0 - np.exp(-float(random.uniform(1.0, 4.0)) * time)
    grown = 0.001 + 0.03 * learnt**2
    accuracy, form = 0.2 + 0.4 * learnt + noise(0.03), (0.6 + 0.3 * learnt + noise(0.02)).clip(0, 1)
    return {
        "accuracy": accuracy,
        "format": form,
        "reward": accuracy + 0.1 * form,
        "eval": 0.2 + 0.35 * learnt + noise(0.03),
        "reward_std": np.exp(noise(0.08)) * (0.42 - 0.1 * learnt),
        "entropy": np.exp(noise(0.04) - 0.25 * learnt) * random.uniform(0.4, 1.8),
        "kl": np.exp(noise(0.12)) * grown,
        "gradient": np.exp(noise(0.15)) * random.uniform(0.05, 0.6),
        "loss": noise(0.01),
        "length": np.exp(noise(0.04) + 0.15 * learnt) * random.uniform(300, 1500),
        "truncated": (np.exp(noise(0.25)) * 0.03).clip(0.0, 1.0),
        "dead": (0.3 + noise(0.05)).clip(0.0, 1.0),
        "clipped": (np.exp(noise(0.3)) * 0.004).clip(0.0, 1.0),
        "mismatch": np.exp(noise(0.15)) * random.uniform(0.002, 0.02),
        "rate": np.full(STEPS, 1e-6),
    }


@dataclass(frozen=True)
class Planted:
    """A fault of a log: what becomes of the series, given the onset."""

    kind: Kind
    change: Callable[[Series, int, Random], None]


def paths(onset: int, path: Callable[[int], float]) -> F64:
    return np.array([1.0 if at < onset else path(at - onset) for at in range(STEPS)])


def _entropy(series: Series, onset: int, random: Random) -> None:
    steps = int(random.integers(15, 40))
    series["entropy"] *= paths(onset, lambda since: 0.02 ** ramp(since, steps))


def _steadily(series: Series, onset: int, random: Random) -> None:
    series["entropy"] *= paths(onset, lambda since: 3.0 ** -ramp(since, STEPS))


def _gradient(series: Series, onset: int, random: Random) -> None:
    steps = int(random.choice([1, 8]))
    series["gradient"] *= paths(onset, lambda since: 150.0 ** ramp(since, steps))


def _kl(series: Series, onset: int, random: Random) -> None:
    series["kl"] *= paths(onset, lambda since: 180.0 ** ramp(since, 40))


def _truncated(series: Series, onset: int, random: Random) -> None:
    share = paths(onset, lambda since: 1.0 + ramp(since, 25, 0.0, 21.0))
    series["truncated"] = (series["truncated"] * share).clip(0.0, 0.95)


def _nan(series: Series, onset: int, random: Random) -> None:
    for name in ("loss", "gradient", "entropy", "kl"):
        series[name][onset:] = np.nan


def names(*ours: str) -> str:
    """A pattern of what these series are logged as, a run's or a tracker's prefix before it."""
    found = {each[one] for each in NAMES.values() for one in ours if one in each}
    return r"(.*/)?(" + "|".join(found) + ")"


PLANTED = (
    Planted(Kind("entropy ÷ 50", None, {names("entropy"): DOWN}), _entropy),
    Planted(
        Kind(
            "entropy → a third, from the first step on",
            None,
            {names("entropy"): DOWN},
            within=100,
            steady=True,
        ),
        _steadily,
    ),
    Planted(Kind("gradient × 150", None, {names("gradient"): UP}, within=10), _gradient),
    Planted(Kind("KL, exponential", None, {names("kl"): UP}), _kl),
    Planted(Kind("truncation → 67 %", None, {names("truncated"): UP}, within=24), _truncated),
    Planted(
        Kind(
            "NaN from a step on",
            None,
            {names("loss", "gradient", "entropy", "kl"): EITHER},
            marked=True,
            within=1,
            nan=True,
        ),
        _nan,
    ),
)
HEALTHY_LOG = Kind("healthy", None, {}, sound=True)


def _renamed(series: Series, framework: str) -> Series:
    return {theirs: series[ours] for ours, theirs in NAMES[framework].items()}


def _trainer_state(series: Series, steps: int) -> str:
    logged = _renamed(series, "trl")
    rows = [
        {**{name: float(f"{values[at]:.6g}") for name, values in logged.items()}, "step": at + 1}
        for at in range(steps)
    ]
    return json.dumps({"global_step": steps, "log_history": rows})


def _verl(series: Series, steps: int) -> str:
    logged = _renamed(series, "verl")
    return "".join(
        json.dumps({"step": at + 1, "data": {name: float(v[at]) for name, v in logged.items()}})
        + "\n"
        for at in range(steps)
    )


def _prime_rl(series: Series, steps: int) -> str:
    logged = _renamed(series, "prime-rl")
    return "".join(
        json.dumps({"step": at, **{name: float(v[at]) for name, v in logged.items()}}) + "\n"
        for at in range(steps)
    )


def _wandb(series: Series, steps: int) -> str:
    """A CSV of the history, as W&B exports it for one run."""
    logged = _renamed(series, "trl")
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(["Step", *[f"my-run - train/{name}" for name in logged]])
    for at in range(steps):
        table.writerow([at + 1, *(f"{values[at]:.6g}" for values in logged.values())])
    return text.getvalue()


FILES: Mapping[str, tuple[str, int, Callable[[Series, int], str]]] = {
    "trainer_state.json": ("trainer_state.json", 1, _trainer_state),
    "verl's JSONL": ("metrics.jsonl", 1, _verl),
    "prime-rl's JSONL": ("metrics.jsonl", 0, _prime_rl),
    "CSV of W&B": ("export.csv", 1, _wandb),
}
"""What a log is → its file's name, the number of its first step, and how it is written."""
FRAMEWORKS = ("trl", "verl", "prime-rl", "trl")
"""Whose names each of these files has."""
