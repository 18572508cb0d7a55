"""The TRL hook on a stand-in: what a record holds, row by row, and in several processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial  # noqa: F401 - in expressions
from itertools import count
from math import nan  # noqa: F401
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from files import expressions

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
    (written,) = path.parent.glob("r.*")  # of a process of several under another name
    return [json.loads(line) for line in written.read_text().splitlines()]


def test_each_process_writes_what_it_saw(tmp_path: Path) -> None:
    record(trainer := Trainer(rank=1, ranks=2), tmp_path / "r.jsonl.gz", gradient=False)
    trainer.train()
    assert not (tmp_path / "r.jsonl.gz").exists()
    import gzip

    with gzip.open(tmp_path / "r.rank1.jsonl.gz") as file:
        assert json.loads(file.read())["hyperparameters"]["num_processes"] == 2


def test_evaluation_and_a_closed_writer_write_nothing(tmp_path: Path) -> None:
    trainer = Trainer()
    writer = record(trainer, tmp_path / "r.jsonl", gradient=False)
    trainer.model.training = False
    trainer.train()
    trainer.model.training = True
    writer.close()
    trainer.train()
    assert (tmp_path / "r.jsonl").read_bytes() == b""


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


def of_kind(name: str) -> type[Trainer]:
    """A trainer of one's own, of one of TRL's."""
    return type("Mine", (type(name, (Trainer,), {}),), {})


def test_what_is_recorded(tmp_path: Path) -> None:
    folders = map(tmp_path.joinpath, map(str, count()))

    def of(
        kind: Callable[[], Trainer], keys: str, times: int = 1, gradient: bool = False, **how: Any
    ) -> list[str]:
        """A line for each record; without keys, those that it has."""
        trainer, folder = kind(), next(folders)
        folder.mkdir()
        if kind is Logging:  # of the generation, before
            trainer._metrics["train"]["reward"].append(3.0)
        vars(trainer).update(how)
        found = recorded(trainer, folder / "r.jsonl", times=times, gradient=gradient)
        assert all(len(one.pop("run_id")) == 24 for one in found)
        wanted = keys.split()
        return [
            json.dumps({key: one.get(key) for key in wanted}) if wanted else " ".join(one)
            for one in found
        ]

    names = globals() | {"of": of}
    expressions(Path(__file__).with_name("trl.txt"), names, by_hand=True)


def test_a_record_evaluates(tmp_path: Path) -> None:
    (one,) = recorded(Trainer(), tmp_path / "r.jsonl")
    assert evaluate(one, "trl/grpo").loss == pytest.approx(-25.0)
