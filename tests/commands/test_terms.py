"""Whatever a command says of J's terms adds up to what ``eval`` gives, with every term in it."""

from __future__ import annotations

import json
import math
import re
import shlex

import pytest
from files import some
from made_up import made_up

from grpo_cli import VARIANTS


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "made_up.jsonl"
    path.write_text("".join(json.dumps(made_up(seed)) + "\n" for seed in range(2)))
    return str(path)


@pytest.fixture
def total(grpo, file):
    def read(*flags: str, path: str = file) -> dict:
        return json.loads(grpo("eval", path, *flags, "--level", "batch", "--json").stdout)["total"]

    return read


FLAGS = [
    ("-v", "dr", "-p", "entropy_coef=0.1"),
    ("-v", "grpo", "-p", "entropy_coef=-0.02", "--beta", "0.3"),
    ("-v", "skyrl/regular", "--beta", "0.3", "-p", "entropy_coef=0.1"),
    ("-v", "trl/grpo", "-p", "entropy_coef=0.1", "--beta", "0.1"),
]
BATCHES = [(), ("--batch", "record")]


@pytest.mark.parametrize("flags", FLAGS, ids=" ".join)
@pytest.mark.parametrize("batch", BATCHES, ids=["input", "record"])
def test_the_parts_of_explain_add_up_to_j(grpo, file, total, flags, batch):
    found = json.loads(grpo("explain", file, *flags, *batch, "--json").stdout)
    wanted = total(*flags, *batch)["objective"]
    assert found["parts"]["entropy_bonus"] != 0.0
    assert math.fsum(found["parts"].values()) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("flags", FLAGS, ids=" ".join)
def test_the_worked_arithmetic_has_the_bonus(grpo, file, flags):
    worked = json.loads(grpo("explain", file, *flags, "--json").stdout)["record"]
    parts = (
        worked["policy"],
        -worked["beta"] * worked["kl"] if worked["beta"] else 0.0,
        worked["entropy_coef"] * worked["entropy"],
    )
    assert math.fsum(parts) == pytest.approx(worked["objective"], rel=1e-12)
    printed = grpo("explain", file, *flags).stdout
    words = " ".join(printed.split())
    for stage in ("advantage", "ratio", "surrogate", "aggregate"):
        assert " ".join(worked["stages"][stage].split()) in words
    (line,) = (line for line in printed.splitlines() if line.startswith("    = policy"))
    terms = re.split(" [=≈] ", line.partition("   (")[0])[-1].replace("−", "-")
    shown = sum(map(float, terms.replace("- ", "-").replace("+ ", "").split()))
    (whole,) = (line for line in printed.splitlines() if " = −objective = " in line)
    assert shown == pytest.approx(-float(whole.rpartition(" ")[2]), abs=1.5e-6)


@pytest.mark.parametrize("flags", some(FLAGS, 2), ids=" ".join)
def test_the_command_of_a_match_gives_the_value_that_it_claims(grpo, file, total, flags):
    loss = total(*flags)["loss"]
    found = json.loads(grpo("match", file, *flags, "--loss", repr(loss), "--json").stdout)
    assert found["matches"]
    for match in found["matches"][:5]:
        words = shlex.split(match["command"].partition(" | awk")[0])[1:]
        printed = grpo(*words).stdout
        sign = -1.0 if match["sign_flipped"] and "loss" in words else 1.0
        value = float(printed) * match["factor"] * sign
        assert abs(value) == pytest.approx(abs(match["value"]), rel=1e-12)


SWAPPED = ["skyrl/regular", "verl/sapo", "verl/geo_mean", "openrlhf/gspo", "ms-swift/real"]
"""Rows whose KL or entropy has a denominator of its own."""


@pytest.mark.parametrize("variant", [*SWAPPED, "trl/grpo", "verl/vanilla"])
def test_naming_a_row_s_own_denominator_changes_nothing(total, variant):
    aggregate = VARIANTS[variant].aggregate.name
    flags = ("-v", variant, "--beta", "0.3", "-p", "entropy_coef=0.1")
    assert total(*flags, "--aggregate", aggregate) == total(*flags)


def test_a_flag_swaps_the_denominator_that_it_names(total):
    flags = ("-v", "skyrl/regular", "--beta", "0.3", "-p", "entropy_coef=0.1")
    own = total(*flags)
    kl = total(*flags, "--kl-aggregate", "sum")
    entropy = total(*flags, "--entropy-aggregate", "sum")
    policy = total(*flags, "--aggregate", "sum")
    for found, changed in ((kl, "kl"), (entropy, "entropy"), (policy, "policy")):
        differing = {name for name in ("policy", "kl", "entropy") if found[name] != own[name]}
        assert differing == {changed}


@pytest.mark.more
def test_what_verify_says_it_evaluated_is_a_command(grpo, file, tmp_path):
    record = made_up(1) | {
        "framework": {"name": "verl", "policy_loss": "sapo", "loss_agg_mode": "seq-mean-token-sum"},
        "expected": {"loss": 0.0},
        "hyperparameters": {"beta": 0.1},
    }
    path = tmp_path / "verl.jsonl"
    path.write_text(json.dumps(record) + "\n")
    done = grpo("verify", str(path))
    (said,) = (line for line in done.stderr.splitlines() if "evaluated as" in line)
    words = shlex.split(said.partition("evaluated as ")[2])
    verified = json.loads(grpo("verify", str(path), "--json").stdout)["records"][0]
    loss = json.loads(grpo("eval", str(path), *words, "--json").stdout)
    assert loss["total"]["loss"] == pytest.approx(verified["first"]["got"], rel=1e-14)
