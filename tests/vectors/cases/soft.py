"""What tames the ratio softly, by divergence or by covariance: VESPO, DPPO, KL-Cov, Clip-Cov."""

from __future__ import annotations

from collections.abc import Iterator

from vectors.cases.clip import EVEN, MEANS, SIGNS
from vectors.cases.vector import Vector, columns, random_columns

RAGGED = [4, 1, 3]
ONE = {"aggregate": ("response-mean", "token-sum", "prompt-mean", "sum", "bnpo")}
ALL_MEANS = {"aggregate": (*MEANS["aggregate"], "bnpo")}
WHOLE = {"aggregate": ("bnpo",)}


def vespo() -> Iterator[Vector]:
    how = {"surrogate": "vespo", "ratio": "product", "aggregate": "token-mean"}
    how |= {"vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0}
    how |= {"vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0}
    flags = ["correction-product-or-mean", "cispo-weight-gradient"]
    for sign, advantage in SIGNS.items():
        yield Vector(
            f"vespo-{sign}",
            "VESPO: φ(W) of the response's ratio weighs the log-prob and is held constant.",
            flags,
            columns(
                [[-1.0, -2.0, -0.5]],
                old=[[-1.25, -1.9375, -0.75]],
                advantages=[advantage],
            ),
            how,
            same_under=ALL_MEANS,
        )
    yield Vector(
        "vespo-on-policy",
        "At W = 1 the weight is 1: the loss is REINFORCE's.",
        ["ratio-one-gradient"],
        columns([[-1.0, -2.0], [-0.5, -1.5]], advantages=[1.0, -0.5]),
        how,
        same_under=ALL_MEANS,
    )
    yield Vector(
        "vespo-masked-token",
        "A masked token far off policy is no part of its response's ratio.",
        ["masked-token-leak", "mask-shifted", "cispo-weight-gradient"],
        columns(
            [[-1.0, -6.0, -0.5], [-2.0, -1.0]],
            old=[[-1.125, -0.5, -0.375], [-1.875, -1.125]],
            mask=[[1, 0, 1], [1, 1]],
            advantages=[-1.0, 0.75],
        ),
        how,
        same_under=ALL_MEANS,
    )
    yield Vector(
        "vespo-batch",
        "VESPO on responses of unequal lengths, with other powers and rates.",
        ["token-for-response-mean", *flags],
        random_columns("vespo", RAGGED, advantages=[1.0, -1.0, 0.5]),
        how | {"vespo_k_pos": 1.5, "vespo_lambda_neg": 1.25},
        same_under=WHOLE,
    )


FINE = ("float64", "float32")
MOVES = {
    "moved-up": (-1.5, -1.0),
    "little-up": (-1.5, -1.4375),
    "moved-down": (-0.5, -0.75),
    "little-down": (-0.5, -0.5625),
}
"""Old and new log-prob."""


def dppo() -> Iterator[Vector]:
    for kind, bound in (("tv", 0.125), ("kl", 0.03125)):
        how = {"surrogate": f"dppo-{kind}", "aggregate": "token-mean"}
        how |= {"divergence_low": bound, "divergence_high": bound}
        for place, (old, new) in MOVES.items():
            for sign, advantage in SIGNS.items():
                dropped = place.startswith("moved") and (new > old) == (advantage > 0)
                yield Vector(
                    f"dppo-{kind}-{place}-{sign}",
                    "DPPO drops a token whose probability moved too far where A drives it.",
                    ["clip-unused"]
                    if dropped
                    else ["dppo-both-sides"]
                    if place.startswith("moved")
                    else ["old-ignored"],
                    columns([[new]], old=[[old]], advantages=[advantage]),
                    how,
                    wanted=("gradient",),
                    same_under=ONE,
                    dtypes=FINE if kind == "kl" else (*FINE, "bfloat16"),
                )
        yield Vector(
            f"dppo-{kind}-batch",
            "DPPO on responses of unequal lengths, with a bound for each sign.",
            ["clip-unused", "dppo-both-sides", "token-for-response-mean"],
            random_columns(f"dppo {kind} 3", RAGGED, advantages=[1.0, -1.0, 0.5]),
            how | {"divergence_low": 0.03125, "divergence_high": 0.015625},
            wanted=("gradient",),
            same_under=WHOLE,
        )


def covariance() -> Iterator[Vector]:
    batch = random_columns("covariance", EVEN, advantages=[1.5, 0.25])
    masked = columns(
        [[-1.0, -6.0, -0.5, -0.25], [-2.0, -3.0, -1.5, -0.875]],
        old=[[-1.125, -0.5, -0.375, -0.5], [-1.875, -3.125, -1.625, -1.0]],
        mask=[[1, 0, 1, 1], [1, 1, 1, 0]],
        advantages=[1.5, 0.25],
    )
    kl = {"surrogate": "kl-cov", "aggregate": "token-mean", "ppo_kl_coef": 1.0}
    clip = {"surrogate": "clip-cov", "aggregate": "token-mean", "clip_cov_ratio": 1.0}
    clip |= {"epsilon_low": 0.2, "epsilon_high": 0.28}
    for name, given, more in (
        ("batch", batch, []),
        ("masked-token", masked, ["masked-token-leak"]),
    ):
        yield Vector(
            f"kl-cov-{name}",
            "KL-Cov: |log ρ| is taken off at the third of the tokens of greatest covariance.",
            ["clip-unused", "old-ignored", *more],
            given,
            kl | {"kl_cov_ratio": 0.34},
            same_under=ALL_MEANS,
        )
        yield Vector(
            f"clip-cov-{name}",
            "Clip-Cov: PPO's clip, and nothing of the tokens whose covariance is within bounds.",
            ["clip-unused", "old-ignored", *more],
            given,
            clip | {"clip_cov_lb": 0.125, "clip_cov_ub": 0.75},
            same_under=ALL_MEANS,
            dtypes=FINE,
        )


CASES = [*vespo(), *dppo(), *covariance()]
