"""The check of the first record, which ``eval`` repeats in one line."""

from __future__ import annotations

import numpy as np
import orjson
from command import run
from files import each


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
    result = run("eval", path, "--beta", "0", "--level", "batch", *flags)
    assert result.exit_code == 0
    return [line for line in result.stderr.splitlines() if "grpo check" in line]


@each(
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
    assert line.endswith("(run grpo check for all findings)")
    assert run("check", path).exit_code == 1
    assert told(path, "-q") == []


def test_the_first_record_alone_is_looked_at_whichever_process_reads_it(tmp_path):
    path = written(tmp_path, foreign, more=40)
    assert told(path, "--jobs", "1") == told(path, "--jobs", "2")
    assert told(written(tmp_path, foreign, sane_before=1)) == []


# ---- at the bounds -------------------------------------------------------------------------------


def told_of(tmp_path, new, old, **more):
    path = tmp_path / "bounds.jsonl"
    record = {"log_probs_new": [[*new]], "log_probs_old": [[*old]], "rewards": [1.0]} | more
    path.write_bytes(orjson.dumps(record))
    return bool(told(str(path)))


RAMP = np.linspace(-2.0, -0.5, 30).tolist()


def put(**values):
    """The ramp with other values at some places: ``at3=-22.5``."""
    return [values.get(f"at{place}", one) for place, one in enumerate(RAMP)]


LONG = [-1.0 - (at % 7) / 8 for at in range(16384)]
THREE = dict.fromkeys(("at3", "at4", "at5"), -0.6)


@each("exchanged", [True, False])
@each(
    ("one", "other", "found"),
    [
        (RAMP, RAMP, False),
        (RAMP, [x - 0.1 for x in RAMP], False),
        (put(at3=-22.5), put(at3=-1.0), True),
        (put(at3=-20.5), put(at3=-1.0), False),
        (put(at3=-51.0, at4=-51.0, at5=-51.0), put(at3=-45.0, at4=-45.0, at5=-45.0), False),
        (put(**dict.fromkeys(THREE, 0.0)), put(**THREE), True),
        (put(**dict.fromkeys(THREE, 0.0)), put(**THREE | {"at3": -0.29}), False),
        (RAMP, RAMP[::-1], True),
        *(([-1.0] * tokens, [-30.0] * tokens, tokens >= 24) for tokens in (23, 24)),
        # the first 16,384 tokens are looked at
        *(([*LONG[:n], *[-1.0] * 3], [*LONG[:n], *[0.0] * 3], n < 16384) for n in (16381, 16384)),
    ],
)
def test_what_is_repeated_at_the_bounds_of_its_rule(tmp_path, one, other, found, exchanged):
    assert told_of(tmp_path, *((other, one) if exchanged else (one, other))) == found
