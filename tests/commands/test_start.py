"""A small file takes no longer than what it needs, and a quick end leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BUFFERED = {**os.environ, "PYTHONUNBUFFERED": ""}

WATCHED = """
import atexit, os, sys
words = sys.argv[1].split(",")
atexit.register(lambda: print(*[word for word in words if word in sys.modules], file=sys.stderr))
del sys.argv[1]
from grpo_cli.__main__ import main
main()
"""


def imported(modules: str, *arguments: str) -> list[str]:
    """Those of the modules that a command imports; exit functions run, however it ends."""
    command = [sys.executable, "-c", WATCHED, modules, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stderr.split()


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_the_version_needs_no_numpy_and_no_command(flag):
    assert imported("typer,numpy,grpo_cli.commands.eval", flag) == ["typer"]


def test_rich_is_imported_where_it_prints(dump):
    path = str(dump({}))
    assert imported("numpy,rich", "eval", path, "-f", "jsonl", "-q") == ["numpy"]
    assert imported("numpy,rich", "eval", path, "-q") == ["numpy", "rich"]


def test_what_was_kept_of_standard_input_is_removed(real_shell, dump, tmp_path: Path):
    kept = tmp_path / "kept"
    kept.mkdir()
    command = f"cat {dump({}, {})} | grpo eval --advantage batch-std --level batch --json"
    done = real_shell(command, TMPDIR=str(kept))
    assert done.returncode == 0
    assert "temporary file" in done.stderr
    assert [*kept.iterdir()] == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", ["grpo --version", "grpo help", "grpo eval {} --json"])
def test_what_cannot_be_written_is_an_error(real_shell, dump, command, unbuffered):
    line = f"{command.format(dump({}))} > /dev/full"
    done = real_shell(line, PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == 3
    (told,) = done.stderr.splitlines()
    assert told.startswith("grpo: ")
    assert told.endswith("No space left on device")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_what_cannot_be_written_at_the_very_end_is_one_too():
    code = "from grpo_cli.__main__ import _leave; print(1); _leave(0)"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, env=BUFFERED
        )
    assert done.returncode == 3
    assert done.stderr == b"grpo: standard output: No space left on device\n"
