"""What goes wrong with the recording never reaches the training: one warning says what was lost."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grpo_cli.hooks import trl, writer
from grpo_cli.hooks.trl import record
from grpo_cli.hooks.writer import WAITING, Writer

from .stand_ins import Tensor, Trainer

FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trl, "version", lambda name: f"{name} as installed")


def ids(path: Path) -> list[int]:
    return [json.loads(line)["id"] for line in Path(path).read_bytes().splitlines()]


def numbered(number: int) -> Any:
    return lambda: {"id": number}


def line(recording: Writer, number: int) -> str:
    return f'{{"run_id":"{recording.run_id}","id":{number}}}\n'


LINE = '{"run_id":"20261123T031542-0a1b2c3d","id":0}\n'


def wait_for(recording: Writer) -> None:
    """Waits until a record is written; the recording keeps its file."""
    while not recording.written:
        time.sleep(0.01)


def within(seconds: float, run: Any, *args: Any) -> None:
    """Fails instead of hanging, should ``run`` hang."""
    thread = threading.Thread(target=run, args=args, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it hangs"


class TestTheWriter:
    @pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, MemoryError])
    def test_nothing_that_is_raised_in_its_thread_stops_the_training(
        self, error: type[BaseException], tmp_path: Path
    ) -> None:
        def raising() -> dict[str, int]:
            raise error

        recording = Writer(tmp_path / "r.jsonl")
        recording.write(numbered(0))
        recording.write(raising)

        def rest() -> None:
            for _ in range(3 * WAITING):
                recording.write(numbered(1))
            recording.close()

        said = rf"{error.__name__}; the recording ends after 1 record"
        with pytest.warns(RuntimeWarning, match=said):
            within(120, rest)
        assert ids(tmp_path / "r.jsonl") == [0]

    @FULL
    def test_a_warning_that_is_an_error_is_said_on_standard_error(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        recording = Writer("/dev/full")
        recording.write(numbered(0))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            recording.flush()
            recording.write(numbered(1))
            recording.close()
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert said.startswith("grpo: /dev/full: ")
        assert "No space left" in said

    def test_a_line_that_was_not_written_whole_is_taken_back(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        room = [4 * len(LINE) + 4]

        def write(file: int, data: Any) -> int:
            data = bytes(data)[: min(room[0], 7)]  # a disk that takes little at once, and fills up
            if not data:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            room[0] -= len(data)
            return real(file, data)

        real = os.write
        monkeypatch.setattr(writer.os, "write", write)
        recording = Writer(tmp_path / "r.jsonl")
        for number in range(10):
            recording.write(numbered(number))
        with pytest.warns(
            RuntimeWarning, match=("No space left on device; the recording ends after 4")
        ):
            recording.flush()
        assert (tmp_path / "r.jsonl").read_text() == "".join(line(recording, n) for n in range(4))

    @FORKS
    def test_a_forked_child_neither_hangs_nor_writes(self, tmp_path: Path) -> None:
        path, gate = tmp_path / "r.jsonl", threading.Event()

        def slow() -> dict[str, int]:
            gate.wait()
            return {"id": 0}

        recording = Writer(path)
        for _ in range(WAITING + 1):
            recording.write(slow)
        child = os.fork()
        if not child:  # as a process ends that Python forked: with what is registered at exit
            warnings.simplefilter("ignore")
            recording.write(numbered(1))
            recording.flush()
            recording.close()
            os._exit(7)
        within(120, os.waitpid, child, 0)
        gate.set()
        recording.close()
        assert ids(path) == [0] * (WAITING + 1)

    @FORKS
    def test_what_a_child_does_not_record_is_said_once(self, tmp_path: Path) -> None:
        code = """
import os, sys
from grpo_cli.hooks.writer import Writer
writer = Writer(sys.argv[1])
if not os.fork():
    for _ in range(3):
        writer.write(lambda: {"id": 1})
else:
    os.wait()
