"""TRL's real trainers on a model made here, recorded by the hook, and judged by ``grpo verify``."""

from __future__ import annotations

import gc
import gzip
import json
import subprocess
import sys
import time
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import run
from transformers import TrainerCallback

from grpo_cli.hooks import columns, trl
from grpo_cli.hooks.trl import record
from grpo_cli.hooks.writer import Lines, Writer

from . import tiny

pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks' own


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def verify(path: Path, *flags: str) -> tuple[int, dict[str, Any]]:
    done = run("verify", path, "--json", *flags)
    assert done.stdout, done.stderr
    return done.exit_code, json.loads(done.stdout)


def trained(folder: Path, **settings: Any) -> Path:
    trainer = tiny.trainer(folder, **settings)
    path = folder / "rollouts.jsonl"
    with record(trainer, path):
        trainer.train()
    return path


def test_rewards_and_groups_travel_with_their_rows(tmp_path: Path) -> None:
    """TRL's advantages come out of them again, once a generation's micro-batches are joined."""
    settings = {"loss_type": "grpo", "reward_funcs": [tiny.letters, tiny.short]}
    path = trained(tmp_path, reward_weights=[1.0, 0.25], **settings)
    groups: dict[Any, list[tuple[float, float]]] = {}
    for one in lines(path):
        weighted = np.array(one["rewards/letters"]) + 0.25 * np.array(one["rewards/short"])
        assert one["rewards"] == pytest.approx(weighted)
        rows = zip(one["group_ids"], one["rewards"], one["advantages"], strict=True)
        for group, reward, advantage in rows:
            groups.setdefault((one["step"], group), []).append((reward, advantage))
    assert len(groups) == 16
    for rows in groups.values():
        assert len(rows) == 4
        rewards, advantages = np.array(rows).T
        ours = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)
        assert advantages == pytest.approx(ours, rel=1e-4, abs=1e-5)


def test_what_the_trainer_logs_is_the_sum_of_its_micro_batches(tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, loss_type="dapo")
    record(trainer, tmp_path / "rollouts.jsonl.gz")
    trainer.train()
    code, document = verify(tmp_path / "rollouts.jsonl.gz")
    assert code == 0
    assert document["verified"] == 8
    with gzip.open(tmp_path / "rollouts.jsonl.gz", "rt") as file:
        records = [json.loads(line) for line in file]
    for step, logged in enumerate(tiny.losses(trainer)):
        own = [one["expected"]["loss"] for one in records if one["step"] == step]
        assert len(own) == 2
        assert sum(own) == pytest.approx(logged, rel=1e-5, abs=1e-7)


def test_tokens_are_the_completions(tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, loss_type="dapo", log_completions=False)
    with record(trainer, tmp_path / "rollouts.jsonl"):
        trainer.train()
    for one in lines(tmp_path / "rollouts.jsonl"):
        for words, ids, log_probs in zip(
            one["tokens"], one["completion_ids"], one["per_token_logps"], strict=True
        ):
            assert words == [trainer.processing_class.decode([token]) for token in ids]
            assert len(words) == len(log_probs)
            assert "<eos>" not in words[:-1]


def test_nothing_of_the_graph_is_kept(tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, loss_type="grpo")
    forward, alive = trainer._get_per_token_logps_and_entropies, []

    def watched(*args: Any, **kwargs: Any) -> Any:
        result = forward(*args, **kwargs)
        alive.append(weakref.ref(result[0]))
        return result

    trainer._get_per_token_logps_and_entropies = watched
    record(trainer, tmp_path / "rollouts.jsonl")
    trainer.train()
    trainer._buffered_inputs = None
    gc.collect()
    assert len(alive) > 8
    assert not [one for one in alive if one() is not None]


def test_evaluation_is_not_recorded(tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, loss_type="grpo")
    with record(trainer, tmp_path / "rollouts.jsonl"):
        trainer.evaluate()
    assert (tmp_path / "rollouts.jsonl").read_bytes() == b""


