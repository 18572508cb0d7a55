"""A record's setting changes one of TRL's rows where TRL's own loss reads it, and nowhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from trl import GRPOTrainer, RLOOTrainer
from trl.experimental.gmpo import GMPOTrainer

from grpo_cli import evaluate
from grpo_cli.hyperparameters import canonical
from grpo_cli.variants.plan import plan

from . import trl_trainers
from .batches import ragged
from .ours import flat
from .trl_compare import ROWS, as_ours

BASE: dict[str, Any] = {
    "beta": 0.1,
    "epsilon": 0.2,
    "epsilon_high": 0.28,
    "entropy_coef": 0.01,
    "gradient_accumulation_steps": 2,
    "steps_per_generation": 4,
    "num_items_in_batch": 100.0,
}
OTHER: dict[str, Any] = {
    "epsilon": 0.01,
    "epsilon_high": 0.02,
    "delta": 1.01,
    "beta": 0.3,
    "use_bias_correction_kl": False,
    "max_completion_length": 48,
    "entropy_coef": 0.05,
    "sapo_temperature_pos": 0.5,
    "sapo_temperature_neg": 2.0,
    "vespo_k_pos": 1.0,
    "vespo_lambda_pos": 0.5,
    "vespo_k_neg": 2.0,
    "vespo_lambda_neg": 1.0,
    "off_policy_mask_threshold": 0.0,
    "top_entropy_quantile": 0.4,
    "gradient_accumulation_steps": 3,
    "steps_per_generation": 8,
    "num_items_in_batch": 333.0,
    "num_processes": 3,
}
"""Each of TRL's settings, and another value than that of ``BASE`` or of TRL's default."""
TRAINERS = {"trl/rloo": RLOOTrainer, "trl/gmpo": GMPOTrainer}
COLUMNS = ("log_probs_new", "log_probs_old", "log_probs_ref", "entropies")
IN_REWARD = {"trl/rloo": {"beta"}}
"""What TRL reads before its loss; the advantages are given here."""


Numbers = list[tuple[float, Any]]
"""The loss and the gradient of each batch."""
BATCHES = [ragged(seed, kind) for seed in range(3) for kind in ("usual", "extreme")]


def ours(row: str, settings: dict[str, Any]) -> Numbers:
    """What records with these settings evaluate to."""
    given = as_ours(settings)
    if "epsilon" in given:
        given["epsilon_low"] = given.pop("epsilon")
    records = [batch.record(*COLUMNS) | {"hyperparameters": given} for batch in BATCHES]
    made = [evaluate(one, row) for one in records]
    return [(one.loss, -flat(one.gradient)) for one in made]


def theirs(row: str, settings: dict[str, Any]) -> Numbers:
    """What TRL computes of the same."""
    trainer, own = TRAINERS.get(row, GRPOTrainer), ROWS.get(row, {})
    made = [trl_trainers.compute(batch, trainer, **own, **settings) for batch in BATCHES]
    return [
        (one.loss, flat(batch.counted(one.gradient)))
        for batch, one in zip(BATCHES, made, strict=True)
    ]


def moved(base: Numbers, other: Numbers) -> bool:
    """Whether any number differs."""
    return any(
        one[0] != two[0] or not np.array_equal(one[1], two[1])
        for one, two in zip(base, other, strict=True)
    )


@pytest.mark.parametrize("row", [*ROWS, *TRAINERS])
def test_a_row_reads_what_its_loss_reads(row: str) -> None:
    plain, base = theirs(row, BASE), ours(row, BASE)
    assert [one[0] for one in base] == pytest.approx([one[0] for one in plain], rel=1e-9)
    read = {}
    for name, value in OTHER.items():
        settings = BASE | {name: value}
        read[name] = moved(plain, theirs(row, settings))
        assert moved(base, ours(row, settings)) == read[name], name
    assert sum(read.values()) >= 2
    names = {name: _our_name(name) for name in OTHER}
    wanted = {names[name] for name, is_read in read.items() if is_read} | IN_REWARD.get(row, set())
    assert plan(row).takes() - {"entropy_coef", "reward_weights"} == wanted - {"entropy_coef"}


def _our_name(name: str) -> str:
    if name == "epsilon":
        return "epsilon_low"
    (found,) = canonical(as_ours({name: OTHER[name]}))
    return found
