"""From rewards to advantages: means and deviations of groups, and groups that have none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vectors.cases.vector import Signature, Vector, scored

WANTED = ("advantages",)
STD = {"advantage": "group-std", "std_ddof": 1, "std_eps": 1e-4}
SMALL = STD | {"std_eps": 1e-6}
"""TRL adds 1e-4 to the std, verl, slime and SkyRL 1e-6."""

MEAN = {"advantage": "group-mean"}
LEAVE = {"advantage": "leave-one-out"}
BATCH = STD | {"advantage": "batch-std"}
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
            "Four responses to one prompt: centred, over the sample's std.",
            ["std-or-not", "std-ddof"],
            scored(rewards),
            STD,
        )
        yield vector(
            f"group-std-small-eps-{name}",
            "As before, with 1e-6 added to the std.",
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


def groups() -> Iterator[Vector]:
    for choice, how, flag in (
        ("group-mean", MEAN, "std-or-not"),
        ("group-std", STD, "std-level"),
        ("group-std-small-eps", SMALL, "std-level"),
        ("leave-one-out", LEAVE, "std-or-not"),
    ):
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
    for reward in (0.1, 0.7, 1 / 3):
        yield vector(
            f"group-std-equal-{reward:.2g}",
            "Equal rewards that no double holds exactly: still 0, not noise over noise.",
            ["zero-std-noise"],
            scored([reward] * 3),
            SMALL,
            dtypes=HALF,
        )


def batch() -> Iterator[Vector]:
    for name, given in (
        ("two-prompts", scored(PAIRS, [0, 0, 1, 1])),
        ("dead-group", scored([1.0, 0.0, 0.5, 0.5], [0, 0, 1, 1])),
        ("uneven", scored([1.0, 0.0, 0.5, 0.25, 1.0], [0, 0, 0, 1, 1])),
    ):
        yield vector(
            f"batch-std-{name}",
            "The mean is the group's, the std that of all rewards of the batch.",
            ["std-level"],
            given,
            BATCH,
        )
        yield vector(
            f"batch-whiten-{name}",
            "The mean is the group's, the std that of all the batch's centred rewards.",
            ["std-level"],
            given,
            BATCH | {"advantage": "batch-whiten"},
        )
    for name, lengths in (("equal", [2, 2, 2, 2]), ("unequal", [1, 6, 2, 3])):
        yield vector(
            f"token-whiten-{name}-lengths",
            "Centred in the group, whitened over the batch's tokens: a long response counts more.",
            ["std-level", "token-for-response-mean"],
            scored(PAIRS, [0, 0, 1, 1], lengths),
            {"advantage": "token-whiten", "std_ddof": 1, "variance_eps": 1e-8},
        )


def others() -> Iterator[Vector]:
    alone = {"advantage": "leave-one-out-std", "std_eps": 1e-6}
    for name, rewards in SETS.items():
        yield vector(
            f"leave-one-out-std-{name}",
            "Mean and std of the other three; where their std is 0 there is no division.",
            ["leave-one-out-zero-std"] if name in ("one-right", "one-wrong") else ["std-ddof"],
            scored(rewards),
            alone,
        )
    for name, lengths in (("equal", [2, 2, 2, 2]), ("unequal", [1, 6, 2, 3])):
        yield vector(
            f"length-weighted-{name}-lengths",
            "The baseline is the group's mean reward, weighed by length (OPO).",
            ["token-for-response-mean"],
            scored(SETS["graded"], lengths=lengths),
            {"advantage": "length-weighted"},
        )
    for name in ("one-right", "half-right", "graded", "negative"):
        yield vector(
            f"pass-at-k-{name}",
            "Only the best response has an advantage: its lead over the second; none in a tie.",
            ["std-or-not"],
            scored(SETS[name]),
            {"advantage": "pass-at-k"},
        )
    for name in ("one-right", "half-right", "graded"):
        yield vector(
            f"max-rl-{name}",
            "Centred, over the group's mean reward.",
            ["std-or-not"],
            scored(SETS[name]),
            {"advantage": "max-rl"},
        )


def decoupled() -> Iterator[Vector]:
    several = [[1.0, 0.25], [0.0, 0.625], [0.25, 0.125], [0.75, 0.125]]
    for name, groups, rewards in (
        ("two-prompts", [0, 0, 1, 1], several),
        ("one-prompt", [0, 0, 0, 0], several),
        ("dead-function", [0, 0, 1, 1], [[1.0, 0.5], [0.0, 0.5], [0.25, 0.125], [0.75, 0.5]]),
    ):
        yield vector(
            f"decoupled-{name}",
            "Two reward functions, each standardised in its group, the sum in the batch (GDPO).",
            ["std-level", "zero-std-noise"],
            scored(rewards, groups),
            STD | {"advantage": "decoupled"},
        )


def left_open() -> Iterator[Vector]:
    for how, used in (
        (MEAN, {"0": ["slime", "AReaL"], "its reward": ["verl 0.9.1"]}),
        (LEAVE, {"0": ["SkyRL", "verl 0.9.1 rloo_vectorized"], "its reward": ["verl 0.9.1 rloo"]}),
    ):
        yield vector(
            f"{how['advantage']}-singleton",
            "The last prompt has one response: is its advantage 0, or its reward?",
            ["singleton-group"],
            scored([1.0, 0.0, 0.75], [0, 0, 1]),
            how,
            topic="singleton-group",
            signatures={
                name: Signature(who, {"singleton-group": name}) for name, who in used.items()
            },
        )
    for how in (MEAN, STD, SMALL):
        given = scored([1.0, 0.0, 0.25, 0.75], lengths=[2, 2, 2, 2])
        yield vector(
            f"{'group-std-small-eps' if how is SMALL else how['advantage']}-masked-response",
            "A response is masked altogether; does its reward count in the group's statistics?",
            ["masked-response-votes"],
            given | {"mask": [[1, 1], [0, 0], [1, 1], [1, 1]]},
            how,
            topic="masked-response",
            signatures={
                "votes": Signature(["TRL 1.16.0", "verl 0.9.1"]),
                "has no vote": Signature(
                    ["NeMo-RL's SingleController"], {"masked-response": "has no vote"}
                ),
            },
        )


CASES = [*one_group(), *groups(), *batch(), *others(), *decoupled(), *left_open()]
