"""A micro-batch of a TRL trainer → a record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from grpo_cli.hooks.columns import Array, copied, holes, per_response, ragged, widths

REWARDS, GROUPS = "recorded_rewards", "recorded_groups"
OLD, REF = "recorded_old_per_token_logps", "recorded_ref_per_token_logps"
"""What rows carry through TRL's shuffle, beside what TRL itself lets them carry."""

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


def rewards_of(trainer: Any, table: Any) -> dict[str, Array]:
    """[R] the weighted sum of the reward functions; beside it each, where there are several."""
    if table is None:
        return {}
    each = copied(table)
    weighted = each * copied(trainer.reward_weights)
    if np.isnan(each).all(axis=1).any():  # a response that nobody scored has no reward
        return {}
    found = {"rewards": np.nansum(weighted, axis=1)}
    if each.shape[1] > 1:
        found |= {f"rewards/{name}": each[:, k] for k, name in enumerate(trainer.reward_func_names)}
    return found


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
    lengths = widths(shown)
    mask = holes(shown * columns.pop("tool_mask", np.ones_like(shown)), lengths)
    ids = ragged(columns["completion_ids"], lengths)
    found = about | {"tokens": [[words[one] for one in row.tolist()] for row in ids]}
    if SAMPLED in columns:  # TRL takes a token that the engine did not score to agree with it
        old = columns.get("old_per_token_logps", columns["per_token_logps"])
        columns[SAMPLED] = np.where(np.isnan(columns[SAMPLED]), old, columns[SAMPLED])
    if "group_ids" in columns:
        found["group_ids"] = columns.pop("group_ids")
    found |= {name: per_response(values, lengths) for name, values in columns.items()}
    if mask is not None:
        found["mask"] = mask
    if "loss_gradient" in expected:
        expected = expected | {"loss_gradient": ragged(expected["loss_gradient"], lengths)}
    found |= {name: values.astype(np.float64) for name, values in rewards.items()}
    return found | rest | {"expected": expected}
