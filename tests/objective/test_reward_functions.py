"""Several reward functions, and a KL in the reward, digit by digit."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files import each, expressions
from mpmath import mp, mpf
from rows import STAGES

from grpo_cli import GrpoError, evaluate, match, read, verify  # noqa: F401 - in texts

ROW = {
    "log_probs_new": [[-0.9, -0.2], [-1.1], [-0.4, -0.7], [-0.3]],
    "log_probs_old": [[-1.0, -0.25], [-1.0], [-0.6, -0.5], [-0.35]],
    "log_probs_ref": [[-1.0, -0.25], [-1.0], [-0.6, -0.5], [-0.35]],
    "rewards": [[1.0, 0.25], [0.0, 1.0], [1.0, None], [0.5, 0.0]],
}
WEIGHTS = [1.0, -0.5]
SUMS = [mpf(1) - mpf(1) / 8, -mpf(1) / 2, mpf(1), mpf(1) / 2]
"""Σ wₖ·rₖ of the rewards that there are, by hand."""


def advantages(record: dict[str, Any], choice: str, **how: Any) -> Any:
    found = evaluate(record, "dr", stages={"advantage": choice}, **how)
    return found.breakdown.response_advantage


def mean(values: list[mpf]) -> mpf:
    return sum(values) / len(values)


def std(values: list[mpf]) -> mpf:
    middle = mean(values)
    return mp.sqrt(sum((x - middle) ** 2 for x in values) / (len(values) - 1))


def test_weights_and_nulls_by_50_digits() -> None:
    middle, sigma = mean(SUMS), std(SUMS)
    close = {"rel": 1e-15, "abs": 1e-16}
    found = advantages(ROW, "group-mean", reward_weights=WEIGHTS)
    assert found == pytest.approx([float(x - middle) for x in SUMS], **close)
    found = advantages(ROW, "group-std", reward_weights=WEIGHTS, std_eps=1e-4)
    wanted = [float((x - middle) / (sigma + mpf(1e-4))) for x in SUMS]
    assert found == pytest.approx(wanted, **close)


def test_decoupled_by_50_digits() -> None:
    """Each function among the responses that it scored; the weights afterwards."""
    eps = mpf(1e-4)
    columns = [[mpf(1), mpf(0), mpf(1), mpf(1) / 2], [mpf(1) / 4, mpf(1), None, mpf(0)]]
    sums = [mpf(0)] * 4
    for weight, column in zip(WEIGHTS, columns, strict=True):
        given = [x for x in column if x is not None]
        for i, x in enumerate(column):
            if x is not None:
                sums[i] += mpf(weight) * (x - mean(given)) / (std(given) + eps)
    wanted = [float((s - mean(sums)) / (std(sums) + eps)) for s in sums]
    found = advantages(ROW, "decoupled", reward_weights=WEIGHTS, std_eps=1e-4)
    assert found == pytest.approx(wanted, rel=1e-14)


@each("choice", list(STAGES["advantage"].choices))
def test_every_advantage_takes_weights_or_says_that_it_does_not(choice: str) -> None:
    """Weights of [2, 0] are the first function twice, whatever is made of the rewards."""
    columns = STAGES["advantage"].choices[choice].columns
    record = {**ROW, "rewards": [[1.0, 0.3], [0.1, 1.0], [1.0, 0.7], [0.5, 0.0]]}
    record |= {name: [[-0.5, -0.5], [-0.5], [-0.5, -0.5], [-0.5]] for name in ("values",)}
    record |= {"sum_pi_squared": [[0.5, 0.5], [0.5], [0.5, 0.5], [0.5]]}
    record |= {"reward_baselines": [0.5] * 4, "group_ids": [0, 0, 1, 1], "gfpo_keep": 1}
    record |= {"response_length": 4, "global_batch_size": 4}
    record |= {"turn_rewards": [[0.5], [0.0], [1.0], [0.0]], "state_ids": ["a", "a", "b", "b"]}
    how: dict[str, Any] = {"stages": {"advantage": choice}}
    if choice in ("decoupled", "verl/gdpo", "nemo-rl/gdpo", "nemo-rl/gdpo-leave-one-out"):
        return  # above, and beside the frameworks' own
    if "rewards" not in columns and "task_rewards" not in columns:
        with pytest.raises(GrpoError):
            evaluate(record, "dr", **how, reward_weights=[2, 0])
        return
    alone = {**record, "rewards": [2 * row[0] for row in record["rewards"]]}
    found = evaluate(record, "dr", **how, reward_weights=[2, 0])
    wanted = evaluate(alone, "dr", **how)
    assert np.concatenate(found.advantages) == pytest.approx(np.concatenate(wanted.advantages))


@pytest.mark.more
def test_weights_are_in_the_signature_and_in_what_match_tries() -> None:
    record = {**ROW, "reward_weights": WEIGHTS}
    found = evaluate(record, "dapo")
    assert "reward_weights=1,-0.5" in found.signature
    assert evaluate({**ROW, "reward_weights": "1,-0.5"}, "dapo").signature == found.signature
    (best, *_) = match(record, loss=repr(found.loss)).matches
    assert "reward_weights=1,-0.5" in best.signature


BETA = 0.25
LARGE = [1e15, 1e15 + 1, 1e15, 1e15 + 2]
KLS = [0.3, -0.0625, 0.11, 0.017]
"""Of each response's only token."""


def record(**more: Any) -> dict[str, Any]:
    return {
        "log_probs_new": [[-1.0]] * 4,
        "log_probs_old": [[-1.0 + kl] for kl in KLS],
        "log_probs_ref": [[-1.0]] * 4,
        "rewards": LARGE,
        "beta": BETA,
        **more,
    }


def offsets(rewards: list[Any]) -> list[Fraction]:
    """r − β·KL less the group's mean of it, in rational numbers; log-probs as the doubles are."""
    logs = record()["log_probs_old"]
    less = [
        Fraction(reward) - Fraction(BETA * (log - -1.0))
        for reward, (log,) in zip(rewards, logs, strict=True)
    ]
    mean = sum(less) / len(less)
    return [one - mean for one in less]


def test_weights_and_a_kl_in_the_reward(tmp_path: Path) -> None:
    def file(record: dict[str, Any]) -> Path:
        (tmp_path / "dump.jsonl").write_text(json.dumps(record))
        return tmp_path / "dump.jsonl"

    expressions(Path(__file__).with_name("reward_functions.txt"), globals() | {"file": file})
