"""Micro-batches of real TRL 1.16.0 runs (float32): the loss and gradient that the trainer saw.

tests/data/rollouts/trl-1.16.0-*.jsonl hold what GRPOTrainer._compute_loss read and returned while
it trained a tiny Qwen2; ``framework`` in each record says with which settings.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from command import answer

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
IDS = [" ".join([name, *flags]) for name, flags in RUNS]


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
