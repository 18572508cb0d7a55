"""The JSON writer that is installed does not write past its buffer.

orjson 3.12.0 and 3.13.0 reserve 24 bytes for a number in an array where 24 characters and a comma
need 25, and for a list behind other values once at its start: both lines abort the process every
time. 3.11.9 and earlier are right. pyproject.toml keeps the broken versions out; a later release
may come in when these pass with it.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

OVERFLOWING = {
    "an array of numbers of 24 characters": (
        "orjson.dumps(np.full(2701, -1.2345678901234567e-300), option=orjson.OPT_SERIALIZE_NUMPY)"
    ),
    "a list of them behind other values": (
        r'orjson.dumps(["\x01" * 61] * 10 + [-1.2345678901234567e-300] * 17)'
    ),
}
DUMP = Path(__file__).parent / "data" / "orjson-overflow.jsonl.gz"


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONMALLOC": "debug"}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, check=False, timeout=120)


@pytest.mark.parametrize("call", OVERFLOWING.values(), ids=[*OVERFLOWING])
def test_nothing_is_written_past_the_buffer(call):
    done = run(f"import numpy as np, orjson; print(len({call}))")
    assert done.returncode == 0, done.stderr[-500:]


def test_a_record_that_the_broken_versions_abort_on():
    # One made-up record of 8 responses whose token columns are numbers of 24 and 25 characters.
    code = "from grpo_cli.__main__ import main; main()"
    words = ["--beta", "0", "--level", "token", "-f", "jsonl", "--nest", "--jobs", "1"]
    done = run(code, "eval", str(DUMP), *words)
    assert done.returncode == 0, done.stderr[-500:]
    written = [json.loads(line) for line in done.stdout.splitlines()]
    with gzip.open(DUMP) as lines:
        records = [json.loads(line) for line in lines]
    widths = [list(map(len, record["log_probs_new"])) for record in records]
    counts = [[len(one["tokens"]["gradient"]) for one in row["responses"]] for row in written]
    assert counts == widths
