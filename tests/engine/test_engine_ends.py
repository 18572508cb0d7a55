"""However a run with workers ends, nothing hangs, nothing is left, and one line says why."""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from files import evaluation

from grpo_cli.engine import pool
from grpo_cli.engine.pieces import Pieces
from grpo_cli.engine.pool import WorkerError, receive
from grpo_cli.errors import InputError
from grpo_cli.records.open.streams import BLOCK
from grpo_cli.variants.plan import plan

LINE = json.dumps(
    {
        "log_probs_new": [[-0.5] * 200, [-0.7] * 200],
        "log_probs_old": [[-0.6] * 200, [-0.6] * 200],
        "rewards": [1, 0],
    }
)

TOKENS = ("--level", "token", "-f", "jsonl", "--fields", "ratio")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / f"unmistakable-{os.getpid()}.jsonl"
    path.write_text((LINE + "\n") * 4_000)
    return path


def dies(records, breakdown) -> list[bytes]:
    if any(record.line == 3000 for record in records):
        os.kill(os.getpid(), signal.SIGKILL)
    return [b""] * len(records)


def large_texts(records, breakdown) -> list[bytes]:
    return [b"%d" % record.line * 2**16 + b"." for record in records]


def dies_while_it_sends(records, breakdown) -> list[bytes]:
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    return [b"x" * 2**24]


def processes(path: Path) -> list[str]:
    """The command lines of all processes that work on ``path``."""
    found = []
    for one in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = one.read_bytes()
        except OSError:
            continue
        if path.name.encode() in text:
            found.append(text.decode())
    return found


def gone(path: Path) -> bool:
    deadline = time.monotonic() + 60
    while processes(path) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not processes(path)


