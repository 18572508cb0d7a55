"""``grpo diff``: where two runs that should be one part."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_cli.commands.diff.diff import RunDiff, RunStep, compare, pair
from grpo_cli.commands.main import application
from grpo_cli.commands.trend.origins import StepSource
from grpo_cli.engine import Reader
from grpo_cli.errors import UsageError
from grpo_cli.records import Record, parse
from grpo_cli.records.open.folders import files

Records = list[dict[str, Any]]


def run() -> Records:
    draw = random.Random(1)
    found: Records = []
    for step in range(3):
        for number in range(2):
            widths = [draw.randint(1, 5) for _ in range(3)]
            rows = [[-draw.random() - 0.01 for _ in range(width)] for width in widths]
            found.append(
                {
                    "id": f"{step}/{number}",
                    "step": step,
                    "tokens": [[draw.choice("abc") for _ in row] for row in rows],
                    "log_probs_new": rows,
                    "log_probs_rollout": [[*row] for row in rows],
                    "rewards": [draw.random() for _ in rows],
                    "group_ids": ["p", "p", "q"],
                    "hyperparameters": {"beta": 0.0},
                }
            )
    return found


def write(folder: Path, records: Records) -> Reader:
    folder.mkdir()
    for step in {one["step"] for one in records}:
        lines = [json.dumps(one) for one in records if one["step"] == step]
        (folder / f"{step}.jsonl").write_text("\n".join(lines))
    return Reader(files([str(folder)]))


def answer(tmp_path: Path, change: Callable[[Records], Any], tolerance: float = 0.0) -> RunDiff:
    other = copy.deepcopy(run())
    change(other)
    first, second = write(tmp_path / "a", run()), write(tmp_path / "b", other)
    return compare(first, second, StepSource(), tolerance)


def test_a_run_and_itself_are_one(tmp_path: Path) -> None:
    found = answer(tmp_path, lambda records: None)
    assert found.same
    assert (found.steps, found.records, found.agreed_until) == (3, 6, 2)


def test_records_are_found_by_their_id(tmp_path: Path) -> None:
    assert answer(tmp_path, lambda records: records.reverse()).same


def at(records: Records) -> dict[str, Any]:
    return next(one for one in records if one["id"] == "1/1")


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], Any], str, Any, Any]] = {
    "token": (lambda one: one["tokens"][2].__setitem__(0, "z"), "tokens", 2, 0),
    "engine": (
        lambda one: one["log_probs_rollout"][1].__setitem__(0, -9),
        "log_probs_rollout",
        1,
        0,
    ),
    "reward": (lambda one: one["rewards"].__setitem__(2, 5.0), "rewards", 2, None),
    "policy": (lambda one: one["log_probs_new"][0].__setitem__(-1, -9), "log_probs_new", 0, -1),
    "groups": (lambda one: one.update(group_ids=["p", "q", "q"]), "groups", 1, None),
    "setting": (
        lambda one: one.update(hyperparameters={"beta": 0.1}),
        "hyperparameters",
        None,
        None,
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_parts_is_told_with_its_place(change: str, tmp_path: Path) -> None:
    do, column, response, token = CHANGES[change]
    found = answer(tmp_path, lambda records: do(at(records)))
    (parting,) = found.partings
    width = len(at(run())["tokens"][response or 0])
    assert found.agreed_until == 0
    assert (parting.column, parting.step, parting.record) == (column, 1, "1/1")
    assert parting.response == response
    assert parting.token == (width - 1 if token == -1 else token)
    assert parting.group == {0: "p", 1: "p", 2: "q"}.get(response if response is not None else -1)


def test_causes_stand_before_effects(tmp_path: Path) -> None:
    def change(records: Records) -> None:
        at(records)["log_probs_new"][0][0] -= 1.0
        at(records)["rewards"][2] += 1.0

    assert [one.column for one in answer(tmp_path, change).partings] == ["rewards", "log_probs_new"]


def test_tolerance(tmp_path: Path) -> None:
    def change(records: Records) -> None:
        at(records)["rewards"][0] += 1e-7

    assert answer(tmp_path, change, 1e-6).same


def test_steps_and_responses_that_one_run_lacks(tmp_path: Path) -> None:
    found = answer(tmp_path, lambda records: [records.pop() for _ in range(2)])
    assert found.only == [RunStep(1, 2)]
    assert not found.same

    def shorten(records: Records) -> None:
        for name in ("tokens", "log_probs_new", "log_probs_rollout", "rewards", "group_ids"):
            del at(records)[name][2]

    (tmp_path / "more").mkdir()
    (parting,) = answer(tmp_path / "more", shorten).partings
    assert (parting.column, parting.first, parting.second) == ("responses", 3, 2)


def test_names_of_groups_are_none_of_their_members(tmp_path: Path) -> None:
    assert answer(tmp_path, lambda records: at(records).update(group_ids=["x", "x", "y"])).same


def test_responses_in_another_order_are_told_so(tmp_path: Path) -> None:
    def swap(records: Records) -> None:
        for name in ("tokens", "log_probs_new", "log_probs_rollout", "rewards"):
            rows = at(records)[name]
            rows[0], rows[1] = rows[1], rows[0]

    meaning = answer(tmp_path, swap).partings[0].meaning
    assert meaning == "what was sampled: the same responses in another order"


def unnamed(records: Records) -> None:
    for one in records:
        del one["id"]


def written(tmp_path: Path, first: Records, second: Records) -> RunDiff:
    readers = write(tmp_path / "a", first), write(tmp_path / "b", second)
    return compare(*readers, StepSource(), 0.0)


def test_rollouts_that_came_in_another_order_are_the_same_run(tmp_path: Path) -> None:
    first = run()
    unnamed(first)
    found = written(tmp_path, first, first[::-1])
    assert found.same
    assert [*found.notes] == ["records are paired by what was sampled"]


@pytest.mark.parametrize("names", [True, False])
def test_a_record_that_one_run_lost_is_told_and_no_other(names: bool, tmp_path: Path) -> None:
    first = run()
    if not names:
        unnamed(first)
    found = written(tmp_path, first, [one for at, one in enumerate(first) if at != 2])
    (parting,) = found.partings
    assert (parting.column, parting.step, parting.first, parting.second) == (
        *("records", 1, "there", "absent"),
    )
    assert parting.record == ("1/0" if names else 0)
    assert found.records == 3


def test_a_run_that_counts_its_steps_from_1_is_the_same_run(tmp_path: Path) -> None:
    def later(records: Records) -> None:
        for one in records:
            one["step"] += 1

    found = answer(tmp_path, later)
    assert found.same
    (note,) = found.notes
    assert "step 0 of run 1 is step 1 of run 2" in note


def test_a_run_that_went_on_elsewhere_is_not_moved(tmp_path: Path) -> None:
    found = answer(tmp_path, lambda records: records.__delitem__(slice(2)))
    assert (found.only, found.partings, [*found.notes]) == ([RunStep(1, 0)], [], [])


def test_two_runs_in_one_folder_are_no_run(tmp_path: Path) -> None:
    write(tmp_path / "a", run())
    (tmp_path / "b").mkdir()
    for name in ("x", "y"):
        write(tmp_path / "b" / name, run())
    readers = [Reader(files([str(tmp_path / name)])) for name in "ab"]
    with pytest.raises(UsageError, match="both have step 0: these are 2 runs"):
        compare(*readers, StepSource(), 0.0)


def test_the_command(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    answer(tmp_path, lambda records: at(records)["rewards"].__setitem__(0, 5.0))
    words = ["diff", str(tmp_path / "a"), str(tmp_path / "b")]
    assert application("diff")(words, standalone_mode=False) == 1
    out = capsysbinary.readouterr().out.decode()
    assert out.startswith("the runs part after step 0 ")
    assert "step 1, record 1/1, group p, response 0: rewards, the reward" in out
    assert application("diff")([*words, "--json"], standalone_mode=False) == 1
    document = json.loads(capsysbinary.readouterr().out)
    assert document["partings"][0]["second"] == 5.0
    assert not application("diff")(["diff", words[1], words[1]], standalone_mode=False)


def test_every_number_of_what_parts(tmp_path: Path) -> None:
    """The first place that is too far apart, and the largest distance of all in its record."""

    def change(records: Records) -> None:
        one = at(records)
        one["log_probs_new"][0][0] += 1e-9  # less than the tolerance
        one["log_probs_new"][1][-1] -= 0.25
        one["log_probs_new"][2][0] -= 0.5
        one["rewards"][1] += 0.125
        one["rewards"][2] -= 2.0
        one["group_ids"] = ["p", "q", "p"]
        one["hyperparameters"] = {"beta": 5e-7, "epsilon": 0.25, "dual_clip": 3.0}

    known = at(run())
    width = len(known["log_probs_new"][1])
    found = answer(tmp_path, change, 1e-6)
    assert (found.agreed_until, found.steps, found.records) == (0, 1, 4)
    tokens = [len(row) for one in run()[:4] for row in one["log_probs_new"]]
    assert found.tokens == sum(tokens)
    rows = [
        (one.column, one.response, one.token, one.first, one.second, one.difference)
        for one in found.partings
    ]
    new, reward = known["log_probs_new"][1][-1], known["rewards"][1]
    settings = {"epsilon_low": 0.25, "epsilon_high": 0.25, "dual_clip": 3.0}
    assert [row[:5] for row in rows] == [
        ("groups", 1, None, "with response 0", "with response 1"),
        ("rewards", 1, None, reward, reward + 0.125),
        ("hyperparameters", None, None, dict.fromkeys(settings), settings),
        ("log_probs_new", 1, width - 1, new, new - 0.25),
    ]
    sizes = [row[5] for row in rows]
    assert sizes == [None, pytest.approx(2.0), None, pytest.approx(0.5)]


def test_rewards_of_several_functions_part_at_their_response(tmp_path: Path) -> None:
    def several(records: Records) -> None:
        for one in records:
            one["rewards"] = [[reward, 1.0, -reward] for reward in one["rewards"]]

    first, second = run(), run()
    several(first)
    several(second)
    at(second)["rewards"][2][0] += 1.0
    (parting,) = written(tmp_path, first, second).partings
    assert (parting.response, parting.difference) == (2, pytest.approx(1.0))
    assert parting.first == at(first)["rewards"][2][0]
    at(second)["rewards"] = [row[:2] for row in at(second)["rewards"]]
    (tmp_path / "more").mkdir()
    (parting,) = written(tmp_path / "more", first, second).partings
    assert (parting.first, parting.second) == ("shape (3, 3)", "shape (3, 2)")


def test_a_response_that_is_longer_in_one_run(tmp_path: Path) -> None:
    def longer(records: Records) -> None:
        one = at(records)
        del one["tokens"]
        for name in ("log_probs_new", "log_probs_rollout"):
            one[name][1] = [*one[name][1], -0.5]

    found = answer(tmp_path, longer)
    width = len(at(run())["log_probs_new"][1])
    told = [(one.column, one.response, one.first, one.second) for one in found.partings]
    assert told == [
        ("tokens", None, "there", "absent"),
        ("log_probs_rollout", 1, f"{width} tokens", f"{width + 1} tokens"),
        ("log_probs_new", 1, f"{width} tokens", f"{width + 1} tokens"),
    ]
    (tmp_path / "more").mkdir()

    def with_token(records: Records) -> None:
        for name, more in (("tokens", "z"), ("log_probs_new", -0.5), ("log_probs_rollout", -0.5)):
            at(records)[name][1].append(more)

    parting = answer(tmp_path / "more", with_token).partings[0]
    assert (parting.token, parting.first, parting.second) == (width, "no token", "z")


def test_steps_that_either_run_has_alone(tmp_path: Path) -> None:
    def other(records: Records) -> None:
        del records[2:4]
        for one in records[2:]:
            one["step"] += 1

    found = answer(tmp_path, other)
    assert found.only == [RunStep(1, 1), RunStep(1, 2), RunStep(2, 3)]
    assert (found.steps, found.agreed_until, found.same) == (1, 0, False)


def in_orders(tmp_path: Path, *orders: list[int]) -> Any:
    """What there is to tell of a run's steps beside those in another order."""
    paths = []
    for at, order in enumerate(orders):
        lines = [json.dumps(one) for step in order for one in run()[2 * step : 2 * step + 2]]
        paths.append(tmp_path / f"{at}.jsonl")
        paths[-1].write_text("\n".join(lines))
    return compare(*(Reader([str(path)]) for path in paths), StepSource(), 0.0)


