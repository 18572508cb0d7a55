"""The rest of the file ``advantage``: batches, other baselines, and what is left open."""

from __future__ import annotations

from collections.abc import Iterator

from vectors.cases.advantage import LEAVE, MEAN, PAIRS, SETS, SMALL, STD, vector
from vectors.cases.vector import Signature, Vector, columns, scored

BATCH = STD | {"advantage": "batch-std"}


def batch() -> Iterator[Vector]:
    for name, given in (
        ("two-prompts", scored(PAIRS, [0, 0, 1, 1])),
        ("dead-group", scored([1.0, 0.0, 0.5, 0.5], [0, 0, 1, 1])),
        ("uneven", scored([1.0, 0.0, 0.5, 0.25, 1.0], [0, 0, 0, 1, 1])),
    ):
        yield vector(
            f"batch-std-{name}",
            "The mean is the group's, the std that of all rewards of the batch.",
            ["std-level"],
            given,
            BATCH,
        )
        yield vector(
            f"batch-whiten-{name}",
            "The mean is the group's, the std that of all the batch's centred rewards.",
            ["std-level"],
            given,
            BATCH | {"advantage": "batch-whiten"},
        )
    for name, lengths in (("equal", [2, 2, 2, 2]), ("unequal", [1, 6, 2, 3])):
        yield vector(
            f"token-whiten-{name}-lengths",
            "Centred in the group, whitened over the batch's tokens: a long response counts more.",
            ["std-level", "token-for-response-mean"],
            scored(PAIRS, [0, 0, 1, 1], lengths),
            {"advantage": "token-whiten", "std_ddof": 1, "variance_eps": 1e-8},
        )


def others() -> Iterator[Vector]:
    alone = {"advantage": "leave-one-out-std", "std_eps": 1e-6}
    for name, rewards in SETS.items():
        yield vector(
            f"leave-one-out-std-{name}",
            "Mean and std of the other three; where their std is 0 there is no division.",
            ["leave-one-out-zero-std"] if name in ("one-right", "one-wrong") else ["std-ddof"],
            scored(rewards),
            alone,
        )
    for name, lengths in (("equal", [2, 2, 2, 2]), ("unequal", [1, 6, 2, 3])):
        yield vector(
            f"length-weighted-{name}-lengths",
            "The baseline is the group's mean reward, weighed by length (OPO).",
            ["token-for-response-mean"],
            scored(SETS["graded"], lengths=lengths),
            {"advantage": "length-weighted"},
        )


def leads() -> Iterator[Vector]:
    for choice in ("length-weighted", "pass-at-k"):
        yield vector(
            f"{choice}-pairs",
            "Two prompts of two responses each.",
            ["batch-as-one-group"],
            scored(PAIRS, [0, 0, 1, 1], [1, 3, 2, 4]),
            {"advantage": choice},
        )
    for name in ("one-right", "half-right", "graded", "negative"):
        yield vector(
            f"pass-at-k-{name}",
            "Only the best response has an advantage: its lead over the second; none in a tie.",
            ["std-or-not"],
            scored(SETS[name]),
            {"advantage": "pass-at-k"},
        )
    for name in ("one-right", "half-right", "graded"):
        yield vector(
            f"max-rl-{name}",
            "Centred, over the group's mean reward.",
            ["std-or-not"],
            scored(SETS[name]),
            {"advantage": "max-rl"},
        )


def decoupled() -> Iterator[Vector]:
    several = [[1.0, 0.25], [0.0, 0.625], [0.25, 0.125], [0.75, 0.125]]
    for name, groups, rewards in (
        ("two-prompts", [0, 0, 1, 1], several),
        ("one-prompt", [0, 0, 0, 0], several),
        ("dead-function", [0, 0, 1, 1], [[1.0, 0.5], [0.0, 0.5], [0.25, 0.125], [0.75, 0.5]]),
    ):
        yield vector(
            f"decoupled-{name}",
            "Two reward functions, each standardised in its group, the sum in the batch (GDPO).",
            ["std-level", "zero-std-noise"],
            scored(rewards, groups),
            STD | {"advantage": "decoupled"},
        )


def left_open() -> Iterator[Vector]:
    for how, used in (
        (MEAN, {"0": ["slime", "AReaL"], "its reward": ["verl 0.9.1"]}),
        (SMALL, {"0": ["TRL 1.16.0's evaluation"], "its reward": ["verl 0.9.1", "SkyRL"]}),
        (LEAVE, {"0": ["SkyRL", "verl 0.9.1 rloo_vectorized"], "its reward": ["verl 0.9.1 rloo"]}),
    ):
        yield vector(
            f"{how['advantage']}-singleton",
            "The last prompt has one response: is its advantage 0, or its reward?",
            ["singleton-group"],
            scored([1.0, 0.0, 0.75], [0, 0, 1]),
            how,
            topic="singleton-group",
            signatures={
                name: Signature(who, {"singleton-group": name}) for name, who in used.items()
            },
        )
    for how in (MEAN, STD, SMALL):
        given = scored([1.0, 0.0, 0.25, 0.75], lengths=[2, 2, 2, 2])
        yield vector(
            f"{'group-std-small-eps' if how is SMALL else how['advantage']}-masked-response",
            "A response is masked altogether; does its reward count in the group's statistics?",
            ["masked-response-votes"],
            given | {"mask": [[1, 1], [0, 0], [1, 1], [1, 1]]},
            how,
            topic="masked-response",
            signatures={
                "votes": Signature(["TRL 1.16.0", "verl 0.9.1"]),
                "has no vote": Signature(
                    ["NeMo-RL's SingleController"], {"masked-response": "has no vote"}
                ),
            },
        )


def kl_in_reward() -> Iterator[Vector]:
    for advantage in ("leave-one-out", "group-mean"):
        yield Vector(
            f"k1-in-reward-{advantage}",
            "The KL of the old policy, summed over the tokens, is taken off the reward.",
            ["kl-reversed", "kl-dropped"],
            columns(
                [[-0.75, -0.5], [-2.25], [-1.0, -1.125, -0.5]],
                old=[[-1.0, -0.5], [-2.0], [-1.0, -1.5, -0.25]],
                ref=[[-1.25, -0.25], [-2.5], [-0.5, -1.75, -1.0]],
                rewards=[1.0, 0.0, 0.5],
            ),
            {"advantage": advantage, "kl": "k1-in-reward", "beta": 0.125},
            wanted=("advantages",),
        )


CASES = [*batch(), *others(), *leads(), *decoupled(), *left_open()]
IN_REWARD = [*kl_in_reward()]
"""These stand in the file ``kl``."""
