"""The TRL hook on a stand-in: what a record holds, row by row, and in several processes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from grpo_cli import evaluate
from grpo_cli.hooks import trl
from grpo_cli.hooks.trl import record

from .stand_ins import Tensor, Trainer


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trl, "version", lambda name: f"{name} as installed")


def recorded(trainer: Trainer, path: Path, *, times: int = 1, **how: bool) -> list[dict[str, Any]]:
    record(trainer, path, **{"gradient": False, **how})
    for step in range(times):
        trainer.state.global_step = step
        assert trainer.train() == "trained"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_record_is_what_the_loss_saw(tmp_path: Path) -> None:
    (one,) = recorded(Trainer(), tmp_path / "r.jsonl")
    assert len(one.pop("run_id")) == 24
    assert one == {
        "id": "0/0",
        "step": 0,
        "microbatch": 0,
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
    found = recorded(trainer, tmp_path / "r.jsonl", times=2)
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


@pytest.mark.parametrize(
    ("kind", "name", "chosen"),
    [
        ("RLOOTrainer", "rloo", {"normalize_advantages": True}),
        ("GMPOTrainer", "gmpo", {"scale_rewards": "group", "multi_objective_aggregation": "m"}),
    ],
)
def test_trainers_with_a_loss_of_their_own_say_so(
    kind: str, name: str, chosen: dict[str, Any], tmp_path: Path
) -> None:
    """With what their advantages are made by, and not what their loss does not read."""
    trainer = type("Mine", (type(kind, (Trainer,), {}),), {})()
    trainer.normalize_advantages, trainer.multi_objective_aggregation = True, "m"
    (one,) = recorded(trainer, tmp_path / "r.jsonl")
    assert one["framework"] == {
        "name": "trl",
        "version": "trl as installed",
        "loss_type": name,
        **chosen,
    }


def test_the_adaptive_entropy_bonus_pauses_above_its_target() -> None:
    trainer = Trainer()
    trainer._entropy_bonus_enabled = trainer.use_adaptive_entropy = True
    trainer.entropy_coef, trainer.args.entropy_target = 0.1, 1.0
    for last, wanted in ((2.0, 0.0), (1.0, 0.1)):
        trainer._last_world_entropy = last
        assert trl.hyperparameters(trainer, {})["entropy_coef"] == wanted


ROWS = np.array([[-0.5, -1.0, -1.5], [-2.0, -2.5, -3.0], [-3.5, -4.0, -4.5], [-5.0, -5.5, -6.0]])


class Corrected(Trainer):
    """With an engine beside it, a reference, and every setting that changes its loss."""

    loss_type = "vespo"
    use_vllm = vllm_importance_sampling_correction = True
    vllm_importance_sampling_mode = "token_truncate"
    vllm_importance_sampling_clip_min = None
    vllm_importance_sampling_clip_max = 3.0
    off_policy_mask_threshold = 0.5
    multi_objective_aggregation = "sum_then_normalize"
    top_entropy_quantile = 0.25
    current_gradient_accumulation_steps = 6

    def __init__(self) -> None:
        super().__init__()
        more = {"use_bias_correction_kl": False, "steps_per_generation": 3, "delta": 4.0}
        more |= {f"vespo_{name}": at for at, name in enumerate(("k_pos", "lambda_pos"), 1)}
        more |= {f"vespo_{name}": at for at, name in enumerate(("k_neg", "lambda_neg"), 3)}
        self.args = SimpleNamespace(**more, sapo_temperature_pos=9.0)

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        sampled = np.where(ROWS == -4.0, np.nan, ROWS - 0.25)
        output["sampling_per_token_logps"] = Tensor(sampled)
        output["old_per_token_logps"] = Tensor(ROWS)
        output["ref_per_token_logps"] = Tensor(ROWS - 0.125)
        return output

    def _get_per_token_logps_and_entropies(self, *_: Any) -> Any:
        return self.log_probs, Tensor(ROWS + 10.0), None


def test_every_setting_and_column_of_a_loss(tmp_path: Path) -> None:
    """A token that the engine did not score, row 2's second, is taken to agree with the policy."""
    (one,) = recorded(Corrected(), tmp_path / "r.jsonl")
    assert one["hyperparameters"] == {
        "epsilon_low": 0.2,
        "epsilon_high": 0.2,
        "beta": 0.0,
        "max_completion_length": 4,
        "num_items_in_batch": 9,
        "gradient_accumulation_steps": 6,
        "steps_per_generation": 3,
        "delta": 4.0,
        "off_policy_mask_threshold": 0.5,
        "vespo_k_pos": 1,
        "vespo_lambda_pos": 2,
        "vespo_k_neg": 3,
        "vespo_lambda_neg": 4,
        "top_entropy_quantile": 0.25,
        "is_low": None,
        "is_high": 3.0,
    }
    assert one["framework"] == {
        "name": "trl",
        "version": "trl as installed",
        "loss_type": "vespo",
        "importance_sampling_level": "token",
        "use_bias_correction_kl": False,
        "off_policy_mask_threshold": 0.5,
        "scale_rewards": "group",
        "multi_objective_aggregation": "sum_then_normalize",
        "vllm_importance_sampling_mode": "token_truncate",
    }
    old = [[-3.5], [-0.5, -1.0, -1.5], [-5.0, -5.5, -6.0], [-2.0, -2.5]]
    assert one["old_per_token_logps"] == old
    assert one["ref_per_token_logps"] == [[x - 0.125 for x in row] for row in old]
    assert one["sampling_per_token_logps"] == [[x - 0.25 for x in row] for row in old]
    assert one["entropies"] == [[9.5], [8.0, 7.5, 7.0], [6.5, 6.0, 5.5], [5.0, 4.5]]


