"""Files large enough for several blocks, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.runs import write_records


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixteen megabytes: four blocks."""
    return write_records(tmp_path_factory.mktemp("faults") / "large.jsonl", 16)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few records."""
    return write_records(tmp_path_factory.mktemp("faults") / "small.jsonl", 0.01)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
