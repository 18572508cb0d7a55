"""What verl's released losses read of its settings, executed: a row follows those and no other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from verl.trainer.ppo import core_algos

from grpo_cli import evaluate

from .batches import Ragged, far, ragged
from .test_verl import LOSSES, OWN_MODE
from .verl_functions import compute

MODE = "seq-mean-token-sum-norm"
BASE: dict[str, Any] = {
    "clip_ratio": 0.2,
    "clip_ratio_low": 0.2,
    "clip_ratio_high": 0.2,
    "clip_ratio_c": 3.0,
    "tau_pos": 1.0,
    "tau_neg": 1.05,
    "loss_scale_factor": 40,
    "clip_cov_ratio": 0.9,
    "clip_cov_lb": 0.02,
    "clip_cov_ub": 0.9,
    "kl_cov_ratio": 0.12,
    "ppo_kl_coef": 0.7,
    "dro_beta": 0.3,
    "dp_size": 1,
    "batch_num_tokens": 90,
    "global_batch_size": 12,
    "beta": 0.1,
    "entropy_coeff": 0.01,
}
"""verl's settings, by its names; the coefficients of the KL and the entropy by those of compute."""
OTHER: dict[str, Any] = {
    "clip_ratio": 0.4,
    "clip_ratio_low": 0.05,
    "clip_ratio_high": 0.07,
    "clip_ratio_c": 1.2,
    "tau_pos": 2.0,
    "tau_neg": 0.4,
    "loss_scale_factor": 7,
    "clip_cov_ratio": 0.3,
    "clip_cov_lb": 0.2,
    "clip_cov_ub": 0.3,
    "kl_cov_ratio": 0.6,
    "ppo_kl_coef": 0.2,
    "dro_beta": 0.6,
    "dp_size": 2,
    "batch_num_tokens": 33,
    "global_batch_size": 5,
    "beta": 0.3,
    "entropy_coeff": 0.2,
}
SEEDS = (3, 4)


def batches() -> Iterator[Ragged]:
    for seed in SEEDS:
        yield ragged(seed)
        yield far(seed)


def theirs(loss: str, settings: dict[str, Any]) -> list[float]:
    """verl's loss on each batch; every call draws the same tokens."""
    found = []
    for batch in batches():
        torch.manual_seed(0)
        beta, bonus = settings["beta"], settings["entropy_coeff"]
        own = {k: v for k, v in settings.items() if k not in ("beta", "entropy_coeff")}
        found.append(compute(batch, loss, mode=MODE, beta=beta, entropy_coeff=bonus, **own).loss)
    return found


def ours(loss: str, settings: dict[str, Any]) -> list[float]:
    """Ours of records that say all of the settings."""
    where = "kl_aggregate" if loss in OWN_MODE else "aggregate"
    stages = {where: f"verl/{MODE}"}
    if loss in OWN_MODE:
        stages["entropy_aggregate"] = f"verl/{MODE}"
    framework = {"name": "verl", "policy_loss": loss}
    records = [batch.record(hyperparameters=settings, framework=framework) for batch in batches()]
    return [evaluate(one, f"verl/{loss}", stages=stages).loss for one in records]


@pytest.mark.parametrize("loss", LOSSES)
def test_a_row_follows_the_settings_that_the_released_loss_reads(loss: str) -> None:
    assert loss in core_algos.POLICY_LOSS_REGISTRY
    plain, mine = theirs(loss, BASE), ours(loss, BASE)
    for name in BASE:
        changed = {**BASE, name: OTHER[name]}
        reads = not np.array_equal(theirs(loss, changed), plain, equal_nan=True)
        follows = ours(loss, changed) != mine
        assert follows == reads, (name, "read by verl" if reads else "ignored by verl")


def test_clip_ratio_stands_in_for_a_side_that_is_null() -> None:
    null = BASE | {"clip_ratio_low": None, "clip_ratio_high": None, "clip_ratio": 0.4}
    said = BASE | {"clip_ratio_low": 0.4, "clip_ratio_high": 0.4}
    assert theirs("vanilla", null) == theirs("vanilla", said)
    assert ours("vanilla", null) == ours("vanilla", said)
