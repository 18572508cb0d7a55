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
from files import each, expressions

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
    torch.autograd = SimpleNamespace(grad=grad)  # type: ignore[attr-defined]
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


def diverged(old_log_prob, log_prob, advantages, response_mask):  # type: ignore[no-untyped-def]
    return Tensor(float("nan")), {"actor/ppo_kl": Tensor(float("inf"))}


def learnt(old_log_prob, log_prob, advantages, response_mask):  # type: ignore[no-untyped-def]
    loss = Tensor(0.5)
    loss.requires_grad = True
    return loss


def grad(loss: Any, log_probs: Any, **options: Any) -> Any:
    """Asked of torch with the graph kept for verl's own backward pass."""
    assert options == {"retain_graph": True, "allow_unused": True}
    return (Tensor(log_probs.values * loss.item()),)


def anything(*args: Any, **kwargs: Any) -> Any:
    return Tensor(0.5), {}


def bypass_mode(old_log_prob, log_prob, advantages, response_mask, config, rollout_is_weights):  # type: ignore[no-untyped-def]
    return Tensor(0.5), {}


def estimated(
    token_level_rewards: Any, response_mask: Any, index: Any = None, **kwargs: Any
) -> Any:
    """Advantages that are the sum of the rewards at each token; the rewards are used up."""
    gains = token_level_rewards.values.sum(axis=-1, keepdims=True) * response_mask.values
    token_level_rewards.values[:] = 9.0
    return Tensor(gains), Tensor(gains + 1.0)


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
    assert line["framework"]["loss_agg_mode"] == "seq-mean-token-sum"
    assert "loss_gradient" in line["expected"]


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
    assert not [*tmp_path.iterdir()]


def test_what_the_loss_raises_is_its_own(tmp_path: Path) -> None:
    loss = verl.record_policy_loss(vanilla, tmp_path / "r.jsonl", gradient=False)
    with pytest.raises(TypeError, match="positional argument"):
        loss()


OLD, NEW = -np.arange(1.0, 7.0).reshape(2, 3), -np.arange(2.0, 8.0).reshape(2, 3)
SHOWN, GAINS = np.array([[1, 0, 1], [1, 1, 0]]), np.arange(1.0, 7.0).reshape(2, 3)


def test_records_and_settings(tmp_path: Path) -> None:
    def of(loss: Any, keys: str, *more: Any, gradient: bool = True, **how: Any) -> str:
        """What is under the keys of a record of a loss that is called twice."""
        (tmp_path / "r.jsonl").unlink(missing_ok=True)
        recorded = verl.record_policy_loss(loss, tmp_path / "r.jsonl", gradient=gradient)
        given = [Tensor(OLD), Tensor(NEW), Tensor(GAINS), Tensor(SHOWN), *more]
        for _ in range(2):
            assert type(recorded(*given, **how)) is type(loss(*given, **how))
        recorded.recorder.close()
        found = lines(tmp_path / "r.jsonl")
        assert [one.pop("id") for one in found] == [0, 1]
        assert found[0] == found[1] or loss is diverged  # nan
        return json.dumps({key: found[1][key] for key in keys.split()})

    names = globals() | {"of": of, "hyperparameters": verl.hyperparameters}
    expressions(Path(__file__).with_name("verl.txt"), names, by_hand=True)


