"""``grpo diff``: where two runs that should be identical first differ."""

from __future__ import annotations

import copy
import gzip
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import answer, run
from files import each
from trended import SAMPLES, write

Record = dict[str, Any]
Records = list[Record]


def records() -> Records:
    draw, found = random.Random(1), []
    for step in range(3):
        for number in range(2):
            widths = [draw.randint(1, 5) for _ in range(3)]
            rows = [[-draw.random() - 0.01 for _ in range(width)] for width in widths]
            record: Record = {
                "id": f"{step}/{number}",
                "step": step,
                "tokens": [[draw.choice("abc") for _ in row] for row in rows],
                "log_probs_new": rows,
                "log_probs_rollout": [[*row] for row in rows],
                "rewards": [draw.random() for _ in rows],
                "group_ids": ["p", "p", "q"],
                "hyperparameters": {"beta": 0.0},
            }
            found.append(record)
    return found


RUN = records()
KNOWN = next(one for one in RUN if one["id"] == "1/1")


def write_run(folder: Path, some: Records) -> Path:
    """Writes a file a step."""
    for step in {one["step"] for one in some}:
        write(folder / f"{step}.jsonl", [one for one in some if one["step"] == step])
    return folder


def diff(folder: Path, first: Records, second: Records, *flags: str) -> Any:
    here = folder / str(len([*folder.iterdir()]))
    return answer("diff", write_run(here / "a", first), write_run(here / "b", second), *flags)


def changed(folder: Path, change: Callable[[Record], Any], *flags: str) -> Any:
    """The difference that a change of record 1/1 makes."""
    other = copy.deepcopy(RUN)
    change(next(one for one in other if one["id"] == "1/1"))
    return diff(folder, RUN, other, *flags)


def without_ids(some: Records) -> Records:
    return [{name: value for name, value in one.items() if name != "id"} for one in some]


def later(some: Records, steps: int) -> Records:
    return [one | {"step": one["step"] + steps} for one in some]


@each(
    ("other", "tolerance"),
    [
        (lambda: RUN, None), (lambda: RUN[::-1], None),  # records are found by their id
        (lambda: [one | {"group_ids": ["x", "x", "y"]} for one in RUN], None),
        (lambda: [one | {"rewards": [x + 1e-7 for x in one["rewards"]]} for one in RUN], "1e-6"),
    ],
    ids=lambda one: one[1],
)  # fmt: skip
def test_runs_that_are_identical(other: Any, tolerance: str | None, tmp_path: Path) -> None:
    found = diff(tmp_path, RUN, other(), *(("--tolerance", tolerance) if tolerance else ()))
    names = ("ok", "steps", "records", "agreed_until")
    assert [found[name] for name in names] == [True, 3, 6, 2]


def set_at(column: str, *place: Any, to: Any) -> Callable[[Record], None]:
    def change(record: Record) -> None:
        holder = record[column]
        for at in place[:-1]:
            holder = holder[at]
        holder[place[-1]] = to

    return change


LAST = len(KNOWN["tokens"][0]) - 1
WIDTH = len(KNOWN["tokens"][1])


@each(
    ("change", "column", "place", "group"),
    [
        (set_at("tokens", 2, 0, to="z"), "tokens", (2, 0), "q"),
        (set_at("log_probs_rollout", 1, 0, to=-9), "log_probs_rollout", (1, 0), "p"),
        (set_at("rewards", 2, to=5.0), "rewards", (2, None), "q"),
        (set_at("log_probs_new", 0, -1, to=-9), "log_probs_new", (0, LAST), "p"),
        (lambda one: one.update(group_ids=["p", "q", "q"]), "groups", (1, None), "p"),
        (set_at("hyperparameters", "beta", to=0.1), "hyperparameters", (None,) * 2, None),
    ],
    ids=lambda one: one[1],
)
def test_what_differs_is_told_with_its_place(
    change: Any, column: str, place: Any, group: str | None, tmp_path: Path
) -> None:
    found = changed(tmp_path, change)
    (one,) = found["partings"]
    assert found["agreed_until"] == 0
    assert (one["column"], one["step"], one["record"], one["group"]) == (column, 1, "1/1", group)
    assert (one["response"], one["token"]) == place


