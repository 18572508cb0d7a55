"""verl 0.9.1's estimators of advantages, executed in float64 beside ours."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import numpy as np
import pytest
import torch

from grpo_cli import InputError, evaluate

from . import verl_functions
from .agreement import AGREEMENT, golden
from .batches import KINDS, Ragged, evaluated, flat, given, ragged
from .verl_functions import FRAMEWORK, TABLE

CHOICES = TABLE["advantages"]
SINGLE = 2e-7
"""verl's error where a constant of its own is single precision: the std 1 of a group of one (grpo,
gdpo), the α of gpg."""
LIMITS = {
    "verl/grpo": SINGLE,
    "verl/gpg": SINGLE,
    "verl/gdpo": SINGLE,
    # 0 by cancellation, where verl has noise
    "verl/opo": 1e-8,
    # a reward less a mean of equal ones leaves 1e-10, of which few digits are
    "verl/optimal_token_baseline": 1e-8,
    "verl/tir_optimal_token_baseline": 1e-8,
}
"""The largest relative errors that verl's own precision allows, where not 1e-9."""


def without_noise(batch: Ragged, table: torch.Tensor, most: float = 1e-8) -> Any:
    """verl's advantages; the rounding noise of equal rewards taken for the 0 that it is."""
    values = table.numpy().copy()
    for group in np.unique(batch.groups):
        members = batch.groups == group
        if members.sum() > 1 and np.ptp(batch.rewards[members]) == 0:
            assert np.abs(values[members]).max() < most
            values[members] = 0.0
    return values


def close(batch: Ragged, choice: str, ours: Any, theirs: Any, case: str, more: str = "") -> None:
    AGREEMENT.close(
        FRAMEWORK,
        f"--advantage {choice}{more}",
        "advantages",
        flat(ours.advantages),
        flat(batch.counted(theirs)),
        limit=LIMITS.get(choice, 1e-9),
        case=f"{batch.kind} {batch.seed} {case}",
    )


def ours(batch: Ragged, choice: str, **more: Any) -> Any:
    stages = {"advantage": choice, **more.pop("stages", {})}
    return evaluated(batch, "verl/vanilla", stages=stages, rewards=True, **more)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("choice", CHOICES)
def test_advantages(choice: str, kind: str) -> None:
    for seed in range(3):
        batch = ragged(seed + 80, kind)
        if "passk" in choice and kind == "singletons":
            with pytest.raises(ValueError, match="at least 2"):
                verl_functions.advantages(batch, choice)
            with pytest.raises(InputError, match="at least 2"):
                ours(batch, choice)
            continue
        theirs = verl_functions.advantages(batch, choice)
        if "plus_plus" not in choice:
            theirs = without_noise(batch, theirs)
        close(batch, choice, ours(batch, choice), theirs, "")


@pytest.mark.parametrize("kind", KINDS)
def test_grpo_vectorized_takes_its_statistics_in_single_precision(kind: str) -> None:
    for seed in range(3):
        batch = ragged(seed + 90, kind)
        theirs = verl_functions.advantages(batch, "grpo_vectorized")
        theirs = without_noise(batch, theirs, 0.1)  # 0 but for single precision
        found = flat(ours(batch, "verl/grpo_vectorized").advantages)
        np.testing.assert_allclose(found, flat(batch.counted(theirs)), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("kl", ["kl", "abs", "mse", "low_var_kl"])
def test_the_kl_in_the_reward(kl: str, gamma: float) -> None:
    in_reward = {"stages": {"kl": f"verl/{kl}-in-reward"}, "beta": 0.2}
    for seed, kind in enumerate(("usual", "hollow", "singletons")):
        batch = ragged(seed + 100, kind)
        penalty = verl_functions.kl_in_reward(batch, 0.2, kl)
        for choice in CHOICES:
            if "passk" not in choice:
                theirs = verl_functions.advantages(batch, choice, penalty=penalty, gamma=gamma)
                more = {"gamma": gamma} if choice == "verl/reinforce_plus_plus" else {}
                found = ours(batch, choice, **in_reward | more)
                close(batch, choice, found, theirs, kl, " --kl verl/…-in-reward")


@pytest.mark.parametrize("kind", KINDS)
def test_gdpo(kind: str) -> None:
    for seed in range(2):
        batch = ragged(seed + 120, kind)
        draw = np.random.default_rng(seed)
        columns = draw.choice([0.0, 0.25, 0.5, 1.0, 3.0], size=(batch.count, 3))
        record = batch.record(rewards=True) | {"rewards": columns.tolist()}
        for weights in (None, [0.5, -1.0, 2.0]):
            said = {} if weights is None else {"gdpo_reward_weights": weights}
            found = evaluate(record | said, "verl/vanilla", stages={"advantage": "verl/gdpo"})
            theirs = verl_functions.gdpo(batch, columns, weights)
            wanted = flat(batch.counted(theirs))  # verl: group statistics in single precision
            np.testing.assert_allclose(flat(found.advantages), wanted, rtol=1e-5, atol=1e-5)
        alone = verl_functions.advantages(batch, "gdpo")
        close(batch, "verl/gdpo", ours(batch, "verl/gdpo"), alone, "")


# ---- estimators that read a critic, a greedy reward or Σπ² ---------------------------------------


MORE: list[tuple[str, dict[str, float]]] = [
    ("verl/gae", {"gamma": 1.0, "lam": 1.0}),
    ("verl/gae", {"gamma": 0.97, "lam": 0.9}),
    ("verl/remax", {}),
    ("verl/optimal_token_baseline", {}),
    ("verl/tir_optimal_token_baseline", {}),
]


def richer(seed: int, kind: str, *, beta: float, **settings: float) -> dict[str, Any]:
    """A record with what these estimators read."""
    batch, draw = ragged(seed, kind), np.random.default_rng(seed)
    batch.columns["values"] = [draw.normal(0.4, 0.5, len(row)) for row in batch.mask]
    batch.columns["sum_pi_squared"] = [draw.uniform(0.1, 0.9, len(row)) for row in batch.mask]
    baselines = np.random.default_rng(seed + 7).normal(0.3, 0.4, batch.count).tolist()
    how = {**settings, "beta": beta}
    return batch.record(rewards=True, reward_baselines=baselines, hyperparameters=how)


def executed(case: dict[str, Any]) -> dict[str, Any]:
    """verl's advantages of a record with these columns, and with a KL in the reward."""
    record, batch = case["record"], given(case["record"])
    settings = dict(record["hyperparameters"])
    penalty = verl_functions.kl_in_reward(batch, settings.pop("beta"))
    settings["reward_baselines"] = torch.tensor(np.array(record["reward_baselines"]))
    choice = case["stages"]["advantage"]
    found = verl_functions.advantages(batch, choice, penalty=penalty, **settings)
    return {"advantages": batch.counted(found)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("choice", "settings"), MORE, ids=str)
def test_estimators_that_read_more(choice: str, settings: dict[str, float], kind: str) -> None:
    stages = {"advantage": choice, "kl": "verl/low_var_kl-in-reward"}
    for seed in range(4):
        record = richer(seed + 400, kind, beta=0.2 * (seed % 2), **settings)
        AGREEMENT.close(
            FRAMEWORK,
            f"--advantage {choice}",
            "advantages",
            flat(evaluate(record, "verl/vanilla", stages=stages).advantages),
            flat(executed({"record": record, "stages": stages})["advantages"]),
            limit=LIMITS.get(choice, 1e-9),
            case=f"{kind} {seed} {settings}",
        )


def test_golden(writing: bool) -> None:
    golden("verl_baselines", executed, writing=writing, version=version("verl"))