@pytest.mark.parametrize(
    ("known", "corrected", "wanted"),
    [(True, True, -3.0), (False, True, -1.0), (True, False, -1.0), (False, False, -1.0)],
)
def test_what_the_engine_did_not_score_agrees_with_the_policy_that_the_loss_takes_there(
    known: bool, corrected: bool, wanted: float
) -> None:
    """The old one in the correction, whose ratio is 1; else the current one, in TRL's mask."""
    shown = np.ones((1, 2), dtype=int)
    columns = {
        "completion_mask": shown,
        "completion_ids": shown,
        "per_token_logps": np.array([[-1.0, -2.0]]),
        "sampling_per_token_logps": np.array([[np.nan, -5.0]]),
    }
    columns |= {"old_per_token_logps": np.array([[-3.0, -4.0]])} if known else {}
    mode = {"vllm_importance_sampling_mode": "token_mask"} if corrected else {}
    found = trl.made({}, columns, {}, {"framework": mode}, {}, {1: "t"})
    assert found["sampling_per_token_logps"][0].tolist() == [wanted, -5.0]


def test_a_generation_without_tokens_counts_as_one_token_as_the_loss_takes_it() -> None:
    found = trl.hyperparameters(Trainer(), {"num_items_in_batch": Tensor(0)})
    assert found["num_items_in_batch"] == 1


class Sums(Trainer):
    """As RLOOTrainer: it keeps sums of the log-probs that its two passes gave."""

    passes = 0

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        for _ in range(2):
            self._get_per_token_logps_and_entropies()
        return super()._generate_and_score_completions(inputs) | {"old_logps": Tensor(np.ones(4))}

    def _get_per_token_logps_and_entropies(self, *_: Any) -> Any:
        self.passes += 1
        return Tensor(ROWS - self.passes), Tensor(ROWS), None


def test_log_probs_of_which_a_trainer_keeps_the_sums_travel_with_their_rows(tmp_path: Path) -> None:
    (one,) = recorded(Sums(), tmp_path / "r.jsonl")
    assert one["old_per_token_logps"][0] == [-4.5]
    assert one["ref_per_token_logps"][0] == [-5.5]
    assert one["ref_per_token_logps"][3] == [-4.0, -4.5]
    assert one["per_token_logps"][0] == [-3.5]


def test_groups_of_a_generation_that_they_do_not_fill_are_numbered_on(tmp_path: Path) -> None:
    trainer = Trainer()
    trainer.num_generations = 3  # 4 rows: a group of three, and one of a row
    found = recorded(trainer, tmp_path / "r.jsonl", times=2)
    assert [one["group_ids"] for one in found] == [[0, 0, 1, 0], [2, 2, 3, 2]]


def test_the_gradient_is_recorded_unless_it_is_not_wanted(tmp_path: Path) -> None:
    (one,) = recorded(Trainer(), tmp_path / "r.jsonl", gradient=True)
    assert one["expected"]["loss_gradient"] == [[0.0], [0.0] * 3, [0.0] * 3, [0.0] * 2]


class Logging(Trainer):
    """Its loss takes two forward passes, and logs more than one number under a name."""

    passes = losses = 0

    def _get_per_token_logps_and_entropies(self, *_: Any) -> Any:
        self.passes += 1
        return Tensor(ROWS - self.passes), Tensor(ROWS), None

    def _compute_loss(self, model: Any, inputs: Any) -> Tensor:
        self.losses += 1
        self._get_per_token_logps_and_entropies()
        for part in (0.25, 0.5):
            self._metrics["train"]["kl"].append(self.losses + part)
        if self.losses > 1:
            self._metrics["train"]["late"].append(7.0)
        return super()._compute_loss(model, inputs)


def test_what_was_logged_last_and_by_this_loss(tmp_path: Path) -> None:
    trainer = Logging()
    trainer._metrics["train"]["reward"].append(3.0)  # before, of the generation
    trainer.micro_batches = 2
    first, second = recorded(trainer, tmp_path / "r.jsonl")
    assert first["expected"]["metrics"] == {"kl": 1.5, "entropy": 1.0}
    assert second["expected"]["metrics"] == {"kl": 2.5, "entropy": 1.0, "late": 7.0}
    assert [one["per_token_logps"][0] for one in (first, second)] == [[-2.5], [-4.5]]