@contextmanager
def started(
    path: Path, *arguments: str, command: list[str] | None = None
) -> Iterator[subprocess.Popen]:
    usual = [sys.executable, "-m", "grpo_cli", "eval", str(path), "-v", "dr", "--jobs", "2"]
    command = command or usual
    process = subprocess.Popen(
        [*command, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def test_large_texts_come_as_they_were_sent(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text((LINE + "\n") * 40)
    run = evaluation(path, plan("dr"), encode=large_texts, jobs=2, block_bytes=1 << 14)
    found = [piece for pieces in run for piece in pieces]
    assert found == [b"%d" % line * 2**16 + b"." for line in range(1, 41)]


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pieces_are_texts_whatever_hands_them_over(protocol):
    pieces = Pieces([b"", b"x" * 2**17, b"y" * 2**16, b"z" * (2**16 - 1)])
    assert pickle.loads(pickle.dumps(pieces, protocol)) == pieces
    assert copy.copy(pieces) == pieces
    buffers: list[pickle.PickleBuffer] = []
    text = pickle.dumps(pieces, 5, buffer_callback=buffers.append)
    views = [memoryview(bytearray(buffer.raw())) for buffer in buffers]
    assert len(views) == 2
    assert pickle.loads(text, buffers=views) == pieces


def test_a_worker_that_dies_while_it_sends(large, monkeypatch):
    monkeypatch.setattr(pool, "receive", lambda connection: (time.sleep(0.5), receive(connection)))
    with pytest.raises(WorkerError, match=r"died on"):
        list(evaluation(large, plan("dr"), encode=dies_while_it_sends, jobs=2))


def test_a_worker_that_dies(large):
    run = evaluation(large, plan("dr"), encode=dies, jobs=2)
    done: list[bytes] = []
    with pytest.raises(WorkerError, match=r"died on .*unmistakable-.*, at or after line"):
        done.extend(piece for pieces in run for piece in pieces)
    assert len(done) == run.total["records"] < 3000


def test_ctrl_c(large):
    with started(large, *TOKENS) as process:
        process.stdout.readline()
        os.killpg(process.pid, signal.SIGINT)
        process.stdout.close()
        assert process.wait(timeout=120) in (130, -signal.SIGPIPE)
        assert b"Traceback" not in process.stderr.read()
        assert gone(large)


def test_a_closed_pipe(large):
    with started(large, *TOKENS) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=120) == -signal.SIGPIPE  # the shell shows it as 141
        assert process.stderr.read() == b""
        assert gone(large)


START_METHODS = ("fork", "spawn", "forkserver")  # the last is Linux's default from Python 3.14 on
RUN = """
import multiprocessing, sys
multiprocessing.set_start_method(sys.argv.pop(1))
from grpo_cli.commands.main import main
main()
"""


def total(path: Path, method: str, jobs: int) -> tuple[int, bytes]:
    command = [sys.executable, "-W", "ignore", "-c", RUN, method, "eval", str(path), "-v", "dr"]
    command += ["--jobs", str(jobs), "--level", "batch", "--json"]
    done = subprocess.run(command, capture_output=True, timeout=300, check=False)
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two of them, and a bit."""
    path = tmp_path_factory.mktemp("blocks") / f"unmistakable-blocks-{os.getpid()}.jsonl"
    path.write_text((LINE + "\n") * (2 * BLOCK // len(LINE) + 20))
    return path


@pytest.fixture(scope="module")
def alone(blocks: Path) -> tuple[int, bytes]:
    return total(blocks, "fork", 1)


@pytest.mark.parametrize("method", START_METHODS)
def test_every_way_to_start_a_worker(blocks, alone, method):
    assert total(blocks, method, 2) == alone
    assert alone[0] == 0
    assert gone(blocks)


@pytest.mark.parametrize("method", START_METHODS)
def test_a_parent_that_is_killed(large, method):
    command = [sys.executable, "-W", "ignore", "-c", RUN, method, "eval", str(large)]
    flags = ["--jobs", "2", *TOKENS]
    with started(large, command=[*command, "-v", "dr", *flags]) as process:
        process.stdout.readline()
        process.kill()
        assert gone(large)
        process.stdout.close()
        process.wait(timeout=120)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk(large):
    with started(large, "--level", "record", "-f", "jsonl", "-o", "/dev/full") as process:
        _, told = process.communicate(timeout=300)
        assert process.returncode == 3
        assert told.decode().splitlines() == ["grpo: /dev/full: No space left on device"]
        assert gone(large)


def test_an_output_that_was_interrupted_is_not_there(large, tmp_path):
    place = tmp_path / "out.jsonl"
    more = [str(large)] * 15  # so that it does not end before the signal comes
    with started(large, *more, *TOKENS, "-o", str(place)) as process:
        deadline = time.monotonic() + 120
        while not any(tmp_path.iterdir()) and time.monotonic() < deadline:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=120) == 130
        assert list(tmp_path.iterdir()) == []
        assert gone(large)


def test_workers_before_one_that_cannot_be_started_are_ended(monkeypatch):
    """Else the command waits for them when it ends: for ever, where a signal came too early."""
    made = []

    class Few(pool._Worker):
        def __init__(self, work):
            if made:
                raise OSError("no more processes")
            super().__init__(work)
            made.append(self.process)

    monkeypatch.setattr(pool, "_Worker", Few)
    with pytest.raises(OSError, match="no more"):
        list(pool.in_order(len, [], 2))
    made[0].join(60)
    assert made[0].exitcode == -signal.SIGKILL


def test_workers_end_with_an_error_that_is_kept(tmp_path):
    """Those that work ahead do not wait until nobody speaks of the error any more."""
    good = '{"log_probs_new": [[-1.0, -2.0]], "rewards": [1.0]}\n'
    path = tmp_path / "in.jsonl"
    path.write_text(good + good.replace("-2.0", "2.0") + good * 50)
    found = evaluation(path, plan("dr"), encode=_nothing, jobs=2, block_bytes=100)
    others = multiprocessing.active_children()
    with pytest.raises(InputError) as kept:
        list(found)
    assert kept.value.line == 2
    workers = {*multiprocessing.active_children()} - {*others}
    for worker in workers:
        worker.join(10)
    assert not [worker for worker in workers if worker.is_alive()]


def _nothing(records, breakdown):
    return [b"" for _ in records]
