"""Folders, files whose records alternate, and batches."""

from __future__ import annotations

import json
import re
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import answer, run
from files import expressions
from hypothesis import given
from hypothesis import strategies as st

from grpo_cli import evaluate
from grpo_cli.batch import Batch

# ---- folders, and files whose records alternate --------------------------------------------------


# ---- folders and patterns stand for the files of records in them, in natural order ---------------


RECORD = '{"log_probs": [[-1.0, -2.0], [-0.5]], "advantages": [1.0, -1.0]}\n'


def fill(folder: Path, *names: str) -> None:
    for name in names:
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(RECORD)


def files(folder: Path, wanted: str = "") -> list[str]:
    """The files of a folder that are read, in their order, or the message."""
    result = run("eval", folder / wanted, "-qp", "beta=0", "--only", "source")
    assert result.exit_code == (0 if result.stdout else 3)
    said = (result.stdout or result.stderr).replace(f"{folder}/", "")
    return said.replace(str(folder), "x").splitlines()


def test_which_files_are_read(tmp_path: Path) -> None:
    folders = (tmp_path / str(number) for number in count())

    def read(wanted: str, *names: str) -> list[str]:
        folder = next(folders)
        folder.mkdir()
        fill(folder, *names)
        return files(folder, wanted)

    expressions(Path(__file__).with_name("cases") / "folders.txt", {"read": read})


def test_of_many_files_that_cannot_be_read_some_are_named(tmp_path: Path) -> None:
    fill(tmp_path, "0.jsonl")
    for at in range(7):
        (tmp_path / f"empty{at}.jsonl").touch()
        (tmp_path / f"link{at}.jsonl").symlink_to("gone.jsonl")
    said = run("eval", tmp_path).stderr
    assert said.count("is empty; skipped") == 5
    assert "… 2 more empty files skipped" in said
    assert said.count("is a link to gone.jsonl, which does not exist") == 5
    assert said.endswith("grpo: … 2 more files cannot be read\n")


def test_a_folder_that_is_elsewhere(tmp_path: Path) -> None:
    fill(tmp_path / "a", "b/2.jsonl", "b/c/3.jsonl")
    (tmp_path / "d").mkdir()
    (tmp_path / "d/link").symlink_to(tmp_path / "a/b")
    assert files(tmp_path / "d") == ["link/2.jsonl", "link/c/3.jsonl"]


# ---- records whose settings alternate are evaluated together where only totals are printed -------


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


# ---- records as a batch: side by side, padded, nested, many at once and one by one ---------------


TOKENS = ("log_probs_new", "log_probs_old", "entropies", "token_advantages")
ARRAYS = (*TOKENS, "advantages", "rewards", "reward_baselines", "last_masked")
LOGS = {"logps": [[-1, -1], [-1, -1], [], [-1]], "rewards": [1, 0, 1, 0]}


def batch(*records: dict[str, Any]) -> Batch:
    return evaluate([json.loads(json.dumps(one)) for one in records]).breakdown.batch


def same(one: Batch, other: Batch, *, positions: bool = True) -> None:
    assert one.responses.lengths.tolist() == other.responses.lengths.tolist()
    assert one.records.lengths.tolist() == other.records.lengths.tolist()
    assert one.groups.tolist() == other.groups.tolist()
    assert one.group_count == other.group_count
    for name in (*ARRAYS, "positions") if positions else ARRAYS[:-1]:
        a, b = getattr(one, name), getattr(other, name)
        assert (a is None) == (b is None)
        assert a is None or (a.dtype == b.dtype and a.tobytes() == b.tobytes())


def test_records_side_by_side():
    one = {"logps": [[-1, -2], [-3]], "rewards": [1, 2], "uid": ["a", "b"], "mask": [[1, 1], [1]]}
    two = {"logps": [[-4], [-5]], "rewards": [3, 4], "uid": ["c", "c"], "mask": [[0], [1]]}
    three = {"logps": [[-6], [-7]], "rewards": [5, 6], "uid": ["b", "a"], "mask": [[1], [1]]}
    found = batch(one, two, three)
    assert found.responses.lengths.tolist() == [2, 1, 0, 1, 1, 1]
    assert found.records.lengths.tolist() == [2, 2, 2]
    assert (found.groups.tolist(), found.group_count) == ([0, 1, 2, 2, 3, 4], 5)
    assert found.log_probs_new.tolist() == [-1, -2, -3, -5, -6, -7]
    assert found.log_probs_old is found.log_probs_new
    assert found.rewards.tolist() == [1, 2, 3, 4, 5, 6]
    assert found.positions is None
    by_function = LOGS | {"rewards": {"a": [1, 2, 3, 4], "b": [5, 6, 7, 8]}}
    found = batch(by_function, by_function)
    assert found.rewards.tolist() == [[1, 5], [2, 6], [3, 7], [4, 8]] * 2
    assert found.reward_names == ("a", "b")


def test_positions_are_those_that_the_user_wrote():
    mask = [[0, 1, 1], [1, 0, 1]]
    found = batch({"logps": [[9, -1, -2], [-3, 9, -4]], "mask": mask, "rewards": [1, 0]})
    assert found.positions.tolist() == [1, 2, 0, 2]
    assert found.positions.dtype == np.int64


