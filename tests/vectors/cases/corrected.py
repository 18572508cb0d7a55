"""Corrections beside other choices: KL, sequence ratios, other surrogates; an off-policy mask."""

from __future__ import annotations

from collections.abc import Iterator

from vectors.cases.correction import GAPS, MEANS, of
from vectors.cases.vector import PLAIN, Signature, Vector, columns, random_columns


def penalised() -> Iterator[Vector]:
    for choice in ("token-truncate", "sequence-truncate"):
        yield Vector(
            f"{choice}-with-kl",
            "The weight multiplies the policy term; does it multiply the KL too?",
            ["correction-on-kl"],
            random_columns(
                f"penalised {choice}",
                [2, 3],
                with_columns=["rollout", "ref"],
                advantages=[1.0, -0.75],
            ),
            of(choice, kl="k3", beta=0.25),
            topic="correction-on-kl",
            signatures={
                "no": Signature(["TRL 1.16.0", "verl 0.9.1", "SkyRL"]),
                "too": Signature(["ms-swift"], {"correction-on-kl": "too"}),
            },
        )


def on_sequences() -> Iterator[Vector]:
    """Weights of tokens on a ratio of sequences: here its two gradients differ."""
    for ratio in ("sequence", "sequence-token"):
        yield Vector(
            f"token-truncate-{ratio}",
            "Each token's own weight on the sequence's ratio; whose log-probs does it move?",
            ["correction-dropped", "correction-of-new", "ratio-of-sums"],
            GAPS,
            of("token-truncate", ratio=ratio, aggregate="response-mean"),
        )


def on_other_surrogates() -> Iterator[Vector]:
    bounds = {"tau_pos": 1.0, "tau_neg": 1.0625}, {"epsilon_low": 0.25, "epsilon_high": 0.3125}
    for surrogate, how in (("reinforce", {}), ("sapo", bounds[0]), ("cispo", bounds[1])):
        yield Vector(
            f"token-truncate-{surrogate}",
            "The weight multiplies whatever the policy term is.",
            ["correction-dropped", "correction-of-new"],
            GAPS,
            {"surrogate": surrogate, "aggregate": "response-mean", **how}
            | {"correction": "token-truncate", "is_high": 1.1875},
        )


def normalised() -> Iterator[Vector]:
    for choice in ("token-truncate", "token-mask", "sequence-truncate"):
        yield Vector(
            f"{choice}-normalised",
            "The weights are divided by their mean over the batch's tokens, or responses.",
            ["correction-dropped", "correction-mean-left"],
            GAPS,
            of(choice, is_batch_normalize=True),
        )
    yield Vector(
        "token-truncate-normalised-masked",
        "The weight of a masked token has no part in their mean.",
        ["correction-mean-left", "masked-token-leak"],
        columns(
            [[-1.0, -4.0, -0.5], [-2.0, -1.0]],
            old=[[-1.125, -4.0, -0.375], [-1.875, -1.0625]],
            rollout=[[-1.0, -0.5, -0.5], [-2.0, -1.25]],
            mask=[[1, 0, 1], [1, 1]],
            advantages=[1.0, -1.0],
        ),
        of("token-truncate", is_batch_normalize=True),
        same_under=MEANS,
    )


def off_policy() -> Iterator[Vector]:
    how = PLAIN | {"correction": "off-policy-mask", "off_policy_mask_threshold": 0.125}
    for name, advantage, behind, flag in (
        ("dropped", -1.0, 0.75, "correction-dropped"),
        ("positive", 0.5, 0.75, "correction-of-new"),
        ("near", -1.0, 0.09375, "correction-of-new"),
        ("at-the-bound", -1.0, 0.125, "correction-of-new"),
    ):
        yield Vector(
            f"off-policy-mask-{name}",
            "A response with a negative advantage whose tokens are, in the mean, too far behind "
            "the engine's log-probs is dropped.",
            [flag],
            columns(
                [[-2.0, -1.5], [-1.0, -0.5625]],
                old=[[-2.125, -1.625], [-1.125, -0.625]],
                rollout=[[-2.0 + behind, -1.5 + behind], [-1.0, -0.5625]],
                advantages=[advantage, 0.5],
            ),
            how,
            same_under=MEANS,
        )


CASES = [*penalised(), *on_sequences(), *on_other_surrogates(), *normalised(), *off_policy()]
