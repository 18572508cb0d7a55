"""The TRL hook on a stand-in: what a record holds, row by row, and in several processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grpo_cli import evaluate
from grpo_cli.hooks import trl_record
from grpo_cli.hooks.trl import record

from .stand_ins import Tensor, Trainer


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trl_record, "version", lambda name: f"{name} as installed")


def recorded(trainer: Trainer, path: Path) -> list[dict[str, Any]]:
    record(trainer, path, gradient=False)
    assert trainer.train() == "trained"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_record_is_what_the_loss_saw(tmp_path: Path) -> None:
    (one,) = recorded(Trainer(), tmp_path / "r.jsonl")
    assert one == {
        "id": "0/0",
        "step": 0,
        "tokens": [["t6"], ["t0", "t1", "t2"], ["t9", "t10", "t11"], ["t3", "t4"]],
        "group_ids": [1, 0, 1, 0],
        "completion_ids": [[6], [0, 1, 2], [9, 10, 11], [3, 4]],
        # the stand-in's forward pass does not shuffle
        "per_token_logps": [[-1.0], [-4.0, -5.0, -6.0], [-7.0, -8.0, -9.0], [-10.0, -11.0]],
        "advantages": [30.0, 10.0, 40.0, 20.0],
        "rewards": [2.0, 0.0, 3.0, 1.0],
        "hyperparameters": {
            "epsilon_low": 0.2,
            "epsilon_high": 0.2,
            "beta": 0.0,
            "max_completion_length": 4,
            "num_items_in_batch": 9,
            "gradient_accumulation_steps": 1,
            "steps_per_generation": 1,
        },
        "framework": {
            "name": "trl",
            "version": "trl as installed",
            "loss_type": "grpo",
            "importance_sampling_level": "token",
            "use_bias_correction_kl": True,
            "off_policy_mask_threshold": None,
            "scale_rewards": "group",
            "multi_objective_aggregation": None,
        },
        "expected": {"loss": 0.25, "metrics": {"entropy": 1.0}},
    }
    assert evaluate(one, "trl/grpo").loss == pytest.approx(-25.0)


def test_micro_batches_are_numbered_within_their_step(tmp_path: Path) -> None:
    trainer = Trainer()
    trainer.micro_batches = 2
    record(trainer, tmp_path / "r.jsonl", gradient=False)
    trainer.train()
    trainer.state.global_step = 1
    trainer.train()
    found = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert [one["id"] for one in found] == ["0/0", "0/1", "1/0", "1/1"]
    assert [min(one["group_ids"]) for one in found] == [0, 0, 2, 2]


def test_each_process_writes_what_it_saw(tmp_path: Path) -> None:
    record(trainer := Trainer(rank=1, ranks=2), tmp_path / "r.jsonl.gz", gradient=False)
    trainer.train()
    assert not (tmp_path / "r.jsonl.gz").exists()
    import gzip

    with gzip.open(tmp_path / "r.rank1.jsonl.gz") as file:
        one = json.loads(file.read())
    assert one["rewards"] == [6.0, 4.0, 7.0, 5.0]
    assert one["group_ids"] == [3, 2, 3, 2]
    assert one["hyperparameters"]["num_processes"] == 2
    assert one["expected"] == {"loss": 0.25}  # the metrics are over both


def test_tool_tokens_are_masked_and_stay_in_their_place(tmp_path: Path) -> None:
    trainer = Trainer()
    trainer.tool_mask = np.array([[1, 0, 1], [1, 0, 1], [1, 1, 1], [1, 1, 0]])
    (one,) = recorded(trainer, tmp_path / "r.jsonl")
    assert one["mask"] == [[1], [1, 0, 1], [1, 1, 0], [1, 0]]
    assert [len(row) for row in one["tokens"]] == [1, 3, 3, 2]


def test_rewards_of_several_functions_are_weighted_and_each_is_there(tmp_path: Path) -> None:
    trainer = Trainer()
    trainer.reward_func_names = ("a", "b")
    trainer.reward_weights = Tensor([1.0, 0.5], np.float32)
    trainer.rewards = np.array([[0, 2], [1, np.nan], [2, 0], [3, 4]], dtype=np.float32)
    (one,) = recorded(trainer, tmp_path / "r.jsonl")
    assert one["rewards"] == [2.0, 1.0, 5.0, 1.0]
    assert one["rewards/a"] == [2.0, 0.0, 3.0, 1.0]
    assert str(one["rewards/b"]) == "[0.0, 2.0, 4.0, nan]"


def test_a_response_that_nobody_scored_leaves_the_rewards_out(tmp_path: Path) -> None:
    trainer = Trainer()
    trainer.rewards[1] = np.nan
    (one,) = recorded(trainer, tmp_path / "r.jsonl")
    assert "rewards" not in one
    assert one["advantages"] == [30.0, 10.0, 40.0, 20.0]


def test_a_routers_loss_is_not_the_objectives(tmp_path: Path) -> None:
    trainer = Trainer()
    trainer.aux_loss_enabled = True
    (one,) = recorded(trainer, tmp_path / "r.jsonl")
    assert "loss" not in one["expected"]


def test_evaluation_and_a_closed_writer_write_nothing(tmp_path: Path) -> None:
    trainer = Trainer()
    writer = record(trainer, tmp_path / "r.jsonl", gradient=False)
    trainer.model.training = False
    trainer.train()
    trainer.model.training = True
    writer.close()
    trainer.train()
    assert (tmp_path / "r.jsonl").read_bytes() == b""


@pytest.mark.parametrize(("kind", "name"), [("RLOOTrainer", "rloo"), ("GMPOTrainer", "gmpo")])
def test_trainers_with_a_loss_of_their_own_say_so(kind: str, name: str, tmp_path: Path) -> None:
    trainer = type("Mine", (type(kind, (Trainer,), {}),), {})()
    (one,) = recorded(trainer, tmp_path / "r.jsonl")
    assert one["framework"] == {
        "name": "trl",
        "version": "trl as installed",
        "loss_type": name,
    }


def test_the_adaptive_entropy_bonus_pauses_above_its_target() -> None:
    trainer = Trainer()
    trainer._entropy_bonus_enabled = trainer.use_adaptive_entropy = True
    trainer.entropy_coef, trainer.args.entropy_target = 0.1, 1.0
    for last, wanted in ((2.0, 0.0), (1.0, 0.1)):
        trainer._last_world_entropy = last
        assert trl_record.hyperparameters(trainer, {})["entropy_coef"] == wanted
