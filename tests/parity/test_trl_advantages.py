"""TRL 1.16.0's way from rewards to advantages, executed beside ours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from trl import RLOOTrainer

from .batches import ragged
from .trl_compare import advantages
from .trl_generation import generate

ADVANTAGES: dict[str, tuple[dict[str, Any], dict[str, str], dict[str, Any]]] = {
    "group": ({}, {}, {}),
    "none": ({"scale_rewards": "none"}, {"advantage": "group-mean"}, {}),
    "batch": ({"scale_rewards": "batch"}, {"advantage": "batch-std"}, {"std_eps": 1e-4}),
}
"""TRL's setting, and ours."""


@pytest.mark.parametrize("kind", ["usual", "dead"])
@pytest.mark.parametrize("name", ADVANTAGES)
def test_advantages(name: str, kind: str) -> None:
    theirs, stages, ours = ADVANTAGES[name]
    for seed in range(8):
        batch = ragged(seed, kind, group_size=2 + seed % 4)
        made = generate(batch, batch.rewards, num_generations=2 + seed % 4, **theirs)
        advantages(f"trl/grpo advantage {name}", "trl/grpo", batch, made, stages, ours)


def test_decoupled_advantages() -> None:
    for seed in range(8):
        batch = ragged(seed, group_size=4)
        several = np.random.default_rng(seed).choice([0.0, 0.3, 1.0], size=(batch.count, 3))
        made = generate(
            batch, several, num_generations=4, multi_objective_aggregation="normalize_then_sum"
        )
        advantages(
            "trl/grpo advantage decoupled",
            "trl/grpo",
            replace(batch, rewards=several),
            made,
            {"advantage": "decoupled"},
            {"std_eps": 1e-4},
        )


UNEQUAL = [1.0, 0.25, -2.0]
"""Reward weights, which the record has as the trainer's settings; one function gives none for a
third of the responses."""


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize(
    ("name", "settings", "stages", "ours"),
    [
        *((name, *how) for name, how in ADVANTAGES.items()),
        (
            "decoupled",
            {"multi_objective_aggregation": "normalize_then_sum"},
            {"advantage": "decoupled"},
            {"std_eps": 1e-4},
        ),
    ],
)
def test_weighed_functions_and_nulls(
    name: str,
    settings: dict[str, Any],
    stages: dict[str, str],
    ours: dict[str, Any],
    nulls: bool,
) -> None:
    for seed in range(8):
        batch, draw = ragged(seed, group_size=4), np.random.default_rng(seed)
        several = draw.choice([0.0, 0.3, 1.0], size=(batch.count, 3))
        if nulls:
            several[draw.random(batch.count) < 0.3, 1] = np.nan
        made = generate(batch, several, num_generations=4, reward_weights=UNEQUAL, **settings)
        settings_of_trl = {"name": "trl", "reward_weights": UNEQUAL}
        rewards = np.where(np.isnan(several), None, several) if nulls else several
        label, given = f"trl/grpo advantage {name}, weighed", replace(batch, rewards=rewards)
        advantages(label, "trl/grpo", given, made, stages, ours, framework=settings_of_trl)


@pytest.mark.parametrize("kind", ["usual", "dead"])
@pytest.mark.parametrize("beta", [0.0, 0.05])
def test_rloo_advantages(beta: float, kind: str) -> None:
    for seed in range(8):
        batch = ragged(seed, kind, group_size=3).unmasked()
        made = generate(batch, batch.rewards, RLOOTrainer, num_generations=3, beta=beta)
        advantages("trl/rloo advantage", "trl/rloo", batch, made, {}, {"beta": beta})


def test_normalised_rloo_advantages() -> None:
    for seed in range(8):
        batch = ragged(seed, "dead", group_size=3).unmasked()
        settings = {"beta": 0.05, "normalize_advantages": True}
        made = generate(batch, batch.rewards, RLOOTrainer, num_generations=3, **settings)
        stages = {"advantage": "trl/rloo-normalised"}
        advantages("trl/rloo advantage normalised", "trl/rloo", batch, made, stages, {"beta": 0.05})