def test_steps_that_go_back_are_told(tmp_path: Path) -> None:
    found = in_orders(tmp_path, [0, 1, 2], [0, 2, 1])
    (note,) = found.notes
    assert note.startswith("the steps of run 2 go back from 2 to 1: ")


def test_an_advantage_of_a_response_is_that_of_its_tokens(tmp_path: Path) -> None:
    first, second = run(), run()
    for one in first:
        one["advantages"] = [1.0, -0.5, 0.25]
    for one in second:
        rows = zip((1.0, -0.5, 0.25), one["log_probs_new"], strict=True)
        one["advantages"] = [[value] * len(row) for value, row in rows]
    assert written(tmp_path, first, second).same
    at(second)["advantages"][1][-1] -= 0.5
    (tmp_path / "more").mkdir()
    (parting,) = written(tmp_path / "more", first, second).partings
    width = len(at(second)["advantages"][1])
    found = (parting.column, parting.response, parting.token, parting.first, parting.second)
    assert found == ("advantages", 1, width - 1, -0.5, -1.0)


def test_a_distance_of_the_tolerance_is_none(tmp_path: Path) -> None:
    def change(records: Records) -> None:
        at(records)["advantages"] = [1.0, 2.25, 3.0]
        at(records)["hyperparameters"] = {"beta": 0.25}

    first, other = run(), run()
    change(other)
    at(first)["advantages"] = [1.0, 2.0, 3.0]
    readers = write(tmp_path / "a", first), write(tmp_path / "b", other)
    assert compare(*readers, StepSource(), 0.25).same
    apart = [one.column for one in compare(*readers, StepSource(), 0.2499).partings]
    assert apart == ["hyperparameters", "advantages"]


