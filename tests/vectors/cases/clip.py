"""The ratio and how it is tamed: clip, dual clip, the geometric mean, and no clip at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vectors.cases.vector import ANY_MEAN, NEAR, ONE_TOKEN, PLAIN, Vector, columns, random_columns

MEANS = {"aggregate": ANY_MEAN}
EVEN = [3, 3]
PLACES = {
    "far-below": (-1.5, "far below the band"),
    "below": (-0.5, "below the band"),
    "inside": (0.125, "inside the band"),
    "at-one": (0.0, "exactly 1"),
    "above": (0.5, "above the band"),
    "far-above": (2.0, "far above the band"),
}
SIGNS = {"positive": 1.0, "negative": -1.5}


def one(step: float, advantage: float) -> dict[str, Any]:
    """A single token whose log ratio is ``step``."""
    return columns([[-2.5 + step]], old=[[-2.5]], advantages=[advantage])


def cut(step: float, advantage: float) -> bool:
    """Whether the clip cuts the gradient."""
    return (advantage > 0 and step > 0.2) or (advantage < 0 and step < -0.2)


def places() -> Iterator[Vector]:
    for place, (step, words) in PLACES.items():
        for sign, advantage in SIGNS.items():
            found = ["clip-unused"] if cut(step, advantage) else []
            if abs(step) > 0.2 and advantage < 0:
                found.append("minimum-before-advantage")
            found += (
                ["ratio-one-gradient"] if not step else ["old-ignored"] if abs(step) > 0.2 else []
            )
            yield Vector(
                f"{place}-{sign}",
                f"One token, its ratio {words}, the advantage {sign}.",
                found or ["old-ignored"],
                one(step, advantage),
                PLAIN,
                same_under=ONE_TOKEN,
            )


def asymmetric() -> Iterator[Vector]:
    higher = PLAIN | {"epsilon_high": 0.28}
    lower = PLAIN | {"epsilon_low": 0.4}
    for name, step, advantage, how, found in (
        ("clip-higher-between", 0.21875, 1.0, higher, ["epsilon-high"]),
        ("clip-higher-above", 0.3125, 1.0, higher, ["epsilon-high", "clip-unused"]),
        ("clip-higher-negative", 0.3125, -1.0, higher, ["minimum-before-advantage"]),
        ("clip-lower-between", -0.3125, -1.0, lower, ["epsilon-high"]),
        ("clip-lower-below", -0.625, -1.0, lower, ["epsilon-high", "clip-unused"]),
    ):
        yield Vector(
            name,
            "The band is wider on one side; the ratio tells which bound is used.",
            found,
            one(step, advantage),
            how,
            same_under=ONE_TOKEN,
        )
    yield Vector(
        "narrow",
        "Sequence clips are of the order of 1e-4; here 1/1024, which single precision still sees.",
        ["clip-unused"],
        columns([[-2.0, -1.0]], old=[[-2.0 - 1 / 256, -1.0 - 1 / 128]], advantages=[1.0]),
        PLAIN | {"epsilon_low": 1 / 1024, "epsilon_high": 1 / 1024},
        same_under=MEANS,
        dtypes=("float64", "float32"),
    )


def dual() -> Iterator[Vector]:
    how = PLAIN | {"dual_clip": 3.0}
    cases: Mapping[str, tuple[float, float, Sequence[str]]] = {
        "dual-capped": (2.0, -1.0, ["dual-clip-dropped"]),
        "dual-not-yet": (0.75, -1.0, ["minimum-before-advantage"]),
        "dual-positive": (2.0, 1.0, ["dual-clip-positive"]),
        "dual-positive-inside": (0.125, 1.0, ["dual-clip-positive"]),
        "dual-below": (-0.5, -1.0, ["minimum-before-advantage"]),
    }
    for name, (step, advantage, found) in cases.items():
        yield Vector(
            name,
            "Dual clip bounds the loss at c·|A| where the advantage is negative, only there.",
            found,
            one(step, advantage),
            how,
            same_under=ONE_TOKEN,
        )
    yield Vector(
        "dual-batch",
        "Dual clip on two responses, tokens on either side of every bound.",
        ["dual-clip-dropped", "dual-clip-positive"],
        columns(
            [[-0.5, -1.5, -2.0], [-0.25, -3.0, -1.0]],
            old=[[-1.5, -1.0, -2.125], [-2.25, -2.25, -1.375]],
            advantages=[0.75, -1.25],
        ),
        PLAIN | {"dual_clip": 2.0},
        same_under=MEANS,
    )
    for sign, advantage in SIGNS.items():
        yield Vector(
            f"delta-{sign}",
            "Two-sided clip: a ratio of 7.4 and the upper bound δ = 4 of the unclipped branch.",
            ["dual-clip-dropped" if advantage < 0 else "clip-unused"],
            one(2.0, advantage),
            PLAIN | {"delta": 4.0},
            same_under=ONE_TOKEN,
        )


def batches() -> Iterator[Vector]:
    yield Vector(
        "on-policy",
        "Every ratio is 1: the value is that of the advantages alone, the gradient is not 0.",
        ["ratio-one-gradient"],
        random_columns("on-policy", EVEN, steps=[0.0], advantages=[1.0, -1.0]),
        PLAIN,
        same_under=MEANS | {"surrogate": ["unclipped"]},
    )
    yield Vector(
        "no-old",
        "No old log-probs: the policy is its own old one, held constant.",
        ["ratio-one-gradient"],
        columns([[-0.5, -1.0], [-2.0, -0.25]], advantages=[1.0, -0.5]),
        PLAIN,
        same_under=MEANS | {"surrogate": ["unclipped"]},
    )
    for seed in range(3):
        yield Vector(
            f"token-{seed}",
            "Two responses of three tokens, some clipped, some not.",
            ["old-ignored", "clip-unused", "ratio-of-sums"],
            random_columns(f"token {seed}", EVEN, advantages=[1.0, -0.75]),
            PLAIN | {"epsilon_high": 0.28},
            same_under=MEANS,
        )


def without_bounds() -> Iterator[Vector]:
    yield Vector(
        "unclipped",
        "No clip at all: the ratio times the advantage.",
        ["old-ignored", "ratio-of-sums"],
        random_columns("unclipped", EVEN, advantages=[1.0, -0.75]),
        {"surrogate": "unclipped", "aggregate": "token-mean"},
        same_under=MEANS,
    )
    yield Vector(
        "reinforce",
        "The log-prob times the advantage; the old policy plays no part.",
        ["ratio-one-gradient"],
        random_columns("reinforce", EVEN, advantages=[1.0, -0.75]),
        {"surrogate": "reinforce", "aggregate": "token-mean"},
        same_under=MEANS,
    )
    yield Vector(
        "near",
        "All ratios inside the band: clipped or not is the same.",
        ["old-ignored", "ratio-of-sums"],
        random_columns("near", EVEN, steps=[x for x in NEAR if x], advantages=[1.0, -0.75]),
        PLAIN,
        same_under=MEANS | {"surrogate": ["unclipped"]},
    )


CASES = [*places(), *asymmetric(), *dual(), *batches(), *without_bounds()]
