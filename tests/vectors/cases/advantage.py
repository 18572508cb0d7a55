"""From rewards to advantages: means and deviations of groups, and groups that have none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vectors.cases.vector import Vector, scored

WANTED = ("advantages",)
STD = {"advantage": "group-std", "std_ddof": 1, "std_eps": 1e-4}
SMALL = STD | {"std_eps": 1e-6}
"""TRL adds 1e-4 to the std, verl, slime and SkyRL 1e-6."""

MEAN = {"advantage": "group-mean"}
LEAVE = {"advantage": "leave-one-out"}
SETS: Mapping[str, Sequence[float]] = {
    "one-right": [1.0, 0.0, 0.0, 0.0],
    "half-right": [1.0, 1.0, 0.0, 0.0],
    "one-wrong": [1.0, 1.0, 1.0, 0.0],
    "graded": [0.25, 0.875, 0.5, 0.5],
    "negative": [-1.0, -0.5, 0.25, -2.0],
}
PAIRS = [1.0, 0.0, 0.25, 0.5]
HALF = ("float64", "float32")
"""A bfloat16 has no room for what these cases show."""


def vector(
    name: str,
    comment: str,
    flags: Sequence[str],
    columns: Mapping[str, Any],
    how: Mapping[str, Any],
    **more: Any,
) -> Vector:
    return Vector(name, comment, flags, columns, how, wanted=WANTED, **more)


def one_group() -> Iterator[Vector]:
    for name, rewards in SETS.items():
        yield vector(
            f"group-mean-{name}",
            "Four responses to one prompt: the reward less the group's mean, and no std.",
            ["std-or-not"],
            scored(rewards),
            MEAN,
        )
        yield vector(
            f"group-std-{name}",
            "Four responses to one prompt: centred, over the sample's std, to which 1e-4 is added.",
            ["std-or-not", "std-ddof"],
            scored(rewards),
            STD,
        )
        yield vector(
            f"group-std-small-eps-{name}",
            "Four responses to one prompt: centred, over the sample's std, to which 1e-6 is added.",
            ["std-or-not", "std-ddof"],
            scored(rewards),
            SMALL,
        )
        yield vector(
            f"group-std-population-{name}",
            "Four responses to one prompt: centred, over the population's std.",
            ["std-ddof"],
            scored(rewards),
            STD | {"std_ddof": 0, "std_eps": 1e-8},
        )
        yield vector(
            f"leave-one-out-{name}",
            "The reward less the mean of the other three.",
            ["std-or-not"],
            scored(rewards),
            LEAVE,
        )


def epsilons() -> Iterator[Vector]:
    yield vector(
        "group-std-large-eps",
        "Rewards 1/32 apart, and 2^-5 added to the std: where it is added shows.",
        ["std-ddof"],
        scored([0.5, 0.53125, 0.5, 0.46875]),
        STD | {"std_eps": 2**-5},
        dtypes=HALF,
    )
    yield vector(
        "group-std-no-eps",
        "A pair, nothing added to the std: ±1/√2.",
        ["std-ddof"],
        scored([1.0, 0.0]),
        STD | {"std_eps": 0.0},
    )


GROUPED = (
    ("group-mean", MEAN, "std-or-not"),
    ("group-std", STD, "std-level"),
    ("group-std-small-eps", SMALL, "std-level"),
    ("leave-one-out", LEAVE, "std-or-not"),
)


def groups() -> Iterator[Vector]:
    for choice, how, flag in GROUPED:
        yield vector(
            f"{choice}-two-prompts",
            "Two prompts with rewards of different size: each has its own mean.",
            ["batch-as-one-group", flag],
            scored(PAIRS, [0, 0, 1, 1]),
            how,
        )
        yield vector(
            f"{choice}-uneven",
            "A prompt of three responses and one of two.",
            ["batch-as-one-group"],
            scored([1.0, 0.0, 0.5, 0.25, 1.0], [0, 0, 0, 1, 1]),
            how,
        )
        yield vector(
            f"{choice}-short-first",
            "The first prompt lost a response: every stride after it is off.",
            ["group-stride", "batch-as-one-group"],
            scored([1.0, 0.0, 0.5, 0.25, 1.0], [0, 0, 1, 1, 1]),
            how,
        )


def more_groups() -> Iterator[Vector]:
    for choice, how, _ in GROUPED:
        yield vector(
            f"{choice}-interleaved",
            "The prompts' responses alternate.",
            ["group-stride"],
            scored([1.0, 0.25, 0.0, 0.75], [0, 1, 0, 1]),
            how,
        )
        yield vector(
            f"{choice}-dead-group",
            "All responses to the second prompt have the same reward: advantage 0, all of them.",
            ["batch-as-one-group", "zero-std-noise"],
            scored([1.0, 0.0, 0.75, 0.75], [0, 0, 1, 1]),
            how,
        )


def equal_rewards() -> Iterator[Vector]:
    for reward in (0.1, 0.7, 1 / 3):
        yield vector(
            f"group-std-equal-{reward:.2g}",
            "Equal rewards that no double holds exactly: still 0, not noise over noise.",
            ["zero-std-noise"],
            scored([reward] * 3),
            SMALL,
            dtypes=HALF,
        )


CASES = [*one_group(), *epsilons(), *groups(), *more_groups(), *equal_rewards()]
