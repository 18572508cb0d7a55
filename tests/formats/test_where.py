"""What is read: --where, --map and groups."""

from __future__ import annotations

import gzip
import json
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import run
from command import run as grpo
from files import each, in_blocks, some
from hypothesis import given
from hypothesis import strategies as st

from formats.dumps import NEW, OLD, REWARDS, lines

# ---- filters: flags that cannot be understood, and lines that are skipped by their text alone ----


RECORD: dict[str, Any] = {"log_probs_new": [[-1.0]], "rewards": [1]}


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False)
    | st.text('ab\\"\u00e9', max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", 'a"', "é"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from(["a", "b", "c"]), json_values, max_size=3),
    st.sampled_from(["a", "b", "a.b", "b.a", "a[0]", "c.a.b"]),
    st.sampled_from(["==", "!=", "<", "<=", ">", ">="]),
    st.sampled_from(["1", "0.5", "'a'", "true", "null", "b", "-2"]),
    st.booleans(),
)
def test_what_the_text_refutes_never_passes(
    value: dict[str, Any],
    path: str,
    test: str,
    constant: str,
    ascii_: bool,
) -> None:
    """Lines may be skipped by their text; the records of an array are decoded first."""
    text = json.dumps({**RECORD, **value}, ensure_ascii=ascii_)
    words = ("convert", "-", "--where", f"{path}{test}{constant}")
    found = [run(*words, stdin=one) for one in (text, f"[{text}]")]
    assert found[0].stdout == found[1].stdout
    assert found[0].exit_code == found[1].exit_code


# ---- rows of one response each, put together by a field or by their number; see ``cases/choose-*--


_LONG = "x" * 2_000
"""With some of these, the rows of a file are read in several blocks of 4 kB."""


def rows(keys="aabb", **more):
    return [
        {
            "logps": NEW[at % 4],
            "old_log_probs": OLD[at % 4],
            "reward": REWARDS[at % 4],
            "q": key,
            "step": 3,
            **more,
        }
        for at, key in enumerate(keys)
    ]


def evaluated(path, *words):
    return grpo("eval", path, "-qv", "dr", "--level", "token", "-f", "jsonl", *words)


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("grouping", [("--group-by", "q"), ("--group-size", 3)])
@pytest.mark.parametrize("pack", some([gzip.compress, bytes], 1))
def test_groups_straddle_blocks(tmp_path, jobs, grouping, pack, monkeypatch):
    in_blocks(monkeypatch, 4_096)
    keys, short, long = "aaaaabbbbccccccddd", tmp_path / "short", tmp_path / "long"
    short.write_bytes(lines(rows(keys)))
    long.write_bytes(pack(lines(rows(keys, note=_LONG))))
    wanted = evaluated(short, *grouping).stdout.replace("short", "long")
    assert evaluated(long, *grouping, "--jobs", jobs).stdout == wanted
    assert wanted.count("\n") > 30


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("anywhere", [False, True])
def test_a_key_that_comes_back(tmp_path, jobs, anywhere, monkeypatch):
    in_blocks(monkeypatch, 4_096)
    path = tmp_path / "rows.jsonl"
    path.write_bytes(lines(rows("aaabbbbcccca", note=_LONG)))
    flags = ("--group-by", "q", "--on-error", "skip", "--jobs", jobs, "--level", "record")
    result = evaluated(path, *flags, *["--group-anywhere"] * anywhere)
    found = [json.loads(line)["id"] for line in result.stdout.splitlines()]
    assert found == [*"abc"]
    message = (
        'rows.jsonl:12: the group q = "a" is not contiguous: it began on line 1 and continues here'
    )
    assert (message in result.stderr) != anywhere


STEPS = {
    "step": "step,q",
    "global_step": "global_step,q",
    "meta": "meta.train_step,q",
    "rollout_id": "rollout_id,q",
}
GROUPED = ("eval", "trend", "report", "compare", "check", "verify", "explain", "show")


