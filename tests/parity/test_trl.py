"""TRL 1.16.0's trainers, executed beside our rows: losses, and from rewards to advantages."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import trl
from trl import GRPOTrainer, RLOOTrainer
from trl.experimental.gmpo import GMPOTrainer

from grpo_cli import evaluate

from .agreement import GOLDEN, relative_error, write_golden
from .batches import KINDS, ragged
from .trl_trainers import FRAMEWORK, ROWS, accelerator, advantages, compare, generate

# ---- losses --------------------------------------------------------------------------------------


SEEDS = range(3)

SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "kl": {"beta": 0.1},
    "plain-kl": {"beta": 0.07, "use_bias_correction_kl": False},
    "scaled": {
        "beta": 0.04,
        "gradient_accumulation_steps": 3,
        "steps_per_generation": 6,
        "num_processes": 2,
        "num_items_in_batch": 1234.0,
        "max_completion_length": 77,
    },
    "eval": {"training": False, "gradient_accumulation_steps": 4, "steps_per_generation": 2},
}
"""What changes the number whatever the loss type; names as TRL's."""


def test_the_version_is_the_one_that_the_rows_name() -> None:
    assert trl.__version__ == "1.16.0"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("row", ROWS)
def test_rows(row: str, settings: dict[str, Any], kind: str) -> None:
    for seed in SEEDS:
        compare(row, ragged(seed, kind), settings)


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


SCALED = {"epsilon": 0.1, "epsilon_high": 0.2, "gradient_accumulation_steps": 4}
OTHERS: list[tuple[str, type, dict[str, Any]]] = [
    ("trl/rloo", RLOOTrainer, {}),
    ("trl/rloo", RLOOTrainer, {"epsilon": 0.05, "epsilon_high": 0.3}),
    ("trl/gmpo", GMPOTrainer, {}),
    ("trl/gmpo", GMPOTrainer, {"beta": 0.1}),
    ("trl/gmpo", GMPOTrainer, SCALED),
    ("trl/gmpo", GMPOTrainer, {"top_entropy_quantile": 0.4, "beta": 0.1}),
    ("trl/gmpo", GMPOTrainer, {"top_entropy_quantile": 0.05, "epsilon": 0.05}),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("row", "trainer", "settings"), OTHERS, ids=str)
def test_other_trainers(row: str, trainer: type, settings: dict[str, Any], kind: str) -> None:
    for seed in SEEDS:
        compare(row, ragged(seed, kind), settings, trainer=trainer)


VARIED: dict[str, dict[str, Any]] = {
    "epsilon": {"epsilon": 0.05, "epsilon_high": 0.4},
    "delta": {"epsilon": 0.2, "delta": 1.5, "beta": 0.02},
    "sapo": {"sapo_temperature_pos": 0.7, "sapo_temperature_neg": 2.5, "beta": 0.02},
    "vespo": {
        "vespo_k_pos": 1.0,
        "vespo_lambda_pos": 0.0,
        "vespo_k_neg": 2.5,
        "vespo_lambda_neg": 0.5,
        "num_items_in_batch": 50.0,
    },
    "entropy": {"entropy_coef": 0.05, "gradient_accumulation_steps": 2},
    "top-bonus": {"entropy_coef": 0.05, "top_entropy_quantile": 0.3, "beta": 0.1},
    "off-policy": {"off_policy_mask_threshold": 0.02, "beta": 0.1},
    "top-entropy": {"top_entropy_quantile": 0.3, "beta": 0.1},
    "both-masks": {"off_policy_mask_threshold": 0.0, "top_entropy_quantile": 0.55},
}


@pytest.mark.parametrize("kind", ["usual", "extreme", "hollow"])
@pytest.mark.parametrize("settings", VARIED.values(), ids=VARIED)
@pytest.mark.parametrize("row", ROWS)
def test_settings(row: str, settings: dict[str, Any], kind: str) -> None:
    for seed in SEEDS:
        compare(row, ragged(seed + 50, kind), settings)


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


MODES = {
    "token_truncate": {},
    "token_mask": {
        "vllm_importance_sampling_clip_min": 0.9,
        "vllm_importance_sampling_clip_max": 1.1,
    },
    "sequence_truncate": {
        "vllm_importance_sampling_clip_min": 0.8,
        "vllm_importance_sampling_clip_max": 1.3,
    },
    "sequence_mask": {"vllm_importance_sampling_clip_max": 1.2},
}


CORRECTED = [(row, mode) for row in ROWS for mode in MODES]


def correction(row: str, mode: str) -> tuple[str, str]:
    """The stage and the choice that stand for vLLM's mode; VESPO has it inside its weight."""
    name = mode.replace("_", "-")
    if row == "trl/vespo":
        return "surrogate", f"trl/vespo-{name}"
    return "correction", f"trl/{name}"


