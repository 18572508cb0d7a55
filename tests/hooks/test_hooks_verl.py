"""The verl hook on a stand-in for a worker: losses of any shape, and what goes wrong with them."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from files import each

from grpo_cli.hooks import verl
from grpo_cli.hooks.writer import WAITING, Writer

from .stand_ins import Tensor

CONFIG = SimpleNamespace(clip_ratio=0.2)


@pytest.fixture(autouse=True)
def worker(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a worker has imported of verl and torch; verl's registry."""
    registry: dict[str, Any] = {"vanilla": vanilla}
    core = ModuleType("verl.trainer.ppo.core_algos")
    core.POLICY_LOSS_REGISTRY = registry  # type: ignore[attr-defined]
    torch = ModuleType("torch")
    torch.distributed = SimpleNamespace(is_available=lambda: False)  # type: ignore[attr-defined]
    for name in ("verl", "verl.trainer", "verl.trainer.ppo"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, core.__name__, core)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(verl, "version", lambda name: f"{name} as installed")
    return registry


def vanilla(
    old_log_prob: Any,
    log_prob: Any,
    advantages: Any,
    response_mask: Any,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Any = None,
) -> Any:
    return Tensor(0.5), {"actor/pg_clipfrac": 0.25}


def three_results(old_log_prob, log_prob, advantages, response_mask, config):  # type: ignore[no-untyped-def]
    """As losses of verl before its metrics were a dict, or of one's own."""
    return Tensor(0.5), Tensor(0.25), Tensor(0.0)


def only_the_loss(old_log_prob, log_prob, advantages, response_mask):  # type: ignore[no-untyped-def]
    return Tensor(0.5)


def anything(*args: Any, **kwargs: Any) -> Any:
    return Tensor(0.5), {}


def arguments(*more: Any) -> tuple[Any, ...]:
    ones = Tensor(np.ones((2, 3)))
    return (Tensor(-np.ones((2, 3))), Tensor(-np.ones((2, 3))), ones, ones, *more)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_record_is_what_the_loss_saw(worker: dict[str, Any], tmp_path: Path) -> None:
    recorder = verl.record(tmp_path / "r.jsonl")
    assert worker["vanilla"](*arguments("seq-mean-token-sum", CONFIG))[0].item() == 0.5
    recorder.close()
    (line,) = lines(tmp_path / "r.jsonl")
    assert line["framework"] == {
        "name": "verl",
        "version": "verl as installed",
        "policy_loss": "vanilla",
        "loss_agg_mode": "seq-mean-token-sum",
    }
    assert line["expected"]["policy_loss"] == 0.5
    assert line["expected"]["metrics"] == {"actor/pg_clipfrac": 0.25}


@pytest.mark.parametrize("loss", [three_results, only_the_loss])
def test_a_loss_of_another_shape_is_recorded(loss: Any, tmp_path: Path) -> None:
    recorded = verl.record_policy_loss(loss, tmp_path / "r.jsonl", gradient=False)
    more = (CONFIG,) if loss is three_results else ()
    given, plain = recorded(*arguments(*more)), loss(*arguments(*more))
    assert type(given) is type(plain)
    recorded.recorder.close()
    (line,) = lines(tmp_path / "r.jsonl")
    assert line["expected"] == {"policy_loss": 0.5, "metrics": {}}
    assert "loss_agg_mode" not in line["framework"]
    assert line["framework"]["policy_loss"] == loss.__name__