"""
        path = tmp_path / "r.jsonl"
        command = [sys.executable, "-c", code, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        assert done.stderr.count("RuntimeWarning") == 1
        assert "forked" in done.stderr
        assert path.read_bytes() == b""

    def test_a_second_process_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "r.jsonl"
        code = "import sys; from grpo_cli.hooks.writer import Writer; Writer(sys.argv[1])"
        with Writer(path) as first:
            first.write(numbered(0))
            command = [sys.executable, "-c", code, str(path)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "another recording writes to it" in done.stderr
        assert ids(path) == [0]

    def test_a_flushed_file_may_be_had_by_the_next_recording(self, tmp_path: Path) -> None:
        """As where a cell of a notebook is run again: the first trainer's writer is still there."""
        path = tmp_path / "r.jsonl"
        first = Writer(path)
        first.write(numbered(0))
        first.flush()
        with Writer(path) as second:
            second.write(numbered(1))
            within(60, wait_for, second)
            first.write(numbered(2))
            with pytest.warns(RuntimeWarning, match="another recording writes to it"):
                first.flush()
        assert ids(path) == [1]

    def test_a_flushed_file_goes_on_where_nobody_took_it(self, tmp_path: Path) -> None:
        with Writer(tmp_path / "r.jsonl") as recording:
            for number in range(3):
                recording.write(numbered(number))
                recording.flush()
        assert ids(tmp_path / "r.jsonl") == [0, 1, 2]

    def test_what_others_did_to_the_file_meanwhile_ends_the_recording(self, tmp_path: Path) -> None:
        path = tmp_path / "r.jsonl"
        first = Writer(path)
        first.write(numbered(0))
        first.flush()
        with Writer(path) as second:
            second.write(numbered(1))
            second.write(numbered(2))
        first.write(numbered(3))
        with pytest.warns(RuntimeWarning, match="another process wrote to it"):
            first.flush()
        assert ids(path) == [1, 2]

    def test_what_is_not_finite_is_written_as_such(self, tmp_path: Path) -> None:
        values = {
            "loss": float("nan"),
            "rows": [np.array([0.1, np.nan]), np.array([1e-7, 1.0])],
            "single": np.array([-np.inf, 0.1], dtype=np.float32),
            "deep": {"metrics": {"kl": np.float64("inf"), "n": 3, "name": "x", "none": None}},
            "tokens": [["a", "ä"], []],
        }
        with Writer(tmp_path / "r.jsonl") as recording:
            recording.write(lambda: values)
        text = (tmp_path / "r.jsonl").read_text()
        read = json.loads(text)
        assert str(read["loss"]) == "nan"
        assert str(read["rows"]) == "[[0.1, nan], [1e-07, 1.0]]"
        assert read["single"][0] == -np.inf
        assert np.float32(read["single"][1]) == np.float32(0.1)
        assert read["deep"] == {"metrics": {"kl": np.inf, "n": 3, "name": "x", "none": None}}
        assert read["tokens"] == [["a", "ä"], []]
        words = set(re.findall(r"-?\b(?:NaN|Infinity)", text))
        assert words == {"NaN", "-Infinity", "Infinity"}


class Faulty(Trainer):
    """A trainer that keeps what its training came to."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.losses: list[Any] = []
        self.micro_batches = 3

    def _compute_loss(self, model: Any, inputs: Any) -> Tensor:
        self.losses.append(super()._compute_loss(model, inputs))
        return self.losses[-1]


class _Short(Tensor):
    def __len__(self) -> int:
        return 4


SPOILT: dict[str, Any] = {
    "settings": lambda one: setattr(one, "args", None),
    "metrics": lambda one: one._metrics["train"].update(kl=7.0),
    "columns": lambda one: setattr(
        one, "_get_per_token_logps_and_entropies", lambda *_: ("no tensor", None, None)
    ),
    # a fused loss, as Liger's
    "no forward pass": lambda one: setattr(one, "_compute_loss", lambda *_: Tensor(0.25)),
    "tokenizer": lambda one: setattr(one.processing_class, "decode", None),
    "groups": lambda one: setattr(one, "num_generations", None),
    "reward weights": lambda one: setattr(one, "reward_weights", None),
    "rewards": lambda one: setattr(one, "_calculate_rewards", lambda *_: [0.0] * 4),
    "fewer rewards": lambda one: setattr(
        one, "_calculate_rewards", lambda *_: _Short(np.arange(3.0)[:, None])
    ),
    "model": lambda one: setattr(one, "model", None),
}
"""Makes something fail that the recording alone looks at."""


class TestTheHookOfTRL:
    @pytest.mark.parametrize("strict", [False, True])
    @pytest.mark.parametrize("what", SPOILT)
    def test_whatever_is_raised_the_training_goes_on(
        self, what: str, strict: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        trainer = Faulty()
        SPOILT[what](trainer)
        with warnings.catch_warnings(record=not strict) as caught:
            warnings.simplefilter("error" if strict else "always")
            recording = record(trainer, tmp_path / "r.jsonl", gradient=False)
            assert trainer.train() == "trained"
            recording.close()
        said = capsys.readouterr().err.splitlines()
        if caught is not None:
            said = [str(one.message) for one in caught]
        assert len(said) == 1, said
        assert said[0].startswith(f"grpo: {tmp_path}/r.jsonl: ")
        assert said[0].endswith("recording ends after 0 records, the training continues")
        if what != "no forward pass":
            assert [one.item() for one in trainer.losses] == [0.25] * 3

    def test_what_the_training_raises_is_its_own(self, tmp_path: Path) -> None:
        trainer = Trainer()
        trainer._compute_loss = lambda *_: 1 / 0  # type: ignore[method-assign]
        record(trainer, tmp_path / "r.jsonl", gradient=False)
        with pytest.raises(ZeroDivisionError):
            trainer.train()
