"""The cheap check of the first record, which ``eval`` repeats in one line."""

from __future__ import annotations

import numpy as np
import orjson
import pytest
from typer.testing import CliRunner

from grpo_cli.commands.check.cheap import cheap
from grpo_cli.commands.main import app
from grpo_cli.engine import Reader


def written(tmp_path, old, *, sane_before=0, more=0):
    draw = np.random.default_rng(2)
    new = [(-draw.exponential(1.0, 40)).tolist() for _ in range(4)]
    record = {"log_probs_new": new, "log_probs_old": old(new), "rewards": [1.0, 0.0, 1.0, 0.0]}
    sane = record | {"log_probs_old": near(new)}
    path = tmp_path / "some.jsonl"
    lines = [sane] * sane_before + [record] + [sane] * more
    path.write_bytes(b"\n".join(map(orjson.dumps, lines)))
    return str(path)


def near(new):
    return [[x - 0.01 for x in row] for row in new]


def zeros(new):
    return [[0.0] * len(row) for row in new]


def foreign(new):
    return [row[::-1] for row in new]


def far(new):
    return [[x - 25.0 * (x > -0.05) for x in row] for row in new]


def told(path, *flags):
    result = CliRunner().invoke(app, ["eval", path, "--beta", "0", "--level", "batch", *flags])
    assert result.exit_code == 0
    return [line for line in result.stderr.splitlines() if "grpo check" in line]


def test_what_is_sane_is_passed_over(tmp_path):
    path = written(tmp_path, near)
    assert [line for chunk in Reader([path]) for line in cheap(chunk)] == []
    assert told(path) == []


@pytest.mark.parametrize(
    ("old", "begins"),
    [
        (zeros, "grpo: note: filler: log_probs_old is filled with 0.0"),
        (foreign, "grpo: note: unrelated: log_probs_new and log_probs_old are unrelated"),
        (far, "grpo: note: extreme-ratio: |log_probs_new − log_probs_old| is beyond 20"),
    ],
)
def test_eval_repeats_what_check_would_call_an_error(tmp_path, old, begins):
    path = written(tmp_path, old)
    (line,) = told(path)
    assert line.startswith(begins)
    assert line.endswith("(grpo check says more)")
    assert CliRunner().invoke(app, ["check", path]).exit_code == 1
    assert told(path, "-q") == []


def test_the_line_is_the_same_however_the_input_is_cut(tmp_path):
    path = written(tmp_path, foreign, more=40)
    assert told(path, "--jobs", "1") == told(path, "--jobs", "2")
    one = [line for chunk in Reader([path], block_bytes=1) for line in cheap(chunk)]
    assert one == [line for chunk in Reader([path]) for line in cheap(chunk)]
    assert told(written(tmp_path, foreign, sane_before=1)) == []
