"""TRL 1.16.0's trainers, executed beside our rows: losses, and from rewards to advantages."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import trl
from trl import GRPOTrainer, RLOOTrainer

from grpo_cli import evaluate

from .agreement import GOLDEN, golden
from .batches import KINDS, Ragged, given, ragged
from .trl_trainers import FRAMEWORK, ROWS, TABLE, accelerator, advantages, compare, generate

# ---- losses --------------------------------------------------------------------------------------


SEEDS = range(3)
VLLM, ADVANTAGES = TABLE["vllm"], TABLE["advantages"]
"""vLLM's modes; TRL's settings of advantages, our stages and ours."""


def test_the_version_is_the_one_that_the_rows_name() -> None:
    assert trl.__version__ == "1.16.0"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", TABLE["settings"])
@pytest.mark.parametrize("row", ROWS)
def test_rows(row: str, settings: str, kind: str) -> None:
    """What changes the number whatever the loss type; names as TRL's."""
    for seed in SEEDS:
        compare(row, ragged(seed, kind), TABLE["settings"][settings])


def test_top_entropy_of_entropies_in_single_precision() -> None:
    """A record's are the shortest decimals of what TRL has in float32, which are no float32."""
    trainer = SimpleNamespace(accelerator=accelerator())
    draw = np.random.default_rng(0)
    batches = [([0.1, 0.2, 0.3], 0.5)]
    for count in draw.integers(1, 40, size=300):
        batches.append((draw.exponential(0.8, size=count).round(1).tolist(), draw.uniform(0.05, 1)))
    for entropies, share in batches:
        single = torch.tensor([entropies], dtype=torch.float32)
        mask = torch.ones_like(single)
        theirs = GRPOTrainer.get_high_entropy_mask(trainer, single, mask, 1 - share)
        record = {
            "log_probs_new": [[-1.0] * len(entropies)],
            "entropies": [entropies],
            "advantages": [1.0],
        }
        found = evaluate(record, "trl/bnpo", top_entropy_quantile=share)
        assert (found.breakdown.correction > 0).tolist() == theirs[0].tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("row", "settings"), TABLE["others"], ids=str)
def test_other_trainers(row: str, settings: dict[str, Any], kind: str) -> None:
    for seed in SEEDS:
        compare(row, ragged(seed, kind), settings)


@pytest.mark.parametrize("kind", ["usual", "extreme", "hollow"])
@pytest.mark.parametrize("settings", TABLE["varied"])
@pytest.mark.parametrize("row", ROWS)
def test_settings(row: str, settings: str, kind: str) -> None:
    for seed in SEEDS:
        compare(row, ragged(seed + 50, kind), TABLE["varied"][settings])


@pytest.mark.parametrize("row", ROWS)
def test_a_level_other_than_the_row_s_own(row: str) -> None:
    swap = {"token": "sequence", "sequence": "token"}
    level = swap[ROWS[row].get("importance_sampling_level", "token")]
    for seed, kind in enumerate(("usual", "extreme", "hollow", "near")):
        compare(
            row,
            ragged(seed, kind),
            {"beta": 0.1},
            stages={"ratio": level},
            label=f"{row} --ratio {level}",
            importance_sampling_level=level,
        )


@pytest.mark.parametrize("row", ROWS)
def test_without_old_log_probs_every_ratio_is_1(row: str) -> None:
    for seed in SEEDS:
        compare(row, ragged(seed), {"beta": 0.1}, old=False)


@pytest.mark.parametrize("row", ROWS)
def test_the_off_policy_mask_prefers_the_engine_s_log_probs(row: str) -> None:
    for seed in SEEDS:
        settings = {"off_policy_mask_threshold": 0.01, "beta": 0.1}
        compare(row, ragged(seed), settings, with_rollout=True)


def compare_corrected(
    row: str, mode: str, batch: Ragged, settings: dict[str, Any], *, group_size: int
) -> dict[str, Any]:
    """With the choice that stands for vLLM's mode; VESPO has it inside its weight."""
    name, (stage, prefix) = mode.replace("_", "-"), ("correction", "trl/")
    if row == "trl/vespo":
        stage, prefix = "surrogate", "trl/vespo-"
    vllm = {name: value for name, value in settings.items() if name.startswith("vllm")}
    how = {"use_vllm": True, "vllm_importance_sampling_mode": mode, **vllm}
    generated = generate(batch, batch.rewards, num_generations=group_size, **how)
    return compare(
        row,
        batch,
        settings,
        stages={stage: prefix + name},
        label=f"{row} --{stage} {prefix + name}",
        with_rollout=True,
        importance_sampling_ratio=generated["importance_sampling_ratio"].numpy(),
    )


@pytest.mark.parametrize("mode", VLLM)
@pytest.mark.parametrize("row", ROWS)
def test_vllm_corrections(row: str, mode: str) -> None:
    settings = {"beta": 0.05, "off_policy_mask_threshold": 0.1} | VLLM[mode]
    for seed in SEEDS:
        compare_corrected(row, mode, ragged(seed, group_size=4), settings, group_size=4)


# ---- from rewards to advantages ------------------------------------------------------------------


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


# ---- the golden numbers ----------------------------------------------------------------------


THEIRS = {
    "epsilon_low": "epsilon",
    "is_low": "vllm_importance_sampling_clip_min",
    "is_high": "vllm_importance_sampling_clip_max",
}


def executed(case: dict[str, Any]) -> dict[str, Any]:
    """What TRL makes of a golden case, compared on the way."""
    row, stages, batch = case["variant"], case["stages"], given(case["record"])
    settings = {THEIRS.get(name, name): value for name, value in case["hyperparameters"].items()}
    if "kl_weight" in settings:
        settings["use_bias_correction_kl"] = settings.pop("kl_weight") == "ratio"
    if not stages:
        return compare(row, batch, settings)
    (choice,) = stages.values()
    mode = re.sub("^trl/(vespo-)?", "", choice).replace("-", "_")
    return compare_corrected(row, mode, batch, settings, group_size=3)


def test_golden(writing: bool) -> None:
    golden("trl", executed, writing=writing, framework=FRAMEWORK)


def test_the_golden_cases_exercise_what_they_are_for() -> None:
    kept = json.loads((GOLDEN / "trl.json").read_text())["cases"]
    assert any(case["metrics"].get("clip_ratio/low_mean") for case in kept)
    assert any(case["metrics"].get("clip_ratio/high_mean") for case in kept)
    assert any(case["hyperparameters"].get("beta") for case in kept)
    assert all(case["loss"] == pytest.approx(case["loss"]) and case["loss"] for case in kept)
