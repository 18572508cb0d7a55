"""What tames the ratio otherwise than a clip: CISPO, SAPO and GMPO."""

from __future__ import annotations

from collections.abc import Iterator

from vectors.cases.clip import EVEN, MEANS, SIGNS, one
from vectors.cases.vector import ONE_TOKEN, Vector, columns, random_columns

RAGGED = [4, 1, 3]


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


def gmpo() -> Iterator[Vector]:
    how = {"surrogate": "gmpo", "aggregate": "response-mean"}
    for sign, advantage in SIGNS.items():
        yield Vector(
            f"gmpo-{sign}",
            "GMPO: the geometric mean of token ratios, each clipped in log space on one side.",
            ["gmpo-two-sided", "sequence-broadcast"],
            columns(
                [[-1.0, -2.0, -0.5], [-2.0, -1.0]],
                old=[[-2.0, -1.0, -0.625], [-1.875, -1.125]],
                advantages=[advantage, 0.5],
            ),
            how | {"epsilon_low": 0.375, "epsilon_high": 0.4375},
        )
    yield Vector(
        "gmpo-masked-token",
        "A masked token far off policy is no part of its response's geometric mean.",
        ["masked-token-leak", "mask-shifted"],
        columns(
            [[-1.0, -6.0, -0.5], [-2.0, -1.0]],
            old=[[-1.125, -0.5, -0.375], [-1.875, -1.0625]],
            mask=[[1, 0, 1], [1, 1]],
            advantages=[-1.0, 0.75],
        ),
        how | {"epsilon_low": 0.375, "epsilon_high": 0.4375},
    )


CASES = [*cispo(), *sapo(), *gmpo()]
