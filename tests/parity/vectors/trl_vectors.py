"""TRL 1.16.0's own trainer losses through the plugin: ``pytest trl_vectors.py --grpo-vectors``.

``GRPOTrainer._compute_loss`` and ``_generate_and_score_completions`` run unbound, as
``trl_trainers.py`` and ``trl_generation.py`` tell; here are only TRL's names for what a case says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from trl import GRPOTrainer, RLOOTrainer
from trl.experimental.gmpo import GMPOTrainer

from grpo_cli.vectors import Case, Loss, NotClaimedError

from ..batches import given
from ..trl_trainers import FRAMEWORK, compute, generate
from . import claims

LOSS_TYPES: Mapping[tuple[str, str], str] = {
    ("clip", "token-mean"): "dapo",
    ("clip", "response-mean"): "grpo",
    ("clip", "token-sum"): "luspo",
    ("clip", "token-sum-norm"): "dr_grpo",
    ("cispo", "token-mean"): "cispo",
    ("sapo", "response-mean"): "sapo",
    ("clip", "bnpo"): "bnpo",
    ("vespo", "token-mean"): "vespo",
}
"""TRL has one loss type for each of these pairs, and none for the others."""

SAME_NAME = (
    *("delta", "off_policy_mask_threshold", "max_completion_length", "entropy_coef"),
    *("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"),
)

METRICS = {
    "kl": "kl",
    "clip_fraction_low": "clip_ratio/low_mean",
    "clip_fraction_high": "clip_ratio/high_mean",
    "clip_fraction": "clip_ratio/region_mean",
}


@pytest.fixture
def grpo_vectors() -> Loss:
    return Loss(answer, claims(FRAMEWORK))


def answer(case: Case) -> dict[str, Any]:
    if "surrogate" not in case.choices:
        return {"advantages": advantages(case)}
    trainer, settings = trainer_and_settings(case)
    found = compute(
        given(case.input),
        trainer,
        num_processes=case.step.ranks,
        num_items_in_batch=float(case.step.tokens),
        gradient_accumulation_steps=case.step.micro_batches,
        old="log_probs_old" in case.input,
        with_rollout="log_probs_rollout" in case.input,
        **settings,
        **weights(case),
    )
    return {
        "loss": found.loss,
        "gradient": found.gradient,
        "metrics": {
            name: found.metrics[own] for name, own in METRICS.items() if own in found.metrics
        },
    }


def trainer_and_settings(case: Case) -> tuple[type, dict[str, Any]]:
    how, choices = case.hyperparameters, case.choices
    level = choices["ratio"]
    settings = {"beta": how.get("beta", 0.0), "epsilon": how.get("epsilon_low", 0.2)}
    settings["epsilon_high"] = how.get("epsilon_high")
    for name in SAME_NAME:
        if name in how:
            settings[name] = how[name]
    pair = (choices["surrogate"], choices["aggregate"])
    if choices["surrogate"] == "vespo":
        level = "token"  # TRL multiplies the token ratios up by itself
    if level == "product" or choices["surrogate"] == "gmpo":
        wanted = ("clip" if level == "product" else "gmpo", "response-mean")
        if pair != wanted:
            raise NotClaimedError(f"TRL has no {' with '.join(pair)} at level {level}")
        return (RLOOTrainer if level == "product" else GMPOTrainer), settings
    if pair not in LOSS_TYPES:
        raise NotClaimedError(f"no loss type with {' and '.join(pair)}")
    if choices["surrogate"] == "cispo":
        if how["epsilon_low"] < 1:
            raise NotClaimedError("TRL's cispo has no lower bound")
        settings["epsilon_high"] = 1 + how["epsilon_high"]  # the bound itself
    if choices["surrogate"] == "sapo":
        settings["sapo_temperature_pos"] = how["tau_pos"]
        settings["sapo_temperature_neg"] = how["tau_neg"]
    settings["use_bias_correction_kl"] = how.get("kl_weight") == "ratio"
    return GRPOTrainer, settings | {
        "loss_type": LOSS_TYPES[pair],
        "importance_sampling_level": level,
    }


def weights(case: Case) -> dict[str, Any]:
    """The ratio against vLLM, as TRL computes it when it has generated."""
    choice, how = case.choices["correction"], case.hyperparameters
    if choice in ("none", "off-policy-mask"):
        return {}
    made = generate(
        given(case.input),
        np.zeros(case.step.responses),
        num_generations=case.step.responses,
        use_vllm=True,
        vllm_importance_sampling_mode=choice.replace("-", "_"),
        vllm_importance_sampling_clip_min=how.get("is_low"),
        vllm_importance_sampling_clip_max=how.get("is_high"),
    )
    return {"importance_sampling_ratio": made["importance_sampling_ratio"].numpy()}


SCALES = {"group-mean": "none", "group-std": "group", "batch-std": "batch", "decoupled": "group"}


def advantages(case: Case) -> list[float]:
    how, choice = case.hyperparameters, case.choices["advantage"]
    sizes = {case.input["group_ids"].count(group) for group in case.input["group_ids"]}
    if len(sizes) > 1 or case.input["group_ids"] != sorted(case.input["group_ids"]):
        raise NotClaimedError("TRL's groups are every num_generations responses in order")
    if how.get("std_ddof", 1) != 1 or how.get("std_eps", 1e-4) != 1e-4:
        raise NotClaimedError("TRL's std has ddof 1 and 1e-4 added")
    if choice == "leave-one-out":
        trainer, settings = RLOOTrainer, {"beta": how.get("beta", 0.0)}
    elif case.choices["kl"] != "none":
        raise NotClaimedError("TRL takes the KL off the reward in RLOOTrainer only")
    else:
        trainer, settings = GRPOTrainer, {"scale_rewards": SCALES[choice]}
        if choice == "decoupled":
            settings["multi_objective_aggregation"] = "normalize_then_sum"
    made = generate(
        given(case.input), case.input["rewards"], trainer, num_generations=sizes.pop(), **settings
    )
    return made["advantages"].tolist()
