"""``grpo trend --names verl`` beside verl's own functions, on random log-probs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from command import answer
from tensordict import TensorDict
from verl import DataProto
from verl.trainer.ppo.rollout_corr_helper import compute_offpolicy_metrics
from verl.utils.debug.metrics import calculate_debug_metrics

SINGLE = 2e-5
"""Relative: verl computes in float32, and the records hold what it was given."""


@pytest.mark.parametrize("seed", range(3))
def test_the_mismatch_as_verl_logs_it(seed: int, tmp_path: Path) -> None:
    torch.manual_seed(seed)
    old = -torch.rand(6, 20)
    engine = (old + 0.1 * torch.randn(6, 20)).clamp(max=-1e-4)
    mask = (torch.arange(20) < torch.randint(1, 20, (6, 1))).long()
    rows = {"log_probs_new": old, "log_probs_old": old, "log_probs_rollout": engine}
    record = {name: values.double().tolist() for name, values in rows.items()}
    record |= {"step": 0, "mask": mask.tolist(), "rewards": [1.0, 0.0] * 3}  # type: ignore[dict-item]
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(record))
    batch = TensorDict(
        {
            "rollout_log_probs": engine,
            "old_log_probs": old,
            "response_mask": mask,
            "responses": torch.zeros(6, 20, dtype=torch.long),
        },
        batch_size=6,
    )
    theirs = calculate_debug_metrics(DataProto(batch=batch))
    own = compute_offpolicy_metrics(old, engine, mask.bool())
    theirs |= {f"rollout_corr/{name}": value for name, value in own.items()}
    (ours,) = answer("trend", path, "-v", "dapo", "--names", "verl")["steps"]
    names = [name for name in ours if name in theirs]
    assert len(names) == 6
    for name in names:
        assert ours[name] == pytest.approx(theirs[name], rel=SINGLE, abs=1e-6), name