def test_the_file_is_complete_when_training_fails(tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, loss_type="grpo")
    trainer.add_callback(_Stop())
    record(trainer, tmp_path / "rollouts.jsonl")
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert len(lines(tmp_path / "rollouts.jsonl")) == 4


class _Stop(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 2:
            raise KeyboardInterrupt


# ---- the training goes on to the same bits, whatever becomes of the recording --------------------


SETTINGS = {"loss_type": "grpo", "beta": 0.04}


Outcome = tuple[list[float], list[torch.Tensor]]


def outcome(trainer: Any) -> Outcome:
    trainer.train()
    return tiny.losses(trainer), [one.detach().clone() for one in trainer.model.parameters()]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The training without a hook, with as many threads as the recorded one."""
    torch.set_num_threads(1)
    return outcome(tiny.trainer(tmp_path_factory.mktemp("plain"), **SETTINGS))


def on_call(number: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, which fails when it is called for the n-th time."""
    calls = iter(range(1, 1000))

    def failing(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == number:
            raise RuntimeError("on purpose")
        return function(*args, **kwargs)

    return failing


STAGES = {
    # what fails, the how manieth time, and how many records were written before
    "gradient": (trl, "gradient_of", 3, 2),
    "settings": (trl, "hyperparameters", 1, 0),
    "columns": (trl, "columns_of", 8, 7),
    "rewards": (trl, "rewards_of", 2, 1),
    "the record": (trl, "made", 4, 3),
    "its columns": (columns, "ragged", 9, None),
    "the disk": (Lines, "add", 2, 1),
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_that_fails_ends_the_recording_alone(
    stage: str, plain: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name, number, written = STAGES[stage]
    monkeypatch.setattr(owner, name, on_call(number, getattr(owner, name)))
    trainer = tiny.trainer(tmp_path, **SETTINGS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        record(trainer, tmp_path / "r.jsonl")
        same(outcome(trainer), plain)
    said = [str(one.message) for one in caught if "grpo:" in str(one.message)]
    assert len(said) == 1, said
    assert "on purpose" in said[0]
    if written is not None:
        assert f"after {written} record" in said[0]
        assert len(lines(tmp_path / "r.jsonl")) == written


def same(ours: Outcome, theirs: Outcome) -> None:
    assert ours[0] == theirs[0]
    for one, other in zip(ours[1], theirs[1], strict=True):
        assert torch.equal(one, other)


def test_a_slow_disk(plain: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put = Writer._put

    def slow(self: Writer, made: Any) -> None:
        time.sleep(0.1)
        put(self, made)

    monkeypatch.setattr(Writer, "_put", slow)
    trainer = tiny.trainer(tmp_path, **SETTINGS)
    record(trainer, tmp_path / "r.jsonl")
    same(outcome(trainer), plain)
    assert len(lines(tmp_path / "r.jsonl")) == 8
    assert verify(tmp_path / "r.jsonl")[0] == 0


KILLED = """
import os, sys
from pathlib import Path
from transformers import TrainerCallback
from grpo_cli.hooks.trl import record
from parity import tiny

class Kill(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        if state.global_step == 3:
            os.kill(os.getpid(), 9)

trainer = tiny.trainer(Path(sys.argv[1]), loss_type="grpo")
trainer.add_callback(Kill())
record(trainer, Path(sys.argv[1]) / "r.jsonl")
trainer.train()
"""


def test_a_killed_training_leaves_whole_lines(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    here = Path(__file__).parents[1]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=here)
    assert done.returncode == -9, done.stderr
    text = (tmp_path / "r.jsonl").read_text()
    assert not text or text.endswith("\n")
    assert 4 <= len([json.loads(line) for line in text.splitlines()]) <= 6
    assert verify(tmp_path / "r.jsonl")[0] == 0
