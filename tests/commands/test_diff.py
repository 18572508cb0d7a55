"""``grpo diff``: where two runs that should be one part."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_cli.commands.diff.diff import Answer, compare
from grpo_cli.commands.main import application
from grpo_cli.commands.trend.which import StepOf
from grpo_cli.engine import Reader
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


def answer(tmp_path: Path, change: Callable[[Records], Any], tolerance: float = 0.0) -> Answer:
    other = copy.deepcopy(run())
    change(other)
    first, second = write(tmp_path / "a", run()), write(tmp_path / "b", other)
    return compare(first, second, StepOf(), tolerance)


def test_a_run_and_itself_are_one(tmp_path: Path) -> None:
    found = answer(tmp_path, lambda records: None)
    assert found.same
    assert (found.steps, found.records, found.agreed) == (3, 6, 2)


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
    assert found.agreed == 0
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
    assert found.only == [(1, 2)]
    assert not found.same

    def shorten(records: Records) -> None:
        for name in ("tokens", "log_probs_new", "log_probs_rollout", "rewards", "group_ids"):
            del at(records)[name][2]

    (tmp_path / "more").mkdir()
    (parting,) = answer(tmp_path / "more", shorten).partings
    assert (parting.column, parting.first, parting.second) == ("responses", 3, 2)


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
