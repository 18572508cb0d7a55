"""Real runs of TRL in grpo trend; verl's names and torch's files beside their own readers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from command import answer
from tensordict import TensorDict
from verl import DataProto
from verl.trainer.ppo.rollout_corr_helper import compute_offpolicy_metrics
from verl.utils.debug.metrics import calculate_debug_metrics

from grpo_cli import read

from . import runs

# ---- ``grpo trend`` on real runs of TRL, 60 steps each -------------------------------------


pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks' own


@pytest.mark.parametrize("fault", runs.FAULTS)
def test_a_fault_is_found_where_it_began_and_nothing_else(fault: str, tmp_path: Path) -> None:
    found = runs.judge(runs.train(tmp_path, fault, 21))
    onsets = [finding["onset"] for finding in found]
    wrong = [finding["onset"] for finding in found if finding["severity"] == "warning"]
    if fault == "healthy":
        assert wrong == [], [one for one in found if one["severity"] == "warning"]
    else:
        assert any(abs(onset - runs.ONSET) <= runs.WITHIN for onset in onsets), onsets
        assert min(wrong, default=runs.ONSET) >= runs.ONSET - 2, wrong


def test_what_trl_logs_over_several_micro_batches(tmp_path: Path) -> None:
    settings = {"gradient_accumulation_steps": 2, "max_steps": 6, "num_iterations": 2}
    path = runs.train(tmp_path, "healthy", 3, **settings)
    log = tmp_path / "out" / "trainer_state.json"
    flags = ("-v", "trl/grpo", "--correction", "trl/sequence-mask", "--names", "trl", "--log", log)
    series = answer("trend", path, *flags)["log"]["series"]
    found = {logged["name"]: logged for logged in series}
    assert len(json.loads(path.read_text().splitlines()[0])["group_ids"]) == 32
    for name in ("kl", "clip_ratio/region_mean", "clip_ratio/low_mean", "clip_ratio/high_mean"):
        assert found[name]["agrees"], found[name]


# ---- ``grpo trend --names verl`` beside verl's own functions, on random log-probs ----------------


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


# ---- ``torch.save``'s files as torch itself reads them -------------------------------------------


KINDS = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8")


@pytest.mark.parametrize("kind", [*KINDS, "bool"])
def test_every_kind_of_number(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    whole = (100 * torch.rand(4, 6)).to(getattr(torch, kind))
    value = {
        "whole": whole,
        "transposed": whole.T,
        "part": whole[1:3, ::2],
        "repeated": whole[:1].expand(3, 6),
        "none": whole[:0],
        "one": whole[0, 0],
        "list": [whole[0], None, "text", 1.5, True, (1, 2)],
    }
    path = tmp_path / "a.pt"
    torch.save(value | {"log_probs_new": [[-1.0]], "rewards": [1.0]}, path)
    (found,) = read(path)
    assert found == plain(torch.load(path, weights_only=True))


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value
