"""Records whose settings alternate are evaluated together where only totals are printed."""

from __future__ import annotations

import json
import re

import pytest
from command import answer, run

LENGTHS = (1, 3, 2, 4)


def record(at: int, **more: object) -> dict[str, object]:
    rows = [[-0.1 - 0.01 * (at % 7) - 0.2 * t for t in range(length)] for length in LENGTHS]
    return {
        "id": at,
        "log_probs_new": rows,
        "log_probs_old": [[one * 1.3 for one in row] for row in rows],
        "log_probs_ref": [[one * 0.9 for one in row] for row in rows],
        "rewards": [1.0, 0.0, 0.5, float(at % 3)],
        "epsilon": 0.1 * (1 + at % 3),
        "beta": 0.01 * (at % 4),
        **more,
    }


def write(path, records):
    path.write_text("".join(f"{json.dumps(one)}\n" for one in records))
    return path


def test_totals_do_not_depend_on_the_order_of_records(tmp_path):
    records = [record(at) for at in range(60)]
    sorted_ones = sorted(records, key=lambda one: (one["epsilon"], one["beta"]))
    found, expected = (
        answer("eval", write(tmp_path / "a.jsonl", some), "--level", "batch")
        for some in (records, sorted_ones)
    )
    assert found["total"] == expected["total"]
    rows = answer("eval", write(tmp_path / "a.jsonl", records), "--level", "record")
    assert rows["total"] == found["total"]
    assert [one["id"] for one in rows["records"]] == [*range(60)]


@pytest.mark.parametrize("level", ["batch", "record"])
@pytest.mark.parametrize("advantage", ["group-std", "batch-whiten"])
def test_bad_records_are_named_in_their_order(tmp_path, level, advantage):
    """One that cannot be packed, one out of range, one that cannot be evaluated."""
    records = [record(at) for at in range(30)]
    records[17] = record(17, log_probs_old=[[-1.0], [-2.0] * 3, [0.5] * 2, [-1.0] * 4])
    records[9] = record(9, log_probs_old=[[-1.0], [-1e305] * 3, [-1.0] * 2, [-1.0] * 4])
    records[22] = record(22, rewards=[1.0, "a", 0.0, 0.0])
    path = write(tmp_path / "a.jsonl", records)
    stopped = run("eval", path, "--level", level, "--advantage", advantage)
    assert stopped.exit_code == 3
    assert "a.jsonl:10: " in stopped.stderr
    skipped = run("eval", path, "--level", level, "--advantage", advantage, "--on-error", "skip")
    assert re.findall(r"a\.jsonl:(\d+): ", skipped.stderr) == ["10", "18", "23"]


def test_one_that_cannot_be_evaluated_is_left_out_alone(tmp_path):
    records = [record(at) for at in range(30)]
    wrong = record(9, log_probs_old=[[-1.0], [-1e305] * 3, [-1.0] * 2, [-1.0] * 4])
    path = write(tmp_path / "a.jsonl", [*records[:9], wrong, *records[10:]])
    found = run("eval", path, "--level", "batch", "--on-error", "skip", "--only", "objective")
    assert re.findall(r"a\.jsonl:(\d+): ", found.stderr) == ["10"]
    without = write(tmp_path / "b.jsonl", records[:9] + records[10:])
    assert found.stdout == run("eval", without, "--level", "batch", "--only", "objective").stdout


def test_a_reference_that_alternates_is_refused(tmp_path):
    """The first record without one is named, though it is evaluated with later ones."""
    records = [record(at) for at in range(12)]
    for at in (5, 7, 11):
        del records[at]["log_probs_ref"]
    for one in records:
        del one["beta"]
    path = write(tmp_path / "a.jsonl", records)
    for level in ("batch", "record"):
        found = run("eval", path, "--level", level)
        assert (found.exit_code, "a.jsonl:6: " in found.stderr) == (3, True)
