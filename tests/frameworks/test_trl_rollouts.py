"""TRL's real rollouts, and what it made of stages and values beside its rows'."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command import answer
from files import each

from grpo_cli import evaluate

# ---- micro-batches of real TRL 1.16.0 runs, in single precision ----------------------------------


DATA = Path(__file__).parent.parent / "data" / "rollouts"
NAMES = ("cispo", "dapo", "dr_grpo", "grpo", "gspo")

ROWS = {name: ["--variant", f"trl/{name}"] for name in NAMES}
PAPER_ROWS = {
    "grpo": ["-v", "grpo", "--aggregate", "trl/grpo", "-p", "kl_weight=ratio"],
    "dr_grpo": ["-v", "dr", "--aggregate", "trl/dr_grpo"],
    "dapo": ["-v", "dapo", "--aggregate", "trl/dapo"],
    "gspo": ["-v", "gspo", "--kl", "k3", "-p", "kl_weight=ratio", "--aggregate", "trl/grpo"],
}
RUNS = [(name, flags) for rows in (ROWS, PAPER_ROWS) for name, flags in rows.items()]


def path(name):
    return DATA / f"trl-1.16.0-{name}.jsonl"


def expected(name):
    return [json.loads(line)["expected"] for line in path(name).read_text().splitlines()]


def records(name, flags):
    """What ``grpo eval`` prints for each record, tokens included."""
    return answer("eval", path(name), *flags, "--batch", "record", "--level", "token")["records"]


def flags_of(name):
    """The row and stages that a record's own ``framework`` asks for."""
    framework = json.loads(path(name).read_text().splitlines()[0])["framework"]
    flags = ["-v", f"trl/{framework['loss_type']}"]
    flags += ["--ratio", framework["importance_sampling_level"]]
    if not framework["use_bias_correction_kl"]:
        flags += ["-p", "kl_weight=none"]
    return flags


@pytest.mark.parametrize(("name", "flags"), [*RUNS, *((name, flags_of(name)) for name in NAMES)])
def test_loss_and_gradient(name, flags):
    for ours, theirs in zip(records(name, flags), expected(name), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-6, abs=3e-8)
        gradient = [g for response in ours["responses"] for g in response["tokens"]["gradient"]]
        wanted = np.array([g for row in theirs["loss_gradient"] for g in row])
        scale = np.abs(wanted).max()
        np.testing.assert_allclose(np.negative(gradient), wanted, rtol=0.0, atol=1e-6 * scale)


@pytest.mark.parametrize("name", NAMES)
def test_metrics(name):
    for ours, theirs in zip(records(name, ROWS[name]), expected(name), strict=True):
        metrics = theirs["metrics"]
        if "kl" in metrics:
            # k3 near 0 keeps an absolute precision of a float32 near 1
            tokens = [k for response in ours["responses"] for k in response["tokens"]["kl"]]
            assert np.mean(tokens) == pytest.approx(metrics["kl"], rel=1e-5, abs=2e-7)
        if "clip_ratio/region_mean" in metrics and name != "gspo":
            assert ours["clip_fraction"] == pytest.approx(
                metrics["clip_ratio/region_mean"], rel=1e-6
            )
            assert ours["clip_fraction_low"] == pytest.approx(
                metrics["clip_ratio/low_mean"], rel=1e-6
            )


def test_the_runs_moved_and_clipped():
    """Otherwise the comparisons above would say little."""
    for name in ("grpo", "dr_grpo", "dapo", "gspo"):
        clipped = [one["metrics"]["clip_ratio/region_mean"] for one in expected(name)]
        assert max(clipped) > 0.4, name


@pytest.mark.parametrize(
    "flags",
    [
        ["-v", "trl/grpo", "-p", "kl_weight=none"],
        ["-v", "trl/grpo", "-p", "gradient_accumulation_steps=1"],
        ["-v", "trl/bnpo"],
        ["-v", "trl/grpo", "--ratio", "sequence"],
    ],
    ids=" ".join,
)
def test_another_convention_gives_another_number(flags):
    gaps = [
        abs(ours["loss"] - theirs["loss"])
        for ours, theirs in zip(records("grpo", flags), expected("grpo"), strict=True)
    ]
    assert max(gaps) > 1e-4


# ---- what TRL's rows make of stages and values that tests/golden/trl.json has no case of ---------
# TRL 1.10.0.dev0's own functions were executed on one small batch (CPU, float64): one micro-batch,
# one process, accumulation 1, ε 0.2. Ten digits were kept.


BATCH = {
    "log_probs_new": [[-1.0, -0.5, -2.0, -0.1], [-0.3, -1.2], [-0.7, -0.9, -1.1], [-2.5]],
    "log_probs_old": [[-1.2, -0.5, -1.5, -0.6], [-0.4, -0.9], [-0.7, -1.4, -1.0], [-1.9]],
    "log_probs_ref": [[-1.1, -0.7, -1.9, -0.3], [-0.5, -1.0], [-0.9, -0.8, -1.3], [-2.0]],
    "log_probs_rollout": [[-1.0, -0.6, -1.6, -0.6], [-0.4, -0.8], [-0.7, -1.3, -1.2], [-1.0]],
    "entropies": [[0.9, 0.2, 1.5, 0.1], [0.3, 1.1], [0.6, 0.8, 0.4], [2.0]],
    "rewards": [1.0, 0.0, 0.25, 0.75],
    "group_ids": [0, 0, 1, 1],
}
SEQUENCE = {"ratio": "sequence"}
KL = {"beta": 0.1, "kl_weight": "none"}
"""With TRL's default then."""


def corrected(name, **more):
    return {"correction": name}, more


# variant, stages, hyperparameters, loss
CASES = [
    ("trl/sapo", SEQUENCE, {}, 0.0440399573),
    ("trl/cispo", SEQUENCE, {"epsilon_high": 5.0}, 0.0505147811),
    ("trl/bnpo", SEQUENCE, {}, 0.0341671074),
    ("trl/dr_grpo", SEQUENCE, {"max_completion_length": 4}, 0.0213544421),
    ("trl/dapo", {}, {"delta": 1.1}, 0.0462597845),
    ("trl/bnpo", {}, KL | {"off_policy_mask_threshold": 0.1}, -0.0680672460),  # 1.16.0
    ("trl/dapo", {}, KL | {"top_entropy_quantile": 0.5}, 0.0093805330),
    ("trl/grpo", *corrected("trl/token-truncate", is_high=1.15, **KL), 0.1602763378),
    ("trl/grpo", *corrected("trl/token-mask", is_high=1.15, **KL), 0.0989779110),
    ("trl/grpo", *corrected("trl/sequence-truncate", is_high=1.05), 0.1556781925),
    ("trl/grpo", *corrected("trl/sequence-mask", is_high=1.05), -0.0641248644),
    ("trl/rloo", {}, {"beta": 0.0}, 0.0225593210),
    ("trl/rloo", {}, {"beta": 0.05}, 0.0202017883),  # advantages less the KL of the old policy
    ("trl/gspo", {"ratio": "sequence-token"}, {"epsilon": 0.05}, 0.0872685390),
]


@each(("variant", "stages", "hyperparameters", "loss"), CASES)
def test_loss(variant, stages, hyperparameters, loss):
    ours = evaluate(BATCH, variant, stages=stages, **hyperparameters)
    assert ours.loss == pytest.approx(loss, abs=6e-11)
