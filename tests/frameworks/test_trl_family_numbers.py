"""Numbers that TRL, Liger-Kernel, Unsloth and ms-swift computed on one small batch.

Of their rows, and of the papers' where these compute the same.

The frameworks' own functions were executed on it (CPU, float64): TRL 1.10.0.dev0, Liger-Kernel
0.8.2, unsloth-zoo 2026.8.13, ms-swift 4.6.0.dev0; one micro-batch, one process, accumulation 1,
ε 0.2 and k3 unweighted unless the case says otherwise. Ten digits were kept.
"""

import pytest
from files import each

from grpo_cli import evaluate

BATCH = {
    "log_probs_new": [[-1.0, -0.5, -2.0, -0.1], [-0.3, -1.2], [-0.7, -0.9, -1.1], [-2.5]],
    "log_probs_old": [[-1.2, -0.5, -1.5, -0.6], [-0.4, -0.9], [-0.7, -1.4, -1.0], [-1.9]],
    "log_probs_ref": [[-1.1, -0.7, -1.9, -0.3], [-0.5, -1.0], [-0.9, -0.8, -1.3], [-2.0]],
    "log_probs_rollout": [[-1.0, -0.6, -1.6, -0.6], [-0.4, -0.8], [-0.7, -1.3, -1.2], [-1.0]],
    "entropies": [[0.9, 0.2, 1.5, 0.1], [0.3, 1.1], [0.6, 0.8, 0.4], [2.0]],
    "rewards": [1.0, 0.0, 0.25, 0.75],
    "group_ids": [0, 0, 1, 1],
}
SEQUENCE = {"ratio": "sequence"}
PLAIN = {"kl_weight": "none"}
"""TRL's default then."""
KL = {"beta": 0.1, **PLAIN}
L4 = {"max_completion_length": 4}
SWIFT_KL = {"beta": 0.1}
TRL = {"std_eps": 1e-4}


def corrected(name, **more):
    return {"correction": name}, more


