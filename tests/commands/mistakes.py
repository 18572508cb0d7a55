"""GRPO with one thing wrong, token by token, from its definition in plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any

from grpo_cli import verify

Rows = list[list[float]]
Numbers = tuple[float, Rows]
"""J, and ∂J/∂(log π_θ) of each token."""
Outcome = tuple[float, float]
"""A token's value, and its derivative by log π_θ."""

LENGTHS = [2, 1, 4, 3]
A = [1.0, -0.5, 0.25, -2.0]
NEW = [[-1.6, -2.3], [-1.9], [-1.2, -2.7, -1.5, -2.1], [-3.1, -1.4, -1.8]]
MOVES = [[0.1, 0.5], [0.3], [-0.4, 0.26, 0.02, -0.1], [-0.5, 0.6, -0.05]]
"""log π_θ − log π_old; beyond both bounds for either sign of A."""
FAR = [[0.3, -0.2], [0.1], [0.05, -0.6, 0.4, 0.2], [-0.3, 0.15, 0.7]]
"""log π_θ − log π_ref."""
ENGINE = [[0.12, 0.4], [-0.3], [-0.35, 0.3, 0.06, -0.2], [-0.4, 0.3, 0.05]]
"""log π_θ − log μ, the rollout engine's."""
LOW, HIGH, BETA = 0.2, 0.3, 0.05
FLAGS = {"epsilon_low": LOW, "epsilon_high": HIGH, "beta": BETA}


def subtract(rows: Sequence[Sequence[float]], moves: Sequence[Sequence[float]]) -> Rows:
    return [[x - y for x, y in zip(*both, strict=True)] for both in zip(rows, moves, strict=True)]


RECORD: dict[str, Any] = {
    "log_probs_new": NEW,
    "log_probs_old": subtract(NEW, MOVES),
    "log_probs_ref": subtract(NEW, FAR),
    "log_probs_rollout": subtract(NEW, ENGINE),
    "advantages": A,
}


def clip(ratio: float, a: float, low: float = 1 - LOW, high: float = 1 + HIGH) -> Outcome:
    """PPO's clip, case by case."""
    if a > 0 and ratio > high:
        return high * a, 0.0
    if a < 0 and ratio < low:
        return low * a, 0.0
    return ratio * a, ratio * a


def k3(d: float) -> Outcome:
    return math.exp(-d) - 1 + d, 1 - math.exp(-d)


def compute(
    policy: Callable[[float, float, float], Outcome] = lambda m, a, _: clip(math.exp(m), a),
    penalty: Callable[[float, float], Outcome] = lambda d, _: k3(d),
    *,
    moves: Sequence[Sequence[float]] = MOVES,
    far: Sequence[Sequence[float]] = FAR,
    a: Sequence[float] = A,
    beta: float = BETA,
    weight: Callable[[int], float] = lambda row: 1 / (4 * LENGTHS[row]),
    kl_weight: Callable[[int], float] | None = None,
    counts: Iterable[float] = repeat(1.0),
) -> Numbers:
    """J and its gradient: policy(log ρ, A, log π_θ) and penalty(d, log ρ) of each token.

    Each token counts as often as ``counts`` says, and weighs what its response does.
    """
    parts, slopes, counts = [], [], iter(counts)
    for row, members in enumerate(zip(NEW, moves, far, MOVES, strict=True)):
        own, of_kl = weight(row), (kl_weight or weight)(row)
        slopes.append([])
        for new, m, d, log_ratio in zip(*members, strict=True):
            (s, ds), (k, dk), times = policy(m, a[row], new), penalty(d, log_ratio), next(counts)
            parts.append(times * (own * s - of_kl * beta * k))
            slopes[-1].append(times * (own * ds - of_kl * beta * dk))
    return math.fsum(parts), slopes


def expects(numbers: Numbers) -> dict[str, Any]:
    """What a record expects whose trainer computed these."""
    return {"objective": numbers[0], "gradient": numbers[1]}


def difference(
    expected: dict[str, Any],
    variant: str = "grpo",
    *,
    stages: dict[str, str] | None = None,
    flags: dict[str, Any] | None = None,
    rtol: float | None = 1e-8,
    **columns: Any,
) -> Any:
    """Where the record, with other columns, first differs from what it expects, and why."""
    given = RECORD | columns | {"expected": expected}
    given = {name: value for name, value in given.items() if value is not None}
    known = {name: value for name, value in (FLAGS | (flags or {})).items() if value is not None}
    (verdict,) = verify(given, variant, rtol=rtol, stages=stages, **known).records
    assert verdict.first is not None, "it agrees"
    return verdict.first


def causes(numbers: Numbers, variant: str = "grpo", **more: Any) -> list[str]:
    """Why a record differs that expects these numbers."""
    return [*difference(expects(numbers), variant, **more).causes]


def check(words: str, numbers: Numbers, *variant: str, **more: Any) -> None:
    """A record that expects these numbers has this cause."""
    found = causes(numbers, *variant, **more)
    assert words in found, f"{words!r} is not in {found}"
