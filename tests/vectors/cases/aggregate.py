"""From tokens to one number: what is averaged over what, and what does not count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vectors.cases.vector import NEAR, PLAIN, Signature, Vector, columns, random_columns

MODES = ("response-mean", "token-mean", "token-sum", "token-sum-norm", "prompt-mean", "sum")
FLAGS: Mapping[str, Sequence[str]] = {
    "response-mean": ["token-for-response-mean"],
    "token-mean": ["token-for-response-mean"],
    "token-sum": ["length-squared"],
    "token-sum-norm": ["norm-without-responses"],
    "prompt-mean": ["batch-for-prompt"],
    "sum": ["length-squared"],
}
"""What a mode is taken for."""

DENOMINATOR = {
    mode: ["truncated-in-denominator"] for mode in ("token-mean", "response-mean", "prompt-mean")
}
"""The modes that divide by a number of tokens."""

INSIDE = [x for x in NEAR if x]
UNTAMED = {"surrogate": ["unclipped"]}
"""Inside the band it does not matter whether there is a clip."""


def how(mode: str, **more: Any) -> dict[str, Any]:
    length = {"max_completion_length": 8} if mode == "token-sum-norm" else {}
    return PLAIN | {"aggregate": mode} | length | more


def lengths() -> Iterator[Vector]:
    shapes: Mapping[str, tuple[Sequence[int], Sequence[int], str]] = {
        "ragged": ([1, 6, 3], [0, 0, 0], "Responses of 1, 6 and 3 tokens to one prompt."),
        "two-prompts": ([5, 1, 2, 2], [0, 0, 1, 1], "Prompts of 6 and of 4 tokens."),
        "uneven-prompts": ([2, 3, 1, 4], [0, 0, 0, 1], "A prompt of three responses, and of one."),
    }
    for name, (sizes, groups, comment) in shapes.items():
        for mode in MODES:
            if mode == "prompt-mean" and len(set(groups)) == 1:
                continue  # it is the token mean
            given = random_columns(
                name,
                sizes,
                steps=INSIDE,
                groups=groups,
                advantages=[1.0, -0.25, 0.75, 0.5][: len(sizes)],
            )
            yield Vector(
                f"{name}-{mode}", comment, FLAGS[mode], given, how(mode), same_under=UNTAMED
            )


def clipped() -> Iterator[Vector]:
    for mode in MODES:
        yield Vector(
            f"clipped-{mode}",
            "Some tokens are clipped: they weigh as the others in the value, and have no gradient.",
            [*FLAGS[mode], "clip-unused"],
            random_columns("clipped", [2, 5, 3], groups=[0, 0, 1], advantages=[1.0, -1.0, 0.5]),
            how(mode),
        )


def masks() -> Iterator[Vector]:
    inside = random_columns(
        "masks",
        [4, 6, 3],
        steps=INSIDE,
        groups=[0, 0, 1],
        mask=[[0, 1, 1, 1], [1, 1, 0, 0, 1, 1], [1, 1, 0]],
        advantages=[1.0, -0.5, 0.75],
    )
    for mode in MODES:
        yield Vector(
            f"masked-{mode}",
            "Tokens masked at the start, between and at the end: gone from sum and denominator.",
            ["mask-ignored", "mask-shifted", *DENOMINATOR.get(mode, [])],
            inside,
            how(mode),
            same_under=UNTAMED,
        )
    yield Vector(
        "masked-large",
        "Two tokens count and two do not, whose terms are of another size: 1, not 26.",
        ["mask-ignored"],
        columns(
            [[-1.0, -1.0], [-1.0, -1.0]],
            old=[[-1.0, -5.0], [-1.0, -4.0]],
            mask=[[1, 0], [1, 0]],
            advantages=[-1.0, -1.0],
        ),
        how("token-mean"),
        same_under={"aggregate": ["response-mean", "prompt-mean", "token-sum"]} | UNTAMED,
    )


TRUNCATED = random_columns(
    "truncated",
    [3, 4, 2],
    steps=INSIDE,
    groups=[0, 0, 1],
    mask=[[1, 1, 1], [0, 0, 0, 0], [1, 1]],
    advantages=[1.0, -0.5, 0.75],
)
"""The second response was cut off, and is masked altogether."""


def truncated() -> Iterator[Vector]:
    for mode in ("token-mean", "prompt-mean"):
        yield Vector(
            f"truncated-{mode}",
            "A response that was cut off is masked: its tokens leave sum and denominator.",
            ["truncated-in-denominator", "empty-response-counted"],
            TRUNCATED,
            how(mode),
            same_under=UNTAMED,
        )
    for mode in ("response-mean", "token-sum", "token-sum-norm"):
        yield Vector(
            f"truncated-{mode}",
            "A response without tokens, where responses are averaged: does it count as one?",
            ["empty-response-counted"],
            TRUNCATED,
            how(mode),
            same_under=UNTAMED,
            topic="empty-response",
            signatures={
                "counted": Signature(["TRL 1.16.0", "SkyRL", "verl 0.9.1's trainer"]),
                "left out": Signature(
                    ["verl 0.9.1 alone", "OpenRLHF", "ROLL"], {"empty-response": "left out"}
                ),
            },
        )


def all_masked() -> Iterator[Vector]:
    for mode in MODES:
        yield Vector(
            f"all-masked-{mode}",
            "No token counts: a loss of 0 and no gradient, or 0/0.",
            ["all-masked"],
            random_columns(
                "all masked", [2, 3], steps=INSIDE, mask=[[0, 0], [0, 0, 0]], advantages=[1.0, -1.0]
            ),
            how(mode),
            wanted=("loss",),
            same_under=UNTAMED,
            topic="" if mode == "sum" else "no-tokens",
            signatures={}
            if mode == "sum"
            else {
                "0": Signature(["TRL 1.16.0", "SkyRL"]),
                "nan": Signature(["verl 0.9.1 alone"], value={"loss": "nan"}),
            },
        )


def single() -> Iterator[Vector]:
    for mode in MODES:
        yield Vector(
            f"padded-{mode}",
            "A response of one token beside one of six: padding is neither summed nor counted.",
            ["mask-ignored"],
            random_columns("padded", [1, 6], steps=INSIDE, groups=[0, 1], advantages=[1.0, -0.5]),
            how(mode),
            same_under=UNTAMED,
        )


CASES = [*lengths(), *clipped(), *masks(), *truncated(), *all_masked(), *single()]
