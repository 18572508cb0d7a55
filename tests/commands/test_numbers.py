"""Numbers of answers by their definitions, where changed operators and constants had no test."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from files import each
from planted import record, telling

from grpo_cli import VARIANTS, GrpoError, check, compare, evaluate, match, trend, verify

FAR = {
    "log_probs_new": [[-0.2, -3.0, -1.0], [-3.0, -0.2]],
    "log_probs_old": [[-3.0, -0.2, -1.0], [-0.2, -3.0]],
    "log_probs_ref": [[-1.0] * 3, [-1.0] * 2],
    "log_probs_rollout": [[-3.0, -0.2, -1.0], [-0.2, -3.0]],
    "entropies": [[0.5] * 3, [0.5] * 2],
    "advantages": [0.0, 0.0],
}
"""Ratios far beyond every bound on both sides, and nothing to gain or to lose."""
PLAIN = {"kl": "none", "surrogate": "clip", "ratio": "token"}
"""Stages with which match tries little."""


def test_no_token_without_an_advantage_is_clipped() -> None:
    """A clip cuts a gradient, which is 0 there; prime-rl's ref_kl drops tokens by ρ alone."""
    clipped, evaluated = set(), 0
    for name in VARIANTS:
        try:
            sides = evaluate(FAR, name).columns("token")["clip"].tolist()
        except GrpoError:
            continue  # a setting of its own is missing
        evaluated += 1
        if any(side in ("low", "high") for side in sides):
            clipped.add(name)
    assert evaluated > 100
    assert clipped <= {"prime-rl/ref_kl"}


@each(("said", "step"), [(3, 3.0), ([3, 3], 3.0), ([3, 4], None)])
def test_the_step_of_a_record_is_what_all_its_rows_say(said: Any, step: float | None) -> None:
    one = {"step": said, "log_probs": [[-1.0], [-2.0]], "rewards": [1, 0]}
    found = evaluate(one, "dr").columns("record").get("step")
    assert (None if found is None else found.tolist()) == (None if step is None else [step])


def test_a_length_that_is_not_given_is_found_by_the_loss() -> None:
    """Of Dr. GRPO's constant, with which no other convention has so plain a number."""
    how: Any = {"stages": {"aggregate": "token-sum-norm"}, "max_completion_length": 137}
    loss = evaluate(telling(), "dr", **how).loss
    (row,) = match(telling(), loss=loss, stages=PLAIN, epsilon=0.2).matches
    assert "max_completion_length=137" in row.command
    assert row.value == pytest.approx(loss, rel=1e-14)


@pytest.mark.more
def test_a_variant_of_another_framework_is_less_plain() -> None:
    """Its numbers have more bits where the records name the framework that they are from."""
    loss, plain = evaluate(telling(), "verl/vanilla").loss, {"kl": "none", "ratio": "token"}
    named = [one | {"framework": {"name": "trl", "loss_type": "grpo"}} for one in telling()]
    bits = [match(rows, loss=loss, stages=plain).matches[0].bits for rows in (telling(), named)]
    assert bits[0] < bits[1]


def test_a_step_of_one_loss_is_named_by_its_step_alone() -> None:
    rows = [one | {"step": at} for at, one in enumerate(telling())]
    for one in rows:
        one["metrics"] = {"loss": evaluate(one, "dr").loss}
    found = match(rows, logged="loss=metrics.loss", stages=PLAIN, epsilon=0.2)
    assert "metrics.loss" not in found.matches[0].command


def test_metrics_that_move_are_named_with_the_means_of_both_ends() -> None:
    rows = [
        {"step": at, "log_probs": [[-1.0], [-2.0]], "rewards": [0.02 * at, 0.02 * at + 0.1]}
        for at in range(90)
    ]
    first, last = (np.mean([0.02 * at + 0.05 for at in ends]) for ends in (range(9), range(81, 90)))
    words = f"means, first 9 → last 9 steps: reward_mean {first:.3g} → {last:.3g}"
    assert words in trend(rows, "dr").verdict


@each(("copied", "said"), [(3, False), (4, True), (9, True)])
def test_a_reference_that_becomes_the_old_policy_is_named_after_four_steps(
    copied: int, said: bool
) -> None:
    rows = [record(at, [4, 6], [1.0, 0.0], step=at) for at in range(12)]
    for one in rows[12 - copied :]:
        one["log_probs_ref"] = one["log_probs_old"]
    words = f"step {12 - copied}: log_probs_ref equals log_probs_old at all tokens"
    assert trend(rows, "grpo").verdict.startswith(words) is said


def test_a_comparison_of_batches_says_how_many_there_are() -> None:
    rows = [one | {"step": at} for at, one in enumerate(telling())]
    said = [compare(rows, "dr,grpo", beta=0.0, batch=batch).headline for batch in ("step", "input")]
    assert ["2 batches of" in one for one in said] == [True, False]


@each(("factor", "severity"), [(1.04, None), (1.09, "info"), (1.12, "warning"), (1.5, "warning")])
def test_an_engine_is_off_mildly_up_to_a_factor_of_1_1(factor: float, severity: str) -> None:
    """NeMo-RL's mean of exp|d|, with as many tokens above as below, of all sizes."""
    draw = np.random.default_rng(3)
    old = -draw.uniform(0.5, 3.0, (4, 40))
    rollout = old + np.log(factor) * draw.permuted(np.tile([1.0, -1.0], (4, 20)), axis=1)
    columns = {"log_probs_old": old.tolist(), "log_probs_rollout": np.minimum(rollout, 0).tolist()}
    one = columns | {"log_probs_new": old.tolist(), "rewards": [1.0, 0.0, 0.3, 0.6]}
    found = [each.severity for each in check(one).findings if each.code == "rollout-mismatch"]
    assert found == ([] if severity is None else [severity])


@each(("before", "said"), [
    (0.95, "the sign of the advantages is reversed"),
    (0.7, "the sign of the advantages is reversed"),  # of one reward function of several
    (0.0, "the advantages no longer follow the rewards"),
])  # fmt: skip
def test_a_sign_is_turned_only_where_advantages_followed_the_rewards(
    before: float, said: str
) -> None:
    """Correlations of −0.95 or −0.7 with the rewards from step 30 on."""
    draw, rows = np.random.default_rng(1), []
    for at in range(60):
        rewards = draw.normal(size=8).round(2)
        z = (rewards - rewards.mean()) / rewards.std()
        rest = draw.normal(size=8)
        rest -= rest.mean() + z * (rest @ z) / 8
        share = before if at < 30 else -(before or 0.95)
        given = share * z + np.sqrt(1 - share**2) * rest / rest.std()
        rows.append(record(at, [4] * 8, rewards.tolist(), step=at, advantages=given.tolist()))
    assert trend(rows, "grpo").verdict.startswith(f"step 30: {said}")


@each(
    ("loss", "gradient", "factors"),
    [(3, 2, ["2", "3"]), (1, 2, ["2"]), (3, 1, ["3"]), (-1, 1, ["-1"]), (2, 2, ["2"])],
)
def test_factors_of_a_loss_and_its_gradient_are_named(
    loss: int, gradient: int, factors: list[str]
) -> None:
    one, _ = telling()
    right = evaluate(one, "dr")
    slopes = [(-gradient * row).tolist() for row in right.gradient]
    expected = {"loss": loss * right.loss, "loss_gradient": slopes}
    (cause,) = verify(one | {"expected": expected}, "dr").causes
    assert re.findall(r"times (-?\d+)", cause) == factors
