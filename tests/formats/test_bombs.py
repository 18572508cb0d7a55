"""Small files that unpack to gigabytes are refused in flat memory, and a flag reads them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command import run
from files import some

from formats.bombs import BOMBS, LIMIT

pytest.importorskip("pyarrow")
_REFUSED = ("--unpack ", "the file is damaged")


@pytest.mark.parametrize("name", some([*BOMBS], 6))
def test_a_small_file_takes_little_memory(name: str) -> None:
    script = Path(__file__).with_name("bombs.py")
    command = [sys.executable, str(script), "eval", name]
    found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert found["size"] < 1 << 20
    assert found["peak"] < LIMIT
    if name.startswith("text."):
        assert found["code"] == 0
    else:
        assert found["code"] == 3
        assert found["message"][0].startswith(f"grpo: {name}:")
        assert any(words in found["message"][0] for words in _REFUSED)


def test_the_flag_reads_what_is_refused_without_it(tmp_path: Path) -> None:
    path = tmp_path / "zeros.npz"
    path.write_bytes(BOMBS["zeros.npz"]())
    refused = run("eval", path)
    assert refused.exit_code == 3
    flag = refused.stderr.split("--unpack ")[1].split()[0]
    assert "--unpack" not in run("eval", path, "--unpack", flag).stderr


@pytest.mark.parametrize("size", ["", "0", "4X", "-1", "4.5G"])
def test_a_size_that_is_none(size: str) -> None:
    result = run("eval", "-", "--unpack", size, stdin="")
    assert result.exit_code == 2
    assert f"--unpack: expected a size as 500M or 4G, got {size!r}" in result.stderr