def test_every_number_of_what_differs(tmp_path: Path) -> None:
    """The first place that is too far apart, and the largest distance of all in its record.

    Causes come before effects.
    """

    def change(one: Record) -> None:
        one["log_probs_new"][0][0] += 1e-9  # less than the tolerance
        one["log_probs_new"][1][-1] -= 0.25
        one["log_probs_new"][2][0] -= 0.5
        one["rewards"][1] += 0.125
        one["rewards"][2] -= 2.0
        one["group_ids"] = ["p", "q", "p"]
        one["hyperparameters"] = {"beta": 5e-7, "epsilon": 0.25, "dual_clip": 3.0}

    found = changed(tmp_path, change, "--tolerance", "1e-6")
    assert (found["agreed_until"], found["steps"], found["records"]) == (0, 1, 4)
    assert found["tokens"] == sum(len(row) for one in RUN[:4] for row in one["log_probs_new"])
    names = ("column", "response", "token", "first", "second")
    new, reward = KNOWN["log_probs_new"][1][-1], KNOWN["rewards"][1]
    settings = {"epsilon_low": 0.25, "epsilon_high": 0.25, "dual_clip": 3.0}
    assert [tuple(one[name] for name in names) for one in found["partings"]] == [
        ("groups", 1, None, "with response 0", "with response 1"),
        ("rewards", 1, None, reward, reward + 0.125),
        ("hyperparameters", None, None, dict.fromkeys(settings), settings),
        ("log_probs_new", 1, WIDTH - 1, new, new - 0.25),
    ]
    sizes = [one["difference"] for one in found["partings"]]
    assert sizes == [None, pytest.approx(2.0), None, pytest.approx(0.5)]


def test_a_distance_of_the_tolerance_is_none(tmp_path: Path) -> None:
    first, other = copy.deepcopy(RUN), copy.deepcopy(RUN)
    for some, middle, beta in ((first, 2.0, 0.0), (other, 2.25, 0.25)):
        some[3] |= {"advantages": [1.0, middle, 3.0], "hyperparameters": {"beta": beta}}
    assert diff(tmp_path, first, other, "--tolerance", "0.25")["ok"]
    apart = diff(tmp_path, first, other, "--tolerance", "0.2499")["partings"]
    assert [one["column"] for one in apart] == ["hyperparameters", "advantages"]


def test_responses_that_are_others(tmp_path: Path) -> None:
    """In another order, longer, or fewer."""
    columns = ("tokens", "log_probs_new", "log_probs_rollout")

    def swap(one: Record) -> None:
        for name in (*columns, "rewards"):
            one[name][0], one[name][1] = one[name][1], one[name][0]

    def shorten(one: Record) -> None:
        for name in (*columns, "rewards", "group_ids"):
            del one[name][2]

    def lengthen(one: Record) -> None:
        for name, more in zip(columns, ("z", -0.5, -0.5), strict=True):
            one[name][1].append(more)

    def lengthen_without_tokens(one: Record) -> None:
        lengthen(one)
        del one["tokens"]

    found = changed(tmp_path, swap)
    assert (found["ok"], len(found["notes"])) == (True, 1)
    assert found["notes"][0].startswith("responses of a record are paired by what was sampled")
    twice = copy.deepcopy(RUN)
    for name in columns:  # two equal responses do not hinder the others
        twice[3][name][2] = twice[3][name][0]
    twice[3]["rewards"] = [1.0, 0.0, 1.0]
    swapped = copy.deepcopy(twice)
    swap(swapped[3])
    assert diff(tmp_path, twice, swapped)["ok"]
    (one,) = changed(tmp_path, shorten)["partings"]
    assert (one["column"], one["first"], one["second"]) == ("responses", 3, 2)
    one = changed(tmp_path, lengthen)["partings"][0]
    assert (one["token"], one["first"], one["second"]) == (WIDTH, "no token", "z")

    def sample_at_another_temperature(one: Record) -> None:
        lengthen(one)
        one["log_probs_rollout"][0][0] -= 0.2

    found = changed(tmp_path, sample_at_another_temperature)["partings"]  # the engine comes first
    places = [(one["column"], one["response"], one["token"]) for one in found]
    assert places[:2] == [("log_probs_rollout", 0, 0), ("tokens", 1, WIDTH)]
    found = changed(tmp_path, lengthen_without_tokens)["partings"]
    widths = (f"{WIDTH} tokens", f"{WIDTH + 1} tokens")
    assert [(one["column"], one["response"], one["first"], one["second"]) for one in found] == [
        ("tokens", None, "present", "absent"),
        ("log_probs_rollout", 1, *widths),
        ("log_probs_new", 1, *widths),
    ]


