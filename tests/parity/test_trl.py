"""TRL 1.16.0's trainers, executed beside the rows of variants/trl.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import trl
from trl import GRPOTrainer, RLOOTrainer
from trl.experimental.gmpo import GMPOTrainer

from . import trl_trainers
from .agreement import AGREEMENT, FLOOR
from .batches import KINDS, Ragged, ragged
from .ours import evaluated, flat
from .trl_generation import generate

FRAMEWORK = "trl 1.16.0"
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

ROWS: dict[str, dict[str, Any]] = {
    "trl/grpo": {"loss_type": "grpo"},
    "trl/bnpo": {"loss_type": "bnpo"},
    "trl/dr_grpo": {"loss_type": "dr_grpo"},
    "trl/dapo": {"loss_type": "dapo"},
    "trl/cispo": {"loss_type": "cispo"},
    "trl/sapo": {"loss_type": "sapo"},
    "trl/vespo": {"loss_type": "vespo"},
    "trl/luspo": {"loss_type": "luspo", "importance_sampling_level": "sequence"},
    "trl/gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
}
FLOORS = {"trl/sapo": 1e-4}
"""Autograd takes 1 − σ after rounding σ, which leaves nothing of it where ρ is great."""


def test_the_version_is_the_one_that_the_rows_name() -> None:
    assert trl.__version__ == "1.16.0"


def as_ours(settings: dict[str, Any]) -> dict[str, Any]:
    """TRL's settings by our names; those that our rows have no use for are left out."""
    ours = dict(settings)
    if not ours.pop("training", True):
        ours.pop("gradient_accumulation_steps")
        ours.pop("steps_per_generation")
    if "use_bias_correction_kl" in ours:
        ours["kl_weight"] = "ratio" if ours.pop("use_bias_correction_kl") else "none"
    return ours


def taken(row: str, settings: dict[str, Any], stages: dict[str, str]) -> dict[str, Any]:
    """The settings that the row takes; TRL's config has them all."""
    from grpo_cli.objective.hyperparameters import canonical
    from grpo_cli.variants.plan import plan

    takes = plan(row, stages=stages).takes()
    return {k: v for k, v in canonical(settings).items() if k in takes}


def compare(
    row: str,
    batch: Ragged,
    settings: dict[str, Any],
    *,
    stages: dict[str, str] | None = None,
    trainer: type = GRPOTrainer,
    label: str = "",
    **only_theirs: Any,
) -> dict[str, Any]:
    """Loss, gradient, KL and clip fractions of a row against the trainer's; the case as golden."""
    stages = stages or {}
    theirs = trl_trainers.compute(
        batch, trainer, **(ROWS.get(row, {}) | only_theirs), **settings
    )
    columns = ["log_probs_new"]
    if {"top_entropy_quantile", "entropy_coef"} & set(settings):
        columns.append("entropies")
    if only_theirs.get("old", True):
        columns.append("log_probs_old")
    if settings.get("beta"):
        columns.append("log_probs_ref")
    if only_theirs.get("with_rollout") or "importance_sampling_ratio" in only_theirs:
        columns.append("log_probs_rollout")
    given = taken(row, as_ours(settings), stages)
    ours = evaluated(batch, row, stages=stages, columns=tuple(columns), **given)
    case = f"{batch.kind} {batch.seed} {settings}"
    name = label or row
    AGREEMENT.close(FRAMEWORK, name, "loss", ours.loss, theirs.loss, case=case)
    AGREEMENT.close(
        FRAMEWORK,
        name,
        "gradient",
        -flat(ours.gradient),
        flat(batch.counted(theirs.gradient)),
        case=case,
        floor=FLOORS.get(row, FLOOR),
    )
    if settings.get("beta") and trainer is GRPOTrainer:
        kl = ours.breakdown.kl
        mean = float(np.sum(kl)) / max(batch.tokens, 1)
        AGREEMENT.close(FRAMEWORK, name, "kl", mean, theirs.metrics["kl"], case=case)
    clips(name, batch, ours, theirs.metrics, case)
    return {
        "variant": row,
        "stages": stages,
        "hyperparameters": given,
        "record": batch.record(*columns),
        "loss": theirs.loss,
        "loss_gradient": [row.tolist() for row in batch.counted(theirs.gradient)],
        "metrics": {name: v for name, v in theirs.metrics.items() if name.startswith(METRICS)},
    }


