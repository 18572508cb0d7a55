"""One environment for every run: no colour, a fixed terminal, nothing of CI's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import command
import pytest
from typer.testing import Result

RECORD: dict[str, Any] = {
    "log_probs_new": [[-0.9, -0.2], [-1.1]],
    "log_probs_old": [[-1.0, -0.25], [-1.0]],
    "log_probs_ref": [[-1.0, -0.25], [-1.0]],
    "rewards": [1.0, 0.0],
}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "GITHUB_ACTIONS", "FORCE_COLOR", "PY_COLORS", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GRPO_STRICT", "1")  # a source of causes that fails is seen
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.fixture
def grpo() -> Callable[..., Result]:
    """Runs a command in this process."""
    return command.run


def _in_bash(line: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, env=environment, check=False
    )


@pytest.fixture
def shell(quick: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a shell line in which ``grpo`` is the command, as users do."""
    return partial(_in_bash, PATH=f"{quick}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def real_shell() -> Callable[..., subprocess.CompletedProcess[str]]:
    """The same with a process that imports what it needs."""

    def run(line: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return _in_bash(f'grpo() {{ "{sys.executable}" -m grpo_cli "$@"; }}; {line}', **variables)

    return run


@pytest.fixture
def dump(tmp_path: Path) -> Callable[..., Path]:
    """Writes records, as given or as variations of a usual one, into a JSONL file."""

    def write(*records: dict[str, Any] | str, name: str = "dump.jsonl") -> Path:
        path = tmp_path / name
        lines = [r if isinstance(r, str) else json.dumps(RECORD | r) for r in records]
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return path

    return write
