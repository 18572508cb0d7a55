"""The check of the first record, which ``eval`` repeats in one line."""

from __future__ import annotations

import numpy as np
import orjson
import pytest
from files import each
from typer.testing import CliRunner

from grpo_cli.commands.check.first_record import _suspicious, _widths, first_error
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
    assert [line for chunk in Reader([path]) for line in first_error(chunk)] == []
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
    one = [line for chunk in Reader([path], block_bytes=1) for line in first_error(chunk)]
    assert one == [line for chunk in Reader([path]) for line in first_error(chunk)]
    assert told(written(tmp_path, foreign, sane_before=1)) == []


# ---- what is looked at, and at which bounds ------------------------------------------------------

RAMP = np.linspace(-2.0, -0.5, 30)


def put(values: dict[int, float]) -> np.ndarray:
    """The ramp with other values at some places."""
    column = RAMP.copy()
    column[list(values)] = list(values.values())
    return column


@each("exchanged", [True, False])
@each(
    ("one", "other", "suspicious"),
    [
        (RAMP, RAMP, False),
        (RAMP, RAMP - 0.1, False),
        (put({3: -22.5, 4: -30.0}), put({3: -1.0, 4: -30.0}), True),
        (put({3: -20.5, 4: -30.0}), put({3: -1.0, 4: -30.0}), False),
        (put({3: -51.0}), put({3: -45.0}), True),
        (put({3: -49.0}), put({3: -45.0}), False),
        (put({3: 0.0, 4: 0.0, 5: 0.0}), put({3: -0.31, 4: -0.31, 5: -0.31}), True),
        (put({3: 0.0, 4: 0.0, 5: 0.0}), put({3: -0.31, 4: -0.31, 5: -0.29}), False),
        (put({3: 0.0, 4: 0.0}), put({3: -0.31, 4: -0.31}), False),
        (RAMP, RAMP[::-1], True),
    ],
)
def test_what_may_be_wrong(one, other, suspicious, exchanged):
    """Ratios beyond e^±20, log-probs below −50, three zeros where the other is below −0.3."""
    assert _suspicious(*((other, one) if exchanged else (one, other))) == suspicious


@each(("correlation", "suspicious"), [(0.29, True), (0.31, False), (-0.9, True)])
@each("scale", [0.1, 1.0])
def test_columns_that_go_little_together(correlation, suspicious, scale):
    """Below a correlation of 0.3."""
    one = np.tile([1.0, -1.0], 16)
    rest = np.repeat([1.0, -1.0], 16)
    other = scale * (correlation * one + np.sqrt(1 - correlation**2) * rest)
    assert np.corrcoef(one, other)[0, 1] == pytest.approx(correlation)
    assert _suspicious(one - 3.0, other - 5.0) == suspicious


@each(
    ("most", "widths"),
    [(1000, [40] * 4), (160, [40] * 4), (121, [40, 40, 40, 1]), (100, [40, 40, 20, 0]), (30, [30])],
)
def test_how_many_tokens_are_looked_at(tmp_path, monkeypatch, most, widths):
    """Those of the first record, from the first on."""
    monkeypatch.setattr("grpo_cli.commands.check.first_record._MOST", most)
    (chunk,) = Reader([written(tmp_path, near, more=2)])
    assert _widths(chunk).tolist() == [*widths, 0, 0, 0][:4]


def test_the_first_16384_tokens_are_looked_at(tmp_path):
    for length, words in ((16381, True), (16384, False)):
        row = [-1.0 - (at % 7) / 8 for at in range(length)]
        old = [*row, *[0.0] * 3]
        record = {"log_probs_new": [[*row, *[-1.0] * 3]], "log_probs_old": [old], "rewards": [1.0]}
        path = tmp_path / "long.jsonl"
        path.write_bytes(orjson.dumps(record))
        assert bool([line for chunk in Reader([str(path)]) for line in first_error(chunk)]) is words


@each(("tokens", "is_told"), [(23, False), (24, True)])
def test_fewer_than_24_tokens_are_too_few(tmp_path, tokens, is_told):
    record = {"log_probs_new": [[-1.0] * tokens], "log_probs_old": [[-30.0] * tokens]}
    path = tmp_path / "few.jsonl"
    path.write_bytes(orjson.dumps(record | {"rewards": [1.0]}))
    assert bool([line for chunk in Reader([str(path)]) for line in first_error(chunk)]) is is_told
