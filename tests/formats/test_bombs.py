"""Small files that unpack to gigabytes are refused in flat memory, and a flag reads them."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command import run
from files import some

from formats.bombs import BOMBS, LIMIT

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
_REFUSED = ("--unpack ", "the file is damaged")


_EACH = [("eval", name) for name in BOMBS]
_LOGS = [("trend", name) for name in BOMBS if ".json" in name]  # they might be a trainer's log


@pytest.mark.parametrize(
    ("verb", "name"), [*some(_EACH, 4), *some(_LOGS, 1), ("explain", "empty-lists.json.zst")]
)
def test_a_small_file_takes_little_memory(verb: str, name: str) -> None:
    script = Path(__file__).with_name("bombs.py")
    command = [sys.executable, str(script), verb, name]
    found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert found["size"] < 1 << 20
    assert found["peak"] < LIMIT
    if name.startswith("text."):
        assert found["code"] == 0
    else:
        assert found["code"] == 3
        assert found["message"][0].startswith(f"grpo: {name}:")
        refused = (*_REFUSED, "which step is this?") if verb == "trend" else _REFUSED
        assert any(words in found["message"][0] for words in refused)


def test_the_flag_reads_what_is_refused_without_it(tmp_path: Path) -> None:
    path = tmp_path / "zeros.npz"
    path.write_bytes(BOMBS["zeros.npz"]())
    refused = run("eval", path)
    assert refused.exit_code == 3
    flag = refused.stderr.split("--unpack ")[1].split()[0]
    assert "--unpack" not in run("eval", path, "--unpack", flag).stderr


@pytest.mark.more
def test_the_flag_counts_what_comes_later_too(tmp_path: Path) -> None:
    """Of several padded arrays, row groups or lines, the first does not decide alone."""
    padded = np.zeros((48, 16384))
    names = ("log_probs_new", "log_probs_old", "log_probs_ref")
    arrays = dict.fromkeys(names, padded) | {"rewards": np.arange(48.0)}
    np.savez_compressed(tmp_path / "padded.npz", **arrays)
    rows = pa.table({"reward": np.ones(2_500_000), "log_probs_new": np.zeros(2_500_000)})
    pq.write_table(rows, tmp_path / "rows.parquet", row_group_size=250_000)
    (tmp_path / "lines.jsonl.gz").write_bytes(gzip.compress(b"\n" * 4_000_000 + b"{}"))
    for name in ("padded.npz", "rows.parquet", "lines.jsonl.gz"):
        refused = run("check", tmp_path / name)
        flag = refused.stderr.split("--unpack ")[1].split()[0]
        assert "--unpack" not in run("check", tmp_path / name, "--unpack", flag).stderr


@pytest.mark.parametrize("size", ["", "0", "4X", "-1", "4.5G"])
def test_a_size_that_is_none(size: str) -> None:
    result = run("eval", "-", "--unpack", size, stdin="")
    assert result.exit_code == 2
    assert f"--unpack: expected a size like 500M or 4G, got {size!r}" in result.stderr
