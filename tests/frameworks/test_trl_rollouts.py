"""TRL's real rollouts, and numbers of its family."""

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


# ---- numbers that TRL, Liger-Kernel, Unsloth and ms-swift computed on one small batch ------------
# Of their rows, and of the papers' where these compute the same.
#
# The frameworks' own functions were executed on it (CPU, float64): TRL 1.10.0.dev0, Liger-Kernel
# 0.8.2, unsloth-zoo 2026.8.13, ms-swift 4.6.0.dev0; one micro-batch, one process, accumulation 1,
# ε 0.2 and k3 unweighted unless the case says otherwise. Ten digits were kept.


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
PLAIN = {"kl_weight": "none"}
"""TRL's default then."""
KL = {"beta": 0.1, **PLAIN}
L4 = {"max_completion_length": 4}
SWIFT_KL = {"beta": 0.1}
TRL = {"std_eps": 1e-4}


def corrected(name, **more):
    return {"correction": name}, more


# variant, stages, hyperparameters, loss
CASES = [
    ("trl/grpo", {}, {}, 0.1036773931),
    ("trl/grpo", {}, KL, 0.1085490505),
    ("trl/bnpo", {}, {}, 0.0638400620),
    ("trl/bnpo", {}, KL, 0.0666296325),
    ("trl/dapo", {}, {"num_items_in_batch": 10}, 0.0638400620),
    ("trl/dapo", {}, KL, 0.0666296325),
    ("trl/dr_grpo", {}, L4, 0.0399000388),
    ("trl/dr_grpo", {}, KL | L4, 0.0416435203),
    ("trl/sapo", {}, {}, 0.0421900871),
    ("trl/sapo", {}, KL, 0.0470617445),
    ("trl/sapo", SEQUENCE, {}, 0.0440399573),
    ("trl/cispo", {}, {}, 0.0268666581),
    ("trl/cispo", {}, {"epsilon_high": 5.0}, 0.0050846053),
    ("trl/cispo", SEQUENCE, {"epsilon_high": 5.0}, 0.0505147811),
    ("trl/vespo", {}, {}, 0.0808856518),
    ("trl/gspo", {}, {}, 0.0790613075),
    ("trl/gspo", {}, KL, 0.0839329649),
    ("trl/bnpo", SEQUENCE, {}, 0.0341671074),
    ("trl/dr_grpo", SEQUENCE, L4, 0.0213544421),
    ("trl/luspo", {}, {}, 0.0854177686),
    ("liger/luspo", {}, {"response_length": 4}, -0.1532215639),
    ("trl/dapo", {}, {"delta": 1.1}, 0.0462597845),
    ("trl/dapo", {}, {"epsilon_high": 0.28}, 0.0566708181),
    ("trl/dapo", {}, {"beta": 0.1}, 0.0660504415),
    ("trl/gspo", {}, {"beta": 0.1}, 0.0822735760),
    ("trl/grpo", {}, {"off_policy_mask_threshold": 0.1}, -0.0646937051),
    ("trl/bnpo", {}, KL | {"off_policy_mask_threshold": 0.1}, -0.0680672460),  # 1.16.0
    ("trl/dapo", {}, {"top_entropy_quantile": 0.5}, 0.0065909625),
    ("trl/dapo", {}, KL | {"top_entropy_quantile": 0.5}, 0.0093805330),
    ("trl/dapo", {}, {"entropy_coef": 0.01}, 0.0559400620),
    ("trl/grpo", *corrected("trl/token-truncate", is_high=1.15), 0.1554046804),
    ("trl/grpo", *corrected("trl/token-truncate", is_high=1.15, **KL), 0.1602763378),
    ("trl/grpo", *corrected("trl/token-mask", is_high=1.15), 0.0941062536),
    ("trl/grpo", *corrected("trl/token-mask", is_high=1.15, **KL), 0.0989779110),
    ("trl/grpo", *corrected("trl/sequence-truncate", is_high=1.05), 0.1556781925),
    ("trl/grpo", *corrected("trl/sequence-mask", is_high=1.05), -0.0641248644),
    ("trl/grpo", {}, {"gradient_accumulation_steps": 2}, 0.0518386966),
    ("trl/rloo", {}, {"beta": 0.0}, 0.0225593210),
    ("trl/rloo", {}, {"beta": 0.05}, 0.0202017883),
    ("trl/gmpo", {}, {}, 0.0836490703),
    ("trl/gmpo", {}, {"beta": 0.1}, 0.0885207277),
    ("trl/gspo", {"ratio": "sequence-token"}, {}, 0.0790613075),
    ("trl/gspo", {"ratio": "sequence-token"}, {"epsilon": 0.05}, 0.0872685390),
    ("liger/dapo", {}, {"beta": 0.1}, 0.0666296325),
    ("unsloth/dapo@2026.9.1", {}, {"num_items_in_batch": 10}, 0.0638400620),
    ("unsloth/dapo@2026.9.1", {}, {"beta": 0.1}, 0.0666296325),
    ("ms-swift/grpo", {}, SWIFT_KL, 0.1085490505),
    ("ms-swift/bnpo", {}, SWIFT_KL, 0.0666296325),
    ("ms-swift/dapo", {}, SWIFT_KL | {"num_items_in_batch": 10}, 0.0666296325),
    ("ms-swift/dr_grpo", {}, SWIFT_KL | L4, 0.0416435203),
    ("ms-swift/sapo", {}, SWIFT_KL, 0.0470617445),
    ("ms-swift/cispo", {}, {"beta": 0.0, "epsilon_high": 5.0}, 0.0050846053),
    ("ms-swift/gspo", {}, SWIFT_KL, 0.0839329649),
    ("ms-swift/gspo-token", {}, {"beta": 0.0}, 0.0790613075),
    ("ms-swift/fipo", {}, SWIFT_KL, 0.0701412899),
    ("ms-swift/real", {}, {"beta": 0.0}, 1.7705805932),
    ("ms-swift/real", {}, SWIFT_KL, 1.7733701636),
    ("ms-swift/grpo", {}, {"beta": 0.0, "off_policy_mask_threshold": 0.1}, -0.0646937051),
    ("ms-swift/bnpo", {}, SWIFT_KL | {"off_policy_mask_threshold": 0.1}, -0.0855857264),
    ("ms-swift/grpo", *corrected("ms-swift/token-truncate", is_high=1.15, beta=0.0), 0.1554046804),
    ("ms-swift/grpo", *corrected("ms-swift/token-truncate", is_high=1.15, beta=0.1), 0.1580740290),
    ("ms-swift/grpo", *corrected("ms-swift/token-mask", is_high=1.15, beta=0.0), 0.0941062536),
    ("ms-swift/grpo", *corrected("ms-swift/token-mask", is_high=1.15, beta=0.1), 0.0965960991),
    (
        "ms-swift/grpo",
        *corrected("ms-swift/sequence-truncate", is_high=1.05, beta=0.0),
        0.1601179291,
    ),
    ("ms-swift/grpo", *corrected("ms-swift/sequence-mask", is_high=1.05, beta=0.0), 0.1592106602),
    ("grpo", {}, TRL | {"beta": 0.1}, 0.1085490505),
    ("bnpo", {}, TRL | {"beta": 0.1}, 0.0666296325),
    ("dapo", {}, TRL, 0.0566708181),
    ("sapo", {}, TRL, 0.0421900871),
    ("gmpo", {}, TRL, 0.0836490703),
    ("vespo", {}, TRL, 0.0808856518),
    ("gspo", {}, TRL | {"epsilon": 0.2}, 0.0790613075),
    ("gspo-token", {}, TRL | {"epsilon": 0.2}, 0.0790613075),
    ("luspo", {}, TRL | {"epsilon": 0.2}, 0.0854177686),
    ("fipo", {"kl": "k3"}, TRL | {"epsilon": 0.2, "beta": 0.1, "delta": None}, 0.0701412899),
    ("real", {}, {}, 1.7705805932),
    ("two-sided", {}, TRL | {"beta": 0.0, "delta": 1.1}, 0.0462597845),
    ("grpo", *corrected("token-truncate", **TRL, beta=0.1, is_high=1.15), 0.1602763378),
    ("grpo", *corrected("token-mask", **TRL, beta=0.1, is_low=None, is_high=1.15), 0.0989779110),
    ("grpo", *corrected("sequence-truncate", **TRL, beta=0.0, is_high=1.05), 0.1556781925),
    ("grpo", *corrected("sequence-mask", **TRL, beta=0.0, is_high=1.05), -0.0641248644),
    ("grpo", *corrected("geometric-truncate", **TRL, beta=0.0, is_high=1.05), 0.1601179291),
]


