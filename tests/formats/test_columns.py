"""Tables give the numbers, and are refused, as the same rows in JSON are."""

import json
from pathlib import Path

import numpy as np
import pytest
from command import run
from files import each, some

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def told(path, *flags):
    """What an evaluation says: its exit code, and its numbers without their places in the file."""
    found = run("eval", path, "-v", "grpo", "-q", "--level", "token", "-f", "json", *flags)
    answer = json.loads(found.stdout or "{}")
    for one in answer.get("records", ()):
        del one["source"], one["line"]
    return found.exit_code, answer


def same(path, *flags):
    """Whether a table is read as the JSON of its rows is."""
    texts = []
    for row in pq.read_table(path).to_pylist():
        more = (row.pop("grpo_json", None) or "{}").removeprefix("{")
        text = json.dumps({name: one for name, one in row.items() if one is not None})
        texts.append(text if more == "}" else f"{text[:-1]}, {more}")
    other = path.with_suffix(".jsonl")
    other.write_text("\n".join(texts))
    for words in (flags, (*flags, "--on-error", "skip", "--max-errors", "0")):
        assert told(path, *words) == told(other, *words)


@pytest.mark.parametrize("flags", some([("--group-by", "uid"), ("--group-size", "3")], 1))
def test_groups_that_straddle_row_groups(tmp_path, flags):
    """In files of some megabytes, which are cut between groups."""
    draw, rows = np.random.default_rng(5), []
    for at in range(600):
        numbers = -draw.random((2, draw.integers(900, 1100)))
        rows.append({"log_probs_new": numbers[0], "log_probs_old": numbers[1]})
        rows[-1] |= {"reward": at % 7, "uid": f"g{at // 3}"}
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=40)
    words = ("eval", tmp_path / "a.parquet", "-qv", "dr", "-f", "jsonl", *flags)
    wanted = run(*words, "--from", "canonical").stdout
    assert wanted.count("\n") == 200
    assert [run(*words, "--jobs", jobs).stdout for jobs in (1, 2)] == [wanted] * 2


def test_a_near_name_to_group_by(tmp_path):
    """The columns of a row of one response are lists of one."""
    row = {"logps": [-0.5, -1.0], "reward": 1.0, "prompt_id": "a", "step": 0}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "a.parquet")
    found = run("eval", tmp_path / "a.parquet", "--group-by", "promptid").stderr
    assert "did you mean --group-by prompt_id?" in found


def by_token(kind):
    return pa.list_(pa.list_(kind))


NUMBERS, TRUTHS, WORDS = [[0, 1], [1]], [[False, True], [True]], [["a", "b"], ["c"]]
KINDS = [
    *[("group_ids", pa.list_(kind), ["a", "b"]) for kind in (pa.string(), pa.large_string())],
    *[("group_ids", pa.list_(kind), [3, 4]) for kind in (pa.int64(), pa.uint8())],
    ("group_ids", pa.list_(pa.bool_()), [False, True]),
    ("group_ids", pa.list_(pa.float64()), [0, 1]),
    ("group_ids", pa.list_(pa.int64()), [3, None]),
    *[("tokens", by_token(kind), WORDS) for kind in (pa.string(), pa.large_string())],
    ("tokens", by_token(pa.int64()), NUMBERS),
    ("tokens", by_token(pa.string()), [["a", None], ["c"]]),
    ("token_ids", by_token(pa.int32()), NUMBERS),
    ("token_ids", by_token(pa.float64()), NUMBERS),
    ("token_ids", by_token(pa.bool_()), TRUTHS),
    *[("mask", by_token(kind), NUMBERS) for kind in (pa.int8(), pa.float64())],
    ("mask", by_token(pa.bool_()), TRUTHS),
    ("mask", by_token(pa.string()), [["0", "1"], ["1"]]),
    ("mask", by_token(pa.int8()), [[0, 2], [1]]),
    ("mask", by_token(pa.int8()), [[0, None], [1]]),
    *[("rewards", pa.list_(kind), [0, 1]) for kind in (pa.float32(), pa.int64())],
    ("rewards", pa.list_(pa.bool_()), [False, True]),
    ("rewards", pa.list_(pa.string()), ["0", "1"]),
    ("rewards", pa.list_(pa.float64()), [0, None]),
    ("rewards", pa.list_(pa.float64()), [0, 1, 2]),
    *[("log_probs_old", by_token(k), [[-1, -2], [-3]]) for k in (pa.float32(), pa.int64())],
    ("log_probs_old", by_token(pa.string()), [["-1", "-2"], ["-3"]]),
    ("log_probs_old", by_token(pa.bool_()), TRUTHS),
    ("log_probs_old", by_token(pa.float64()), [[-1.0], [-2.0, -3.0]]),
    ("log_probs_old", by_token(pa.float64()), [[-1.0, -2.0, -3.0]]),
    ("log_probs_new", by_token(pa.float64()), []),
    *[("advantages", kind, [0, 1]) for kind in (pa.list_(pa.float64()), pa.list_(pa.int8()))],
    ("advantages", by_token(pa.float64()), NUMBERS),
    ("advantages", pa.list_(pa.string()), ["0", "1"]),
]  # fmt: skip


@each(("name", "kind", "values"), some(KINDS, 10))
def test_columns_of_every_type(tmp_path, name, kind, values):
    """Numbers that are text are no numbers, whichever way they are read."""
    columns = {
        "log_probs_new": pa.array([[[-1.0, -2.0], [-3.0]]] * 2, by_token(pa.float64())),
        "rewards": pa.array([[0.0, 1.0]] * 2),
    }
    columns[name] = pa.array([values] * 2, kind)
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    same(tmp_path / "a.parquet")


_LINES = Path(__file__).with_name("tables.jsonl").read_text(encoding="utf-8").splitlines()
TABLES = [json.loads(line) for line in _LINES]
"""Unusual rows, how often they are there, and flags."""


@pytest.mark.more
@each("table", TABLES, ids=lambda table: table["name"])
def test_unusual_tables(tmp_path, table):
    rows = table["rows"] * table.get("times", 1)
    keys = {key: None for row in rows for key in row}
    made = pa.table({key: [row.get(key) for row in rows] for key in keys})
    pq.write_table(made, tmp_path / "a.parquet", row_group_size=3)
    same(tmp_path / "a.parquet", *table.get("flags", ()))


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_column_that_was_not_read_is_named_where_one_is_missing(tmp_path, kind):
    """By its name, which may be that of the missing one; in the order of the table."""
    row = {"log_probs_new": [[-1.0]], "note": "a", "rewards": [1.0], "refs_lp": [[-1.0]]}
    row |= {"beta": 0.04}
    path = tmp_path / f"a.{kind}"
    made = pa.Table.from_pylist([row] * 3)
    if kind == "parquet":
        pq.write_table(made, path)
    else:
        with pa.ipc.new_file(str(path), made.schema) as sink:
            sink.write_table(made)
    fault = (
        f"grpo: {path}: [0].refs_lp: log_probs_ref is missing, but the variant grpo needs it; "
        "is it this key? Then: --map log_probs_ref=refs_lp reads it "
        "(--beta 0 works without a reference)"
    )
    for words in ((), ("--on-error", "skip")):
        assert fault in run("eval", path, *words).stderr
