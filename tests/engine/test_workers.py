"""However a run with workers ends, nothing hangs, nothing is left, and one line says why."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from command import run
from files import each, some

from grpo_cli import InputError
from grpo_cli.engine import Reader, pool

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


def processes(path: Path) -> list[int]:
    """All processes that work on ``path``, the first of them first."""
    found = []
    for one in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if path.name.encode() in one.read_bytes():
                found.append(int(one.parent.name))
    return sorted(found)


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
    process = subprocess.Popen(
        [*(command or usual), *arguments],
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


def test_ctrl_c(large: Path) -> None:
    with started(large, *TOKENS) as process:
        process.stdout.readline()
        os.killpg(process.pid, signal.SIGINT)
        process.stdout.close()
        assert process.wait(timeout=120) in (130, -signal.SIGPIPE)
        assert b"Traceback" not in process.stderr.read()
        assert gone(large)


START_METHODS = ("fork", "spawn", "forkserver")  # the last is Linux's default from Python 3.14 on
RUN = """
import multiprocessing, sys
multiprocessing.set_start_method(sys.argv.pop(1))
from grpo_cli.commands.main import main
main()
"""


def command_of(method: str, path: Path) -> list[str]:
    usual = [sys.executable, "-W", "ignore", "-c", RUN, method, "eval", str(path), "-v", "dr"]
    return [*usual, "--jobs", "2"]


@pytest.fixture(scope="module")
def alone(large: Path) -> str:
    return run("eval", large, "-v", "dr", "--level", "batch", "--json", "--jobs", "1").stdout


@pytest.mark.more
@pytest.mark.parametrize("method", some(START_METHODS, 1))
def test_every_way_to_start_a_worker(large: Path, alone: str, method: str) -> None:
    """The same total; and where the parent is killed in the middle, no worker is left."""
    flags = ("--level", "batch", "--json")
    with started(large, *flags, command=command_of(method, large)) as process:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        assert out.decode() == alone
        assert gone(large)
    with started(large, *TOKENS, command=command_of(method, large)) as process:
        process.stdout.readline()
        process.kill()
        assert gone(large)


@pytest.mark.more
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk(large: Path) -> None:
    with started(large, "--level", "record", "-f", "jsonl", "-o", "/dev/full") as process:
        _, told = process.communicate(timeout=300)
        assert process.returncode == 3
        assert told.decode().splitlines() == ["grpo: /dev/full: No space left on device"]
        assert gone(large)


def test_an_output_that_was_interrupted_is_not_there(large: Path, tmp_path: Path) -> None:
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


@pytest.mark.more
def test_rows_come_while_the_input_still_does() -> None:
    """``grpo eval RUN | head`` has the first rows while others are computed."""
    flags = ("eval", "-v", "dr", "--jobs", "1", "--only", "tokens")
    words = [sys.executable, "-m", "grpo_cli", *flags]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.write((LINE + "\n").encode() * 2_000)  # more than a block
        process.stdin.flush()
        assert process.stdout.readline() == b"400\n"
        process.kill()


# ---- what no command shows at will --------------------------------------------------------------


def test_a_fork_leaves_what_was_kept_of_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the process that kept it forgets its reader."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"{}\n")))
    reader = Reader(["-"])
    reader.keep_input()
    (path,) = (source.path for source in reader.sources)
    child = os.fork()
    if not child:
        del reader
        os._exit(0)
    os.waitpid(child, 0)
    assert Path(path).read_bytes() == b"{}\n"
    del reader
    assert not Path(path).exists()


def test_workers_before_one_that_cannot_be_started_are_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the command waits for them when it ends: for ever, where a signal came too early."""
    made = []

    class Single(pool._Worker):
        def __init__(self, work: Callable[..., object]) -> None:
            if made:
                raise OSError("no more processes")
            super().__init__(work)
            made.append(self.process)

    monkeypatch.setattr(pool, "_Worker", Single)
    with pytest.raises(OSError, match="no more"):
        list(pool.in_order(len, [], 2))
    made[0].join(60)
    assert made[0].exitcode == -signal.SIGKILL


@each("bad", [0, 1, 5, 39])
@each("jobs", [1, 2, 3])
def test_results_come_in_the_order_of_their_pieces_and_errors_behind_them(
    jobs: int, bad: int
) -> None:
    seen = []

    def read() -> None:
        work: Any = fails_at if bad == 39 else double
        pieces: Any = [(at,) for at in range(bad + 1)]
        seen.extend(result for _, result in pool.in_order(work, pieces, jobs))

    if bad == 39:
        with pytest.raises(InputError, match="bad"):
            read()
    else:
        read()
    assert seen == [2 * at for at in range(bad + (bad != 39))]


def double(piece: tuple[int]) -> int:
    return 2 * piece[0]


def fails_at(piece: tuple[int]) -> int:
    if piece == (39,):
        raise InputError("bad")
    return 2 * piece[0]


@each(
    ("text", "quota"),
    [("200000 100000", 2), ("150000 100000", 2), ("100001 100000", 2), ("100000 100000", 1),
     ("1000 100000", 1), ("0 100000", 1), ("max 100000", None), ("", None), (None, None)],
)  # fmt: skip
def test_the_cores_that_a_process_may_use(
    monkeypatch: pytest.MonkeyPatch, text: str | None, quota: int | None
) -> None:
    """Those of its affinity and of its container; ``--jobs`` is as many for large input."""

    def read(path: Path) -> str:
        if text is None:
            raise FileNotFoundError
        return text

    with monkeypatch.context() as patch:
        patch.setattr(pool.Path, "read_text", read)
        for count in (1, 2, 64):
            patch.setattr(
                os, "sched_getaffinity", lambda pid, n=count: {*range(n)} - {pid - 1}, raising=False
            )
            assert pool.cores() == min(count, quota or count)
        patch.delattr(os, "sched_getaffinity")
        patch.setattr(os, "cpu_count", lambda: None)
        assert pool.cores() == 1