METRICS = ("kl", "clip_ratio/low_mean", "clip_ratio/high_mean", "cispo_clip_ratio")


def clips(row: str, batch: Ragged, ours: Any, metrics: dict[str, float], case: str) -> None:
    """How many are clipped, counted as TRL counts: per token, or per row at sequence level."""
    capped = "cispo_clip_ratio" in metrics
    if capped:
        metrics = {"clip_ratio/low_mean": 0.0, "clip_ratio/high_mean": metrics["cispo_clip_ratio"]}
    if "clip_ratio/low_mean" not in metrics:
        return
    low, high = ours.breakdown.clip < 0, ours.breakdown.clip > 0
    high &= ours.breakdown.advantage > 0  # TRL does not count what delta cuts at A < 0
    count = max(batch.tokens, 1)
    if ours.breakdown.objective.ratio.name != "token":
        responses = ours.breakdown.batch.responses
        low, high = (responses.sum(side.astype(int)) > 0 for side in (low, high))
        if capped:  # TRL counts a response without tokens, whose ratio of 1 exceeds the 0.2
            high |= (responses.lengths == 0) & (batch.advantages > 0)
        count = batch.count
    for name, side in (("low", low), ("high", high)):
        theirs = metrics[f"clip_ratio/{name}_mean"] * count  # a fraction in single precision
        assert abs(theirs - round(theirs)) < 1e-4
        AGREEMENT.close(FRAMEWORK, row, "clip", side.sum(), round(theirs), case=case)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("row", ROWS)
def test_rows(row: str, settings: dict[str, Any], kind: str) -> None:
    for seed in SEEDS:
        compare(row, ragged(seed, kind), settings)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", [{}, {"epsilon": 0.05, "epsilon_high": 0.3}], ids=str)
def test_rloo(settings: dict[str, Any], kind: str) -> None:
    for seed in SEEDS:
        compare("trl/rloo", ragged(seed, kind), settings, trainer=RLOOTrainer)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "settings",
    [{}, {"beta": 0.1}, {"epsilon": 0.1, "epsilon_high": 0.2, "gradient_accumulation_steps": 4}],
    ids=str,
)
def test_gmpo(settings: dict[str, Any], kind: str) -> None:
    for seed in SEEDS:
        compare("trl/gmpo", ragged(seed, kind), settings, trainer=GMPOTrainer)


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
    "token_mask": {"vllm_importance_sampling_clip_min": 0.9, "vllm_importance_sampling_clip_max": 1.1},
    "sequence_truncate": {
        "vllm_importance_sampling_clip_min": 0.8,
        "vllm_importance_sampling_clip_max": 1.3,
    },
    "sequence_mask": {"vllm_importance_sampling_clip_max": 1.2},
}


# GRPOTrainer refuses sequence modes for vespo when it is built.
CORRECTED = [
    (row, mode)
    for row in ROWS
    for mode in MODES
    if not (row == "trl/vespo" and mode.startswith("sequence"))
]


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


@pytest.mark.parametrize("kind", ["usual", "dead"])
@pytest.mark.parametrize("beta", [0.0, 0.05])
def test_rloo_advantages(beta: float, kind: str) -> None:
    for seed in range(8):
        batch = ragged(seed, kind, group_size=3).unmasked()
        made = generate(batch, batch.rewards, RLOOTrainer, num_generations=3, beta=beta)
        advantages("trl/rloo advantage", "trl/rloo", batch, made, {}, {"beta": beta})


def advantages(
    label: str,
    row: str,
    batch: Ragged,
    made: dict[str, torch.Tensor],
    stages: dict[str, str],
    hyperparameters: dict[str, Any],
) -> None:
    """Our advantage of every token against TRL's of its response."""
    columns = ("log_probs_new", "log_probs_old", "log_probs_ref")
    ours = evaluated(
        batch, row, stages=stages, columns=columns, rewards=True, **hyperparameters
    ).breakdown.response_advantage
    # TRL leaves rounding noise where a group's rewards are equal; ours is exactly 0 there.
    theirs = made["advantages"].numpy()
    theirs = np.where(np.abs(theirs) < 1e-11, 0.0, theirs)
    AGREEMENT.close(FRAMEWORK, label, "advantages", ours, theirs, case=f"{batch.kind} {batch.seed}")
