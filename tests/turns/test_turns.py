"""Turns and trajectories: how records name them, and the rows that they give."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import answer, run
from files import blocks_of, each

Record = dict[str, Any]
LEVELS = ("record", "trajectory", "response", "turn", "token")


def agent_records(count: int, seed: int = 0, *, several: bool = False) -> list[Record]:
    """Records of one group: trajectories of turns with masked tokens of tools between them.

    Args:
        count: how many records.
        seed: of the numbers.
        several: whether each turn is a response of its own.
    """
    draw, made = random.Random(seed), []
    for number in range(count):
        rows: list[list[tuple[Any, ...]]] = []
        rewards, names, turn_rewards = [], [], []
        for trajectory in range(4):
            reward, turns = draw.choice((0.0, 1.0, 0.5)), draw.randint(1, 3)
            whole: list[tuple[Any, ...]] = []
            own = []
            for turn in range(turns):
                row = [(turn, 1) for _ in range(draw.randint(1, 4))]
                row = [(*one, -draw.random() - 0.1, draw.gauss(0, 0.2)) for one in row]
                own.append(draw.random())
                if several:
                    rows.append(row)
                    names.append(f"t{trajectory}")
                    rewards.append(reward)
                    turn_rewards.append([own[-1]])
                whole += row if turn == turns - 1 else [*row, (turn, 0, -0.5, 0.0)]
            if not several:
                rows.append(whole)
                names.append(f"t{trajectory}")
                rewards.append(reward)
                turn_rewards.append(own)
        columns = {
            name: [[one[at] for one in row] for row in rows]
            for at, name in enumerate(("turn_ids", "mask", "log_probs_new"))
        }
        columns["log_probs_old"] = [[min(one[2] + one[3], 0.0) for one in row] for row in rows]
        columns["log_probs_ref"] = [[one[2] - one[3] ** 2 for one in row] for row in rows]
        more = {"rewards": rewards, "trajectory_ids": names, "turn_rewards": turn_rewards}
        made.append({"id": number, **columns, **more})
    return made


def write(path: Path, records: list[Record]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("turns") / "a.jsonl", agent_records(5))


def rows_of(path: Path, level: str, *flags: object) -> list[Record]:
    result = run("eval", path, "--level", level, "-qf", "jsonl", *flags)
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


# ---- what records say ---------------------------------------------------------------------------


def test_totals_count_trajectories_and_turns_where_records_name_them(dump: Path) -> None:
    records = agent_records(5)
    total = answer("eval", dump)["total"]
    turns = [{*turn} for record in records for turn in record["turn_ids"]]
    assert (total["trajectories"], total["turns"]) == (20, sum(map(len, turns)))
    assert [*total][-2:] == ["trajectories", "turns"]
    table = run("eval", dump, "-q").stdout
    assert f"5 groups, 20 trajectories, 20 responses, {total['turns']} turns" in table


TRAJECTORIES = [
    *("trajectory_id", "traj_uid", "traj_id", "rollout_ids", "rollout_id_list", "rollout_id"),
    *("episode_ids", "episode_id"),
]
PLAIN = {"log_probs_new": [[-1.0, -2.0], [-3.0], [-1.5]], "rewards": [1.0, 0.0, 1.0]}
INNOCENT = [
    *({key: value} for key in TRAJECTORIES for value in ("a", 7, ["a", "b", "c"], [1], [], {})),
    *(
        {"rollout_id": [3, 3, 4]},
        {"traj_uid": [None, "a", "a"]},
        {"trajectory_id": [[1], [1], [2]]},
    ),
    *({"group_ids": [0, 1, 1], "traj_id": [0, 0, 1]},),
    *({"roles": value} for value in ("user", ["user"], [["a"], ["b"]], 3)),
    *({key: 1} for key in ("turn_id", "turn_idx", "trajectory_idx", "role", "rules")),
    *({"weight_version": value} for value in ("default", None, [3], [[3], [4]], -1, {})),
]


@each("more", INNOCENT)
def test_keys_that_name_nothing_change_nothing(more: Record, tmp_path: Path) -> None:
    own = {name: value for name, value in more.items() if name == "group_ids"}
    expected = answer("eval", write(tmp_path / "a.jsonl", [PLAIN | own]))["total"]
    path = write(tmp_path / "b.jsonl", [PLAIN | more])
    assert answer("eval", path)["total"] == expected


@each("key", [*TRAJECTORIES, "trajectory_ids"])
def test_rows_of_a_turn_each_are_joined(key: str, tmp_path: Path) -> None:
    (record,) = agent_records(1, several=True)
    names = ("turn_ids", "mask", "log_probs_new", "log_probs_old", "log_probs_ref")
    columns = {**{name: name for name in names}, "turn_rewards": "turn_rewards"}
    columns |= {"reward": "rewards", key: "trajectory_ids"}
    lines = [
        {"uid": "p"} | {own: record[name][at] for own, name in columns.items()}
        for at in range(len(record["rewards"]))
    ]
    path = write(tmp_path / "rows.jsonl", lines)
    whole = write(tmp_path / "whole.jsonl", [record])
    for level in ("trajectory", "turn"):
        found, expected = rows_of(path, level, "--group-by", "uid"), rows_of(whole, level)
        drop = {"id", "group"}
        assert [{k: v for k, v in one.items() if k not in drop} for one in found] == [
            {k: v for k, v in one.items() if k not in drop} for one in expected
        ]


@each("ending", ["parquet", "jsonl"])
def test_conversions_keep_turns(ending: str, dump: Path, tmp_path: Path) -> None:
    made = tmp_path / f"b.{ending}"
    assert run("convert", dump, "-o", made).exit_code == 0
    for level in ("trajectory", "turn"):
        assert rows_of(made, level) == rows_of(dump, level)


# ---- rows ---------------------------------------------------------------------------------------

VARIANTS = ("grpo", "dr", "gspo", "cispo", "trl/grpo", "verl/vanilla")
FLAGS = [
    *(("-v", variant) for variant in VARIANTS),
    *(("-v", "dapo", "--aggregate", f"{unit}-mean") for unit in ("turn", "trajectory")),
]


@pytest.mark.more
@each("flags", FLAGS)
def test_rows_of_every_level_add_up_to_the_total(flags: tuple[str, ...], dump: Path) -> None:
    total = answer("eval", dump, *flags)["total"]
    for level in LEVELS:
        found = rows_of(dump, level, *flags, "--fields", "contribution")
        added = math.fsum(row["contribution"] for row in found)
        assert added == pytest.approx(total["objective"], abs=1e-14), level
    for name in ("policy", "kl"):
        parts = [row[name] for row in rows_of(dump, "turn", *flags)]
        assert math.fsum(parts) == pytest.approx(total[name], abs=1e-14), name
    squares = math.fsum(row["gradient_norm"] ** 2 for row in rows_of(dump, "turn", *flags))
    assert math.sqrt(squares) == pytest.approx(total["gradient_norm"], rel=1e-12)
    tokens = sum(row["tokens"] for row in rows_of(dump, "trajectory", *flags))
    assert tokens == total["tokens"]


@each("variant", ("grpo", "gspo"))
def test_gradient_norms_are_those_of_finite_differences(variant: str, tmp_path: Path) -> None:
    (record,) = agent_records(1, seed=3)
    flags = ("-v", variant, "--batch", "record")

    def objective(row: int, at: int, move: float) -> float:
        moved = json.loads(json.dumps(record))
        moved["log_probs_new"][row][at] += move
        found = answer("eval", write(tmp_path / "m.jsonl", [moved]), *flags)
        return float(found["total"]["objective"])

    squares: dict[tuple[int, int], float] = {}
    for row, ids in enumerate(record["turn_ids"][:2]):
        for at, turn in enumerate(ids):
            if record["mask"][row][at]:
                slope = (objective(row, at, 1e-6) - objective(row, at, -1e-6)) / 2e-6
                squares[row, turn] = squares.get((row, turn), 0.0) + slope**2
    found = rows_of(write(tmp_path / "a.jsonl", [record]), "turn", *flags)
    norms = {(one["response"], one["turn"]): one["gradient_norm"] for one in found}
    for place, square in squares.items():
        assert norms[place] == pytest.approx(math.sqrt(square), abs=1e-8)


def test_an_order_of_responses_changes_no_bit(tmp_path: Path) -> None:
    (record,) = agent_records(1, several=True)
    of = record["trajectory_ids"]
    left = {name: iter([at for at, own in enumerate(of) if own == name]) for name in of}
    order = [next(left[name]) for name in random.Random(5).sample(of, len(of))]  # turns keep theirs
    moved = {
        name: [value[at] for at in order] if isinstance(value, list) else value
        for name, value in record.items()
    }
    for level, name in (("trajectory", "trajectory"), ("turn", "turn")):
        found, expected = (
            sorted(
                (
                    {k: v for k, v in one.items() if k != "response"}
                    for one in rows_of(write(tmp_path / "a.jsonl", [given]), level, "-v", "grpo")
                ),
                key=lambda one: (one["trajectory"], one[name]),
            )
            for given in (moved, record)
        )
        assert found == expected


def test_one_response_or_one_a_turn_give_the_turns_of_a_token_mean(tmp_path: Path) -> None:
    for level in ("trajectory", "turn"):
        flags = ("-v", "dapo", "--advantage", "raw", "--fields", "trajectory,contribution")
        found = [
            rows_of(write(tmp_path / "a.jsonl", agent_records(3, several=way)), level, *flags)
            for way in (False, True)
        ]
        values = [np.array([row["contribution"] for row in each]) for each in found]
        assert np.allclose(*values, atol=1e-15)


@pytest.mark.more
@each("way", [("--jobs", "1", 700), ("--jobs", "2", 1_500), ("--jobs", "1", 1)])
def test_the_same_bytes(way: tuple[str, str, int], tmp_path: Path) -> None:
    flags, block = way[:2], way[2]
    records = agent_records(6, seed=1, several=True)
    versions = [one | {"weight_versions": at} if at % 2 else one for at, one in enumerate(records)]
    dump = write(tmp_path / "versions.jsonl", versions)
    named = ("--fields", "turn,weight_version,gradient", "-fcsv")
    for level, *more in (
        *(("turn", "-fcsv"), ("trajectory", "--json"), ("turn", "--json"), ("token", *named)),
    ):
        words = ("eval", dump, "--level", level, *more, "-v", "dapo")
        expected = run(*words, "--jobs", "1").stdout
        with blocks_of(block):
            assert run(*words, *flags).stdout == expected


def test_formats_agree(dump: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    inside: dict[str, Callable[[Record], list[Record]]] = {
        "trajectory": lambda record: record["trajectories"],
        "turn": lambda record: [turn for one in record["responses"] for turn in one["turns"]],
    }
    for level, nested in inside.items():
        found = rows_of(dump, level)
        records = answer("eval", dump, "--level", level)["records"]
        own = [one for record in records for one in nested(record)]
        assert [{name: row[name] for name in own[0]} for row in found] == own
        path = tmp_path / f"{level}.parquet"
        assert run("eval", dump, "--level", level, "-f", "parquet", "-o", path).exit_code == 0
        assert parquet.read_table(path).to_pylist() == found
        shown = run("eval", dump, "--level", level, "--limit", 3)
        assert f"… {len(found) - 3} more" in shown.stderr


@each("ending", ("jsonl", "parquet"))
def test_rewards_of_turns_without_a_token_that_counts_are_left_out(
    ending: str, tmp_path: Path
) -> None:
    one: Record = {
        "log_probs_new": [[-1.0, -0.5, -0.25, -2.0], [-1.0, -0.5, -0.75], [-1.0, -2.0]],
        "rewards": [1.0, 0.0, 0.5],
        "turn_ids": [[0, 0, 3, 5], [0, 1, 1], [0, 4]],
        "mask": [[1, 1, 0, 1], [1, 0, 0], [0, 0]],
        "turn_rewards": [[0.1, 0.2, 0.3], [0.4, 0.5], [0.6, 0.7]],
    }
    path = tmp_path / "run.jsonl"
    path.write_text(f"{json.dumps(one)}\n" * 2)
    assert run("convert", path, "-o", tmp_path / f"other.{ending}").exit_code == 0
    found = [
        run("eval", source, "--level", "turn", "--fields", "turn_reward", "-f", "csv").stdout
        for source in (path, tmp_path / f"other.{ending}")
    ]
    assert found[0].split() == ["turn_reward", *["0.1", "0.3", "0.4"] * 2]
    assert found[1] == found[0]
    one["turn_rewards"][0].append(0.4)
    path.write_text(json.dumps(one))
    wrong = run("eval", path)
    assert wrong.exit_code == 3
    assert "turn_rewards[0]: expected 2 rewards (one per turn), got 4" in wrong.stderr


def test_rows_that_fit(dump: Path) -> None:
    done = run("eval", dump, "--level", "trajectory", "--having", "reward>=1", "-f", "csv")
    assert " trajectories\n" in done.stderr.partition("--having keeps ")[2]
    found = rows_of(dump, "turn", "--having", "turn>0", "--fields", "id,turn,turn_reward,share")
    assert {row["turn"] for row in found} == {1, 2}
    assert all(row["share"] > 0 for row in found if row["turn_reward"] is None)


# ---- states -------------------------------------------------------------------------------------


@each("several", [True, False])
def test_states_are_read_in_every_way(several: bool, tmp_path: Path) -> None:
    """One object at a time, many at once, rows of a response, Parquet; text or numbers."""
    (record,) = agent_records(1, seed=3, several=several)
    record["state_ids"] = [
        [f"s{(i + t) % 3}" for t in {*row}] for i, row in enumerate(record["turn_ids"])
    ]
    path = write(tmp_path / "a.jsonl", [record])
    found = answer("eval", path, "-v", "gigpo")["total"]["objective"]
    ways: list[tuple[Record, list[str]]] = [
        (record | {"x": {"one": "by one"}, "group_size": None}, [])
    ]
    numbers = [[int(one[1:]) - 1 for one in row] for row in record["state_ids"]]
    ways.append((record | {"state_ids": numbers}, []))
    if several:
        ways.append((record | {"state_ids": [row[0] for row in record["state_ids"]]}, []))
    own = {key: value for key, value in record.items() if key not in ("id", "state_ids")}
    rows = [
        {"uid": "p", "anchor_obs": states} | {key: value[at] for key, value in own.items()}
        for at, states in enumerate(record["state_ids"])
    ]
    for way, flags in [*ways, (rows, ["--group-by", "uid"])]:
        other = write(tmp_path / "b.jsonl", way if isinstance(way, list) else [way])
        assert answer("eval", other, "-v", "gigpo", *flags)["total"]["objective"] == found
    made = tmp_path / "c.parquet"
    assert run("convert", path, "-o", made).exit_code == 0
    assert answer("eval", made, "-v", "gigpo")["total"]["objective"] == found
    record["state_ids"][0] = [*record["state_ids"][0], "more"]
    wrong = run("eval", write(path, [record]), "-v", "gigpo")
    assert wrong.exit_code == 3
    assert "a.jsonl:1: state_ids[0]: expected" in wrong.stderr
    record["state_ids"][0] = [[]] * len({*record["turn_ids"][0]})
    wrong = run("eval", write(path, [record]), "-v", "gigpo")
    assert "state_ids[0][0]: expected a state id" in wrong.stderr
    wrong = run("eval", write(path, agent_records(5)), "-v", "gigpo")
    assert (wrong.exit_code, "state_ids: missing" in wrong.stderr) == (3, True)
