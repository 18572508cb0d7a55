"""Turns of agents: clean batches are clean, and mistakes of turns are named."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pytest
from command import answer, run
from files import each
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
    assert "turns-missing" not in document["counts"]  # nor as an info, where half are sampled


@each("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_of_turns_is_named(fault: Fault, tmp_path: Path) -> None:
    """At its first and at its last strength, unless that is too weak to be sure."""
    for strength in {fault.strengths[0]: 0, fault.strengths[-1]: 0}:
        made = planted(fault, strength, fault.kinds[0], np.random.default_rng(5), "planted")
        path = tmp_path / "fault.jsonl"
        path.write_bytes(lines(made))
        found = answer("check", path)["findings"]
        loud = {one["code"] for one in found if one["severity"] != "info"}
        assert loud - {*fault.codes} <= {"singleton-group"}
        if fault.sure is None or strength in fault.sure:
            assert loud & {*fault.codes}


@each("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_a_wrong_implementation_is_explained(wrong: Wrong, tmp_path: Path) -> None:
    for at, change in enumerate((wrong, None)):
        record = mistaken(change, wrong.kinds[0], np.random.default_rng(5), "record")
        path = tmp_path / f"{at}.jsonl"
        path.write_bytes(lines([record]))
        document = answer("verify", path)
        assert document["ok"] == (change is None)
        (row,) = document["records"]
        if change is not None:
            assert row["first"]["mistakes"][0] == wrong.row
            assert re.search(wrong.said, row["first"]["causes"][0])


def test_a_loss_that_counts_turns_differs_from_a_row_that_counts_trajectories(
    tmp_path: Path,
) -> None:
    """The right loss of GRPO, which counts rows, beside a choice that counts each trajectory."""
    kind = next(wrong for wrong in WRONG if wrong.row == "turn-counted").kinds[0]
    path = tmp_path / "record.jsonl"
    path.write_bytes(lines([mistaken(None, kind, np.random.default_rng(5), "record")]))
    (row,) = answer("verify", path, "--advantage", "trajectory-group-std")["records"]
    first, *_ = row["first"]["causes"]
    assert first == "mean and std count a trajectory once for each of its turns"


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


def loud(record: dict[str, object], path: Path) -> set[str]:
    path.write_bytes(lines([record]))
    found = answer("check", path)["findings"]
    return {one["code"] for one in found if one["severity"] != "info"} - {"duplicate"}


@pytest.mark.parametrize(
    ("baselines", "code"),
    [((2 / 5, 3 / 5), "turns-counted"), ((2 / 3, 1 / 3), None), ((0.5, 0.5), None)],
)
def test_the_baseline_is_read_off_the_advantages(
    baselines: tuple[float, float], code: str | None, tmp_path: Path
) -> None:
    """By hand: means over turns are 2/5 and 3/5, over trajectories 2/3 and 1/3; ½ is neither."""
    record = rows()
    record["advantages"] = (np.array(record["rewards"]) - np.repeat(baselines, 5)).tolist()
    assert loud(record, tmp_path / "rows.jsonl") == ({code} if code else set())


@pytest.mark.parametrize(
    ("groups", "codes"),
    [
        (["a.0"] + ["a.1"] * 3 + ["a.2"] + ["b.0"] + ["b.1"] * 3 + ["b.2"], {"turn-groups"}),
        (["a"] * 5 + ["b.0"] + ["b.1"] * 3 + ["b.2"], set()),  # one task has all its attempts
        (["a"] * 5 + ["b"] * 5, set()),
    ],
)
def test_groups_hold_turns_of_several_trajectories(
    groups: list[str], codes: set[str], tmp_path: Path
) -> None:
    record = rows(group_ids=groups)
    assert loud(record, tmp_path / "rows.jsonl") - {"singleton-group"} == codes


@pytest.mark.parametrize(("first", "codes"), [(8, {"turn-rewards"}), (7, set())])
def test_the_outcome_is_on_the_first_turn_of_all_or_of_none(
    first: int, codes: set[str], tmp_path: Path
) -> None:
    """Eight trajectories of two turns, of which so many have their reward on the first."""
    rewards = [[1.0, 0.0] if at < first else [0.0, 1.0] for at in range(8)]
    record = {
        "log_probs_new": [[-0.5, -0.1 * at - 0.1, -0.7, -0.2] for at in range(8)],
        "turn_ids": [[0, 0, 1, 1]] * 8,
        "turn_rewards": rewards,
        "group_ids": [0] * 8,
    }
    assert loud(record, tmp_path / "turns.jsonl") == codes


def test_records_without_any_token_that_counts_are_checked(tmp_path: Path) -> None:
    """All is masked, with advantages by token; and prompts that are no lists."""
    every = [[0.0, 0.0]] * 3
    record = {"log_probs_new": every, "advantages": every, "mask": [[0, 0]] * 3, "rewards": [1] * 3}
    assert loud(record, tmp_path / "masked.jsonl") <= {"mask"}
    ids = [[at, at + 1, at + 2] for at in range(10)]
    record = rows(token_ids=ids, prompt_ids=[None] * 10)
    assert loud(record, tmp_path / "prompts.jsonl") == set()


# ---- threads -------------------------------------------------------------------------------------


SAMPLES = Path(__file__).parents[1] / "samples" / "threads"
TABLE = SAMPLES / "turns.csv"
"""The threads: name, what each is about, the command, what that says, and the finding's code."""

with TABLE.open(newline="", encoding="utf-8") as text:
    THREADS = [*csv.DictReader(text)]


def named(thread: str) -> str:
    """The name of a thread's file."""
    return re.sub("[^a-z0-9]+", "-", thread.lower())


@each("thread", THREADS, ids=lambda thread: thread["name"])
def test_the_command_answers_the_thread_and_names_nothing_else(thread: dict[str, str]) -> None:
    command, *flags = thread["command"].split()
    path, says = SAMPLES / "turns" / f"{named(thread['name'])}.jsonl", thread["says"]
    if command == "eval":
        assert says.replace(r"\n", "\n") in run(command, path, *flags).stdout
        return
    document = answer(command, path)
    if command == "verify":
        (first,) = {record["first"]["cause"] for record in document["records"]}
        assert says in first
        return
    loud = [one for one in document["findings"] if one["severity"] != "info"]
    assert {one["code"] for one in loud} - {"singleton-group"} == {thread["code"]}
    assert any(says in one["message"] for one in loud)


def test_every_sample_belongs_to_a_thread_and_the_page_lists_it() -> None:
    page = (SAMPLES / "README.md").read_text("utf-8")
    files = {named(thread["name"]) for thread in THREADS}
    assert {path.stem for path in (SAMPLES / "turns").iterdir()} == files
    for thread in THREADS:
        command, *flags = thread["command"].split()
        asked = " ".join([command, f"turns/{named(thread['name'])}.jsonl", *flags])
        assert f"grpo {asked}" in page
