"""Whatever becomes of the recording, the training goes on; one warning says what is lost."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fuzz.product import environment
from hooks.stand_ins import Tensor, Trainer

SCRIPTS = {
    "a BaseException in the thread": """
import sys
from grpo_cli.hooks.writer import Writer
writer = Writer("r.jsonl")
for number in range(100):
    writer.write(lambda number=number: sys.exit(3) if number == 1 else {"id": number})
""",
    "a forked child with a full queue": """
import os, time
from grpo_cli.hooks.writer import Writer
writer = Writer("r.jsonl")
for number in range(40):  # more than may wait, with the thread at work
    writer.write(lambda: time.sleep(0.01) or {"id": 0})
child = os.fork()
if not child:
    raise SystemExit  # runs what is registered for the end
code = os.waitpid(child, 0)[1]
writer.close()
raise SystemExit(code != 0)
""",
    "two writers on one path": """
from grpo_cli.hooks.writer import Writer
one = Writer("r.jsonl")
try:
    Writer("r.jsonl")
except OSError as error:  # before the training begins, which is when hooks open their files
    refused = "another recording" in str(error)
for number in range(50):
    one.write(lambda number=number: {"id": number, "text": "x" * 100})
one.close()
raise SystemExit(not refused)
""",
}


@pytest.mark.parametrize("fault", SCRIPTS)
def test_a_script_goes_on(fault):
    command = [sys.executable, "-c", SCRIPTS[fault]]
    done = subprocess.run(command, env=environment(), capture_output=True, timeout=60, check=False)
    assert done.returncode == 0
    for line in Path("r.jsonl").read_text().splitlines():
        assert "id" in json.loads(line)


@pytest.fixture
def verl(monkeypatch):
    """The hook beside stand-ins of torch and verl."""
    distributed = SimpleNamespace(is_available=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(distributed=distributed))
    from grpo_cli.hooks import verl

    monkeypatch.setattr(verl, "version", lambda name: "0.9.1")
    return verl


def vanilla(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config=None):
    return Tensor(0.25), {"actor/ppo_kl": 0.5}


def triple(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config=None):
    return Tensor(0.25), {}, "more"


def without_mode(old_log_prob, log_prob, advantages, response_mask, config=None):
    return Tensor(0.25), {}


def given(loss):
    rows = Tensor(np.full((2, 3), -0.5))
    names = ("old_log_prob", "log_prob", "advantages", "response_mask")
    mode = {} if loss is without_mode else {"loss_agg_mode": "token-mean"}
    return dict.fromkeys(names, rows) | mode | {"config": SimpleNamespace()}


@pytest.mark.parametrize(
    ("loss", "path"),
    [
        (vanilla, "r.jsonl"),
        (vanilla, "no/such/r.jsonl"),
        (triple, "r.jsonl"),
        (without_mode, "r.jsonl"),
    ],
)
def test_a_loss_of_verl_is_returned_as_it_was(verl, loss, path):
    recorder = verl.Recorder(path, gradient=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert recorder.of(loss, loss.__name__)(**given(loss))[0].item() == 0.25
        recorder.close()


class Broken(Trainer):
    """A tokenizer that cannot decode."""

    def __init__(self):
        super().__init__()
        self.processing_class = SimpleNamespace(decode=lambda ids: 1 / 0)


def test_a_trainer_of_trl_goes_on(monkeypatch):
    from grpo_cli.hooks import trl, trl_record

    monkeypatch.setattr(trl_record, "version", lambda name: "1.16.0")
    trainer = Broken()
    trl.record(trainer, "r.jsonl", gradient=False)
    with pytest.warns(RuntimeWarning, match="division by zero"):
        assert trainer.train() == "trained"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_where_warnings_are_errors(monkeypatch):
    from grpo_cli.hooks import trl, trl_record

    monkeypatch.setattr(trl_record, "version", lambda name: "1.16.0")
    trainer = Trainer()
    trl.record(trainer, "/dev/full", gradient=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert trainer.train() == "trained"
