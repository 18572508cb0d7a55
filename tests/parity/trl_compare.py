"""Compares a row of variants/trl.py with TRL's own computation of the same batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from trl import GRPOTrainer

from grpo_cli.hyperparameters import canonical
from grpo_cli.variants.plan import plan

from . import trl_trainers
from .agreement import AGREEMENT, FLOOR
from .batches import Ragged, evaluated, flat

FRAMEWORK = "trl 1.16.0"

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
    theirs = trl_trainers.compute(batch, trainer, **(ROWS.get(row, {}) | only_theirs), **settings)
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


def advantages(
    label: str,
    row: str,
    batch: Ragged,
    made: dict[str, torch.Tensor],
    stages: dict[str, str],
    hyperparameters: dict[str, Any],
    **more: Any,
) -> None:
    """Our advantage of every token against TRL's of its response; ``more``: in the record."""
    columns = ("log_probs_new", "log_probs_old", "log_probs_ref")
    ours = evaluated(
        batch, row, stages=stages, columns=columns, rewards=True, more=more, **hyperparameters
    ).breakdown.response_advantage
    # TRL leaves rounding noise where a group's rewards are equal; ours is exactly 0 there.
    theirs = made["advantages"].numpy()
    theirs = np.where(np.abs(theirs) < 1e-11, 0.0, theirs)
    case = f"{batch.kind} {batch.seed}"
    AGREEMENT.close(FRAMEWORK, label, "advantages", ours, theirs, case=case, floor=1e-4)
