"""Small files in a folder of their own, and commands in this process or as real ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fuzz.product import Outcome, run

RECORD: dict[str, Any] = {
    "log_probs_new": [[-0.9, -0.2], [-1.1]],
    "log_probs_old": [[-1.0, -0.25], [-1.0]],
    "rewards": [1.0, 0.0],
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


@pytest.fixture
def grpo() -> Callable[..., Outcome]:
    """Runs a command in this process."""

    def call(*words: str, stdin: bytes | None = None) -> Outcome:
        return run(words, stdin)

    return call


@pytest.fixture
def dump() -> Callable[..., str]:
    """Writes records, as text or as changes of a usual one, and returns the file's name."""

    def write(*records: dict[str, Any] | str, name: str = "in.jsonl") -> str:
        lines = [r if isinstance(r, str) else json.dumps(RECORD | r) for r in records]
        Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return name

    return write
