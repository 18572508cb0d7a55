"""Ratios of whole sequences: the geometric mean of the tokens', or their product."""

from __future__ import annotations

from collections.abc import Iterator

from vectors.cases.vector import PLAIN, Vector, columns, random_columns

RAGGED = [4, 1, 3]
SEQUENCE = PLAIN | {"ratio": "sequence", "aggregate": "response-mean"}
FAR_OFF = random_columns("product 5", RAGGED, advantages=[0.75, -1.25, 0.5])
CLOSE = random_columns(
    "product", RAGGED, steps=[-0.03125, 0.03125, 0.0625], advantages=[0.75, -1.25, 0.5]
)


def sequences() -> Iterator[Vector]:
    for seed in range(3):
        yield Vector(
            f"sequence-{seed}",
            "One ratio per response, the geometric mean of its tokens', and one weight.",
            ["sequence-broadcast", "ratio-of-sums"],
            random_columns(f"sequence {seed}", RAGGED, advantages=[1.0, -1.0, 0.5]),
            SEQUENCE,
            same_under={"ratio": ["sequence-token"]},
        )
    yield Vector(
        "sequence-all-clipped",
        "Sequence ratios out of a narrow band: two responses are cut, one is not.",
        ["sequence-broadcast", "clip-unused"],
        columns(
            [[-1.0, -2.0], [-0.5, -0.5, -1.0], [-3.0]],
            old=[[-1.25, -2.25], [-0.25, -0.375, -0.75], [-2.5]],
            advantages=[1.0, -1.0, 0.5],
        ),
        SEQUENCE | {"epsilon_low": 0.0625, "epsilon_high": 0.0625},
        same_under={"ratio": ["sequence-token"]},
    )
    yield Vector(
        "sequence-masked-token",
        "A masked token far off policy is no part of its sequence's ratio.",
        ["masked-token-leak", "mask-shifted"],
        columns(
            [[-1.0, -6.0, -0.5], [-2.0, -1.0]],
            old=[[-1.125, -0.5, -0.375], [-1.875, -1.0625]],
            mask=[[1, 0, 1], [1, 1]],
            advantages=[1.0, -1.0],
        ),
        SEQUENCE,
        same_under={"ratio": ["sequence-token"]},
    )


def lengths() -> Iterator[Vector]:
    yield Vector(
        "sequence-token-mean",
        "Sequence ratios under a token mean: a response weighs as much as it has tokens.",
        ["token-for-response-mean", "ratio-of-sums"],
        random_columns("sequence token mean", RAGGED, advantages=[1.0, -1.0, 0.5]),
        PLAIN | {"ratio": "sequence"},
        same_under={"ratio": ["sequence-token"]},
    )
    yield Vector(
        "sequence-token-sum",
        "Sequence ratios, token sums (LUSPO): a response weighs its length, once.",
        ["length-squared", "ratio-of-sums"],
        random_columns("sequence token sum", RAGGED, advantages=[1.0, -1.0, 0.5]),
        PLAIN | {"ratio": "sequence", "aggregate": "token-sum"},
        same_under={"ratio": ["sequence-token"]},
    )
    yield Vector(
        "sequence-empty-response",
        "A response without tokens has no mean log ratio; it must not make one of 0/0.",
        ["all-masked"],
        columns(
            [[-1.0, -1.5], [-2.0, -1.0]],
            old=[[-1.125, -1.25], [-1.875, -1.0625]],
            mask=[[1, 1], [0, 0]],
            advantages=[0.75, -1.0],
        ),
        PLAIN | {"ratio": "sequence"},
        same_under={"ratio": ["sequence-token"]},
    )


def products() -> Iterator[Vector]:
    how = PLAIN | {"ratio": "product", "aggregate": "response-mean"}
    masked = columns(
        [[-1.0, -6.0, -0.5], [-2.0, -1.0]],
        old=[[-1.0625, -0.5, -0.5625], [-1.9375, -1.0625]],
        mask=[[1, 0, 1], [1, 1]],
        advantages=[0.75, -1.25],
    )
    for name, given, flag in (
        ("clipped", FAR_OFF, "clip-unused"),
        ("inside", CLOSE, "sequence-broadcast"),
        ("masked-token", masked, "masked-token-leak"),
    ):
        yield Vector(
            f"product-{name}",
            "One ratio per response, the product of its tokens'; a mean over the responses.",
            ["correction-product-or-mean", flag],
            given,
            how,
        )


CASES = [*sequences(), *lengths(), *products()]
