"""A KL in the reward beside rewards of another size: no digit of it is lost to their offset."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from grpo_cli import evaluate

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


@pytest.mark.parametrize("rewards", [LARGE, [-(2.0**60)] * 4, [0.5, 1.5, 0.5, 0.25]], ids=str)
def test_rloo(rewards: list[float]) -> None:
    wanted = [float(one * Fraction(4, 3)) for one in offsets(rewards)]
    found = evaluate(record(rewards=rewards), "trl/rloo").advantages
    assert found == pytest.approx(wanted, rel=1e-14)


def test_other_advantages_that_centre_in_the_group() -> None:
    wanted = [float(one) for one in offsets(LARGE)]
    found = evaluate(record(), "dr", stages={"kl": "k1-in-reward", "advantage": "group-mean"})
    assert found.advantages == pytest.approx(wanted, rel=1e-14)


def test_weighted_reward_functions() -> None:
    """Twice the first function, whose rewards are the large ones, less those of the second."""
    small = [1.0, 0.5, 2.0, 0.0]
    both = [[one, other] for one, other in zip(LARGE, small, strict=True)]
    given = record(rewards=both, reward_weights="2,-1")
    summed = [2 * Fraction(one) - Fraction(other) for one, other in both]
    wanted = [float(one * Fraction(4, 3)) for one in offsets(summed)]
    assert evaluate(given, "trl/rloo").advantages == pytest.approx(wanted, rel=1e-14)
