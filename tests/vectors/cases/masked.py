"""Masked tokens in the policy term: not a number, overflowing, or between those that count."""

from __future__ import annotations

from collections.abc import Iterator

from vectors.cases.vector import PLAIN, Vector, columns, random_columns

NAN = float("nan")


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


CASES = [*masked(), *other_masks()]
