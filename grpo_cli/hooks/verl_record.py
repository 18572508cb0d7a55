"""A call of a verl policy loss → a record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

from grpo_cli.hooks.columns import Array, copied, number, record_of

_NEEDED = ("old_log_prob", "log_prob", "advantages", "response_mask")
_OF_CONFIG = ("clip_ratio_c", "tau_pos", "tau_neg", "loss_scale_factor")
_OF_POLICY_LOSS = (
    "clip_cov_ratio",
    "clip_cov_lb",
    "clip_cov_ub",
    "kl_cov_ratio",
    "ppo_kl_coef",
    "dro_beta",
)
BYPASS = "bypass_mode"
"""The policy loss that corrects for the engine by itself."""
_OF_BYPASS: Mapping[str, Any] = {
    "loss_type": "ppo_clip",
    "rollout_is": None,
    "rollout_is_threshold": 2.0,
    "rollout_is_batch_normalize": False,
    "rollout_rs": None,
    "rollout_rs_threshold": None,
}
"""What it reads of rollout_correction, and what it takes for what is missing there."""
_OF_BATCH = ("dp_size", "batch_num_tokens", "global_batch_size", "loss_scale_factor")


def arguments(loss: Callable[..., Any], args: Any, kwargs: Any) -> Mapping[str, Any]:
    """What a policy loss was called with, by verl's names.

    Raises:
        TypeError: where it takes something by another name.
    """
    given = signature(loss).bind(*args, **kwargs)
    given.apply_defaults()
    for name in _NEEDED:
        if name not in given.arguments:
            raise TypeError(f"{loss.__name__} has no parameter {name}")
    return given.arguments


def parts(result: Any) -> tuple[Any, Mapping[str, Any]]:
    """The loss and its metrics; a loss of one's own may return more, or the loss alone."""
    if not isinstance(result, tuple):
        return result, {}
    metrics = next((part for part in result[1:] if isinstance(part, Mapping)), {})
    return result[0], metrics


def columns_of(name: str, given: Mapping[str, Any]) -> dict[str, Array]:
    """Copies of what the loss was computed from, under the names of a record.

    In bypass mode the engine's log-probs are given as the old ones, and weights are ignored.
    """
    weights = given.get("rollout_is_weights")
    tensors = {
        "log_probs_new": given["log_prob"],
        "log_probs_old": given["old_log_prob"],
        "log_probs_rollout": given["old_log_prob"] if name == BYPASS else None,
        "advantages": given["advantages"],
        "rollout_is_weights": None if name == BYPASS else weights,
        "response_mask": given["response_mask"],
    }
    return {name: copied(tensor) for name, tensor in tensors.items() if tensor is not None}


def hyperparameters(config: Any, mask: Array) -> dict[str, Any]:
    """What the loss took from its configuration. β is 0: the KL is added to it afterwards."""
    clip = {
        f"epsilon_{side}": getattr(config, f"clip_ratio_{side}", None) for side in ("low", "high")
    }
    both = getattr(config, "clip_ratio", None)
    found = {name: both if value is None else value for name, value in clip.items()}
    found |= {"beta": 0.0, "response_length": mask.shape[1]}
    found |= {name: getattr(config, name, None) for name in _OF_CONFIG}
    special = getattr(config, "policy_loss", None)
    found |= {name: getattr(special, name, None) for name in _OF_POLICY_LOSS}
    batch = getattr(config, "global_batch_info", None) or {}
    found |= {name: number(batch[name]) for name in _OF_BATCH if name in batch}
    return {name: value for name, value in found.items() if value is not None}


def bypass_settings(config: Any) -> dict[str, Any]:
    """What the policy loss of bypass mode read of its configuration, by verl's names."""
    given = config.policy_loss.get("rollout_correction", None)
    return {"bypass_mode": True} | {name: given.get(name, own) for name, own in _OF_BYPASS.items()}


def made(
    identity: int, columns: dict[str, Array], rest: dict[str, Any], expected: dict[str, Any]
) -> dict[str, Any]:
    """The record; run by the writer's thread."""
    shown = columns.pop("response_mask")
    return record_of({"id": identity}, columns, shown, shown, rest, expected)
