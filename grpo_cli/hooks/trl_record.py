"""A micro-batch of a TRL trainer → a record, with the hyperparameters that its loss used."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import numpy as np

from grpo_cli.hooks.columns import Array, copied, number, ragged, record_of, widths

_ALWAYS = ("epsilon_low", "epsilon_high", "beta", "max_completion_length")
_WHERE_SET = ("delta", "off_policy_mask_threshold")
_OF_LOSS = {
    "sapo": ("sapo_temperature_pos", "sapo_temperature_neg"),
    "vespo": ("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"),
}
_OWN_LOSS = {"RLOOTrainer": "rloo", "GMPOTrainer": "gmpo"}
"""Trainers with a loss of their own, which no loss_type names."""

_OF_REWARDS = ("scale_rewards", "multi_objective_aggregation")
_CHOICES = (
    "importance_sampling_level",
    "use_bias_correction_kl",
    "off_policy_mask_threshold",
    *_OF_REWARDS,
)
_OWN_CHOICES = {"rloo": ("normalize_advantages",), "gmpo": _OF_REWARDS}
"""What is chosen where, by name, of TRL's settings."""


def framework(trainer: Any) -> dict[str, Any]:
    """Which loss this is, in TRL's words."""
    found = {"name": "trl", "version": version("trl"), "loss_type": loss_type(trainer)}
    own = _OWN_CHOICES.get(found["loss_type"])
    found |= {name: _setting(trainer, name) for name in own or _CHOICES}
    if own is None and _corrects(trainer):
        found["vllm_importance_sampling_mode"] = trainer.vllm_importance_sampling_mode
    return found


def loss_type(trainer: Any) -> str:
    """TRL's loss_type; a name of its own for a trainer that has none."""
    names = {one.__name__ for one in type(trainer).__mro__} & _OWN_LOSS.keys()
    return _OWN_LOSS[names.pop()] if names else str(trainer.loss_type)


def hyperparameters(trainer: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What the loss of a micro-batch is computed with; to be asked before it is."""
    found = {name: _setting(trainer, name) for name in _ALWAYS}
    items = number(inputs.get("num_items_in_batch"))
    found["num_items_in_batch"] = None if items is None else max(items, 1)  # as the loss takes it
    found["gradient_accumulation_steps"] = trainer.current_gradient_accumulation_steps
    found["steps_per_generation"] = trainer.args.steps_per_generation
    named = _WHERE_SET + _OF_LOSS.get(loss_type(trainer), ())
    found |= {name: _setting(trainer, name) for name in named}
    if _setting(trainer, "top_entropy_quantile") not in (None, 1.0):
        found["top_entropy_quantile"] = trainer.top_entropy_quantile
    if getattr(trainer, "_entropy_bonus_enabled", False):
        found["entropy_coef"] = _entropy_coef(trainer)
    if _corrects(trainer):
        found["is_low"] = trainer.vllm_importance_sampling_clip_min
        found["is_high"] = trainer.vllm_importance_sampling_clip_max
    if trainer.accelerator.num_processes > 1:
        found["num_processes"] = trainer.accelerator.num_processes
    unbounded = ("is_low", "is_high")
    return {name: one for name, one in found.items() if one is not None or name in unbounded}


def _setting(trainer: Any, name: str) -> Any:
    return getattr(trainer, name, getattr(trainer.args, name, None))


def _corrects(trainer: Any) -> bool:
    """Whether the loss is weighted by π_old against the engine that sampled."""
    return bool(
        getattr(trainer, "use_vllm", False)
        and getattr(trainer, "vllm_importance_sampling_correction", False)
    )


def _entropy_coef(trainer: Any) -> float:
    """The coefficient that applies; the adaptive one pauses above its target."""
    above = (
        trainer.use_adaptive_entropy and trainer._last_world_entropy > trainer.args.entropy_target
    )
    return 0.0 if above else float(trainer.entropy_coef)


REWARDS, GROUPS, ROWS = "recorded_rewards", "recorded_groups", "recorded_rows"
OLD, REF = "recorded_old_per_token_logps", "recorded_ref_per_token_logps"
"""What rows carry through TRL's shuffle, in addition to what TRL itself lets them carry."""

SAMPLED = "sampling_per_token_logps"


def columns_of(inputs: Mapping[str, Any], log_probs: Any) -> dict[str, Array]:
    """Copies of what the loss was computed from."""
    given = {
        "completion_ids": inputs["completion_ids"],
        "per_token_logps": log_probs,
        "old_per_token_logps": inputs.get("old_per_token_logps", inputs.get(OLD)),
        "ref_per_token_logps": inputs.get("ref_per_token_logps", inputs.get(REF)),
        SAMPLED: inputs.get(SAMPLED),
        "advantages": inputs["advantages"],
        "group_ids": inputs.get(GROUPS),
        "completion_mask": inputs["completion_mask"],
        "tool_mask": inputs.get("tool_mask"),
    }
    return {name: copied(tensor) for name, tensor in given.items() if tensor is not None}


def rewards_of(trainer: Any, table: Any, *, each_one: bool = False) -> dict[str, Array]:
    """[R] the weighted sum of the reward functions, and each of them where there are several.

    Args:
        trainer: it has the weights.
        table: [R, K] what the functions returned.
        each_one: whether a single function is written too.
    """
    if table is None:
        return {}
    each = copied(table)
    weighted = each * copied(trainer.reward_weights)
    if np.isnan(each).all(axis=1).any():  # a response that nobody scored has no reward
        return {}
    found = {"rewards": np.nansum(weighted, axis=1)}
    if each.shape[1] > 1 or each_one:
        found |= {f"rewards/{name}": each[:, k] for k, name in enumerate(trainer.reward_func_names)}
    return found


def _agreed(columns: dict[str, Array], settings: Mapping[str, Any]) -> Array:
    """The policy that TRL takes a token to agree with that the engine did not score.

    That is the old one in the correction, whose ratio is 1 there, and the current one in the
    off-policy mask, whose divergence is 0 there. Where both are on no number says both.
    """
    new = columns["per_token_logps"]
    corrected = "vllm_importance_sampling_mode" in settings
    return columns.get("old_per_token_logps", new) if corrected else new


def made(
    about: dict[str, Any],
    columns: dict[str, Array],
    rewards: dict[str, Array],
    rest: dict[str, Any],
    expected: dict[str, Any],
    words: Mapping[int, str],
) -> dict[str, Any]:
    """The record; run by the writer's thread."""
    shown = columns.pop("completion_mask")
    mask = shown * columns.pop("tool_mask", np.ones_like(shown))
    ids = ragged(columns["completion_ids"], widths(shown))
    found = about | {"tokens": [[words[one] for one in row.tolist()] for row in ids]}
    if SAMPLED in columns:
        agreed = _agreed(columns, rest["framework"])
        columns[SAMPLED] = np.where(np.isnan(columns[SAMPLED]), agreed, columns[SAMPLED])
    if "group_ids" in columns:
        found["group_ids"] = columns.pop("group_ids")
    scores = {name: values.astype(np.float64) for name, values in rewards.items()}
    return record_of(found, columns, shown, mask, scores | rest, expected)
