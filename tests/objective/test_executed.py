"""Paper rows against numbers that frameworks' own functions gave on one small batch.

Provenance: the loss functions of TRL 1.10.0.dev0 and ms-swift 4.6.0.dev0, and the advantages of
TRL, executed on CPU in float64; ten digits were kept. TRL's std_eps is 1e-4.
"""

from __future__ import annotations

import numpy as np
import pytest

from grpo_cli.batch import Batch, Segments
from grpo_cli.objective import pipeline
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.variants.plan import plan

BATCH = Batch(
    responses=Segments(np.array([4, 2, 3, 1])),
    records=Segments(np.array([4])),
    groups=np.array([0, 0, 1, 1]),
    group_count=2,
    log_probs_new=np.array([-1.0, -0.5, -2.0, -0.1, -0.3, -1.2, -0.7, -0.9, -1.1, -2.5]),
    log_probs_old=np.array([-1.2, -0.5, -1.5, -0.6, -0.4, -0.9, -0.7, -1.4, -1.0, -1.9]),
    log_probs_ref=np.array([-1.1, -0.7, -1.9, -0.3, -0.5, -1.0, -0.9, -0.8, -1.3, -2.0]),
    log_probs_rollout=np.array([-1.0, -0.6, -1.6, -0.6, -0.4, -0.8, -0.7, -1.3, -1.2, -1.0]),
    rewards=np.array([1.0, 0.0, 0.25, 0.75]),
)

TRL = {"std_eps": 1e-4}


def evaluate(variant: str, given: dict[str, object], batch: Batch = BATCH) -> Breakdown:
    stages = {key: given[key] for key in ("kl", "correction", "aggregate") if key in given}
    rest = {key: value for key, value in given.items() if key not in stages}
    made = plan(variant, stages=stages, hyperparameters=rest)
    objective = made.objective({}, advantages_given=False)
    return pipeline.evaluate(batch, objective)


@pytest.mark.parametrize(
    ("variant", "given", "loss"),
    [
        ("grpo", {**TRL, "beta": 0.1}, 0.1085490505),
        ("bnpo", {**TRL, "beta": 0.1}, 0.0666296325),
        ("dapo", TRL, 0.0566708181),
        ("sapo", TRL, 0.0421900871),
        ("gmpo", TRL, 0.0836490703),
        ("vespo", TRL, 0.0808856518),
        ("gspo", {**TRL, "epsilon": 0.2}, 0.0790613075),
        ("gspo-token", {**TRL, "epsilon": 0.2}, 0.0790613075),
        ("luspo", {**TRL, "epsilon": 0.2}, 0.0854177686),
        ("fipo", {**TRL, "epsilon": 0.2, "kl": "k3", "beta": 0.1, "delta": None}, 0.0701412899),
        ("real", {}, 1.7705805932),
        ("two-sided", {**TRL, "beta": 0.0, "delta": 1.1}, 0.0462597845),
        (
            "grpo",
            {**TRL, "beta": 0.1, "correction": "token-truncate", "is_high": 1.15},
            0.1602763378,
        ),
        (
            "grpo",
            {**TRL, "beta": 0.1, "correction": "token-mask", "is_low": None, "is_high": 1.15},
            0.0989779110,
        ),
        (
            "grpo",
            {**TRL, "beta": 0.0, "correction": "sequence-truncate", "is_high": 1.05},
            0.1556781925,
        ),
        (
            "grpo",
            {**TRL, "beta": 0.0, "correction": "sequence-mask", "is_high": 1.05},
            -0.0641248644,
        ),
        (
            "grpo",
            {**TRL, "beta": 0.0, "correction": "geometric-truncate", "is_high": 1.05},
            0.1601179291,
        ),
    ],
)
def test_loss(variant: str, given: dict[str, object], loss: float):
    assert -evaluate(variant, given).record_objective[0] == pytest.approx(loss, abs=6e-11)


@pytest.mark.parametrize(
    ("advantage", "given", "wanted"),
    [
        ("grpo", TRL, [0.7070067953, -0.7070067953, -0.7069068377, 0.7069068377]),
        ("lite-ppo", TRL, [1.0952051676, -1.0952051676, -0.5476025838, 0.5476025838]),
        ("rloo", {"beta": 0.0}, [1.0, -1.0, -0.5, 0.5]),
        ("rloo", {"beta": 0.05}, [1.0, -1.0, -0.49, 0.49]),
    ],
)
def test_advantages(advantage: str, given: dict[str, object], wanted: list[float]):
    found = evaluate(advantage, given).response_advantage
    assert found == pytest.approx(wanted, abs=6e-11)