def said(run: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [str(one.message) for one in caught]


@each(
    ("path", "reason"),
    [("nowhere/r.jsonl", "No such file or directory"),
     ("/dev/full", "No space left on device"),
     ("taken.jsonl", "another recording writes to it; give each recording its own path")],
)  # fmt: skip
def test_a_file_that_cannot_be_written_ends_the_recording(
    tmp_path: Path, path: str, reason: str
) -> None:
    with Writer(tmp_path / "taken.jsonl") as other:
        other.write(lambda: {"id": 1})
        loss = verl.record_policy_loss(vanilla, tmp_path / path, gradient=False)

        def train() -> None:
            for _ in range(3 * WAITING):
                value, metrics = loss(*arguments("token-mean", CONFIG))
                assert (value.item(), metrics) == (0.5, {"actor/pg_clipfrac": 0.25})
            loss.recorder.close()

        (line,) = said(train)
    end = "the recording ends after 0 records, the training continues"
    assert line == f"grpo: {tmp_path / path}: {reason}; {end}"
    assert [one["id"] for one in lines(tmp_path / "taken.jsonl")] == [1]


def test_a_loss_with_other_names_is_not_recorded(tmp_path: Path) -> None:
    loss = verl.record_policy_loss(anything, tmp_path / "r.jsonl", gradient=False)
    (line,) = said(lambda: [loss(*arguments()) for _ in range(3)])
    assert "anything has no parameter old_log_prob" in line


def test_what_the_loss_raises_is_its_own(tmp_path: Path) -> None:
    loss = verl.record_policy_loss(vanilla, tmp_path / "r.jsonl", gradient=False)
    with pytest.raises(TypeError, match="positional argument"):
        loss()


def test_a_nan_loss_is_written_as_such(tmp_path: Path) -> None:
    def diverged(old_log_prob, log_prob, advantages, response_mask):  # type: ignore[no-untyped-def]
        return Tensor(float("nan")), {"actor/ppo_kl": Tensor(float("inf"))}

    loss = verl.record_policy_loss(diverged, tmp_path / "r.jsonl", gradient=False)
    loss(*arguments())
    loss.recorder.close()
    (line,) = lines(tmp_path / "r.jsonl")
    assert str(line["expected"]) == "{'policy_loss': nan, 'metrics': {'actor/ppo_kl': inf}}"


POLICY_LOSS = {"clip_cov_ratio": 0.1, "clip_cov_lb": 1.0, "clip_cov_ub": 5.0}
POLICY_LOSS |= {"kl_cov_ratio": 0.2, "ppo_kl_coef": 0.3, "dro_beta": 0.4}


def test_the_settings_of_a_loss(tmp_path: Path) -> None:
    config = SimpleNamespace(
        clip_ratio=0.2,
        clip_ratio_low=None,
        clip_ratio_high=0.28,
        clip_ratio_c=3.0,
        tau_pos=1.0,
        tau_neg=1.05,
        loss_scale_factor=7,
        policy_loss=SimpleNamespace(**POLICY_LOSS, unknown=1),
        global_batch_info={"dp_size": 2, "batch_num_tokens": Tensor(9), "global_batch_size": 4},
    )
    found = verl.hyperparameters(config, np.ones((2, 5)))
    assert found == POLICY_LOSS | {
        "epsilon_low": 0.2,
        "epsilon_high": 0.28,
        "beta": 0.0,
        "response_length": 5,
        "clip_ratio_c": 3.0,
        "tau_pos": 1.0,
        "tau_neg": 1.05,
        "loss_scale_factor": 7,
        "dp_size": 2,
        "batch_num_tokens": 9,
        "global_batch_size": 4,
    }
    assert verl.hyperparameters(None, np.ones((2, 5))) == {"beta": 0.0, "response_length": 5}


OLD, NEW = -np.arange(1.0, 7.0).reshape(2, 3), -np.arange(2.0, 8.0).reshape(2, 3)
SHOWN = np.array([[1, 0, 1], [1, 1, 0]])


def called(loss: Any, **more: Any) -> Any:
    gains = Tensor(np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    return loss(Tensor(OLD), Tensor(NEW), gains, Tensor(SHOWN), config=CONFIG, **more)


def test_columns_are_ragged_and_in_their_places(tmp_path: Path) -> None:
    loss = verl.record_policy_loss(vanilla, tmp_path / "r.jsonl")
    for _ in range(2):
        called(loss)
    loss.recorder.close()
    first, second = lines(tmp_path / "r.jsonl")
    assert (first["id"], second["id"]) == (0, 1)
    assert first["log_probs_old"] == [[-1.0, -2.0, -3.0], [-4.0, -5.0]]
    assert first["log_probs_new"] == [[-2.0, -3.0, -4.0], [-5.0, -6.0]]
    assert first["advantages"] == [[1.0, 2.0, 3.0], [4.0, 5.0]]
    assert first["mask"] == [[1, 0, 1], [1, 1]]
    assert first["framework"]["loss_agg_mode"] == "token-mean"  # the function's default
    assert first["expected"]["loss_gradient"] == [[0.0] * 3, [0.0] * 2]
    assert first["hyperparameters"] == {
        "epsilon_low": 0.2,
        "epsilon_high": 0.2,
        "beta": 0.0,
        "response_length": 3,
    }


def test_finished_weights_of_a_rollout_leave_nothing_to_compare(tmp_path: Path) -> None:
    loss = verl.record_policy_loss(vanilla, tmp_path / "r.jsonl")
    called(loss, rollout_is_weights=Tensor(np.full((2, 3), 0.5)))
    loss.recorder.close()
    (line,) = lines(tmp_path / "r.jsonl")
    assert line["rollout_is_weights"] == [[0.5] * 3, [0.5] * 2]
    assert line["expected"] == {"metrics": {"actor/pg_clipfrac": 0.25, "weighted_policy_loss": 0.5}}


def test_the_gradient_is_that_of_the_loss(tmp_path: Path, monkeypatch: Any) -> None:
    """Asked of torch with the graph kept for verl's own backward pass."""

    def grad(loss: Any, log_probs: Any, **options: Any) -> Any:
        assert options == {"retain_graph": True, "allow_unused": True}
        return (Tensor(log_probs.values * loss.item()),)

    def learnt(old_log_prob, log_prob, advantages, response_mask):  # type: ignore[no-untyped-def]
        loss = Tensor(0.5)
        loss.requires_grad = True
        return loss

    monkeypatch.setattr(sys.modules["torch"], "autograd", SimpleNamespace(grad=grad), raising=False)
    loss = verl.record_policy_loss(learnt, tmp_path / "r.jsonl")
    loss(Tensor(OLD), Tensor(NEW), Tensor(OLD), Tensor(SHOWN))
    loss.recorder.close()
    (line,) = lines(tmp_path / "r.jsonl")
    assert line["expected"]["loss_gradient"] == [[-1.0, -1.5, -2.0], [-2.5, -3.0]]


def test_each_process_has_a_file(tmp_path: Path, monkeypatch: Any) -> None:
    group = {"is_available": lambda: True, "get_rank": lambda: 3, "get_world_size": lambda: 4}
    for there, name in ((True, "r.rank3.jsonl"), (False, "r.jsonl")):
        ranks = SimpleNamespace(**group, is_initialized=lambda there=there: there)
        monkeypatch.setattr(sys.modules["torch"], "distributed", ranks)
        loss = verl.record_policy_loss(vanilla, tmp_path / "r.jsonl", gradient=False)
        called(loss)
        loss.recorder.close()
        assert len(lines(tmp_path / name)) == 1
