"""Turns of agents: clean batches are clean, and mistakes of turns are named."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from command import answer
from files import each

sys.path.insert(0, str(Path(__file__).parent / "benchmarks"))

from trials.product import lines
from trials.turns.faults import FAULTS, Fault, planted
from trials.turns.kinds import KINDS, dumped
from trials.turns.wrong import WRONG, Wrong, mistaken


def test_clean_batches_of_agents_have_no_fault(tmp_path: Path) -> None:
    """Every layout and every credit that frameworks have, in one file."""
    path = tmp_path / "clean.jsonl"
    every = [
        record
        for seed, kind in enumerate(KINDS)
        for record in dumped(kind, np.random.default_rng(seed), kind.name)
    ]
    path.write_bytes(lines(every))
    document = answer("check", path, "--limit", 0)
    assert document["records"] == len(KINDS)
    loud = [one for one in document["findings"] if one["severity"] != "info"]
    assert [(one["record"], one["code"]) for one in loud] == []


@each("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_of_turns_is_named(fault: Fault, tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    path = tmp_path / "fault.jsonl"
    path.write_bytes(lines(planted(fault, fault.strengths[0], fault.kinds[0], random, "planted")))
    found = answer("check", path)["findings"]
    loud = {one["code"] for one in found if one["severity"] != "info"}
    assert loud & {*fault.codes}
    assert loud - {*fault.codes} <= {"singleton-group"}


@each("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_a_wrong_implementation_is_explained(wrong: Wrong, tmp_path: Path) -> None:
    for at, change in enumerate((wrong, None)):
        record = mistaken(change, wrong.kinds[0], np.random.default_rng(5), "record")
        path = tmp_path / f"{at}.jsonl"
        path.write_bytes(lines([record]))
        document = answer("verify", path)
        assert document["agrees"] == (change is None)
        (row,) = document["records"]
        if change is not None:
            assert row["first"]["mistakes"][0] == wrong.row


def rows(**columns: object) -> dict[str, object]:
    """Two tasks of three attempts, of which the second has three turns, a response each."""
    names = [f"{task}.{turn}" for task in "ab" for turn in (0, 1, 1, 1, 2)]
    found = {
        "log_probs_new": [[-0.5, -0.1, -0.7]] * 10,
        "group_ids": [name[0] for name in names],
        "trajectory_ids": names,
        "rewards": [1, 0, 0, 0, 1, 0, 1, 1, 1, 0],
    }
    return found | columns


@pytest.mark.parametrize(
    ("baselines", "code"),
    [((2 / 5, 3 / 5), "turns-counted"), ((2 / 3, 1 / 3), None), ((0.5, 0.5), None)],
)
def test_the_baseline_is_read_off_the_advantages(
    baselines: tuple[float, float], code: str | None, tmp_path: Path
) -> None:
    """By hand: means over turns are 2/5 and 3/5, over trajectories 2/3 and 1/3; ½ is neither."""
    record = rows()
    taken = np.repeat(baselines, 5)
    record["advantages"] = (np.array(record["rewards"]) - taken).tolist()
    path = tmp_path / "rows.jsonl"
    path.write_bytes(lines([record]))
    loud = {one["code"] for one in answer("check", path)["findings"] if one["severity"] != "info"}
    assert loud - {"duplicate"} == ({code} if code else set())