def test_what_else_may_part(tmp_path: Path) -> None:
    """A mask, settings that are lists or there in one run alone, what the trainer computed."""

    def change(records: Records) -> None:
        one = at(records)
        one["mask"] = [[1] * len(row) for row in one["tokens"]]
        one["mask"][2][-1] = 0
        one["hyperparameters"] = {"beta": 0.0, "reward_weights": [1.0, 0.5]}
        one["expected"] = {"loss": 0.5, "metrics": {"kl": 1.0}}

    first, other = run(), run()
    change(other)
    at(first)["mask"] = [[1] * len(row) for row in at(first)["tokens"]]
    at(first)["mask"][0][0] = 0
    at(first)["expected"] = {"loss": 0.25, "metrics": {"kl": 2.0}}
    partings = written(tmp_path, first, other).partings
    assert [one.column for one in partings] == ["mask", "hyperparameters", "expected"]
    mask, settings, expected = partings
    assert (mask.response, mask.token, mask.first, mask.second) == (0, 0, 0.0, 1.0)
    assert mask.difference == 1.0
    assert (settings.first, settings.second) == (
        {"reward_weights": None},
        {"reward_weights": "1,0.5"},
    )
    assert expected.first == {"loss": 0.25, "metrics": "a list"}
    assert expected.second == {"loss": 0.5, "metrics": "a list"}