def test_a_bundle_has_the_rewards_of_each_response_and_where_a_step_ends(
    worker: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows 0 and 2 have the same advantages and take turns; row 1 has another mask."""
    core, optimizer = sys.modules["verl.trainer.ppo.core_algos"], ModuleType("optimizer")
    core.ADV_ESTIMATOR_REGISTRY = {"grpo": estimated, "mine": lambda **_: None}  # type: ignore[attr-defined]
    core.estimated = estimated  # type: ignore[attr-defined]
    stepped: list[Any] = []
    optimizer.register_optimizer_step_post_hook = stepped.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.optim", ModuleType("torch.optim"))
    monkeypatch.setitem(sys.modules, "torch.optim.optimizer", optimizer)
    path = tmp_path / "r.bundle.jsonl"
    recorder = verl.record(path, gradient=False, stages=True)
    assert not path.exists()
    assert core.estimated is core.ADV_ESTIMATOR_REGISTRY["grpo"]
    mask = np.array([[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 0, 0]])
    draw = np.random.default_rng(0)
    old, new = (-draw.random((4, 3)) for _ in range(2))

    def train(gains: Any, *rows: int) -> None:
        columns = (Tensor(of[[*rows]]) for of in (old, new, gains.values, mask))
        assert worker["vanilla"](*columns, "token-mean", CONFIG)[0].item() == 0.5

    recorder.rewards({"right": [1, 2, 1, 3], "tidy": [0, 0, 4, 0]}, weights=[1, 0.5])
    rewards = Tensor(np.array([[0.0, 0, 1], [0, 1, 0], [0, 0, 1], [3, 0, 0]]))
    uids = np.array(["a", "a", "b", "b"], dtype=object)
    plain = {"norm_adv_by_std_in_grpo": False}
    first, _ = core.estimated(rewards, Tensor(mask), index=uids, **plain)
    train(first, 3, 0)
    train(first, 2, 1)
    stepped[0](None, (), {})
    second, _ = core.estimated(Tensor(np.full((4, 3), 2.0)), response_mask=Tensor(mask))
    train(first, 0)
    train(second, 1)
    recorder.logged(0.75, {"actor/lr": np.float32(0.5)})
    core.estimated(Tensor(np.full((4, 3), 3.0)), response_mask=Tensor(mask))
    train(first, 0)  # two generations are remembered
    recorder.close()
    train(second, 0)
    found = lines(path)
    shown = ("step", "microbatch", "rewards", "group_ids", "rewards/right", "rewards/tidy")
    rows = [[one.get(name) for name in shown] for one in found]
    assert rows == [
        [0, 0, [3.0, 1.0], ["b", "a"], [3.0, 1.0], [0.0, 0.0]],
        [0, 1, [1.0, 1.0], ["b", "a"], [1.0, 2.0], [4.0, 0.0]],
        [1, 0, [1.0], ["a"], [1.0], [0.0]],
        [1, 1, [6.0], None, None, None],
        [2, 0, None, None, None, None],
    ]
    assert [one["id"] for one in found] == [0, 1, 2, 3, 4]
    places = {"generation_size": 4}
    bundles = [{name: one["bundle"].get(name) for name in (*places, "generation", "rows")}
               for one in found]  # fmt: skip
    assert bundles == [
        places | {"generation": 0, "rows": [3, 0]},
        places | {"generation": 0, "rows": [2, 1]},
        places | {"generation": 0, "rows": [0]},
        places | {"generation": 1, "rows": [1]},
        {"generation_size": None, "generation": None, "rows": None},
    ]
    assert [one["bundle"].get("micro_batches") for one in found] == [None, 2, None, 2, None]
    logged = [[one["expected"].get(name) for name in ("step_loss", "step_metrics")]
              for one in found]  # fmt: skip
    assert logged == [[None, None]] * 3 + [[0.75, {"actor/lr": 0.5}], [None, None]]
    given = [one["framework"] for one in found]
    assert [one.get("adv_estimator") for one in given] == ["grpo"] * 4 + [None]
    assert [one.get("norm_adv_by_std_in_grpo") for one in given] == [False] * 3 + [None] * 2
    assert [one.get("reward_weights") for one in given] == [[1.0, 0.5]] * 3 + [None] * 2


def test_each_process_has_a_file(tmp_path: Path, monkeypatch: Any) -> None:
    group = {"is_available": lambda: True, "get_rank": lambda: 3, "get_world_size": lambda: 4}
    for there, name in ((True, "r.rank3.jsonl"), (False, "r.jsonl")):
        ranks = SimpleNamespace(**group, is_initialized=lambda there=there: there)
        monkeypatch.setattr(sys.modules["torch"], "distributed", ranks)
        loss = verl.record_policy_loss(vanilla, tmp_path / "r.jsonl")
        loss(*arguments("token-mean", CONFIG))
        loss.recorder.close()
        (line,) = lines(tmp_path / name)
        assert "loss_gradient" in line["expected"]


def test_a_recorder_that_was_closed_opens_no_file(tmp_path: Path) -> None:
    recorder = verl.Recorder(tmp_path / "r.jsonl")
    loss = recorder.of(vanilla, "vanilla")
    recorder.close()
    assert loss(*arguments("token-mean", CONFIG))[0].item() == 0.5
    assert not [*tmp_path.iterdir()]
    loss = verl.Recorder(tmp_path / "r.jsonl").of(vanilla, "another name")
    loss(*arguments("token-mean", CONFIG))
    loss.recorder.close()
    (line,) = lines(tmp_path / "r.jsonl")
    assert line["framework"]["policy_loss"] == "another name"
    assert "loss_gradient" in line["expected"]
