"""Memory is bounded whatever comes, or an error names the limit and the flag that raises it.

The bound is 300 MB for a megabyte; here, for the time that it takes, 150 MB for half of one.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from forked import PEAK

MEGABYTES = 150
TOKENS = 100_000


class Used(NamedTuple):
    """What became of a command: the most megabytes that it had, exit code, standard error."""

    megabytes: float
    code: int
    err: str


Measure = Callable[..., Used]


@pytest.fixture
def measured(quick: Path, tmp_path: Path) -> Measure:
    """Runs a command that has all imports from its start: some megabytes more than it needs."""
    peak = tmp_path / ".peak"

    def run(*words: str) -> Used:
        done = subprocess.run(
            [quick / "grpo", *words],
            env={**os.environ, PEAK: str(peak)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        return Used(int(peak.read_text()) / 1024, done.returncode, done.stderr)

    return run


@pytest.fixture
def bounded(measured: Measure) -> Callable[[list[str]], bool]:
    """Whether a command stays below that, and an error is one line."""

    def run(words: list[str]) -> bool:
        done = measured(*words)
        refused = done.code == 3 and done.err.count("\n") == 1
        return done.megabytes < MEGABYTES and (done.code == 0 or refused)

    return run


@pytest.fixture
def grown(measured: Measure) -> Callable[[list[str], str, int], float]:
    """How much more memory so many lines take than a tenth of them."""

    def run(words: list[str], line: str, count: int) -> float:
        peaks = []
        for lines in (count // 10, count):
            Path("in.jsonl").write_text("".join(line.replace("#", str(at)) for at in range(lines)))
            peaks.append(measured(*words).megabytes)
        return peaks[1] - peaks[0]

    return run


@pytest.mark.parametrize("command", ["eval", "check", "verify", "compare", "split", "convert"])
def test_errors_that_are_skipped_are_not_kept(grown, command):
    """8,000 lines that cannot be read are 48 MB where every error is kept."""
    words = {"split": ["-n", "1"], "eval": ["--level", "batch"]}.get(command, [])
    assert grown([command, *words, "--on-error", "skip", "in.jsonl"], BAD_LINE, 8_000) < 20


BAD_LINE = '{"log_probs_new": [[-0.5, "x"]], "rewards": [1]}\n'


def long_response() -> None:
    """One response of many tokens, in half a megabyte."""
    row = [-0.5, -1.0] * (TOKENS // 2)
    Path("in.jsonl").write_text(json.dumps({"log_probs_new": [row], "rewards": [1.0]}) + "\n")


@pytest.mark.parametrize(
    "words",
    [
        ["show"],
        ["eval", "--level", "token", "-f", "csv"],
        ["eval", "--level", "token"],
        ["eval", "--level", "batch"],
        ["eval", "--level", "token", "-f", "jsonl"],
    ],
    ids=" ".join,
)
def test_a_long_response(bounded, words):
    long_response()
    assert bounded([*words, "-v", "dr", "in.jsonl"])


@pytest.mark.parametrize("filling", [b"\0", b"\n", b"[", b"1,"], ids=ascii)
def test_a_small_gzip_of_a_large_text(bounded, filling):
    size = 4_000_000 if filling == b"\n" else 40_000_000
    text = b'{"log_probs_new": [[' + filling * (size // len(filling))
    Path("in.jsonl.gz").write_bytes(gzip.compress(text, 3))
    assert bounded(["eval", "in.jsonl.gz"])


def test_a_small_npz_of_a_large_array(bounded):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        array = io.BytesIO()
        np.save(array, np.zeros((1000, 20_000), np.float32))
        packed.writestr("log_probs_new.npy", array.getvalue())
        array = io.BytesIO()
        np.save(array, np.zeros(1000))
        packed.writestr("rewards.npy", array.getvalue())
    Path("in.npz").write_bytes(file.getvalue())
    assert len(file.getvalue()) < 1_000_000
    assert bounded(["eval", "-v", "dr", "--level", "batch", "in.npz"])


def test_newlines_alone(bounded):
    Path("in.jsonl").write_bytes(b"\n" * 4_000_000)
    assert bounded(["eval", "in.jsonl"])


def test_the_errors_that_are_told_in_full_can_be_limited(grpo, dump):
    name = dump(*['{"log_probs_new": 5}'] * 30)
    outcome = grpo("eval", "--on-error", "skip", "--max-errors", "3", name)
    told = [line for line in outcome.err.splitlines() if b"log_probs_new" in line]
    assert (outcome.code, len(told)) == (3, 3)
    assert b"30" in outcome.err


@pytest.mark.parametrize("own", ['"id": #, "step": #', '"uid": #'], ids=["id-step", "uid"])
def test_memory_is_flat_in_groups_and_steps(grown, own):
    """A group, an id and a step of its own for each of many records."""
    row = f'{{"log_probs": [-0.5, -1], "rewards": [1, 0], {own}, "group_ids": [#, -1]}}\n'
    assert grown(["eval", "-v", "dr", "-f", "csv", "in.jsonl"], row, 6_000) < 12


def test_a_group_of_many_responses_is_shown_in_part(grpo, dump):
    many = {name: [[-1.0]] * 4_010 for name in ("log_probs_new", "log_probs_old")}
    out = grpo("show", "-v", "dr", dump({**many, "rewards": [1.0, 0.0] * 2_005})).out.decode()
    assert "\nresponse 3999," in out
    assert "\nresponse 4000," not in out
    assert "… 10 more responses" in out