# variant, stages, hyperparameters, loss
CASES = [
    ("trl/grpo", {}, {}, 0.1036773931),
    ("trl/grpo", {}, KL, 0.1085490505),
    ("trl/bnpo", {}, {}, 0.0638400620),
    ("trl/bnpo", {}, KL, 0.0666296325),
    ("trl/dapo", {}, {"num_items_in_batch": 10}, 0.0638400620),
    ("trl/dapo", {}, KL, 0.0666296325),
    ("trl/dr_grpo", {}, L4, 0.0399000388),
    ("trl/dr_grpo", {}, KL | L4, 0.0416435203),
    ("trl/sapo", {}, {}, 0.0421900871),
    ("trl/sapo", {}, KL, 0.0470617445),
    ("trl/sapo", SEQUENCE, {}, 0.0440399573),
    ("trl/cispo", {}, {}, 0.0268666581),
    ("trl/cispo", {}, {"epsilon_high": 5.0}, 0.0050846053),
    ("trl/cispo", SEQUENCE, {"epsilon_high": 5.0}, 0.0505147811),
    ("trl/vespo", {}, {}, 0.0808856518),
    ("trl/gspo", {}, {}, 0.0790613075),
    ("trl/gspo", {}, KL, 0.0839329649),
    ("trl/bnpo", SEQUENCE, {}, 0.0341671074),
    ("trl/dr_grpo", SEQUENCE, L4, 0.0213544421),
    ("trl/luspo", {}, {}, 0.0854177686),
    ("liger/luspo", {}, {"response_length": 4}, -0.1532215639),
    ("trl/dapo", {}, {"delta": 1.1}, 0.0462597845),
    ("trl/dapo", {}, {"epsilon_high": 0.28}, 0.0566708181),
    ("trl/dapo", {}, {"beta": 0.1}, 0.0660504415),
    ("trl/gspo", {}, {"beta": 0.1}, 0.0822735760),
    ("trl/grpo", {}, {"off_policy_mask_threshold": 0.1}, -0.0646937051),
    ("trl/bnpo", {}, KL | {"off_policy_mask_threshold": 0.1}, -0.0680672460),  # 1.16.0
    ("trl/dapo", {}, {"top_entropy_quantile": 0.5}, 0.0065909625),
    ("trl/dapo", {}, KL | {"top_entropy_quantile": 0.5}, 0.0093805330),
    ("trl/dapo", {}, {"entropy_coef": 0.01}, 0.0559400620),
    ("trl/grpo", *corrected("trl/token-truncate", is_high=1.15), 0.1554046804),
    ("trl/grpo", *corrected("trl/token-truncate", is_high=1.15, **KL), 0.1602763378),
    ("trl/grpo", *corrected("trl/token-mask", is_high=1.15), 0.0941062536),
    ("trl/grpo", *corrected("trl/token-mask", is_high=1.15, **KL), 0.0989779110),
    ("trl/grpo", *corrected("trl/sequence-truncate", is_high=1.05), 0.1556781925),
    ("trl/grpo", *corrected("trl/sequence-mask", is_high=1.05), -0.0641248644),
    ("trl/grpo", {}, {"gradient_accumulation_steps": 2}, 0.0518386966),
    ("trl/rloo", {}, {"beta": 0.0}, 0.0225593210),
    ("trl/rloo", {}, {"beta": 0.05}, 0.0202017883),
    ("trl/gmpo", {}, {}, 0.0836490703),
    ("trl/gmpo", {}, {"beta": 0.1}, 0.0885207277),
    ("trl/gspo", {"ratio": "sequence-token"}, {}, 0.0790613075),
    ("trl/gspo", {"ratio": "sequence-token"}, {"epsilon": 0.05}, 0.0872685390),
    ("liger/dapo", {}, {"beta": 0.1}, 0.0666296325),
    ("unsloth/dapo@2026.9.1", {}, {"num_items_in_batch": 10}, 0.0638400620),
    ("unsloth/dapo@2026.9.1", {}, {"beta": 0.1}, 0.0666296325),
    ("ms-swift/grpo", {}, SWIFT_KL, 0.1085490505),
    ("ms-swift/bnpo", {}, SWIFT_KL, 0.0666296325),
    ("ms-swift/dapo", {}, SWIFT_KL | {"num_items_in_batch": 10}, 0.0666296325),
    ("ms-swift/dr_grpo", {}, SWIFT_KL | L4, 0.0416435203),
    ("ms-swift/sapo", {}, SWIFT_KL, 0.0470617445),
    ("ms-swift/cispo", {}, {"beta": 0.0, "epsilon_high": 5.0}, 0.0050846053),
    ("ms-swift/gspo", {}, SWIFT_KL, 0.0839329649),
    ("ms-swift/gspo-token", {}, {"beta": 0.0}, 0.0790613075),
    ("ms-swift/fipo", {}, SWIFT_KL, 0.0701412899),
    ("ms-swift/real", {}, {"beta": 0.0}, 1.7705805932),
    ("ms-swift/real", {}, SWIFT_KL, 1.7733701636),
    ("ms-swift/grpo", {}, {"beta": 0.0, "off_policy_mask_threshold": 0.1}, -0.0646937051),
    ("ms-swift/bnpo", {}, SWIFT_KL | {"off_policy_mask_threshold": 0.1}, -0.0855857264),
    ("ms-swift/grpo", *corrected("ms-swift/token-truncate", is_high=1.15, beta=0.0), 0.1554046804),
    ("ms-swift/grpo", *corrected("ms-swift/token-truncate", is_high=1.15, beta=0.1), 0.1580740290),
    ("ms-swift/grpo", *corrected("ms-swift/token-mask", is_high=1.15, beta=0.0), 0.0941062536),
    ("ms-swift/grpo", *corrected("ms-swift/token-mask", is_high=1.15, beta=0.1), 0.0965960991),
    (
        "ms-swift/grpo",
        *corrected("ms-swift/sequence-truncate", is_high=1.05, beta=0.0),
        0.1601179291,
    ),
    ("ms-swift/grpo", *corrected("ms-swift/sequence-mask", is_high=1.05, beta=0.0), 0.1592106602),
    ("grpo", {}, TRL | {"beta": 0.1}, 0.1085490505),
    ("bnpo", {}, TRL | {"beta": 0.1}, 0.0666296325),
    ("dapo", {}, TRL, 0.0566708181),
    ("sapo", {}, TRL, 0.0421900871),
    ("gmpo", {}, TRL, 0.0836490703),
    ("vespo", {}, TRL, 0.0808856518),
    ("gspo", {}, TRL | {"epsilon": 0.2}, 0.0790613075),
    ("gspo-token", {}, TRL | {"epsilon": 0.2}, 0.0790613075),
    ("luspo", {}, TRL | {"epsilon": 0.2}, 0.0854177686),
    ("fipo", {"kl": "k3"}, TRL | {"epsilon": 0.2, "beta": 0.1, "delta": None}, 0.0701412899),
    ("real", {}, {}, 1.7705805932),
    ("two-sided", {}, TRL | {"beta": 0.0, "delta": 1.1}, 0.0462597845),
    ("grpo", *corrected("token-truncate", **TRL, beta=0.1, is_high=1.15), 0.1602763378),
    ("grpo", *corrected("token-mask", **TRL, beta=0.1, is_low=None, is_high=1.15), 0.0989779110),
    ("grpo", *corrected("sequence-truncate", **TRL, beta=0.0, is_high=1.05), 0.1556781925),
    ("grpo", *corrected("sequence-mask", **TRL, beta=0.0, is_high=1.05), -0.0641248644),
    ("grpo", *corrected("geometric-truncate", **TRL, beta=0.0, is_high=1.05), 0.1601179291),
]


