"""What a trainer logs beside the loss, and over which tokens it is averaged."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from vectors.cases.vector import PLAIN, Signature, Vector, columns, random_columns, scored

REVERSED = {"k1": ["kl-reversed"], "k2": [], "k3": ["kl-reversed"]}
"""k2 is the same in either direction."""
CLIPS = ("clip_fraction_low", "clip_fraction_high", "clip_fraction")
SPREAD = columns(
    [[-0.5, -2.0, -1.0, -1.5], [-0.5, -2.5, -1.0]],
    old=[[-1.0, -1.5, -1.0625, -1.0], [-1.0, -1.5, -0.875]],
    ref=[[-1.5, -1.5, -1.25, -2.0], [-0.75, -2.0, -1.25]],
    rollout=[[-1.25, -1.25, -1.0, -1.0625], [-1.125, -1.75, -0.75]],
    advantages=[1.0, -1.0],
)
"""Ratios above and below the band in both responses; the advantage tells which ones bind."""

MASKED = {**SPREAD, "mask": [[1, 1, 1, 0], [0, 1, 1]]}


def clips() -> Iterator[Vector]:
    for name, given in (("all", SPREAD), ("masked", MASKED)):
        for metric in CLIPS:
            yield Vector(
                f"{metric}-{name}",
                "The share of tokens whose gradient the clip cuts: the advantage's sign decides.",
                ["clip-fraction-sign"] if name == "all" else ["metric-padding"],
                given,
                PLAIN,
                wanted=(metric,),
                same_under={"aggregate": ["response-mean", "token-sum", "sum"]},
            )


def more_clips() -> Iterator[Vector]:
    yield Vector(
        "clip_fraction-inside",
        "Ratios inside the band, and one advantage of 0: nothing is clipped.",
        ["clip-fraction-sign"],
        columns(
            [[-1.0, -0.5], [-2.0, -1.0]],
            old=[[-1.0625, -0.375], [-3.0, -0.25]],
            advantages=[1.0, 0.0],
        ),
        PLAIN,
        wanted=("clip_fraction",),
        same_under={"aggregate": ["response-mean", "token-sum", "sum"]},
    )
    yield Vector(
        "dual_clip_fraction",
        "The share of tokens that the second bound holds; only negative advantages have one.",
        ["dual-clip-positive"],
        columns(
            [[-0.5, -0.75], [-0.5, -1.0, -2.0, -1.5]],
            old=[[-2.5, -0.625], [-2.5, -3.0, -3.5, -1.375]],
            advantages=[0.5, -1.0],
        ),
        PLAIN | {"dual_clip": 3.0},
        wanted=("dual_clip_fraction",),
        same_under={"aggregate": ["response-mean", "token-sum", "sum"]},
    )


OF_SEQUENCES = columns(
    [
        [-1.0, -1.5, -0.5],
        [-2.0],
        [-1.0, -2.0, -1.5],
        [-1.0, -1.0],
        [-2.0, -1.5],
        [-2.0],
        [-1.0],
        [-1.0],
    ],
    old=[
        [-1.5, -2.0, -1.0],
        [-1.5],
        [-1.0625, -2.0625, -1.5],
        [-1.5, -1.25],
        [-1.5, -1.0],
        [-1.5],
        [-1.5],
        [-1.0625],
    ],
    advantages=[1.0, -1.0, 0.5, -0.5, 1.0, 0.5, -1.0, -1.0],
)
"""One response is clipped above, one below; others are out of the band where that cuts nothing."""


def clips_of_sequences() -> Iterator[Vector]:
    for metric, ratio in product(CLIPS, ("sequence", "product")):
        yield Vector(
            f"{metric}-{ratio}",
            "Sequence ratios: the share of responses that are clipped, or of their tokens.",
            ["sequence-broadcast"],
            OF_SEQUENCES,
            PLAIN | {"ratio": ratio, "aggregate": "response-mean"},
            wanted=(metric,),
            topic="clip-fraction",
            signatures={
                "of the responses": Signature(
                    ["TRL 1.16.0"], {"clip-fraction": "of the responses"}
                ),
                "of the tokens": Signature(["verl 0.9.1", "ms-swift", "Liger-Kernel"]),
            },
        )


def sequence_divergence() -> Iterator[Vector]:
    yield Vector(
        "ppo_kl-sequence",
        "The logged divergence is that of the tokens, also where the ratio is a sequence's.",
        ["metric-kl-reversed"],
        SPREAD,
        PLAIN | {"ratio": "sequence", "aggregate": "response-mean"},
        wanted=("ppo_kl",),
        same_under={"ratio": ["sequence-token"]},
    )


def divergences() -> Iterator[Vector]:
    for kl in ("k1", "k2", "k3"):
        for name, given in (("all", SPREAD), ("masked", MASKED)):
            yield Vector(
                f"kl-{kl}-{name}",
                "The KL that is logged is the mean over all tokens of the estimate, without β.",
                ["metric-padding"] if name == "masked" else ["mean-of-means", *REVERSED[kl]],
                given,
                PLAIN | {"kl": kl, "beta": 0.25},
                wanted=("kl",),
                same_under={"aggregate": ["response-mean", "token-sum", "sum"]},
            )
    for metric, flag in (
        ("ppo_kl", "metric-kl-reversed"),
        ("ratio_mean", "old-ignored"),
        ("rollout_kl", "metric-kl-reversed"),
        ("rollout_k3", "metric-kl-reversed"),
    ):
        for name, given in (("all", SPREAD), ("masked", MASKED)):
            yield Vector(
                f"{metric}-{name}",
                "How far the policy is from its old one, or the trainer from the engine.",
                [flag] if name == "all" else ["metric-padding"],
                given,
                PLAIN,
                wanted=(metric,),
                same_under={"aggregate": ["response-mean", "token-sum", "sum"]},
            )
    yield Vector(
        "kl-uneven",
        "Responses of 1 and 6 tokens: the logged KL is that of all tokens, not a mean of means.",
        ["mean-of-means"],
        random_columns("kl uneven", [1, 6], with_columns=["ref"], advantages=[1.0, -1.0]),
        PLAIN | {"kl": "k3", "beta": 0.25},
        wanted=("kl",),
        same_under={"aggregate": ["response-mean", "token-sum", "sum"]},
    )


def groups() -> Iterator[Vector]:
    how = {"advantage": "group-mean"}
    same = {"advantage": ["leave-one-out"]}
    yield Vector(
        "dead_groups-even",
        "One of two prompts has equal rewards throughout, though the batch has not.",
        ["dead-group-share"],
        scored([1.0, 1.0, 0.0, 1.0], [0, 0, 1, 1]),
        how,
        wanted=("dead_groups",),
        same_under=same,
    )
    yield Vector(
        "dead_groups-uneven",
        "Three of four responses are in a group of equal rewards: half of the prompts.",
        ["dead-group-share"],
        scored([1.0, 1.0, 1.0, 0.0, 0.5], [0, 0, 0, 1, 1]),
        how,
        wanted=("dead_groups",),
        same_under=same,
        topic="dead-groups",
        signatures={
            "of the prompts": Signature(["ms-swift"]),
            "of the responses": Signature(["TRL 1.16.0"], {"dead-groups": "of the responses"}),
        },
    )


CASES = [
    *clips(),
    *more_clips(),
    *clips_of_sequences(),
    *divergences(),
    *sequence_divergence(),
    *groups(),
]
