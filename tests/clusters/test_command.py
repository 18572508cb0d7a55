"""The command with a Ray that it starts, and one that is there; how it ends; what it leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest


def grpo(*arguments: str, **more) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **more}
    return subprocess.Popen(
        [sys.executable, "-m", "grpo_cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def run(*arguments: str, **more) -> tuple[int, str, str]:
    started = grpo(*arguments, **more)
    out, said = started.communicate(timeout=300)
    return started.returncode, out, said


@pytest.fixture
def file(text, tmp_path) -> str:
    path = tmp_path / "a.jsonl"
    path.write_bytes(text * 20)
    return str(path)


@pytest.fixture
def scratch(monkeypatch) -> Path:
    """Where temporary files go; short, since sockets are among them."""
    with tempfile.TemporaryDirectory(prefix="g", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        yield Path(folder)


def running(scratch: Path) -> list[str]:
    """The processes that name the folder, or anything in it."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if f"{scratch}/" in words and process.name != str(os.getpid()):
            found.append(words.replace("\0", " "))
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
    while not works(scratch):
        assert started.poll() is None, started.communicate()
        time.sleep(0.1)
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


def works(scratch: Path) -> bool:
    """Whether a worker of the Ray in the folder evaluates something."""
    parents, titles = {}, {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            titles[process.name] = (process / "cmdline").read_bytes().decode(errors="replace")
            parents[process.name] = (process / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
    return any(
        title.startswith("ray::evaluate") and f"{scratch}/" in titles.get(parents.get(number), "")
        for number, title in titles.items()
    )


def test_workers_without_memory(file, scratch):
    code, _, said = run(
        *("eval", file, *ARGUMENTS, "--on", "ray", "-j", "2"),
        RAY_memory_usage_threshold="0.001",
        RAY_memory_monitor_refresh_ms="50",
        RAY_task_oom_retries="1",
    )
    assert code == 70
    assert said.count("\n") == 1
    assert "workers of the cluster ran out of memory on" in said
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
