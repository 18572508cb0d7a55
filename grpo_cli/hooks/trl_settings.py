"""The hyperparameters that a TRL trainer's loss used, and which loss it was."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from grpo_cli.hooks.columns import number

_ALWAYS = ("epsilon_low", "epsilon_high", "beta", "max_completion_length")
_WHERE_SET = ("delta", "off_policy_mask_threshold")
_OF_LOSS = {
    "sapo": ("sapo_temperature_pos", "sapo_temperature_neg"),
    "vespo": ("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"),
}
_OWN_LOSS = {"RLOOTrainer": "rloo", "GMPOTrainer": "gmpo"}
"""Trainers with a loss of their own, which no loss_type names."""

_CHOICES = (
    "importance_sampling_level",
    "use_bias_correction_kl",
    "off_policy_mask_threshold",
    "scale_rewards",
    "multi_objective_aggregation",
)


def framework(trainer: Any) -> dict[str, Any]:
    """Which loss this is, in TRL's words."""
    found = {"name": "trl", "version": version("trl"), "loss_type": loss_type(trainer)}
    if found["loss_type"] in _OWN_LOSS.values():
        return found
    found |= {name: _setting(trainer, name) for name in _CHOICES}
    if _corrects(trainer):
        found["vllm_importance_sampling_mode"] = trainer.vllm_importance_sampling_mode
    return found


def loss_type(trainer: Any) -> str:
    """TRL's loss_type; a name of its own for a trainer that has none."""
    names = {one.__name__ for one in type(trainer).__mro__} & _OWN_LOSS.keys()
    return _OWN_LOSS[names.pop()] if names else str(trainer.loss_type)


def hyperparameters(trainer: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What the loss of a micro-batch is computed with; to be asked before it is."""
    found = {name: _setting(trainer, name) for name in _ALWAYS}
    found["num_items_in_batch"] = number(inputs.get("num_items_in_batch"))
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
