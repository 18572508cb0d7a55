"""The entropy bonus, and TRL's ``bnpo``: what a term or a micro-batch is divided by."""

from __future__ import annotations

from collections.abc import Iterator

from vectors.cases.invariance import EIGHT, SPLITS
from vectors.cases.vector import ANY_MEAN, PLAIN, Signature, Vector, drawn, kind_of, random_columns

HEIGHTS = [k / 16 for k in range(1, 40)]


def bonus() -> Iterator[Vector]:
    flags = ["entropy-dropped", "entropy-sign"]
    for name, lengths in (("even", [3, 3]), ("uneven", [4, 1, 3])):
        given = random_columns(f"entropy {name}", lengths)
        given["entropies"] = drawn(f"heights {name}", lengths, HEIGHTS)
        yield Vector(
            f"entropy-{name}",
            "The mean entropy of the tokens, times a coefficient, is taken off the loss.",
            flags,
            given,
            PLAIN | {"entropy_coef": 0.125},
            same_under={"aggregate": (*ANY_MEAN, "bnpo") if name == "even" else ("bnpo",)},
        )
    masked = given | {"mask": [[1, 0, 1, 1], [1], [0, 1, 1]]}
    yield Vector(
        "entropy-masked",
        "The entropy of a masked token has no part in the bonus.",
        [*flags, "entropy-masked"],
        masked,
        PLAIN | {"entropy_coef": 0.125},
        same_under={"aggregate": ("bnpo",)},
    )
    yield Vector(
        "entropy-response-mean",
        "Where the policy term is a mean over responses, the bonus may be one over tokens.",
        flags,
        given,
        PLAIN | {"entropy_coef": 0.125, "aggregate": "response-mean"},
        topic="entropy-aggregate",
        signatures={
            "as the policy": Signature(["verl 0.9.1"]),
            "over the tokens": Signature(["TRL 1.16.0"], {"entropy-aggregate": "over the tokens"}),
        },
    )


def bnpo() -> Iterator[Vector]:
    how = PLAIN | {"aggregate": "bnpo"}
    yield Vector(
        "bnpo-whole",
        "TRL's bnpo without accumulation: the mean over the batch's tokens.",
        ["token-for-response-mean"],
        EIGHT,
        how,
        same_under={"aggregate": ("token-mean",)},
    )
    for name in ("4x2", "8x1", "two-ranks-of-two"):
        yield Vector(
            f"bnpo-{name}",
            "TRL's bnpo: each micro-batch is a mean over its own tokens, and all count alike.",
            ["accumulation-twice"],
            EIGHT,
            how,
            split=SPLITS[name],
        )
    assert kind_of(SPLITS["4x2"]) == "micro-batches"


CASES = [*bonus(), *bnpo()]
