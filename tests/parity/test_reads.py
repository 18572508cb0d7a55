"""What the released losses read of their settings, executed: a row follows those and no other.

The settings are ``reads`` of ``trl.json`` and ``verl.json``, by the frameworks' names (of verl, the
coefficients of the KL and the entropy are among them, which its trainer reads), and another value
of each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from rows import canonical, plan
from trl import GRPOTrainer
from verl.trainer.ppo import core_algos

from grpo_cli import evaluate

from . import trl_trainers, verl_functions
from .batches import F64, Ragged, far, flat, ragged
from .test_verl import LOSSES, stages_for
from .trl_trainers import TRAINERS, as_ours

SETTINGS = {"trl": trl_trainers.TABLE["reads"], "verl": verl_functions.TABLE["reads"]}
VERL = SETTINGS["verl"]["base"]
MODE = "seq-mean-token-sum-norm"
BATCHES = {
    "trl": [ragged(seed, kind) for seed in range(3) for kind in ("usual", "extreme")],
    "verl": [made(seed) for seed in (3, 4) for made in (ragged, far)],
}
COLUMNS = ("log_probs_new", "log_probs_old", "log_probs_ref", "entropies")
IN_REWARD = {"trl/rloo": {"beta"}}
"""What TRL reads before its loss; the advantages are given here."""

Numbers = Callable[[str, dict[str, Any], Ragged], F64]
"""A row, settings and a batch → the loss, and of TRL its gradient too."""


def trl_ours(row: str, settings: dict[str, Any], batch: Ragged) -> F64:
    said = as_ours(settings)
    said["epsilon_low"] = said.pop("epsilon")
    found = evaluate(batch.record(*COLUMNS, hyperparameters=said), row)
    return np.array([found.loss, *-flat(found.gradient)])


def trl_theirs(row: str, settings: dict[str, Any], batch: Ragged) -> F64:
    own = trl_trainers.ROWS.get(row, {})
    found = trl_trainers.compute(batch, TRAINERS.get(row, GRPOTrainer), **own, **settings)
    return np.array([found.loss, *flat(batch.counted(found.gradient))])


def verl_ours(row: str, settings: dict[str, Any], batch: Ragged) -> F64:
    loss = row.removeprefix("verl/")
    framework = {"name": "verl", "policy_loss": loss}
    record = batch.record(hyperparameters=settings, framework=framework)
    return np.array([evaluate(record, row, stages=stages_for(loss, MODE)).loss])


def verl_theirs(row: str, settings: dict[str, Any], batch: Ragged) -> F64:
    torch.manual_seed(batch.seed)  # every call draws the same tokens
    return np.array(
        [verl_functions.compute(batch, row.removeprefix("verl/"), mode=MODE, **settings).loss]
    )


NUMBERS = {"trl": (trl_ours, trl_theirs), "verl": (verl_ours, verl_theirs)}


def changes(row: str, numbers: Numbers) -> set[str]:
    """The settings another value of which gives other numbers."""
    framework = row.partition("/")[0]
    base, other = SETTINGS[framework]["base"], SETTINGS[framework]["other"]

    def of(settings: dict[str, Any]) -> F64:
        return np.concatenate([numbers(row, settings, batch) for batch in BATCHES[framework]])

    plain = of(base)
    found = {name: of(base | {name: value}) for name, value in other.items()}
    return {name for name in found if not np.array_equal(found[name], plain, equal_nan=True)}


@pytest.mark.parametrize(
    "row", [*trl_trainers.ROWS, *TRAINERS, *(f"verl/{loss}" for loss in LOSSES)]
)
def test_a_row_reads_what_its_loss_reads(row: str) -> None:
    ours, theirs = NUMBERS[row.partition("/")[0]]
    read = changes(row, theirs)
    assert changes(row, ours) == read
    if row.startswith("verl/"):
        assert row.removeprefix("verl/") in core_algos.POLICY_LOSS_REGISTRY
        return
    for batch in BATCHES["trl"]:
        loss = theirs(row, SETTINGS["trl"]["base"], batch)[0]
        assert ours(row, SETTINGS["trl"]["base"], batch)[0] == pytest.approx(loss, rel=1e-9)
    assert len(read) >= 2
    wanted = {our_name(name) for name in read} | IN_REWARD.get(row, set())
    assert plan(row).takes() - {"entropy_coef", "reward_weights"} == wanted - {"entropy_coef"}


def our_name(name: str) -> str:
    if name == "epsilon":
        return "epsilon_low"
    (found,) = canonical(as_ours({name: SETTINGS["trl"]["other"][name]}))
    return found


def test_clip_ratio_stands_in_for_a_side_that_is_null() -> None:
    null = VERL | {"clip_ratio_low": None, "clip_ratio_high": None, "clip_ratio": 0.4}
    said = VERL | {"clip_ratio_low": 0.4, "clip_ratio_high": 0.4}
    for batch in BATCHES["verl"]:
        for numbers in (verl_ours, verl_theirs):
            assert numbers("verl/vanilla", null, batch) == numbers("verl/vanilla", said, batch)
