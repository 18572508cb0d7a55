"""Which records are compared together, and which findings are printed in which order."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import orjson
import pytest
from command import answer
from files import each

from grpo_cli import check

Row = dict[str, Any]


def shifted(seed: int, widths: tuple[int, ...] = (4, 4), **more: Any) -> Row:
    """A record whose old log-probs are those of the next token."""
    draw = random.Random(seed)
    new = [[-draw.expovariate(0.5) - 0.01 for _ in range(width)] for width in widths]
    old = [[*row[1:], -1.0] for row in new]
    rewards = [float(at % 2) for at in range(len(widths))]
    return {"log_probs_new": new, "log_probs_old": old, "rewards": rewards, **more}


def said(rows: list[Row], code: str = "shifted") -> list[tuple[Any, Any]]:
    """Record and number of records of the findings of a code."""
    found = [one for one in check(rows, limit=0).findings if one.code == code]
    return [(one.record, one.evidence.get("records")) for one in found]


MANY = [shifted(seed) for seed in range(200)]
APART = shifted(7, (64, 64))
OTHERS = [shifted(seed, entropies=[[0.5] * 4, [0.5] * 4]) for seed in range(30)]


@each(
    ("rows", "wanted"),
    [
        # those on 64 consecutive lines
        (MANY, [(0, 64), (64, 64), (128, 64), (192, 8)]),
        # not with records of another layout, nor with those behind them
        ([*MANY[:70], *OTHERS, *MANY[70:140]], [(0, 64), (64, 6), (70, 30), (100, 28), (128, 42)]),
        # records of 128 tokens on their own, and not counted with small ones
        ([shifted(seed, (63, 63)) for seed in range(30)], [(0, 30)]),
        ([shifted(seed, (64, 64)) for seed in range(3)], [(0, None), (1, None), (2, None)]),
        ([*MANY[:20], APART, *MANY[20:40]], [(0, 40), (20, None)]),
        # how many records there are is in the evidence of several alone
        ([shifted(1, (60,))], [(0, None)]),
        ([shifted(1, (60,)), shifted(2, (60,))], [(0, 2)]),
        # not records without tokens that count
        ([row | {"mask": [[int(at % 4 != 1)] * 4] * 2} for at, row in enumerate(MANY[:40])],
         [(0, 30)]),
    ],
)  # fmt: skip
def test_small_records_are_compared_together(rows, wanted):
    assert said(rows) == wanted


@pytest.fixture
def written(tmp_path: Path):
    def write(*files: list[Row]) -> list[str]:
        paths = [tmp_path / f"{number}.jsonl" for number in range(len(files))]
        for path, rows in zip(paths, files, strict=True):
            path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
        return [*map(str, paths)]

    return write


def test_records_of_two_files_are_not_compared_together(written):
    found = answer("check", *written(MANY[:20], MANY[20:60], MANY[60:90]), "--limit", "0")
    told = [(one["source"][-7], one["record"], one["evidence"]["records"])
            for one in found["findings"] if one["code"] == "shifted"]  # fmt: skip
    assert told == [("0", 0, 20), ("1", 0, 40), ("2", 0, 30)]


@each("more", [{}, {"note": None}])
def test_masked_tokens_of_small_records_are_not_compared(more):
    """They hold a filler in the one column, and the others agree; some masks take nothing."""
    rows = []
    for at, row in enumerate(MANY[:40]):
        mask = [[1, 1, 1, int(at % 3 == 0)]] * 2
        old = [[x - 0.01 for x in one] for one in row["log_probs_new"]]
        for one in old:
            one[3] = one[3] if mask[0][3] else -100.0
        rows.append(row | more | {"mask": mask, "log_probs_old": old})
    assert said(rows, "filler") == []
    assert said(rows, "constant-log-ratio") == [(0, 40)]
    assert said([{k: row[k] for k in row if k != "mask"} for row in rows], "filler") == [(1, 40)]


def test_a_finding_in_the_midst_of_records_that_are_compared_together():
    rows = [row | {"log_probs_old": row["log_probs_new"]} for row in MANY[:100]]
    far = [[-30.0, *one[1:]] for one in rows[70]["log_probs_new"]]
    rows[70] = rows[70] | {"log_probs_old": far}
    assert said(rows, "extreme-ratio") == [(70, 36)]


def single(at: int, **more: Any) -> Row:
    """A record of a response that teaches nothing."""
    new = [[-1.0 - at / 8, -2.0, -0.5]]
    return {"log_probs_new": new, "log_probs_old": [[-1.5, -1.0, -0.25]], "rewards": [1.0], **more}


@each("limit", [0, 1, 2])
def test_findings_are_in_the_order_of_files_and_records(written, limit):
    """Those too that only the whole input shows, which are where their record is."""
    bad = {"log_probs_new": [[0.5, -1.0, -1.0]]}
    torn = [single(at, group_ids=["q"]) for at in (1, 2)]
    first = [single(0) | bad, *torn, single(3) | bad]
    second = [single(4) | bad, single(5)]
    found = answer("check", *written(first, second), "--limit", limit)
    rows = [(one["source"][-7], one["record"], one["code"]) for one in found["findings"]]
    bad_records = [("0", 0), ("0", 3), ("1", 0)][: limit or 3]
    wanted = sorted([*((*place, "probabilities") for place in bad_records), ("0", 2, "torn-group")])
    assert [row for row in rows if row[2] in ("probabilities", "torn-group")] == wanted
    assert found["counts"]["probabilities"] == 3
    assert found["more"].get("probabilities", 0) == (3 - limit if limit else 0)
