"""AsyncGRPOTrainer's loss and advantages beside ours."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from trl import GRPOTrainer
from trl.experimental.async_grpo import AsyncGRPOTrainer

from grpo_cli import evaluate

from .batches import Ragged, ragged
from .trl_trainers import accelerator

KINDS = ("usual", "near", "extreme", "on-policy", "equal-lengths")
SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "scaled": {"processes": 4, "accumulation": 3, "tokens": 1234.0},
    "hardly a token": {"processes": 4, "tokens": 2.0},
    "clip": {"low": 0.05, "high": 0.3},
}


class Computed(SimpleNamespace):
    """The loss and its gradient by each log-prob, response after response."""


def computed(
    batch: Ragged,
    processes: int = 1,
    accumulation: int = 1,
    tokens: float | None = None,
    low: float = 0.2,
    high: float = 0.2,
) -> Computed:
    """``compute_loss`` on all tokens that count, as one packed row; the model is a stand-in."""
    mask = np.concatenate(batch.mask).astype(bool)
    flat = {name: np.concatenate(rows)[mask] for name, rows in batch.columns.items()}
    rows = np.repeat(np.arange(batch.count), [len(row) for row in batch.mask])[mask]
    leaf = torch.tensor(flat["log_probs_new"], requires_grad=True)
    one = torch.ones(1, len(rows), dtype=torch.long)
    inputs = {
        **dict.fromkeys(("input_ids", "attention_mask", "position_ids", "shift_labels"), one),
        **dict.fromkeys(("tree_kv_index", "tree_cu_seqlens_q", "tree_cu_seqlens_k"), one),
        "tree_max_seqlens": torch.ones(1, 2),
        "token_index": torch.arange(len(rows))[None],
        "old_log_probs": torch.tensor(flat["log_probs_rollout"])[None],
        "advantages": torch.tensor(batch.advantages[rows])[None],
        "segment_id": torch.tensor(rows)[None],
        "global_n_tokens": torch.tensor([float(len(rows) if tokens is None else tokens)]),
        "global_n_forward_tokens": torch.ones(1),
        "mean_seq_len": torch.ones(1),
    }
    output = SimpleNamespace(log_probs=leaf, entropy=torch.zeros(len(rows)))
    stand_in = SimpleNamespace(
        aux_loss_enabled=False,
        epsilon_low=low,
        epsilon_high=high,
        accelerator=accelerator(processes),
        current_gradient_accumulation_steps=accumulation,
        _metrics={"train": defaultdict(list)},
        **dict.fromkeys(("_step_forward_tokens", "_step_trained_tokens", "_step_samples"), 0.0),
        **dict.fromkeys(("_step_seq_len_weighted", "_step_forward_s"), 0.0),
    )
    loss = AsyncGRPOTrainer.compute_loss(stand_in, lambda **_: output, inputs)
    (gradient,) = torch.autograd.grad(loss, leaf)
    return Computed(loss=loss.item(), gradient=gradient.numpy())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_loss_and_gradient(settings: dict[str, Any], kind: str) -> None:
    batch = ragged(21, kind)
    theirs = computed(batch, **settings)
    given: dict[str, Any] = {
        "num_processes": settings.get("processes", 1),
        "gradient_accumulation_steps": settings.get("accumulation", 1),
        "epsilon_low": settings.get("low", 0.2),
        "epsilon_high": settings.get("high", 0.2),
    }
    if "tokens" in settings:
        given["global_n_tokens"] = settings["tokens"]
    else:
        given["global_n_tokens"] = float(batch.tokens)
        again = evaluate(batch.record(), "trl/async_grpo", **(given | {"global_n_tokens": None}))
        assert again.loss == pytest.approx(theirs.loss, rel=1e-12, abs=1e-14)
    ours = evaluate(batch.record(), "trl/async_grpo", **given)
    scale = np.abs(ours.breakdown.contribution).sum()
    # the loss divides by a float32, which is exact for so few tokens
    assert abs(ours.loss - theirs.loss) <= 1e-12 * scale
    found = -np.concatenate(ours.gradient)
    np.testing.assert_allclose(found, theirs.gradient, rtol=1e-11, atol=1e-13 * scale)


def test_it_is_a_trainer_of_its_own() -> None:
    assert not issubclass(AsyncGRPOTrainer, GRPOTrainer)


def test_advantages() -> None:
    """Its rollout worker: (r − mean)/(std + 1e-8) over a group, numpy's std."""
    batch = ragged(22, "usual", group_size=4)
    ours = evaluate(batch.record(rewards=True), "trl/async_grpo")
    rows = batch.rewards.reshape(-1, 4)
    wanted = (rows - rows.mean(1, keepdims=True)) / (rows.std(1, keepdims=True) + 1e-8)
    counts = [int(row.sum()) for row in batch.mask]
    np.testing.assert_allclose(
        np.concatenate(ours.advantages), np.repeat(wanted.ravel(), counts), rtol=1e-12
    )