@each(("variant", "stages", "hyperparameters", "loss"), CASES)
def test_loss(variant, stages, hyperparameters, loss):
    ours = evaluate(BATCH, variant, stages=stages, **hyperparameters)
    assert ours.loss == pytest.approx(loss, abs=6e-11)


STD = [0.7070067953, -0.7070067953, -0.7069068377, 0.7069068377]
BATCH_STD = [1.0952051676, -1.0952051676, -0.5476025838, 0.5476025838]
ADVANTAGES = [
    ("trl/grpo", {"advantage": "group-std"}, TRL, STD),
    ("trl/grpo", {"advantage": "batch-std"}, TRL, BATCH_STD),
    ("trl/grpo", {"advantage": "leave-one-out"}, {}, [1.0, -1.0, -0.5, 0.5]),
    ("trl/rloo", {}, {"beta": 0.05}, [1.0, -1.0, -0.49, 0.49]),  # less the KL of the old policy
    ("grpo", {}, TRL, STD),
    ("lite-ppo", {}, TRL, BATCH_STD),
    ("rloo", {}, {"beta": 0.0}, [1.0, -1.0, -0.5, 0.5]),
    ("rloo", {}, {"beta": 0.05}, [1.0, -1.0, -0.49, 0.49]),
]


@each(("variant", "stages", "hyperparameters", "wanted"), ADVANTAGES)
def test_advantages(variant, stages, hyperparameters, wanted):
    made = evaluate(BATCH, variant, stages=stages, **hyperparameters)
    near = 1e-12 if variant == "trl/rloo" else 6e-11
    assert made.breakdown.response_advantage == pytest.approx(wanted, abs=near)


def test_the_share_of_clipped_tokens():
    """low .1, high .2 of all tokens."""
    clip = evaluate(BATCH, "trl/grpo").breakdown.clip
    assert [(clip < 0).mean(), (clip > 0).mean()] == pytest.approx([0.1, 0.2])
