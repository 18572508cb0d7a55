"""The rest of the file ``clip``: ratios of sequences, CISPO, SAPO, and masked tokens."""

from __future__ import annotations

from collections.abc import Iterator

from vectors.cases.clip import EVEN, MEANS, SIGNS, one
from vectors.cases.vector import ONE_TOKEN, PLAIN, Vector, columns, random_columns

RAGGED = [4, 1, 3]
SEQUENCE = PLAIN | {"ratio": "sequence", "aggregate": "response-mean"}
NAN = float("nan")
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


def cispo() -> Iterator[Vector]:
    bounds = {"surrogate": "cispo", "aggregate": "token-mean", "epsilon_low": 1.0}
    for place, step in (("capped", 2.0), ("inside", 0.5), ("below", -2.0)):
        for sign, advantage in SIGNS.items():
            yield Vector(
                f"cispo-{place}-{sign}",
                "CISPO: the ratio, at most 4, weighs the log-prob and is held constant.",
                ["cispo-gradient-cut"] if place == "capped" else ["cispo-weight-gradient"],
                one(step, advantage),
                bounds | {"epsilon_high": 3.0},
                same_under={"aggregate": ONE_TOKEN["aggregate"]},
            )
    yield Vector(
        "cispo-band",
        "CISPO with a lower bound too; weights below it are raised to it.",
        ["cispo-gradient-cut", "cispo-weight-gradient"],
        random_columns("cispo band 2", EVEN, advantages=[1.0, -0.75]),
        bounds | {"epsilon_low": 0.2, "epsilon_high": 0.3125},
        same_under=MEANS,
    )


def sapo() -> Iterator[Vector]:
    how = {"surrogate": "sapo", "aggregate": "response-mean", "tau_pos": 1.0, "tau_neg": 1.0625}
    for place, step in (("one", 0.0), ("above", 0.75), ("below", -0.75)):
        for sign, advantage in SIGNS.items():
            yield Vector(
                f"sapo-{place}-{sign}",
                "SAPO: the gate (4/τ)·σ(τ(ρ − 1)) times the advantage; 2·A/τ at ratio 1.",
                ["advantage-dropped"],
                one(step, advantage),
                how,
                same_under={
                    "aggregate": ("token-mean", "token-sum", "prompt-mean", "sum"),
                    "ratio": ONE_TOKEN["ratio"],
                },
            )
    yield Vector(
        "sapo-zero",
        "An advantage of 0: neither value nor gradient, wherever the gate is.",
        ["advantage-dropped"],
        one(0.5, 0.0),
        how,
        same_under={
            "aggregate": ("token-mean", "token-sum", "prompt-mean", "sum"),
            "ratio": ONE_TOKEN["ratio"],
        },
    )
    yield Vector(
        "sapo-batch",
        "SAPO on responses of unequal lengths, with two temperatures.",
        ["advantage-dropped", "token-for-response-mean"],
        random_columns("sapo", RAGGED, advantages=[1.0, -1.0, 0.5]),
        how | {"tau_pos": 0.75, "tau_neg": 2.0},
    )


def masked() -> Iterator[Vector]:
    """A masked token that is not a number, in each column, or that overflows."""
    for column in ("new", "old"):
        tokens = {
            "new": [[-1.0, -0.5, -2.0], [-2.0, -1.0]],
            "old": [[-1.5, -0.25, -2.0], [-1.0, -1.0]],
        }
        tokens[column][0][1] = NAN
        given = columns(**tokens, mask=[[1, 0, 1], [1, 1]], advantages=[1.0, -1.0])
        for aggregate, flag in (
            ("token-mean", "masked-nan"),
            ("response-mean", "masked-nan-sequence"),
        ):
            yield Vector(
                f"masked-nan-{column}-{aggregate}",
                "A masked token without a log-prob: it counts for nothing, NaN or not.",
                [flag],
                given,
                PLAIN | {"aggregate": aggregate},
            )


def other_masks() -> Iterator[Vector]:
    yield Vector(
        "masked-nan-reinforce",
        "A masked token without a log-prob, where the log-prob itself is in the loss.",
        ["masked-nan"],
        columns([[-1.0, NAN], [-2.0, -1.0]], mask=[[1, 0], [1, 1]], advantages=[1.0, -0.5]),
        {"surrogate": "reinforce", "aggregate": "token-mean"},
    )
    yield Vector(
        "masked-overflow",
        "The ratio of a masked token overflows in every precision.",
        ["masked-overflow"],
        columns(
            [[-0.5, -0.25], [-2.0, -1.0]],
            old=[[-0.75, -896.0], [-1.0, -1.0]],
            mask=[[1, 0], [1, 1]],
            advantages=[1.0, -1.0],
        ),
        PLAIN,
    )
    yield Vector(
        "masked-inside",
        "Masked tokens between those that count, as a tool's output is.",
        ["mask-ignored", "truncated-in-denominator", "mask-shifted"],
        random_columns(
            "masked inside", [5, 4], mask=[[1, 0, 0, 1, 1], [0, 1, 1, 0]], advantages=[1.0, -0.75]
        ),
        PLAIN,
    )


CASES = [
    *sequences(),
    *lengths(),
    *products(),
    *cispo(),
    *sapo(),
    *masked(),
    *other_masks(),
]
