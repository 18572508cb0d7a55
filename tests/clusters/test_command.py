"""The command with a Ray that it starts, and one that is there; how it ends; what it leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest
from files import some

STARTED: list[subprocess.Popen] = []


def grpo(*arguments: str, program: str = "", **more) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **more}
    started = subprocess.Popen(
        [sys.executable, *(("-c", program) if program else ("-m", "grpo_cli")), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    STARTED.append(started)
    return started


def run(*arguments: str, **more) -> tuple[int, str, str]:
    started = grpo(*arguments, **more)
    out, said = started.communicate(timeout=300)
    return started.returncode, out, said


@pytest.fixture
def file(text, tmp_path) -> str:
    path = tmp_path / "a.jsonl"
    path.write_bytes(text)
    return str(path)


@pytest.fixture
def scratch(monkeypatch) -> Path:
    """Where temporary files go; short, since sockets are among them."""
    with tempfile.TemporaryDirectory(prefix="g", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        for name in ("RAY_ADDRESS", "RAY_TMPDIR"):  # of a cluster that other tests share
            monkeypatch.delenv(name, raising=False)
        yield Path(folder)
        while STARTED:  # where a test failed these may run on
            STARTED.pop().kill()
        for process in running(Path(folder)):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def running(scratch: Path) -> list[int]:
    """The processes that name the folder, or anything in it."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if f"{scratch}/" in words and process.name != str(os.getpid()):
            found.append(int(process.name))
    return found


def gone(scratch: Path) -> bool:
    """Whether nothing is left, a moment after the end."""
    for _ in range(100):
        if not running(scratch) and not list(scratch.iterdir()):
            return True
        time.sleep(0.1)
    return False


ARGUMENTS = ("-v", "gspo", "--format", "jsonl", "--level", "response")


def test_a_ray_that_is_started_here(file, scratch):
    expected = run("eval", file, *ARGUMENTS)
    assert expected[0] == 0
    assert run("eval", file, *ARGUMENTS, "--on", "ray", "-j", "2") == expected
    assert gone(scratch)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_what_is_interrupted_leaves_nothing(file, scratch, tmp_path, number, code):
    out = tmp_path / ("out" if number == signal.SIGINT else "out.jsonl")
    place = f"{out}/" if number == signal.SIGINT else str(out)
    started = grpo("eval", *[file] * 40, *ARGUMENTS, "--on", "ray", "-j", "2", "-o", place)
    find(scratch, "ray::evaluate", started)
    started.send_signal(number)
    _, said = started.communicate(timeout=60)
    assert (started.returncode, said) == (code, "")
    if number == signal.SIGINT:  # whole parts, and no other file
        for part in out.iterdir():
            assert part.name.startswith("part-")
            assert all(json.loads(line) for line in part.read_text().splitlines())
    else:
        assert not out.exists()
    assert gone(scratch)


def find(scratch: Path, title: str, started: subprocess.Popen) -> int:
    """Waits for a process of the Ray in the folder whose program has this name."""
    while started.poll() is None:
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "cmdline").read_bytes().decode(errors="replace")
                parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
                its = Path("/proc", parent, "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            program = "".join(words.split("\0")[:3])  # raylet's arguments name the others
            if title in program and f"{scratch}/" in words + its:
                return int(process.name)
        time.sleep(0.01)
    raise AssertionError(started.communicate())


DEATHS = [
    *(("ray::IDLE", "json"), ("default_worker.py", "table")),
    *(("ray::IDLE", "csv"), ("default_worker.py", "jsonl"), ("ray::IDLE", "markdown")),
]


@pytest.mark.parametrize(("first", "kind"), some(DEATHS, 1))
def test_workers_that_die_are_replaced_and_not_seen_in_the_results(file, scratch, first, kind):
    """One as it starts, and one at its work: Ray says much of it."""
    words = ("eval", *[file] * 4, "-v", "gspo", "--format", kind, "-q")
    started = grpo(*words, "--on", "ray", "-j", "2")
    for title in (first, "ray::evaluate"):
        os.kill(find(scratch, title, started), signal.SIGKILL)
    out, said = started.communicate(timeout=300)
    assert (started.returncode, out) == run(*words)[:2], said


def test_a_ray_that_cannot_start_is_one_line(file, scratch):
    started = grpo("eval", file, "--on", "ray", "-j", "2")
    os.kill(find(scratch, "dashboard/agent.py", started), signal.SIGKILL)
    out, said = started.communicate(timeout=120)
    assert (started.returncode, out, said.count("\n")) == (70, "", 1)
    assert said.startswith("grpo: cannot start Ray: ")
    assert gone(scratch)


@pytest.mark.parametrize("seconds", some([2.5, 1.0, 4.0], 1))
def test_ctrl_c_ends_the_start_of_ray(file, scratch, seconds):
    started = grpo("eval", *[file] * 40, *ARGUMENTS, "--on", "ray", "-j", "2")
    time.sleep(seconds)
    started.send_signal(signal.SIGINT)
    assert started.communicate(timeout=60)[1] == ""
    assert started.returncode == 130
    assert gone(scratch)


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_while_ray_forks_is_not_lost(file, scratch, name, code):
    """Its handler runs in a callback after the fork, of which Python ignores what is raised."""
    program = "import logging, os, signal, sys; from grpo_cli.__main__ import main; import ray\n"
    program += f"callback = lambda: signal.raise_signal(signal.{name})\n"
    program += "os.register_at_fork(after_in_parent=callback)\nmain()"
    started = grpo("eval", *[file] * 40, *ARGUMENTS, "--on", "ray", "-j", "2", program=program)
    assert started.communicate(timeout=120)[1] == ""
    assert started.returncode == code
    assert gone(scratch)


def test_workers_without_memory(file, scratch):
    code, _, said = run(
        *("eval", file, *ARGUMENTS, "--on", "ray", "-j", "2"),
        RAY_memory_usage_threshold="0.001",
        RAY_memory_monitor_refresh_ms="50",
        RAY_task_oom_retries="1",
    )
    assert code == 70
    ours = [line for line in said.splitlines() if line.startswith("grpo: ")]  # the others are Ray's
    assert len(ours) == 1
    assert "cluster workers ran out of memory on" in ours[0]
    assert gone(scratch)


@pytest.mark.parametrize(
    ("on", "code", "said"),
    [
        ("spark", 2, "grpo: --on: expected ray or ray://HOST:PORT, got 'spark'\n"),
        ("ray://127.0.0.1:1", 70, "cannot connect to Ray at ray://127.0.0.1:1"),
    ],
)
def test_what_cannot_be_reached(file, scratch, on, code, said):
    found = run("eval", file, "--on", on, RAY_CLIENT_INITIAL_CONNECTION_TIMEOUT_S="1")
    assert found[0] == code
    assert said in found[2]
    assert found[2].count("\n") == 1