@pytest.mark.parametrize(("first", "second"), [(3, 7), (7, 3)])
def test_runs_that_begin_at_any_two_numbers_are_the_same_run(
    first: int, second: int, tmp_path: Path
) -> None:
    runs = run(), run()
    for records, begin in zip(runs, (first, second), strict=True):
        for one in records:
            one["step"] += begin
    found = written(tmp_path, *runs)
    assert (found.same, found.steps, found.agreed_until) == (True, 3, first + 2)
    (note,) = found.notes
    assert note.startswith(f"step {first} of run 1 is step {second} of run 2: ")


def test_the_first_step_back_of_each_run_is_told(tmp_path: Path) -> None:
    found = in_orders(tmp_path, [2, 1, 0], [2, 1, 0])
    starts = [f"the steps of run {number} go back from 2 to 1: " for number in (1, 2)]
    assert all(note.startswith(start) for note, start in zip(found.notes, starts, strict=True))
    assert (found.same, found.steps) == (True, 3)


def sampled(*texts: str) -> list[Record]:
    """Records of a response each, by what was sampled."""
    return [
        parse({"tokens": [[text]], "log_probs_new": [[-1.0]]}, source="", line=None)
        for text in texts
    ]


@pytest.mark.parametrize(
    ("ours", "theirs", "pairs", "noted"),
    [
        ("abc", "abc", "aa bb cc", False),
        ("abc", "cab", "aa bb cc", True),
        ("abc", "ac", "aa b- cc", True),
        ("ac", "abc", "aa cc -b", True),
        ("abc", "abd", "aa bb cd", False),  # one that either lost: as they stand
        ("aab", "baa", "ab aa ba", False),  # two of the same: as they stand
        ("ab", "abc", "aa bb -c", True),
    ],
)
def test_what_was_sampled_pairs_records(ours: str, theirs: str, pairs: str, noted: bool) -> None:
    found = pair(sampled(*ours), sampled(*theirs))
    names = [
        "".join("-" if one is None or one.tokens is None else one.tokens[0][0] for one in both)
        for both in found.pairs
    ]
    assert (" ".join(names), bool(found.note)) == (pairs, noted)
