"""Records evaluated together against the same ones alone; bad ones among them; totals."""

from __future__ import annotations

import json
import re
from itertools import permutations, product  # noqa: F401 - in together.txt
from pathlib import Path
from typing import Any

import pytest
from command import answer, run
from files import each, expressions, some

from grpo_cli import evaluate

RECORD: dict[str, Any] = {
    "id": "r",
    "log_probs_new": [[-1.0, -2.0], [-0.5, -0.25]],
    "log_probs_old": [[-1.1, -2.1], [-0.4, -0.2]],
    "log_probs_ref": [[-1.2, -2.2], [-0.3, -0.1]],
    "log_probs_rollout": [[-1.0, -2.1], [-0.4, -0.2]],
    "rewards": [1.0, 0.0],
    "advantages": [0.5, -0.25],
    "mask": [[1, 0], [1, 1]],
    "group_ids": ["a", "b"],
    "tokens": [["x", "y"], ["z", "z"]],
}
COLUMNS = [key for key in RECORD if key.startswith("log_probs")]


def write(path: Path, records: list[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return path


def left_out(path: Path, records: list[Any]) -> tuple[int, list[tuple[int, str]]]:
    """How many records were evaluated, and the line and path of each error."""
    flags = ("-v", "dr", "--level", "batch", "--json", "--on-error", "skip", "-q")
    result = run("eval", write(path, records), *flags)
    errors = [json.loads(line)["error"] for line in result.stderr.splitlines() if line[0] == "{"]
    count = json.loads(result.stdout)["total"]["records"] if result.stdout else 0
    return count, [(error["line"], error["path"]) for error in errors]


NO_ROW = ["", {}, "ab", {"a": 1, "b": 2}, None, 2, [True, False], [-1.0, False]]


@each("key", COLUMNS)
@each("row", NO_ROW)
def test_what_is_no_list_of_numbers_is_refused_wherever_it_stands(
    tmp_path: Path, key: str, row: object
) -> None:
    bad = {**RECORD, key: [RECORD[key][0], row], "mask": None, "tokens": None}
    count, ((line, path),) = left_out(tmp_path / "data.jsonl", [RECORD, bad, RECORD])
    assert (count, line, path.partition("[")[0]) == (2, 2, key)


EMPTY = {name: [RECORD[name][0], []] for name in COLUMNS} | {"rewards": [1, 0]}
BY_TOKEN = {**RECORD, "advantages": [[0.5, 1.0], [0.0, 2.0]], "mask": None}


@each(
    ("good", "wrong", "path"),
    [
        *((EMPTY, {key: [RECORD[key][0], ""]}, f"{key}[1]") for key in COLUMNS),
        *((EMPTY, {key: [RECORD[key][0], {}]}, f"{key}[1]") for key in COLUMNS),
        (BY_TOKEN, {"advantages": [[0.5, 1.0], [0.5, True]]}, "advantages[1][1]"),
        (BY_TOKEN, {"advantages": [[0.5, 1.0], [False, 0.5]]}, "advantages[1][0]"),
        (BY_TOKEN, {"advantages": [[0.5, 1.0], [2.0, True]]}, "advantages[1][1]"),
    ],
)
def test_what_is_empty_or_a_boolean_is_no_number(
    tmp_path: Path, good: Any, wrong: Any, path: str
) -> None:
    found = left_out(tmp_path / "data.jsonl", [good, {**good, **wrong}, good])
    assert found == (2, [(2, path)])


MIXED: list[dict[str, Any]] = [
    {"epsilon": 0.2, "beta": 0.04, "delta": 3.0},
    {"epsilon": 0.1, "beta": 0.5, "delta": 1.5},
    {"epsilon": 0.3, "beta": 1, "delta": None},
    {"epsilon": 1.5, "beta": 0.0, "delta": 2.0},
    {"epsilon_low": 0.0, "epsilon_high": 0.7, "beta": 0.1},
    {"epsilon": 1.25, "beta": 0.04, "std_ddof": 0},
    {},
]
"""Settings of one record each: with and without, null, 0 and large ones."""


@pytest.mark.more
@each("variant", ["grpo", "two-sided", "trl/dapo"])
def test_records_of_other_settings_have_the_rows_that_they_have_alone(
    tmp_path: Path, variant: str
) -> None:
    path = tmp_path / "a.jsonl"
    columns = {key: value for key, value in RECORD.items() if key != "advantages"}
    columns |= {"group_ids": ["a", "a"], "hyperparameters": {}}
    items = [{"num_items_in_batch": at + 1.0} for at in range(len(MIXED))]
    own = [*MIXED[:3], *({**one, **other} for one, other in zip(MIXED, items, strict=True))]
    records = [{**columns, "hyperparameters": one} for one in own]
    flags = ("-v", variant, "--batch", "record", "--level", "token")
    together = answer("eval", write(path, records), *flags)
    notes = run("eval", path, *flags).stderr
    assert re.findall("epsilon_low is ([0-9.]+):", notes) == ["1.5", "1.25"]
    alone = [answer("eval", write(path, [record]), *flags) for record in records]
    assert together["records"] == [
        {**one["records"][0], "line": at} for at, one in enumerate(alone, 1)
    ]
    assert "low=mixed" in together["signature"]


@each(
    ("name", "values"),
    [
        ("beta", [0.04, -0.1, 0.5]),  # below the least, among allowed ones
        ("gamma", [0.5, 2, 1.0, 0]),
        ("gamma", [0, 1, 2]),
        ("std_ddof", [0.0, 0.5, 1.0]),  # a fraction between two whole numbers
        ("beta", [0.1, True, 0.2]),
        ("beta", [0.1, "0.1", 0.2]),
        ("epsilon_high", [0.3, None, 0.4]),
        ("num_items_in_batch", [7, 8, 0, 9]),
    ],
)
@each("nested", [True, False])
def test_a_value_is_refused_or_taken_as_it_is_alone(
    tmp_path: Path, name: str, values: list[Any], nested: bool
) -> None:
    path, gap = tmp_path / "a.jsonl", {"epsilon": 0.2}
    given = [gap] * nested + [gap | {name: value} for value in values]
    records = [RECORD | ({"hyperparameters": one} if nested else one) for one in given]
    alone = [left_out(path, [record]) for record in records]
    count, errors = left_out(path, records)
    assert count == sum(one for one, _ in alone)
    assert errors == [(at, place) for at, (_, each) in enumerate(alone, 1) for _, place in each]


WRONG = [
    {"rewards": None, "advantages": None},
    {"log_probs_old": [[-1.1, -2.1], [-1e300, -0.2]]},
    {"log_probs_old": [[0.5, -2.0], [-0.5, -0.25]]},
]


@pytest.mark.more
@each(("every", "wrong"), some([*product([1, 3], WRONG)], 3))
def test_many_bad_records_of_many_are_each_left_out(
    tmp_path: Path, wrong: dict[str, Any], every: int
) -> None:
    """More than Python's stack has frames."""
    records = [{**RECORD, "id": at} | (wrong if at % every == 0 else {}) for at in range(1050)]
    flags = ("-v", "dr", "--only", "id", "--on-error", "skip", "-q", "--max-errors", "0")
    result = run("eval", write(tmp_path / "a.jsonl", records), *flags)
    assert result.stdout.split() == [str(at) for at in range(1050) if at % every]
    *told, last = result.stderr.splitlines()
    lines = [int(line.split(":")[2]) for line in told]
    assert lines == [at + 1 for at in range(1050) if at % every == 0]
    assert last == f"grpo: skipped {len(lines):,} of 1,050 records"


@each(("most", "kept"), [("0", 27), ("1", 1), ("3", 3), ("27", 27), ("28", 27), (None, 20)])
def test_the_first_errors_are_told_and_all_counted(
    tmp_path: Path, most: str | None, kept: int
) -> None:
    path = write(tmp_path / "a.jsonl", [RECORD, *({f"key_{at}": 1} for at in range(27)), RECORD])
    flags = () if most is None else ("--max-errors", most)
    for command in (("eval", "-v", "dr", "-q", "--only", "loss"), ("compare", "-v", "dr", "-q")):
        name, *more = command
        err = run(name, path, *more, "--on-error", "skip", *flags).stderr.splitlines()
        assert [line.split(":")[2] for line in err[:kept]] == [str(at + 2) for at in range(kept)]
        rest = [f"grpo: … {27 - kept} more errors (--max-errors 0 shows all)"] if kept < 27 else []
        assert err[kept:-1] == rest
        assert "skipped 27" in err[-1]


# ---- totals, each record being a part of its own -------------------------------------------------


def pair(new: float, old: float, **more: object) -> dict[str, Any]:
    """Two responses of one token."""
    columns = {"log_probs_new": [[new], [-1.0]], "log_probs_old": [[old], [-1.0]]}
    return {**columns, "advantages": [1.0, -1.0], **more}


def total(*records: dict[str, Any], variant: str = "grpo", **stages: str) -> dict[str, Any]:
    """The totals; they must not depend on the order of the records."""
    found = [evaluate([*order], variant, stages=stages).total for order in (records, records[::-1])]
    assert found[0] == found[1]
    return dict(found[0])


OWN = {  # for verl/sapo, whose KL is a mean over tokens, unlike its policy term
    "log_probs_new": [[-1.0, -0.5], [-0.8]],
    "log_probs_old": [[-1.1, -0.4], [-1.0]],
    "log_probs_ref": [[-2.0, -0.9], [-0.3]],
    "advantages": [1.0, -1.0],
}


def near(found: float, wanted: float, most: float) -> str:
    """Whether they are, relative to what is wanted."""
    return "same" if found == pytest.approx(wanted, rel=most) else f"{found}, not {wanted}"


def test_records_together_notes_and_totals(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"

    def printed(records: list[Any], *words: str) -> Any:
        return answer("eval", write(path, records), *words, "-q")

    def rows(records: list[Any], level: str = "token") -> Any:
        return printed(records, "-v", "dr", "--batch", "record", "--level", level)["records"]

    def as_alone(*several: list[Any]) -> bool:
        """Whether the records of each list have the rows that each of them has alone."""
        return all(
            rows(records) == [rows([one])[0] | {"line": at} for at, one in enumerate(records, 1)]
            for records in several
        )

    def notes(record: Any) -> list[str]:
        return run("eval", write(path, [record]), "-v", "dr").stderr.splitlines()

    text = Path(__file__).with_name("together.txt")
    expressions(text, globals() | {one.__name__: one for one in (printed, rows, as_alone, notes)})
