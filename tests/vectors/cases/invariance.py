"""One batch, however it is cut up, ordered, padded or doubled: one loss and one gradient."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vectors.cases.vector import PLAIN, Vector, kind_of, random_columns

LENGTHS = [1, 3, 2, 6, 1, 2, 4, 1]
"""Eight responses of unequal lengths: no two micro-batches have equally many tokens."""

EIGHT = random_columns(
    "eight",
    LENGTHS,
    with_columns=["ref"],
    groups=[0, 0, 0, 0, 1, 1, 1, 1],
    advantages=[1.0, -0.5, 0.75, -1.25, 0.5, -1.0, 0.25, -0.75],
)
MASKED = {
    **EIGHT,
    "mask": [[1], [1, 0, 1], [0, 0], [1, 1, 1, 0, 1, 1], [1], [0, 1], [1, 1, 1, 1], [1]],
}
SPLITS: Mapping[str, Sequence[Sequence[Sequence[int]]]] = {
    "1x8": [[[0, 1, 2, 3, 4, 5, 6, 7]]],
    "2x4": [[[0, 1, 2, 3], [4, 5, 6, 7]]],
    "4x2": [[[0, 1], [2, 3], [4, 5], [6, 7]]],
    "8x1": [[[0], [1], [2], [3], [4], [5], [6], [7]]],
    "two-ranks": [[[0, 1, 2, 3]], [[4, 5, 6, 7]]],
    "two-ranks-of-two": [[[0, 1], [2, 3]], [[4, 5], [6, 7]]],
    "four-ranks": [[[0, 1]], [[2, 3]], [[4, 5]], [[6, 7]]],
    "shuffled-ranks": [[[7, 2], [0, 5]], [[4, 1], [6, 3]]],
}
MODES = ("token-mean", "response-mean", "token-sum-norm", "prompt-mean")
COMMENTS = {
    "none": "The whole batch at once: what every split of it has to give.",
    "micro-batches": "The same batch, accumulated over micro-batches: the same gradient.",
    "ranks": "The same batch over several ranks, whose gradients are averaged: the same gradient.",
    "ranks and micro-batches": "The same batch, accumulated on several ranks: the same gradient.",
}


def bugs(mode: str, kind: str) -> list[str]:
    """Micro-batches of equally many responses tell a mean of means only from a token mean."""
    found = ["mean-of-means"] if mode == "token-mean" and kind != "none" else []
    if "micro-batches" in kind:
        found.append("accumulation-twice")
    return found or ["order-dependence"]


def how(mode: str, **more: Any) -> dict[str, Any]:
    length = {"max_completion_length": 8} if mode == "token-sum-norm" else {}
    return PLAIN | {"aggregate": mode} | length | more


def splits() -> Iterator[Vector]:
    for mode in MODES:
        for name, split in SPLITS.items():
            kind = kind_of(split)
            if mode == "prompt-mean" and kind != "none" and name != "two-ranks":
                continue  # a prompt's responses stay together
            yield Vector(
                f"{mode}-{name}", COMMENTS[kind], bugs(mode, kind), EIGHT, how(mode), split=split
            )


def sums() -> Iterator[Vector]:
    for mode in ("sum", "token-sum"):
        for name in ("1x8", "4x2", "two-ranks-of-two"):
            kind = kind_of(SPLITS[name])
            yield Vector(
                f"{mode}-{name}",
                COMMENTS[kind],
                bugs(mode, kind),
                EIGHT,
                how(mode),
                split=SPLITS[name],
            )


def more_terms() -> Iterator[Vector]:
    for name in ("1x8", "4x2", "two-ranks-of-two"):
        kind = kind_of(SPLITS[name])
        yield Vector(
            f"kl-{name}",
            "With a KL: it has the same denominator as the policy term.",
            [*bugs("token-mean", kind), "kl-dropped"],
            EIGHT,
            how("token-mean", kl="k3", beta=0.25),
            split=SPLITS[name],
        )
        yield Vector(
            f"masked-{name}",
            "With masked tokens, and a response of nothing else: those that count, count once.",
            [*bugs("token-mean", kind), "truncated-in-denominator", "empty-response-counted"],
            MASKED,
            how("token-mean"),
            split=SPLITS[name],
        )


def rearranged(order: Sequence[int], columns: Mapping[str, Any] = EIGHT) -> dict[str, Any]:
    return {name: [column[i] for i in order] for name, column in columns.items()}


def arrangements() -> Iterator[Vector]:
    for mode in MODES:
        yield Vector(
            f"{mode}-reversed",
            "The responses in another order, prompts interleaved: the same loss.",
            ["order-dependence", "packed-boundary"],
            rearranged([7, 2, 5, 0, 3, 6, 1, 4]),
            how(mode),
        )
    first = rearranged([0, 1, 2, 3])
    for mode in ("token-mean", "response-mean", "token-sum-norm"):
        yield Vector(
            f"{mode}-half",
            "Four of the responses.",
            ["order-dependence", "packed-boundary"],
            first,
            how(mode),
        )
        yield Vector(
            f"{mode}-half-twice",
            "The four responses, each of them twice: the same loss, half the gradient at each.",
            ["norm-without-responses" if mode == "token-sum-norm" else "order-dependence"],
            {name: [*column, *column] for name, column in rearranged([0, 1, 2, 4]).items()},
            how(mode),
        )


def packed() -> Iterator[Vector]:
    for level in ("token", "sequence"):
        yield Vector(
            f"packed-{level}",
            "Neighbours of opposite advantage, far apart at their ends: nothing crosses over.",
            ["packed-boundary", "mask-shifted"],
            random_columns(
                "packed", [2, 1, 3, 2], advantages=[1.5, -1.5, 1.5, -1.5], groups=[0, 0, 1, 1]
            ),
            how("response-mean", ratio=level),
            same_under={"ratio": ["sequence-token"]} if level == "sequence" else {},
        )


CASES = [*splits(), *sums(), *more_terms(), *arrangements(), *packed()]