@each(("command", "step"), some([*product(GROUPED, STEPS)], 11))
def test_groups_are_of_one_step(tmp_path, command, step):
    """Prompts that come back at other steps: every command refuses them, and says what to write."""
    path = tmp_path / "rows.jsonl"
    made = [
        row | {step: {"train_step": at} if step == "meta" else at}
        for at in range(2)
        for row in map(without_step, rows("aabb"))
    ]
    path.write_bytes(lines(made))
    words = (command, path, *(("-o", tmp_path / "page.html") if command == "report" else ()))
    hint = f"--group-by {(by := STEPS[step])} separates steps"
    assert hint in run(*words, "--group-by", "q").stderr
    assert f"rows.jsonl:5: {by[:-2]}: its step is 1, that of line 1 is 0" in (
        run(*words, "--group-by", "q", "--group-anywhere").stderr
    )
    assert hint not in run(*words, "--group-by", by).stderr


def without_step(row):
    return {name: value for name, value in row.items() if name != "step"}


@pytest.mark.parametrize("grouping", [("--group-by", "q"), ("--group-size", 2)])
def test_groups_before_a_fault_are_read(tmp_path, grouping):
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(lines(rows("aabbc"))) + gzip.compress(b"{}")[:-4])
    result = grpo("convert", path, *grouping)
    assert result.stdout.count("\n") == 2
    assert "end too early" in result.stderr


def test_a_key_that_is_nested_too_deeply(tmp_path):
    path, deep = tmp_path / "a.jsonl", "[" * 300 + "]" * 300
    path.write_bytes(lines(rows())[:-1].replace(b'"q": "b"', b'"q": ' + deep.encode()) + b"\n")
    said = f"{path}:3: q: expected a field to group by, got a field that is nested too deeply"
    assert said in evaluated(path, "--group-by", "q").stderr


