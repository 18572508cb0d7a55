"""TRL's real trainer goes on to the same bits, whatever becomes of the recording."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_cli.hooks import columns, trl
from grpo_cli.hooks.trl import record
from grpo_cli.hooks.writer import Lines, Writer

from . import tiny
from .test_trl_hook import build, lines, losses, one_thread, verify

__all__ = ["one_thread"]

pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks' own

SETTINGS = {"loss_type": "grpo", "beta": 0.04}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.save(tmp_path_factory.mktemp("tiny"))


Outcome = tuple[list[float], list[torch.Tensor]]


def outcome(trainer: Any) -> Outcome:
    trainer.train()
    return losses(trainer), [one.detach().clone() for one in trainer.model.parameters()]


@pytest.fixture(scope="module")
def plain(model: str, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The training without a hook, with as many threads as the recorded one."""
    torch.set_num_threads(1)
    return outcome(build(model, tmp_path_factory.mktemp("plain"), **SETTINGS))


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
    stage: str, model: str, plain: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name, number, written = STAGES[stage]
    monkeypatch.setattr(owner, name, on_call(number, getattr(owner, name)))
    trainer = build(model, tmp_path, **SETTINGS)
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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk(model: str, plain: Outcome, tmp_path: Path) -> None:
    trainer = build(model, tmp_path, **SETTINGS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        record(trainer, "/dev/full")
        same(outcome(trainer), plain)
    assert len([one for one in caught if "No space left" in str(one.message)]) == 1


def test_a_slow_disk(
    model: str, plain: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = Writer._put

    def slow(self: Writer, made: Any) -> None:
        time.sleep(0.1)
        put(self, made)

    monkeypatch.setattr(Writer, "_put", slow)
    trainer = build(model, tmp_path, **SETTINGS)
    record(trainer, tmp_path / "r.jsonl")
    same(outcome(trainer), plain)
    assert len(lines(tmp_path / "r.jsonl")) == 8
    assert verify(tmp_path / "r.jsonl")[0] == 0


KILLED = """
import os, sys
from pathlib import Path
from transformers import TrainerCallback
from grpo_cli.hooks.trl import record
from parity.test_trl_hook import build

class Kill(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        if state.global_step == 3:
            os.kill(os.getpid(), 9)

trainer = build(sys.argv[1], Path(sys.argv[2]), loss_type="grpo")
trainer.add_callback(Kill())
record(trainer, Path(sys.argv[2]) / "r.jsonl")
trainer.train()
"""


def test_a_killed_training_leaves_whole_lines(model: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, model, str(tmp_path)]
    here = Path(__file__).parents[1]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=here)
    assert done.returncode == -9, done.stderr
    text = (tmp_path / "r.jsonl").read_text()
    assert not text or text.endswith("\n")
    assert 4 <= len([json.loads(line) for line in text.splitlines()]) <= 6
    assert verify(tmp_path / "r.jsonl")[0] == 0


def test_a_diverged_loss_is_written_as_such(model: str, tmp_path: Path) -> None:
    trainer = build(model, tmp_path, max_steps=2, **SETTINGS)  # one generation: no model is left
    compute = trainer._compute_loss
    trainer._compute_loss = lambda *args: compute(*args) * float("nan")
    record(trainer, tmp_path / "r.jsonl")
    trainer.train()
    text = (tmp_path / "r.jsonl").read_text()
    assert '"loss":NaN' in text
    assert "null" not in text.replace('off_policy_mask_threshold":null', "")