@each(("variant", "stages", "hyperparameters", "loss"), CASES)
def test_loss(variant, stages, hyperparameters, loss):
    ours = evaluate(BATCH, variant, stages=stages, **hyperparameters)
    assert ours.loss == pytest.approx(loss, abs=6e-11)


STD = [0.7070067953, -0.7070067953, -0.7069068377, 0.7069068377]
BATCH_STD = [1.0952051676, -1.0952051676, -0.5476025838, 0.5476025838]
ADVANTAGES = [
    ("trl/grpo", {"advantage": "group-std"}, TRL, STD),
    ("trl/grpo", {"advantage": "batch-std"}, TRL, BATCH_STD),
    ("trl/grpo", {"advantage": "leave-one-out"}, {}, [1.0, -1.0, -0.5, 0.5]),
    ("trl/rloo", {}, {"beta": 0.05}, [1.0, -1.0, -0.49, 0.49]),  # less the KL of the old policy
    ("grpo", {}, TRL, STD),
    ("lite-ppo", {}, TRL, BATCH_STD),
    ("rloo", {}, {"beta": 0.0}, [1.0, -1.0, -0.5, 0.5]),
    ("rloo", {}, {"beta": 0.05}, [1.0, -1.0, -0.49, 0.49]),
]


@each(("variant", "stages", "hyperparameters", "wanted"), ADVANTAGES)
def test_advantages(variant, stages, hyperparameters, wanted):
    made = evaluate(BATCH, variant, stages=stages, **hyperparameters)
    near = 1e-12 if variant == "trl/rloo" else 6e-11
    assert made.breakdown.response_advantage == pytest.approx(wanted, abs=near)


def test_the_share_of_clipped_tokens():
    """low .1, high .2 of all tokens."""
    clip = evaluate(BATCH, "trl/grpo").breakdown.clip
    assert [(clip < 0).mean(), (clip > 0).mean()] == pytest.approx([0.1, 0.2])
