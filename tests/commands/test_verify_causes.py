"""Every mistake that ``verify`` knows, made by definition in plain Python, is named for what it is.

What a cause gives has to be what the definition gives, to 1e-8: else it is not named. The mistakes
and their names are in ``cases/verify/causes.txt``.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from files import expressions
from mistakes import *  # noqa: F403 - which the expressions use
from mistakes import (
    LENGTHS,
    MOVES,
    NEW,
    RECORD,
    A,
    Outcome,
    causes,
    clip,
    compute,
    difference,
    subtract,
)

from grpo_cli import evaluate

CENTRED = (1.3125, -0.1875, 0.5625, -1.6875)
REWARDS = [1.0, 0.2, 0.6, 0.1, 0.9, 0.4, 0.4]
NEAR = [0.5, 0.5002, 0.5001, 0.4999, 0.7, 0.7001, 0.6998]


def test_the_right_numbers_agree() -> None:
    with pytest.raises(AssertionError, match="it agrees"):
        causes(compute())


def discounted(gamma: float) -> list[str]:
    """The advantages are discounted towards the start of each response, then towards the end."""
    behind = [gamma**k for n in LENGTHS for k in range(n - 1, -1, -1)]
    before = [gamma**k for n in LENGTHS for k in range(n)]
    found = (causes(compute(counts=way, beta=0.0), flags={"beta": 0.0}) for way in (behind, before))
    return [cause for each in found for cause in each]


def of_responses(gamma: float) -> list[str]:
    behind = [[a * gamma**k for k in range(n - 1, -1, -1)] for a, n in zip(A, LENGTHS, strict=True)]
    stages = {"ratio": "sequence"}
    seen = evaluate(RECORD | {"advantages": behind}, stages=stages, beta=0.0, epsilon=9.0)
    expected = {"objective": seen.objective, "gradient": seen.gradient}
    flags = {"beta": 0.0, "epsilon_low": 9.0, "epsilon_high": 9.0}
    return [*difference(expected, stages=stages, flags=flags, rtol=1e-6).causes]


def standardise(
    eps: float, rewards: Sequence[float] = REWARDS, *, scaled: bool = True
) -> list[float]:
    """(r − mean)/(std + ε) of the group."""
    found = []
    for own in (rewards[:4], rewards[4:]):
        scale = statistics.stdev(own) + eps if scaled else 1.0
        found += [(reward - statistics.fmean(own)) / scale for reward in own]
    return found


def rewarded(advantages: list[float], rewards: Sequence[float] = REWARDS, **more: Any) -> list[str]:
    rows = [[-0.5, -0.7]] * 7
    columns: dict[str, Any] = {"log_probs_new": rows, "log_probs_old": rows, "log_probs_ref": rows}
    columns |= {"log_probs_rollout": None, "advantages": None, "rewards": [*rewards]}
    columns["groups"] = [0, 0, 0, 0, 1, 1, 1]
    return [*difference({"advantages": advantages}, **columns, **more).causes]


def of_policy(form: Callable[[float, float], Outcome], **more: Any) -> list[str]:
    """The causes of a policy term that is such a function of ρ and A."""
    return causes(compute(lambda m, a, _: form(math.exp(m), a)), **more)


def capped(cap: float, **flags: float) -> list[str]:
    moves = [*MOVES[:3], [math.log(4.0), math.log(2.0), -0.05]]

    def policy(m: float, a: float, _: float) -> Outcome:
        ratio = math.exp(m)
        return (cap * a, 0.0) if a < 0 and ratio > cap else clip(ratio, a)

    old = subtract(NEW, moves)
    return causes(compute(policy, moves=moves), log_probs_old=old, flags=flags)


def inverted(m: float, a: float, _: float) -> Outcome:
    value, slope = clip(math.exp(-m), a)
    return value, -slope


def cispo(cap: float, m: float, a: float, new: float, *, moving: bool = False) -> Outcome:
    """min(ρ, cap)·A·log π_θ, whose weight is a constant, or is not."""
    weight = min(math.exp(m), cap)
    through = weight * a * new if moving and math.exp(m) <= cap else 0.0
    return weight * a * new, weight * a + through


def of_cispo(variant: str, epsilon: float, own: float, other: float) -> list[str]:
    stages = {"kl": "k3", "aggregate": "response-mean"}
    flags = {"epsilon_low": None, "epsilon_high": epsilon, "kl_weight": "none"}
    wrong = (
        compute(lambda *at: cispo(math.inf, *at)),
        compute(lambda *at: cispo(other, *at)),
        compute(lambda *at: cispo(own, *at, moving=True)),
        compute(lambda m, a, _: (math.exp(m) * a, math.exp(m) * a)),
    )
    found = (causes(numbers, variant, stages=stages, flags=flags) for numbers in wrong)
    return ["; or ".join(each) for each in found]


@pytest.mark.parametrize("name", ["causes", pytest.param("causes_more", marks=pytest.mark.more)])
def test_mistakes_are_named(name: str) -> None:
    expressions(Path(__file__).parent / f"cases/verify/{name}.txt", globals())