def test_rewards_of_several_functions_differ_at_their_response(tmp_path: Path) -> None:
    first = [one | {"rewards": [[x, 1.0, -x] for x in one["rewards"]]} for one in RUN]
    second = copy.deepcopy(first)
    second[3]["rewards"][2][0] += 1.0
    (one,) = diff(tmp_path, first, second)["partings"]
    assert (one["response"], one["difference"]) == (2, pytest.approx(1.0))
    assert one["first"] == first[3]["rewards"][2][0]
    second[3]["rewards"] = [row[:2] for row in second[3]["rewards"]]
    (one,) = diff(tmp_path, first, second)["partings"]
    assert (one["first"], one["second"]) == ("shape (3, 3)", "shape (3, 2)")


def test_an_advantage_of_a_response_is_that_of_its_tokens(tmp_path: Path) -> None:
    values = (1.0, -0.5, 0.25)
    first = [one | {"advantages": [*values]} for one in RUN]
    second = [
        one | {"advantages": [[x] * len(row) for x, row in zip(values, one["tokens"], strict=True)]}
        for one in RUN
    ]
    assert diff(tmp_path, first, second)["ok"]
    second[3]["advantages"][1][-1] -= 0.5
    (one,) = diff(tmp_path, first, second)["partings"]
    names = ("column", "response", "token", "first", "second")
    assert [one[name] for name in names] == ["advantages", 1, WIDTH - 1, -0.5, -1.0]


def test_what_else_may_differ(tmp_path: Path) -> None:
    """A mask, settings that are lists or there in one run alone, what the trainer computed."""
    ones = [[1] * len(row) for row in KNOWN["tokens"]]
    first, other = copy.deepcopy(RUN), copy.deepcopy(RUN)
    first[3] |= {"mask": copy.deepcopy(ones), "expected": {"loss": 0.25, "metrics": {"kl": 2.0}}}
    first[3]["mask"][0][0] = 0
    other[3] |= {"mask": ones, "expected": {"loss": 0.5, "metrics": {"kl": 1.0}}}
    other[3]["mask"][2][-1] = 0
    other[3]["hyperparameters"] = {"beta": 0.0, "reward_weights": [1.0, 0.5]}
    mask, settings, expected = diff(tmp_path, first, other)["partings"]
    names = ("column", "response", "token", "first", "second", "difference")
    assert [mask[name] for name in names] == ["mask", 0, 0, 0.0, 1.0, 1.0]
    assert (settings["column"], expected["column"]) == ("hyperparameters", "expected")
    assert settings["first"] == {"reward_weights": None}
    assert settings["second"] == {"reward_weights": "1,0.5"}
    assert expected["first"] == {"loss": 0.25, "metrics": "a list"}
    assert expected["second"] == {"loss": 0.5, "metrics": "a list"}


# ---- noise and faults ---------------------------------------------------------------------------


def long_run(change: Callable[[random.Random, int, float], float] | None = None) -> Records:
    """Eight steps of 3 × 60 tokens; ``change``: of a step and a log-prob of the second run."""
    draw, noise, found = random.Random(2), random.Random(3), []
    for step in range(8):
        rows = [[-draw.expovariate(1.0) * draw.random() for _ in range(60)] for _ in range(3)]
        if change is not None:
            rows = [[min(change(noise, step, one), 0.0) for one in row] for row in rows]
        found.append({"id": str(step), "step": step, "log_probs_new": rows, "rewards": [1, 0, 2.0]})
    return found


def rounded(draw: random.Random, one: float) -> float:
    return one * (1 + draw.uniform(-1, 1) * 2.0**-22)


def of_engine(draw: random.Random, one: float) -> float:
    return one + draw.gauss(0, 0.02) * -math.expm1(one)


NOISE = {
    "rounding": lambda draw, step, one: rounded(draw, one),
    "engine": lambda draw, step, one: of_engine(draw, one),
}


@each("kind", [*NOISE])
def test_noise_alone_is_no_difference(kind: str, tmp_path: Path) -> None:
    found = diff(tmp_path, long_run(), long_run(NOISE[kind]))
    (noise,) = found["noise"]
    assert (found["partings"], found["ok"], found["agreed_until"]) == ([], False, 7)
    assert (noise["kind"], noise["column"], noise["numbers"]) == (kind, "log_probs_new", 8 * 180)
    assert noise["largest"] < {"rounding": 4e-6, "engine": 0.1}[kind]
    other = long_run(NOISE[kind])
    other[6]["log_probs_new"][1][7] -= 2.0  # of which one token stands out
    (one,) = diff(tmp_path, long_run(), other)["partings"]
    assert (one["step"], one["response"], one["token"]) == (6, 1, 7)
    assert one["difference"] == pytest.approx(2.0, abs=0.1)


