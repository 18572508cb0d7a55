"""verl 0.9.1's estimators that read a critic, a greedy reward or Σπ², beside ours."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import numpy as np
import pytest
import torch
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos

from grpo_cli import evaluate

from . import verl_functions
from .agreement import AGREEMENT, write_golden
from .batches import KINDS, Ragged, flat, ragged

FRAMEWORK = "verl 0.9.1"
CASES = {
    "verl/gae": ("gae", {"gamma": 1.0, "lam": 1.0}),
    "verl/gae discounted": ("gae", {"gamma": 0.97, "lam": 0.9}),
    "verl/remax": ("remax", {}),
    "verl/optimal_token_baseline": ("optimal_token_baseline", {}),
    "verl/tir_optimal_token_baseline": ("tir_optimal_token_baseline", {}),
}


def richer(seed: int, kind: str) -> Ragged:
    """A batch with the columns that these estimators read."""
    batch = ragged(seed, kind)
    draw = np.random.default_rng(seed)
    batch.columns["values"] = [draw.normal(0.4, 0.5, len(row)) for row in batch.mask]
    batch.columns["sum_pi_squared"] = [draw.uniform(0.1, 0.9, len(row)) for row in batch.mask]
    return batch


def baselines(batch: Ragged) -> Any:
    return np.random.default_rng(batch.seed + 7).normal(0.3, 0.4, batch.count)


def theirs(batch: Ragged, estimator: str, settings: dict[str, float], *, kl: float) -> Any:
    """[R, W] verl's advantages, with a KL in the reward."""
    names = ("log_probs_old", "log_probs_ref", "mask", "values", "sum_pi_squared")
    old, ref, mask, values, squares = (verl_functions.tensor(batch, name) for name in names)
    penalty = kl * core_algos.kl_penalty(old, ref, "low_var_kl") * mask
    rewards = verl_functions.token_rewards(batch, penalty)
    if estimator == "gae":
        return core_algos.compute_gae_advantage_return(rewards, values, mask, **settings)[0]
    return core_algos.get_adv_estimator_fn(estimator)(
        token_level_rewards=rewards,
        response_mask=mask,
        index=np.array([f"prompt-{group}" for group in batch.groups], dtype=object),
        config=AlgoConfig(),
        reward_baselines=torch.tensor(baselines(batch)),
        old_log_probs=old,
        sum_pi_squared=squares,
    )[0]


def record(batch: Ragged, settings: dict[str, float], *, kl: float) -> dict[str, Any]:
    return batch.record(
        rewards=True,
        reward_baselines=baselines(batch).tolist(),
        hyperparameters={**settings, "beta": kl},
    )


def stages(name: str) -> dict[str, str]:
    return {"advantage": name.split()[0], "kl": "verl/low_var_kl-in-reward"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_advantages(name: str, kind: str) -> None:
    estimator, settings = CASES[name]
    for seed in range(4):
        batch, kl = richer(seed + 400, kind), 0.2 * (seed % 2)
        found = theirs(batch, estimator, settings, kl=kl)
        ours = evaluate(record(batch, settings, kl=kl), "verl/vanilla", stages=stages(name))
        AGREEMENT.close(
            FRAMEWORK,
            f"--advantage {name.split()[0]}",
            "advantages",
            flat(ours.advantages),
            flat(batch.counted(found)),
            # a reward less a mean of equal ones leaves 1e-10, of which few digits are
            limit=1e-8 if "optimal" in name else 1e-9,
            case=f"{kind} {seed} {settings}",
        )


def test_write_the_golden_numbers(writing: bool) -> None:
    """Leaves verl's own numbers for the ordinary suite."""
    cases = []
    for index, (name, (estimator, settings)) in enumerate(CASES.items()):
        batch = richer(index + 420, "usual")
        found = theirs(batch, estimator, settings, kl=0.2)
        cases.append(
            {
                "stages": stages(name),
                "record": record(batch, settings, kl=0.2),
                "advantages": [row.tolist() for row in batch.counted(found)],
            }
        )
    if writing:
        head = {
            "framework": "verl",
            "version": version("verl"),
            "how": "tests/parity/test_verl_baselines.py: core_algos in float64, the KL 0.2·k3 in "
            "the reward",
        }
        write_golden("verl_baselines", head | {"cases": cases})