def test_which_responses_end_with_a_masked_token():
    found = batch(LOGS | {"mask": [[1, 0], [0, 1], [], [0]]})
    assert found.last_masked.tolist() == [True, False, False, True]
    for mask in ([[1, 1], [0, 1], [], [1]], [[1, 1], [1, 1], [], [1]]):
        assert batch(LOGS | {"mask": mask}).last_masked is None


log_prob = st.floats(-50, 0)
response = st.lists(st.tuples(log_prob, log_prob, st.floats(0, 9)), max_size=5)
junk = st.sampled_from([None, float("nan"), float("inf"), 3.5, -1, 0, True])
bit = st.sampled_from([(0, 1), (False, True), (0.0, 1.0)])
NAMES = ("logps", "old_log_probs", "entropy", "advantages")


@st.composite
def padded(draw: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A ragged record, and the same with masked junk in between."""
    rows = draw(st.lists(response, min_size=1, max_size=4))
    off, on = draw(bit)
    ragged: dict[str, Any] = {name: [] for name in NAMES}
    full: dict[str, Any] = {name: [] for name in (*NAMES, "mask")}
    for row in rows:
        marks = draw(st.permutations([on] * len(row) + [off] * draw(st.integers(0, 3))))
        kept = iter(row)
        values = [(*next(kept), 1.0) if mark else draw(st.tuples(*[junk] * 4)) for mark in marks]
        for at, name in enumerate(NAMES):
            ragged[name].append([(*one, 1.0)[at] for one in row])
            full[name].append([one[at] for one in values])
        full["mask"].append(list(marks))
    return ragged, full


@given(padded())
def test_padding_with_masked_junk_changes_nothing(pair):
    ragged, full = pair
    same(batch(ragged), batch(full), positions=False)


@pytest.mark.more
@given(padded(), st.integers(0, 4))
def test_padding_at_the_end_changes_nothing_but_what_says_so(pair, more):
    ragged, _ = pair
    full = {name: [row + [None] * more for row in ragged[name]] for name in NAMES}
    full["mask"] = [[1] * len(row) + [0] * more for row in ragged["logps"]]
    same(batch(ragged), batch(full), positions=more == 0)
    assert batch(full).positions is None


@pytest.mark.more
@given(st.lists(padded(), min_size=1, max_size=3), st.booleans(), st.booleans(), st.data())
def test_many_at_once_are_as_one_by_one(pairs, full, groups, data):
    """Groups that are nested are read one by one."""
    many, nested = [], []
    for pair in pairs:
        record = {name: value for name, value in pair[full].items() if name != "entropy"}
        if not any(record["logps"]):
            return  # without a token, [[]] could be two levels or three
        size = len(record["logps"])
        more: dict[str, Any] = {}
        if groups:
            label = st.sampled_from(["a", "b"])
            more = {"rewards": [0.5] * size, "uid": data.draw(label)}
        many.append(record | more)
        nested.append({name: [value] for name, value in record.items()} | more)
    same(batch(*many), batch(*nested))


@given(
    st.lists(
        st.lists(st.lists(log_prob, max_size=3), min_size=1, max_size=3), min_size=1, max_size=3
    )
)
def test_nested_groups_are_group_ids(groups):
    if not any(row for group in groups for row in group):
        return
    flat = [row for group in groups for row in group]
    ids = [number for number, group in enumerate(groups) for _ in group]
    scores = {"rewards": [1.0] * len(flat)}
    same(batch({"logps": groups} | scores), batch({"logps": flat, "group_ids": ids} | scores))


@given(st.lists(response, min_size=1, max_size=4).flatmap(
    lambda rows: st.tuples(st.just(rows), st.permutations(range(len(rows))))
))  # fmt: skip
def test_the_order_of_responses_changes_no_value(pair):
    rows, order = pair
    column, rewards = [[one[0] for one in row] for row in rows], [1.0] * len(rows)
    plain = batch({"logps": column, "rewards": rewards})
    moved = batch({"logps": [column[at] for at in order], "rewards": rewards})
    cut = np.split(plain.log_probs_new, plain.responses.starts[1:])
    assert np.concatenate([cut[at] for at in order]).tobytes() == moved.log_probs_new.tobytes()


@pytest.mark.parametrize("more", [{"entropy": [[1]]}, {"beta": 0.2}, {"advantages": [[1]]}])
@pytest.mark.parametrize("nested", [False, True])
def test_records_that_cannot_be_mixed_are_evaluated_apart(more, nested):
    one = {"logps": [[-1.0]], "rewards": [1], "log_probs_ref": [[-2.0]]}
    other = one | more
    if nested:
        one, other = ({k: v if k in ("rewards", "beta") else [v] for k, v in each.items()}
                      for each in (one, other))  # fmt: skip
    apart = [evaluate(each).total["objective"] for each in (one, other)]
    assert evaluate([one, other]).total["objective"] == pytest.approx(sum(apart) / 2, abs=1e-15)