def written(tmp_path, kind, keys):
    """Rows of one response each, in one of the ways in which files hold them."""
    data = [
        {
            "uid": keys[at // 2],
            "step": 7,
            "log_probs_new": NEW[at],
            "log_probs_old": OLD[at],
            "rewards": REWARDS[at],
        }
        for at in range(4)
    ]
    if kind == "nested":  # lists of one response, as the short way of plain records wants them
        data = [
            {name: one if name in ("uid", "step") else [one] for name, one in row.items()}
            for row in data
        ]
    if kind == "array":
        path = tmp_path / "a.json"
        path.write_text(json.dumps(data))
    elif kind in ("parquet", "by row"):
        path = tmp_path / "a.parquet"
        if kind == "by row":  # what is unusual is not read by columns
            data = [{**row, "epsilon": 0.2} for row in data]
        pq.write_table(pa.Table.from_pylist(data), path)
    else:
        path = tmp_path / "a.jsonl"
        path.write_bytes(lines(data))
    return str(path)


TOKENS = [sum(map(len, NEW[:2])), sum(map(len, NEW[2:4]))]
WAYS = ("lines", "nested", "array", "parquet", "by row")


CALLED = [
    ("uid", ["p0", "p1"], ["p0", "p1"]),
    ("uid", [7, 3], [7, 3]),
    ("step,uid", ["p0", "p1"], ["7/p0", "7/p1"]),
]


@pytest.mark.more
@each(("kind", "called"), some([*product(WAYS, CALLED)], 8))
def test_a_record_is_called_as_its_group(tmp_path, kind, called):
    """In every format and at every level; it was the number of the first row, 0 and 2."""
    by, keys, labels = called
    command = [written(tmp_path, kind, keys), "-v", "dr", "--group-by", by, "-q"]

    def run(*words):
        result = grpo("eval", *command, *words)
        assert result.exit_code == 0, result.stderr
        return result.stdout

    document = json.loads(run("--json", "--level", "token"))
    assert [one["id"] for one in document["records"]] == labels
    assert [one["responses"][0]["group"] for one in document["records"]] == keys
    for level, times in (("record", [1, 1]), ("response", [2, 2]), ("token", TOKENS)):
        rows = [json.loads(one) for one in run("-f", "jsonl", "--level", level).splitlines()]
        named = [label for label, count in zip(labels, times, strict=True) for _ in range(count)]
        assert [one["id"] for one in rows] == named, level
    texts = [*map(str, labels)]
    assert run("--only", "id").split() == texts
    assert [one.split(",")[0] for one in run("-f", "csv", "--fields", "id").split()[1:]] == texts
    for format in ("table", "markdown"):
        shown = run("-f", format, "--fields", "id,loss", "--level", "record")
        assert all(text in shown for text in texts), format
    file = str(tmp_path / "out.parquet")
    run("-f", "parquet", "-o", file)
    assert pq.read_table(file).column("id").to_pylist() == labels
    if by == "uid" and keys[0] == "p0":
        assert run("--only", "id", "--jobs", "2").split() == texts
    chosen = json.loads(run("--json", "--record", texts[1]))
    assert [one["id"] for one in chosen["records"]] == labels[1:]


@pytest.mark.more
@each("kind", WAYS)
@pytest.mark.parametrize("stdin", [False, True])
def test_eval_says_how_rows_of_one_response_are_put_together(tmp_path, kind, stdin):
    """And not where nothing is lost: rows of groups, one row alone, advantages that are given."""
    path = written(tmp_path, kind, ["p0", "p1"])

    def noted(*words, path=path):
        text = None
        if stdin and not path.endswith("parquet"):
            text, path = Path(path).read_text(), "-"
        result = grpo("eval", path, "-v", "dr", *words, stdin=text)
        assert result.exit_code == 0, result.stderr
        once = f"{result.stdout}{result.stderr}".count("every advantage is 0") < 2
        assert once, "one note says it"
        said = " ".join((result.stdout if words == () else result.stderr).split())
        return NOTE in said

    assert noted()  # before the numbers, which it says to be of little use
    assert noted("--json")
    assert noted("--level", "batch", "--only", "loss")
    assert not noted("--group-by", "uid")
    assert not noted("--record", "0")
    assert not noted("--advantage", "raw")
    assert not noted("-q")


NOTE = "note: each record is a group of its own, so every advantage is 0; --group-by uid joins them"


def test_rows_that_are_counted_keep_their_number(tmp_path):
    for kind in WAYS:
        words = [written(tmp_path, kind, ["p0", "p1"]), "-v", "dr", "--group-size", "2"]
        result = grpo("eval", *words, "--only", "id", "-q")
        assert result.stdout.split() == ["0", "2"], kind


@pytest.mark.more
@each("jobs", [1, 2])
@each("written_as", ["lines", "document"])
def test_a_size_cuts_the_responses_of_a_record(tmp_path, jobs, written_as, monkeypatch) -> None:
    """As the records that say it themselves: a batch of two prompts is one line."""
    in_blocks(monkeypatch, 4_096)
    one = {
        "log_probs_new": [[-1.0], [-2.0, -0.5], [-0.25], [-0.5]],
        "rewards": [1.0, 0.0, 3.0, 1.0],
    }
    batches = [{**one, "id": at, "note": _LONG} for at in range(3)]
    path = tmp_path / "in"

    def found(records, *flags: object) -> str:
        document = [json.dumps(records).encode()]
        path.write_bytes(document[0] if written_as == "document" else lines(records))
        return evaluated(path, "--jobs", jobs, *flags).stdout

    wanted = found([{**one, "group_size": 2} for one in batches])
    assert wanted.count('"group":1') == 3 * 2
    assert found(batches, "--group-size", 2) == wanted
    whole = [{**one, "group_size": 4} for one in batches]
    assert found(whole) != wanted
    assert found(whole, "--group-size", 2) == wanted  # flags come before records
    assert "expected a divisor of 4" in grpo("eval", path, "--group-size", "3").stderr