def at_step(step: int, kind: str, change: Callable[[float], float]) -> Any:
    """Noise, and one more change of all tokens from a step on."""

    def changed(draw: random.Random, now: int, one: float) -> float:
        noisy = NOISE[kind](draw, now, one)
        return change(noisy) if now >= step else noisy

    return changed


@each(
    ("kind", "step", "change"),
    [
        ("rounding", 5, lambda one: one - 1e-4),
        ("rounding", 0, lambda one: one * 1.05),  # a temperature
        ("engine", 5, lambda one: one * 1.25),
        ("engine", 3, lambda one: one - 0.05),
        ("engine", 0, lambda one: 0.0),
        ("rounding", 4, lambda one: of_engine(random.Random(one), one)),  # dropout
    ],
    ids=lambda one: one[:2],
)
def test_a_fault_stands_out_of_noise(kind: str, step: int, change: Any, tmp_path: Path) -> None:
    found = diff(tmp_path, long_run(), long_run(at_step(step, kind, change)))
    assert [(one["column"], one["step"]) for one in found["partings"]] == [("log_probs_new", step)]
    assert found["agreed_until"] == (step - 1 if step else None)


def test_an_engine_that_samples_at_a_temperature_from_step_30_on(tmp_path: Path) -> None:
    """A real trainer's log-probs against its engine's, of which the noise is known."""
    with gzip.open(SAMPLES / "temperature.jsonl.gz", "rt", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    names = ("per_token_logps", "sampling_per_token_logps")
    runs = [
        write(tmp_path / name, ({"step": one["step"], "log_probs": one[name]} for one in lines))
        for name in names
    ]
    found = answer("diff", *runs)
    assert (found["agreed_until"], found["noise"][0]["kind"]) == (29, "engine")
    assert found["partings"][0]["step"] == 30


def test_masked_tokens_are_not_compared(tmp_path: Path) -> None:
    """Whatever stands there is no part of any number; and they are not counted."""

    def masked(some: Records, value: float) -> Records:
        made = copy.deepcopy(some)
        made[3] |= {"mask": [[0] + [1] * (len(row) - 1) for row in made[3]["log_probs_new"]]}
        made[3]["log_probs_new"][0][0] = value
        return made

    found = diff(tmp_path, masked(RUN, float("nan")), masked(RUN, -1.0))
    responses = len(RUN[3]["log_probs_new"])
    assert (found["ok"], found["tokens"]) == (
        True,
        diff(tmp_path, RUN, RUN)["tokens"] - responses,
    )
    other = masked(RUN, -1.0)
    other[3]["log_probs_new"][0][1] -= 1.0
    (one,) = diff(tmp_path, masked(RUN, -9.0), other)["partings"]
    assert (one["token"], one["difference"]) == (1, pytest.approx(1.0))


def test_a_column_that_a_run_never_has_is_noted_and_the_others_compared(tmp_path: Path) -> None:
    other = [{name: one[name] for name in one if name != "log_probs_rollout"} for one in RUN]
    found = diff(tmp_path, RUN, other)
    assert (found["ok"], len(found["notes"])) == (True, 1)
    assert found["notes"][0].startswith("log_probs_rollout is not in run 2 (6 records)")
    other[3] = copy.deepcopy(other[3]) | {"rewards": [5.0, 0.0, 0.0]}
    assert diff(tmp_path, RUN, other)["partings"][0]["column"] == "rewards"


# ---- steps and records that one run lacks -------------------------------------------------------


@each(
    ("first", "second", "only", "steps"),
    [
        (RUN, RUN[:4], [(1, 2)], 2),
        (RUN, RUN[2:], [(1, 0)], 2),  # a run that went on elsewhere is not moved
        (RUN, [*RUN[:2], *later(RUN[4:], 1)], [(1, 1), (1, 2), (2, 3)], 1),
    ],
    ids=lambda one: one[2],
)
def test_steps_that_either_run_has_alone(
    first: Records, second: Records, only: Any, steps: int, tmp_path: Path
) -> None:
    found = diff(tmp_path, first, second)
    assert [(one["run"], one["step"]) for one in found["only"]] == only
    names = ("steps", "ok", "partings", "notes")
    assert [found[name] for name in names] == [steps, False, [], []]


@each(("first", "second"), [(0, 1), (3, 7), (7, 3)])
def test_runs_that_begin_at_any_two_numbers_are_the_same_run(
    first: int, second: int, tmp_path: Path
) -> None:
    found = diff(tmp_path, later(RUN, first), later(RUN, second))
    assert (found["ok"], found["steps"], found["agreed_until"]) == (True, 3, first + 2)
    (note,) = found["notes"]
    assert note.startswith(f"step {first} of run 1 is step {second} of run 2: ")


@each(
    ("orders", "told", "same"),
    [
        (
            [(0, 1, 2), (0, 2, 1)],
            "run 2 goes back from step 2 to 1: grpo compares the first pass of this run",
            False,
        ),
        ([(2, 1, 0), (2, 1, 0)], "both runs go back from step 2 to 1: grpo compares neigh", True),
        ([(0, 1, 1, 2), (0, 1, 2)], None, False),  # a step that is longer
        # a run that was resumed: its first pass is compared, and what follows both
        ([(0, 1, 2, 1, 2), (0, 1, 2)], "run 1 goes back from step 2 to 1: grpo compares the", True),
        ([(0, 1), (0, 1, 0, 1, 2)], "run 2 goes back from step 1 to 0: grpo compares the", False),
    ],
)
def test_steps_that_go_back_are_told(orders: Any, told: Any, same: bool, tmp_path: Path) -> None:
    paths = [
        write(tmp_path / f"{name}.jsonl", [one for at in order for one in RUN[2 * at : 2 * at + 2]])
        for name, order in zip("ab", orders, strict=True)
    ]
    found = answer("diff", *paths)
    assert [one.startswith(told or "?") for one in found["notes"]] == ([True] if told else [])
    assert found["ok"] == same


@each("names", [True, False])
def test_a_record_that_one_run_lost_is_told_and_no_other(names: bool, tmp_path: Path) -> None:
    first = RUN if names else without_ids(RUN)
    found = diff(tmp_path, first, [one for at, one in enumerate(first) if at != 2])
    (one,) = found["partings"]
    told = (one["column"], one["step"], one["first"], one["second"])
    assert told == ("records", 1, "present", "absent")
    assert (one["record"], found["records"]) == ("1/0" if names else 0, 3)


@each(
    ("ours", "theirs", "paired", "noted"),
    [
        ("abc", "abc", 3, False), ("abc", "cab", 3, True), ("abc", "ac", 2, True),
        ("ac", "abc", 2, True), ("ab", "abc", 2, True),
        ("abc", "abd", 3, False),  # one that either lost: in their order
        ("aab", "baa", 3, False),  # two of the same: in their order
    ],
)  # fmt: skip
def test_what_was_sampled_pairs_records(
    ours: str, theirs: str, paired: int, noted: bool, tmp_path: Path
) -> None:
    """Records without ids that came in another order, or of which some were lost."""
    runs = [
        write(
            tmp_path / name,
            ({"step": 0, "tokens": [[x]], "log_probs_new": [[-ord(x) / 9]]} for x in texts),
        )
        for name, texts in (("a.jsonl", ours), ("b.jsonl", theirs))
    ]
    found = answer("diff", *runs)
    assert found["records"] == paired
    assert ("records are paired by their sampled responses" in found["notes"]) == noted
    same_order = sorted(ours) == sorted(theirs) and (noted or ours == theirs)
    assert found["ok"] == same_order


def test_two_runs_in_one_folder_are_no_run(tmp_path: Path) -> None:
    for name in ("a", "b/x", "b/y"):
        write_run(tmp_path / name, RUN)
    result = run("diff", tmp_path / "a", tmp_path / "b")
    assert (result.exit_code, "both have step 0, so these are 2 runs" in result.stderr) == (2, True)


def test_the_command(tmp_path: Path) -> None:
    other = copy.deepcopy(RUN)
    other[3]["rewards"][0] = 5.0
    paths = write_run(tmp_path / "a", RUN), write_run(tmp_path / "b", other)
    result = run("diff", *paths)
    assert result.exit_code == 1
    assert result.stdout.startswith("the runs differ after step 0 ")
    assert "step 1, record 1/1, group p, response 0: rewards, the reward" in result.stdout
    shown = run("diff", *paths, "--json")
    assert (shown.exit_code, json.loads(shown.stdout)["partings"][0]["second"]) == (1, 5.0)
    assert run("diff", paths[0], paths[0]).exit_code == 0
    other[0]["tokens"][0][0] = "another"
    samples = write_run(tmp_path / "c", other)
    text = run("diff", paths[0], samples).stdout
    assert text.startswith("these are different samples from the first step on (")
    assert "\ngrpo trend " in text
