"""Faults planted in what real trainers returned: the stage, the place and the cause are named."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import grpo_cli
from grpo_cli.commands.verify.answer import Verdict
from grpo_cli.errors import InputError
from grpo_cli.records import cut, raws

ROLLOUTS = Path(__file__).parent.parent / "data" / "rollouts"
FILES = sorted(ROLLOUTS.glob("*.jsonl"))

Row = dict[str, Any]


def load(name: str) -> list[Row]:
    return [raw.value for block in cut(str(ROLLOUTS / name)) for raw in raws(block)]


def verify(row: Row, variant: str | None = None, rtol: float = 1e-4, **flags: Any) -> Verdict:
    """The verdict on a record."""
    (verdict,) = grpo_cli.verify(row, variant, rtol=rtol, **flags).records
    return verdict


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_real_dumps_agree_with_what_their_trainer_computed(path):
    verdicts = [verify(row) for row in load(path.name)]
    assert all(one.agrees for one in verdicts), [one.first for one in verdicts]
    assert all("loss" in one.compared and "loss_gradient" in one.compared for one in verdicts)


def test_real_dumps_agree_far_below_the_default_tolerance():
    # float32 trainers to 1e-5, verl's float64 cases (with float32 statistics) to 1e-6
    assert all(verify(row, rtol=1e-5).agrees for row in load("trl-1.16.0-grpo.jsonl"))
    assert all(verify(row, rtol=1e-6).agrees for row in load("verl-0.9.1-cases.jsonl"))


# ---- planted in a record whose every number is worked out here, in plain Python ------------------

NEW = [[-1.0, -0.4, -2.0], [-0.7, -1.2], [-0.3, -0.9, -0.5, -1.4]]
OLD = [[-1.5, -0.4, -1.6], [-0.6, -1.9], [-0.8, -0.8, -0.5, -1.0]]
REF = [[-1.1, -0.5, -1.9], [-0.9, -1.0], [-0.3, -0.7, -0.8, -1.2]]
REWARDS = [1.0, 0.0, 0.5]
MEAN = 0.5
STD = 0.5  # of [1, 0, 0.5] with ddof 1
BETA = 0.04


def worked(
    *,
    inverted: bool = False,
    clip: bool = True,
    sign: float = 1.0,
    ddof: int = 1,
    beta: float = BETA,
    mean: str = "response",
    scale: float = 1.0,
    reverse: bool = False,
) -> Row:
    """GRPO with one thing wrong, token by token: loss, ∂loss/∂log π, advantages, ratios, KL."""
    std = STD if ddof == 1 else math.sqrt(1.0 / 6.0)
    advantages = [(reward - MEAN) / (std + 1e-8) for reward in REWARDS]
    total, gradient, ratios, kls = 0.0, [], [], []
    tokens = sum(map(len, NEW))
    for new, old, ref, advantage in zip(NEW, OLD, REF, advantages, strict=True):
        weight = {
            "response": 1.0 / (3 * len(new)),
            "token": 1.0 / tokens,
            "sum": 1.0 / 3,
        }[mean] * scale
        rows: list[float] = []
        for n, o, r in zip(new, old, ref, strict=True):
            ratio = math.exp(o - n if inverted else n - o)
            slope = -ratio if inverted else ratio
            bounded = min(max(ratio, 0.8), 1.2)
            surrogate = min(ratio * advantage, bounded * advantage) if clip else ratio * advantage
            free = surrogate == ratio * advantage
            x = n - r if reverse else r - n
            kl = math.exp(x) - x - 1.0
            dkl = (math.exp(x) - 1.0) * (1.0 if reverse else -1.0)
            total += weight * (surrogate - beta * kl)
            rows.append(-sign * weight * (slope * advantage * free - beta * dkl))
            ratios.append(ratio)
            kls.append(kl)
        gradient.append(rows)
    cuts = np.cumsum([len(row) for row in NEW])[:-1]
    return {
        "loss": -sign * total,
        "loss_gradient": gradient,
        "advantages": advantages,
        "ratio": [list(row) for row in np.split(ratios, cuts)],
        "kl": [list(row) for row in np.split(kls, cuts)],
    }


def record(expected: Row, **more: Any) -> Row:
    kept = {
        "log_probs_new": NEW,
        "log_probs_old": OLD,
        "log_probs_ref": REF,
        "rewards": REWARDS,
    }
    return copy.deepcopy(kept | more | {"expected": expected})


def test_what_is_worked_out_by_hand_agrees():
    verdict = verify(record(worked()), "grpo", rtol=1e-9)
    assert verdict.agrees
    assert verdict.compared == ("advantages", "ratio", "kl", "loss_gradient", "loss")


PLANTED: list[tuple[Row, tuple[str, ...], str, int | None, int | None, str]] = [
    # what is wrong, what is expected, the key, response and token that first differ, the cause
    ({"ddof": 0}, ("advantages", "loss"), "advantages", 0, None, "ddof 0 where 1 is meant"),
    ({"inverted": True}, ("ratio", "loss"), "ratio", 0, 0, "ratio inverted"),
    ({"inverted": True}, ("loss_gradient", "loss"), "loss_gradient", 0, 0, "ratio inverted"),
    ({"inverted": True}, ("loss",), "loss", None, None, "ratio inverted"),
    ({"clip": False}, ("ratio", "loss_gradient", "loss"), "loss_gradient", 0, 0, "clip missing"),
    ({"clip": False}, ("loss",), "loss", None, None, "clip missing"),
    ({"sign": -1.0}, ("loss_gradient", "loss"), "loss_gradient", 0, 0, "wrong sign"),
    ({"sign": -1.0}, ("loss",), "loss", None, None, "wrong sign"),
    ({"beta": 0.0}, ("kl", "loss"), "loss", None, None, "KL missing"),
    ({"reverse": True}, ("kl", "loss"), "kl", 0, 0, "KL direction reversed"),
    (
        {"mean": "sum"},
        ("loss_gradient", "loss"),
        "loss_gradient",
        0,
        0,
        "sum where a mean is meant",
    ),
    ({"mean": "sum"}, ("loss",), "loss", None, None, "sum where a mean is meant"),
    # of 9 tokens in 3 responses, those of the first (3 tokens) weigh 1/9 either way
    ({"mean": "token"}, ("loss_gradient", "loss"), "loss_gradient", 1, 0, "token-mean"),
    ({"ddof": 0}, ("loss",), "loss", None, None, "ddof 0"),
]


@pytest.mark.parametrize(("wrong", "keys", "key", "response", "token", "cause"), PLANTED)
def test_planted_faults_are_named(wrong, keys, key, response, token, cause):
    everything = worked(**wrong)
    verdict = verify(record({name: everything[name] for name in keys}), "grpo")
    first = verdict.first
    assert first is not None
    assert (first.key, first.response, first.token) == (key, response, token)
    assert cause in first.causes[0]


@pytest.mark.parametrize(
    ("variant", "cap", "said"),
    [
        ("cispo", 2.5, "epsilon_high: the ratio is capped at 2.5 where 5 is meant"),
        ("cispo", 6.5, "epsilon_high: the ratio is capped at 6.5 where 5 is meant"),
        ("cispo", 4.0, "bound at ε_high = 4"),
        ("trl/cispo", 1.2, "bound at 1 + ε_high = 1.2"),
    ],
)
def test_another_cap_of_cispo_is_named(variant, cap, said):
    """min(ρ, cap)·A/4 at each of four tokens, in the gradient; 5 is cispo's own cap, TRL's 0.2."""
    moved = [[1.2, 2.0], [0.1, 1.9]]
    new = [[-0.5, -0.7], [-0.2, -0.3]]
    old = [[n - m for n, m in zip(*rows, strict=True)] for rows in zip(new, moved, strict=True)]
    slope = [
        [-min(math.exp(m), cap) * a / 4.0 for m in row]
        for row, a in zip(moved, (1.0, -1.0), strict=True)
    ]
    row = {"log_probs_new": new, "log_probs_old": old, "advantages": [1.0, -1.0]}
    verdict = verify(row | {"expected": {"loss_gradient": slope}}, variant)
    assert verdict.first.key == "loss_gradient"
    assert said in verdict.first.causes


def test_mean_where_a_sum_is_meant():
    verdict = verify(
        record({"loss": worked(beta=0.0)["loss"]}),
        "grpo",
        stages={"aggregate": "token-sum"},
        beta=0.0,
    )
    assert any(one.startswith("mean where a sum is meant") for one in verdict.first.causes)


def test_accumulation_factor_is_named_by_its_hyperparameter():
    row = record(
        worked(scale=0.25), hyperparameters={"gradient_accumulation_steps": 4, "beta": BETA}
    )
    del row["expected"]["kl"]
    verdict = verify(row, "grpo")
    assert verdict.first.causes[0].startswith("off by the accumulation factor")
    assert "gradient_accumulation_steps = 4" in verdict.first.causes[0]


def test_mask_ignored():
    wide = [[*row, -3.0] for row in NEW]
    old = [[*row, -2.0] for row in OLD]
    mask = [[1] * len(row) + [0] for row in NEW]
    whole = verify(
        {
            "log_probs_new": wide,
            "log_probs_old": old,
            "rewards": REWARDS,
            "expected": {"loss": 9.0},
        },
        "dr",
    )
    assert whole.first is not None
    masked = {
        "log_probs_new": wide,
        "log_probs_old": old,
        "mask": mask,
        "rewards": REWARDS,
        "expected": {"loss": whole.first.got},
    }
    assert "mask ignored" in verify(masked, "dr").first.causes[0]


def test_a_single_wrong_token_is_found_where_it_is():
    row = copy.deepcopy(load("trl-1.16.0-dapo.jsonl")[3])
    row["expected"]["loss_gradient"][5][2] += 1e-3
    first = verify(row).first
    assert first is not None
    assert (first.key, first.response, first.token, first.differing) == ("loss_gradient", 5, 2, 1)
    assert first.expected == pytest.approx(first.got + 1e-3, rel=1e-4)


def test_tokens_are_named_by_their_position_as_written():
    row = {
        "log_probs_new": [[-1.0, -1.0, -1.0], [-1.0, -1.0, -1.0]],
        "mask": [[0, 1, 1], [0, 0, 1]],
        "rewards": [1.0, 0.0],
        "expected": {"ratio": [[None, 1.0, 1.0], [None, None, 2.0]]},
    }
    first = verify(row, "dr").first
    assert first is not None
    assert (first.response, first.token) == (1, 2)


def test_real_losses_with_a_planted_fault_are_explained():
    moved = load("trl-1.16.0-dapo.jsonl")[3]
    halved = copy.deepcopy(moved)
    halved["hyperparameters"]["steps_per_generation"] = 1
    assert not verify(halved).agrees
    negative = copy.deepcopy(moved)
    negative["expected"]["loss"] *= -1
    assert "wrong sign" in verify(negative).first.causes[0]


def test_an_unexplained_difference_has_no_cause():
    row = record({"loss": 0.123})
    assert verify(row, "grpo").first.causes == ()


def test_a_loss_that_cancels_to_0_is_compared_with_what_cancels():
    row = {"log_probs_new": [[-1.0], [-2.0]], "rewards": [1.0, 0.0], "expected": {"loss": 3e-8}}
    assert verify(row, "dr").agrees
    row["expected"]["loss"] = 3e-5
    assert not verify(row, "dr").agrees


@pytest.mark.parametrize(
    ("expected", "path"),
    [
        ({"advantages": [1.0]}, "expected.advantages"),
        ({"ratio": [[1.0], [1.0], [1.0]]}, "expected.ratio[0]"),
        ({"loss": "x"}, "expected.loss"),
        ({"gradient": 1.0}, "expected.gradient"),
        ([1.0], "expected"),
    ],
)
def test_what_cannot_be_read_is_an_input_error(expected, path):
    with pytest.raises(InputError) as error:
        verify(record({}) | {"expected": expected}, "grpo")
    assert error.value.path == path


def test_a_framework_without_a_row_says_how_to_go_on():
    with pytest.raises(InputError, match="name one with -v"):
        verify(record({"loss": 0.0}, framework={"name": "trl", "loss_type": "unheard-of"}))
    with pytest.raises(InputError, match="name one with stages="):
        verify(record({"loss": 0.0}, framework={"name": "verl", "loss_agg_mode": "unheard-of"}))