@pytest.mark.parametrize(("row", "mode"), CORRECTED)
def test_vllm_corrections(row: str, mode: str) -> None:
    stage, choice = correction(row, mode)
    for seed in SEEDS:
        batch = ragged(seed, group_size=4)
        generated = generate(
            batch,
            batch.rewards,
            num_generations=4,
            use_vllm=True,
            vllm_importance_sampling_mode=mode,
            **MODES[mode],
        )
        compare(
            row,
            batch,
            {"beta": 0.05, "off_policy_mask_threshold": 0.1} | MODES[mode],
            stages={stage: choice},
            label=f"{row} --{stage} {choice}",
            with_rollout=True,
            importance_sampling_ratio=generated["importance_sampling_ratio"].numpy(),
        )


# ---- from rewards to advantages ------------------------------------------------------------------


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


# ---- the golden numbers ----------------------------------------------------------------------


KEPT_SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("usual", {}),
    ("singletons", {"beta": 0.1, "epsilon": 0.1, "epsilon_high": 0.28}),
    (
        "hollow",
        {
            "beta": 0.05,
            "use_bias_correction_kl": False,
            "gradient_accumulation_steps": 2,
            "steps_per_generation": 8,
            "num_items_in_batch": 777.0,
            "num_processes": 4,
            "max_completion_length": 48,
        },
    ),
]
MASKED = {"off_policy_mask_threshold": 0.02, "top_entropy_quantile": 0.6, "beta": 0.05}

TOP = {"top_entropy_quantile": 0.4}
BONUS = {"top_entropy_quantile": 0.3, "entropy_coef": 0.05}


def cases() -> list[dict[str, Any]]:
    """Every row under a few settings, and vLLM's corrections; all are compared on the way."""
    found = [
        compare(row, ragged(7, kind), settings) for row in ROWS for kind, settings in KEPT_SETTINGS
    ]
    found += [compare(row, ragged(9), MASKED) for row in ("trl/grpo", "trl/dapo", "trl/gspo")]
    for kind, settings in [*KEPT_SETTINGS[:1], ("hollow", {"epsilon": 0.05, "epsilon_high": 0.3})]:
        found.append(compare("trl/rloo", ragged(7, kind), settings, trainer=RLOOTrainer))
        found.append(compare("trl/gmpo", ragged(7, kind), settings, trainer=GMPOTrainer))
    found.append(compare("trl/gmpo", ragged(8), {"beta": 0.1}, trainer=GMPOTrainer))
    found.append(compare("trl/gmpo", ragged(8), TOP, trainer=GMPOTrainer))
    found += [compare(row, ragged(9), BONUS) for row in ("trl/grpo", "trl/dapo")]
    found += [corrected(row, mode) for row, mode in CORRECTED if row in ("trl/dapo", "trl/vespo")]
    return found


def corrected(row: str, mode: str) -> dict[str, Any]:
    stage, choice = correction(row, mode)
    batch = ragged(11, group_size=3)
    settings = {"vllm_importance_sampling_mode": mode, **MODES[mode]}
    made = generate(batch, batch.rewards, num_generations=3, use_vllm=True, **settings)
    return compare(
        row,
        batch,
        {"beta": 0.05} | MODES[mode],
        stages={stage: choice},
        label=f"{row} --{stage} {choice}",
        with_rollout=True,
        importance_sampling_ratio=made["importance_sampling_ratio"].numpy(),
    )


def test_golden(writing: bool) -> None:
    found = cases()
    if writing:
        write_golden(
            "trl",
            {
                "framework": FRAMEWORK,
                "functions": [
                    f"{trainer.__module__}.{trainer.__name__}._compute_loss"
                    for trainer in (GRPOTrainer, RLOOTrainer, GMPOTrainer)
                ],
                "how": "pytest tests/parity --write-golden: the functions ran in float64 on random "
                "ragged batches, a stand-in trainer handing them our log-probs; loss_gradient is "
                "autograd's d loss / d per_token_logps of the tokens that count",
                "cases": found,
            },
        )
    kept = json.loads((GOLDEN / "trl.json").read_text())["cases"]
    assert len(kept) == len(found)
    for old, new in zip(kept, found, strict=True):
        assert old["record"] == new["record"]
        assert relative_error(old["loss"], new["loss"]) < 1e-12
        for before, now in zip(old["loss_gradient"], new["loss_gradient"], strict=True):
            assert relative_error(before, now) < 1e-9


def test_the_golden_cases_exercise_what_they_are_for() -> None:
    kept = json.loads((GOLDEN / "trl.json").read_text())["cases"]
    assert any(case["metrics"].get("clip_ratio/low_mean") for case in kept)
    assert any(case["metrics"].get("clip_ratio/high_mean") for case in kept)
    assert any(case["hyperparameters"].get("beta") for case in kept)
    assert all(case["loss"] == pytest.approx(case["loss"]) and case["loss"] for case in kept)
