"""The penalty for leaving the reference: its estimators, their gradients, weights and bounds."""

from __future__ import annotations

from collections.abc import Iterator

from vectors.cases.vector import (
    ANY_MEAN,
    ONE_TOKEN,
    PLAIN,
    Signature,
    Vector,
    columns,
    random_columns,
)

MEANS = {"aggregate": ANY_MEAN}
SINGLE = {"aggregate": ONE_TOKEN["aggregate"], "ratio": ONE_TOKEN["ratio"]}
ESTIMATORS = ("k1", "k2", "k3", "abs")
BUGS = {
    "k1": ["kl-reversed", "kl-dropped"],
    "k2": ["kl-dropped"],
    "k3": ["kl-reversed", "kl-dropped"],
    "abs": ["kl-dropped"],
}
"""k2 and abs are the same in either direction."""
NAN = float("nan")


def alone(new: float, ref: float, advantage: float = 0.0) -> dict[str, object]:
    """One token at ratio 1."""
    return columns([[new]], old=[[new]], ref=[[ref]], advantages=[advantage])


def single() -> Iterator[Vector]:
    for kl in ESTIMATORS:
        for side, ref in (("above", -2.0), ("below", -0.5), ("at", -1.25)):
            if (kl, side) == ("abs", "at"):
                continue  # |x| has no slope at 0
            yield Vector(
                f"{kl}-{side}",
                f"One token, advantage 0: the KL alone. The policy is {side} the reference.",
                ["kl-gradient"] if side == "at" else BUGS[kl],
                alone(-1.25, ref),
                PLAIN | {"kl": kl, "beta": 0.5},
                same_under=SINGLE,
            )
    for kl in ("k1+", "abs+", "k3+"):
        yield Vector(
            f"{kl[:-1]}-straight-through",
            f"The value of {kl[:-1]} with the gradient of k2.",
            ["kl-gradient"],
            alone(-1.25, -2.0),
            PLAIN | {"kl": kl, "beta": 0.5},
            same_under=SINGLE,
        )


def batches() -> Iterator[Vector]:
    for kl in ESTIMATORS:
        yield Vector(
            f"{kl}-batch",
            "Policy term and KL together on two responses.",
            [*BUGS[kl], "kl-gradient"],
            random_columns(f"kl {kl}", [3, 3], with_columns=["ref"], advantages=[1.0, -0.75]),
            PLAIN | {"kl": kl, "beta": 0.25},
            same_under=MEANS,
        )
    for aggregate in ("response-mean", "token-mean", "token-sum", "prompt-mean", "sum"):
        yield Vector(
            f"k3-{aggregate}",
            "The KL has the weights of the policy term, on responses of unequal lengths.",
            ["token-for-response-mean" if "mean" in aggregate else "length-squared", "kl-dropped"],
            random_columns(
                "kl aggregate",
                [4, 1, 3],
                with_columns=["ref"],
                groups=[0, 0, 1],
                advantages=[1.0, -0.25, 0.75],
            ),
            PLAIN | {"kl": "k3", "beta": 0.25, "aggregate": aggregate},
        )


def masked() -> Iterator[Vector]:
    for aggregate in ("token-mean", "response-mean", "token-sum"):
        yield Vector(
            f"k3-masked-{aggregate}",
            "Masked tokens far from the reference are no part of the KL.",
            ["mask-ignored", "mask-shifted"],
            columns(
                [[-1.0, -6.0, -0.5], [-2.0, -1.0]],
                old=[[-1.125, -6.0, -0.375], [-1.875, -1.0625]],
                ref=[[-1.5, -0.5, -0.25], [-2.5, -1.25]],
                mask=[[1, 0, 1], [1, 1]],
                advantages=[1.0, -1.0],
            ),
            PLAIN | {"kl": "k3", "beta": 0.25, "aggregate": aggregate},
        )
    for kl in ("k1", "k3"):
        yield Vector(
            f"{kl}-masked-nan",
            "A masked token that the reference did not score.",
            ["masked-nan-kl"],
            columns(
                [[-1.0, -0.5], [-2.0, -1.0]],
                old=[[-1.125, -0.5], [-1.875, -1.0625]],
                ref=[[-1.5, NAN], [-2.5, -1.25]],
                mask=[[1, 0], [1, 1]],
                advantages=[1.0, -1.0],
            ),
            PLAIN | {"kl": kl, "beta": 0.25},
        )


def weighed() -> Iterator[Vector]:
    for kl in ("k3", "k1", "k2"):
        yield Vector(
            f"{kl}-weighed",
            "The KL weighed with the token's ratio, which is differentiated too.",
            ["kl-weight-gradient"],
            random_columns(f"weighed {kl}", [3, 3], with_columns=["ref"], advantages=[1.0, -0.75]),
            PLAIN | {"kl": kl, "beta": 0.25, "kl_weight": "ratio"},
            same_under=MEANS,
        )
    yield Vector(
        "k3-weighed-on-policy",
        "At ratio 1 the weight changes no value, and still the gradient.",
        ["kl-weight-gradient", "ratio-one-gradient"],
        random_columns(
            "weighed", [3, 3], steps=[0.0], with_columns=["ref"], advantages=[1.0, -0.75]
        ),
        PLAIN | {"kl": "k3", "beta": 0.25, "kl_weight": "ratio"},
        same_under=MEANS,
    )
    yield Vector(
        "k3-weighed-sequence",
        "Sequence ratios, and a KL that is weighed with a ratio: of the sequence or of the token?",
        ["kl-weight-level"],
        random_columns("weighed sequence", [3, 2], with_columns=["ref"], advantages=[1.0, -0.75]),
        PLAIN
        | {"kl": "k3", "beta": 0.25, "kl_weight": "ratio", "ratio": "sequence"}
        | {"aggregate": "response-mean"},
        topic="kl-weight-level",
        signatures={
            "the sequence's ratio": Signature(["TRL 1.16.0"]),
            "the token's ratio": Signature(
                ["slime", "DeepSeek-V3.2"], {"kl-weight-level": "the token's ratio"}
            ),
        },
    )


CASES = [*single(), *batches(), *masked(), *weighed()]
