"""The engine that sampled disagrees with the trainer: weights, bounds, and what is rejected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vectors.cases.vector import ANY_MEAN, PLAIN, Signature, Vector, columns

MEANS = {"aggregate": ANY_MEAN}
NAN = float("nan")
BOUNDS: Mapping[str, Mapping[str, float]] = {
    "token-truncate": {"is_high": 1.1875},
    "token-mask": {"is_low": 0.8125, "is_high": 1.1875},
    "sequence-truncate": {"is_high": 1.25},
    "sequence-mask": {"is_low": 0.5, "is_high": 1.25},
    "geometric-truncate": {"is_high": 1.0625},
    "geometric-mask": {"is_low": 0.9375, "is_high": 1.0625},
}
FLAGS: Mapping[str, Sequence[str]] = {
    "token": ["correction-dropped", "correction-of-new"],
    "sequence": ["correction-sum-of-ratios", "correction-product-or-mean"],
    "geometric": ["correction-product-or-mean", "correction-of-new"],
}


GAPS = columns(
    [[-1.125, -2.25, -0.625], [-1.125], [-0.875, -1.5, -1.0, -2.75]],
    old=[[-1.1875, -2.125, -0.5], [-1.5], [-1.0, -1.4375, -1.0625, -2.625]],
    rollout=[[-1.25, -2.0, -0.625], [-1.75], [-0.75, -1.5, -1.0, -2.75]],
    advantages=[1.0, -1.0, 0.5],
)
"""Gaps to the engine that cancel in the first response, are large in the second, and in the third
have one token out of bounds.
"""


def of(choice: str, **more: Any) -> dict[str, Any]:
    return PLAIN | {"correction": choice} | BOUNDS.get(choice, {}) | more


def bounded() -> Iterator[Vector]:
    for choice in BOUNDS:
        flags = FLAGS[choice.partition("-")[0]]
        for aggregate in ("token-mean", "response-mean"):
            yield Vector(
                f"{choice}-{aggregate}",
                "π_old against the engine weighs each policy term; some weights are out of bounds.",
                flags,
                GAPS,
                of(choice, aggregate=aggregate),
            )
        yield Vector(
            f"{choice}-far-off",
            "Policy and old policy differ as well: the weight is the old policy's, and constant.",
            ["correction-of-new", "correction-gradient"],
            columns(
                [[-1.0, -2.0], [-0.5, -1.5]],
                old=[[-1.125, -1.9375], [-0.625, -1.625]],
                rollout=[[-1.25, -1.875], [-0.75, -1.5]],
                advantages=[1.0, -1.0],
            ),
            of(choice),
            same_under=MEANS,
        )


def agreeing() -> Iterator[Vector]:
    for choice in BOUNDS:
        yield Vector(
            f"{choice}-no-gap",
            "Engine and trainer agree: every weight is 1.",
            ["correction-sum-of-ratios" if "sequence" in choice else "correction-of-new"],
            columns(
                [[-1.0, -2.0], [-0.5, -1.5]],
                old=[[-1.5, -1.9375], [-0.625, -1.0]],
                rollout=[[-1.5, -1.9375], [-0.625, -1.0]],
                advantages=[1.0, -1.0],
            ),
            of(choice),
            same_under=MEANS | {"correction": ["none"]},
        )


def masks() -> Iterator[Vector]:
    tokens = {
        "new": [[-1.0, -4.0, -0.5], [-2.0, -1.0]],
        "old": [[-1.125, -4.0, -0.375], [-1.875, -1.0625]],
        "rollout": [[-1.0, -0.5, -0.5], [-2.0, -1.25]],
    }
    for choice in ("token-truncate", "sequence-truncate", "sequence-mask", "geometric-mask"):
        yield Vector(
            f"{choice}-masked",
            "A masked token that the engine saw quite differently is no part of any weight.",
            ["mask-shifted"]
            if choice == "token-truncate"
            else ["masked-token-leak", "mask-shifted"],
            columns(**tokens, mask=[[1, 0, 1], [1, 1]], advantages=[1.0, -1.0]),
            of(choice),
        )
    missing = {**tokens, "rollout": [[-1.0, NAN, -0.5], [-2.0, -1.25]]}
    for choice in ("token-truncate", "sequence-truncate"):
        yield Vector(
            f"{choice}-masked-nan",
            "A masked token that the engine did not score.",
            ["masked-nan"],
            columns(**missing, mask=[[1, 0, 1], [1, 1]], advantages=[1.0, -1.0]),
            of(choice),
        )


REJECTING = columns(
    [[-1.0, -2.0, -0.5], [-0.5, -1.5]],
    old=[[-1.125, -1.9375, -0.5625], [-0.625, -1.625]],
    rollout=[[-1.25, -3.0, -0.5], [-0.75, -1.5]],
    advantages=[1.0, -1.0],
)
"""The second token's weight is 2.9: it is rejected, and with it its sequence."""


def rejected() -> Iterator[Vector]:
    for choice in ("token-mask", "sequence-mask", "geometric-mask"):
        yield Vector(
            f"{choice}-rejected",
            "What is rejected has weight 0; does the denominator still count it?",
            ["rejected-in-denominator"],
            REJECTING,
            of(choice) | {"is_low": 0.75, "is_high": 1.375},
            topic="rejected-tokens",
            signatures={
                "counted": Signature(["TRL 1.16.0", "verl 0.9.1 (icepop)", "NeMo-RL", "OpenRLHF"]),
                "left out": Signature(["slime"], {"rejected-tokens": "left out"}),
            },
        )


def at_the_bounds() -> Iterator[Vector]:
    gap = {"rollout": [[-1.0, -2.25, -0.25], [-0.5, -1.75]]}
    for side, bounds in (("low", (1.0, 1.5)), ("high", (0.5, 1.0))):
        yield Vector(
            f"token-mask-at-{side}",
            "Weights below, at and above a bound of 1: what is exactly at a bound is kept.",
            ["correction-dropped"],
            columns(
                [[-1.0625, -2.0, -0.5], [-0.5, -1.5]],
                old=[[-1.0, -2.0, -0.5], [-0.5, -1.5]],
                **gap,
                advantages=[1.0, -0.75],
            ),
            of("token-mask") | {"is_low": bounds[0], "is_high": bounds[1]},
        )


CASES = [*bounded(), *agreeing(), *masks(), *rejected(), *at_the_bounds()]
