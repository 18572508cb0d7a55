"""Parquet, Arrow and npz read as the same JSON does."""

import json
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
from command import answer, run
from files import some

from formats import dumps
from formats.dumps import ADVANTAGES, GROUPS, IDS, NEW, OLD, REWARDS, WORDS, lines
from grpo_cli import read

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

RECORDS = [
    {
        "id": f"r{number}",
        "log_probs_new": NEW[:3],
        "old_log_probs": OLD[:3],
        "mask": [[1, 1], [0, 1, 1], [1]],
        "token_ids": IDS[:3],
        "tokens": WORDS[:3],
        "advantages": [float(number), -0.5, 0.25],
        "uid": ["a", "a", "b"],
        "hyperparameters": {"epsilon": 0.25},
    }
    for number in range(5)
]


def evaluate(path, *flags, variant="dr"):
    """All that is computed of a file, but for where it stands in it."""
    found = answer("eval", path, "-v", variant, "--level", "token", "-q", *flags)
    for one in found["records"]:
        del one["source"], one["line"]
    return found


def refused(path, *flags):
    """The message on a file that cannot be read."""
    result = run("eval", path, "-v", "dr", "-q", *flags)
    assert result.exit_code == 3
    return result.stderr


def written(path, records, **options):
    table = pa.Table.from_pylist(records)
    if path.suffix == ".parquet":
        pq.write_table(table, path, **options)
    elif path.suffix == ".arrow":
        with pa.ipc.new_file(str(path), table.schema) as sink:
            sink.write_table(table, max_chunksize=2)
    else:
        with pa.ipc.new_stream(str(path), table.schema) as sink:
            sink.write_table(table, max_chunksize=2)
    return path


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(lines(RECORDS))
    return path


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "stream"])
@pytest.mark.parametrize("jobs", some([1, 2], 1))
def test_records(tmp_path, text, suffix, jobs):
    path = written(tmp_path / f"in.{suffix}", RECORDS)
    assert evaluate(path, "--jobs", jobs) == evaluate(text)


@pytest.mark.more
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_row_groups(tmp_path, text, rows):
    path = written(tmp_path / "in.parquet", RECORDS, row_group_size=rows)
    assert evaluate(path, "--jobs", 2) == evaluate(text)


def test_smaller_numbers(tmp_path):
    schema = pa.schema(
        [
            ("log_probs", pa.large_list(pa.list_(pa.float32()))),
            ("mask", pa.list_(pa.list_(pa.bool_()))),
            ("rewards", pa.list_(pa.float32())),
        ]
    )
    rows = [{"log_probs": NEW, "mask": [[True] * len(one) for one in NEW], "rewards": REWARDS}]
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), tmp_path / "in.parquet")
    (tmp_path / "in.jsonl").write_bytes(lines([{"log_probs": NEW, "rewards": REWARDS}]))
    assert evaluate(tmp_path / "in.parquet") == evaluate(tmp_path / "in.jsonl")


def rows_of_one():
    return [
        {"logps": NEW[at], "old_log_probs": OLD[at], "reward": REWARDS[at], "uid": GROUPS[at]}
        for at in range(4)
    ]


@pytest.mark.parametrize("grouping", [("--group-by", "uid"), ("--group-size", 2)])
@pytest.mark.parametrize("rows", [1, 3, 4])
def test_rows_put_together(tmp_path, grouping, rows):
    path = written(tmp_path / "in.parquet", rows_of_one(), row_group_size=rows)
    (tmp_path / "in.jsonl").write_bytes(lines(rows_of_one()))
    found, wanted = evaluate(path, *grouping), evaluate(tmp_path / "in.jsonl", *grouping)
    assert len(found["records"]) == 2
    for one in found["records"] + wanted["records"]:
        del one["id"]  # the line, or the row, of the first
    assert found == wanted


def test_rows_of_one_apart(tmp_path):
    path = written(tmp_path / "in.parquet", rows_of_one())
    (tmp_path / "in.jsonl").write_bytes(lines(rows_of_one()))
    assert evaluate(path) == evaluate(tmp_path / "in.jsonl")


def test_formats_in_tables(tmp_path):
    rows = [{k: v for k, v in row.items() if k != "losses"} for row in dumps.of("prime-rl")]
    path = written(tmp_path / "in.parquet", rows)
    (tmp_path / "in.jsonl").write_bytes(lines(rows))
    assert evaluate(path) == evaluate(tmp_path / "in.jsonl")
    path = written(tmp_path / "trl.parquet", dumps.of("trl-completions"))
    assert "TRL's completions_{step}.parquet, which has texts" in refused(path)


@pytest.mark.parametrize("level", ["batch", "token"])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a"], "[1].tokens[0]: expected 2 tokens (as log_probs[1] has), got 1"),
        (["a", None], "[1].tokens[0][1]: expected a string, got null"),
        (None, "[1]: [0] has tokens but [1] of the same group does not"),
    ],
)
def test_words_are_checked_at_every_level(tmp_path, words, message, level):
    row = {"log_probs": [-0.1, -0.2], "reward": 1.0, "uid": "g", "tokens": ["b", "c"]}
    path = written(tmp_path / "in.parquet", [row, row | {"tokens": words}])
    assert f"in.parquet: {message}" in refused(path, "--group-by", "uid", "--level", level)


FAULTS = [
    ({"log_probs_new": [[0.5, -1.0], [-1.0, -1.0, -1.0], [-1.0]]}, "log_probs_new[0][0]: .* 0.5"),
    ({"log_probs_new": [[None, -1.0], [-1.0, -1.0, -1.0], [-1.0]]}, "log_probs_new[0][0]: .* NaN"),
    (
        {"log_probs_new": [[-1.0], [-1.0, -1.0, -1.0], [-1.0]]},
        "log_probs_new[0]: expected 2 numbers ",
    ),
    ({"log_probs_new": None}, "expected log_probs_new; grpo formats lists"),
    ({"mask": [[1, 1], [0, 1, 2], [1]]}, "mask[1][2]: expected 0 or 1, got 2"),
]


@pytest.mark.parametrize(("change", "message"), FAULTS)
def test_errors(tmp_path, change, message):
    path = written(tmp_path / "in.parquet", [*RECORDS[:3], {**RECORDS[3], **change}])
    pattern = message.replace("[", r"\[").replace("]", r"\]")
    assert re.search(rf"in.parquet: \[3\]\.?.*{pattern}", refused(path))


@pytest.mark.parametrize("key", ["uid", "advantages"])
def test_a_column_that_is_too_long_here_and_too_short_there(tmp_path, key):
    """All in all there are as many values as responses."""
    values = {"uid": list("aabbab"), "advantages": [1.0, 2.0, 3.0, -1.0, -2.0, -3.0]}[key]
    plain = {name: one for name, one in RECORDS[0].items() if name != "hyperparameters"}
    rows = [plain | {key: values[:4]}, plain | {key: values[4:]}]
    found = refused(written(tmp_path / "in.parquet", rows))
    assert re.search(rf"\[0\]\.{key}: expected 3 .*, got 4", found)


def test_keys_that_a_record_has_not_are_null_in_a_struct(tmp_path):
    """A column of objects has every key in every row; what is null there, JSON had not."""
    settings = [{"epsilon": 0.25}, {"beta": 0.5}, {"epsilon": 0.1, "beta": 0.25}, {"std_ddof": 0}]
    reference = [[-1.0] * len(row) for row in NEW[:3]]
    rows = [RECORDS[0] | {"log_probs_ref": reference, "hyperparameters": one} for one in settings]
    (tmp_path / "in.jsonl").write_bytes(lines(rows))
    path = written(tmp_path / "in.parquet", rows)
    assert pq.read_table(path)["hyperparameters"][0].as_py() == {
        "epsilon": 0.25, "beta": None, "std_ddof": None,
    }  # fmt: skip
    assert evaluate(path, variant="grpo") == evaluate(tmp_path / "in.jsonl", variant="grpo")


@pytest.mark.parametrize(
    "more", [{"group_ids": ["a", "a", "b"]}, {"mask": [[1, 1], [0, 1, 1], [1]]}, {"note": [1]}]
)
def test_what_stands_in_the_column_of_json_counts_as_in_one_of_its_own(tmp_path, more):
    own = {"log_probs_new": NEW[:3], "rewards": [1, 0, 1]}
    rows = [own | more] * 3
    (tmp_path / "in.jsonl").write_bytes(lines(rows))
    path = written(tmp_path / "in.parquet", [{"grpo_json": json.dumps(more)} | own] * 3)
    found, wanted = evaluate(path), evaluate(tmp_path / "in.jsonl")
    for one in found["records"] + wanted["records"]:
        del one["id"]
    assert found == wanted


def test_words_of_rows_are_compared_and_counted_as_those_of_lines(tmp_path):
    draw = np.random.default_rng(4)
    rows = [
        {
            "log_probs": (-draw.random(12)).tolist(),
            "reward": float(number % 2),
            "uid": f"g{number // 4}",
            "step": number // 8,
            "tokens": draw.choice(["a", "b", "ä"], 12).tolist(),
        }
        for number in range(24)
    ]
    by, texts = ("--group-by", "uid"), tmp_path / "in.jsonl"
    texts.write_text("".join(map("{}\n".format, map(json.dumps, rows))))
    table = written(tmp_path / "in.parquet", rows, row_group_size=7)
    repeated = [
        [step["repetition"] for step in answer("trend", one, *by, "-q")["steps"]]
        for one in (texts, table)
    ]
    assert repeated[0] == repeated[1]
    assert min(repeated[1]) > 0.0
    rows[13]["tokens"][5] = "other"
    changed = written(tmp_path / "changed.parquet", rows)
    for same in (texts, table):
        assert run("diff", same, table, *by).exit_code == 0
        found = run("diff", same, changed, *by)
        assert found.exit_code == 1
        assert "other" in found.stdout


@pytest.mark.parametrize("key", ["id", "tokens", "uid", "framework"])
@pytest.mark.parametrize("deep", [False, True])
def test_text_that_is_no_utf_8(tmp_path, key, deep):
    """The column is named, whichever way the file is read."""
    buffers = [None, pa.py_buffer(np.array([0, 2, 4], np.int32)), pa.py_buffer(b"\xe7aab")]
    column = pa.Array.from_buffers(pa.string(), 2, buffers)
    rows = {"log_probs_new": [[[-0.5, -1.0]]] * 2, "advantages": [[1.0]] * 2}
    if deep:
        offsets = pa.array([0, 1, 2], pa.int32())
        column = pa.ListArray.from_arrays(offsets, column)
    if key == "framework":
        column = pa.StructArray.from_arrays([column], ["name"])
    pq.write_table(pa.table(rows | {key: column}), tmp_path / "in.parquet")
    said = (
        rf"in.parquet: {key}: cannot read .* \('utf-8' codec .*\); cast the column or leave it out"
    )
    assert re.search(said, refused(tmp_path / "in.parquet"))


def test_damaged_files(tmp_path):
    path = written(tmp_path / "in.parquet", RECORDS)
    data = path.read_bytes()
    for number, cut in enumerate((data[:-20], data[:8], b"PAR1", data[:100] + b"x" * 50)):
        (tmp_path / f"{number}.parquet").write_bytes(cut)
        assert "the file is damaged" in refused(tmp_path / f"{number}.parquet")
    empty = written(tmp_path / "empty.parquet", RECORDS[:1])
    pq.write_table(pq.read_table(empty).slice(0, 0), empty)
    assert "no records: the table has no rows" in refused(empty)


def test_a_pipe_is_no_file(tmp_path):
    path = written(tmp_path / "in.parquet", RECORDS)
    result = run("eval", stdin=path.read_bytes())
    assert result.exit_code == 3
    assert "<stdin>: Parquet, Arrow and npz are read from files, not from pipes" in result.stderr


def test_without_the_package(tmp_path, monkeypatch):
    path = written(tmp_path / "in.parquet", RECORDS)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    assert "pip install pyarrow" in refused(path)


PADDED = {
    "log_probs": np.array([[-0.5, -1.25, 0], [-0.75, -0.125, -2.0]], dtype=np.float32),
    "old_log_probs": np.array([[-0.625, -1.0, 0], [-0.75, -0.25, -1.75]], dtype=np.float32),
    "completion_mask": np.array([[1, 1, 0], [1, 1, 1]]),
    "advantages": np.array(ADVANTAGES[:2]),
}


@pytest.fixture
def padded(tmp_path):
    path = tmp_path / "padded.jsonl"
    path.write_bytes(lines([{name: array.tolist() for name, array in PADDED.items()}]))
    return path


def test_npz(tmp_path, padded):
    np.savez_compressed(tmp_path / "in.npz", **PADDED)
    assert evaluate(tmp_path / "in.npz") == evaluate(padded)
    nested = {name: np.stack([array, array]) for name, array in PADDED.items()}
    np.savez(tmp_path / "nested.npz", **nested)
    assert evaluate(tmp_path / "nested.npz")["total"]["groups"] == 2
    (tmp_path / "bad.npz").write_bytes((tmp_path / "in.npz").read_bytes()[:50])
    assert "bad.npz: the file is damaged" in refused(tmp_path / "bad.npz")


class _Trap:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_npz_is_never_unpickled(tmp_path):
    trap = np.array([_Trap(tmp_path / "sprung"), None], dtype=object)
    np.savez(tmp_path / "in.npz", log_probs_new=trap, rewards=np.zeros(2))
    assert "in.npz" in refused(tmp_path / "in.npz")
    assert not (tmp_path / "sprung").exists()


def test_as_much_as_an_archive_may_unpack_to(tmp_path):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, **PADDED)
    size = sum(entry.file_size for entry in zipfile.ZipFile(path).infolist())
    values = sum(array.size for array in PADDED.values())
    assert evaluate(path, "--unpack", 64 * values)["total"]["records"] == 1
    assert f"{values} values in a file of" in refused(path, "--unpack", 64 * values - 1)
    assert f": {size:,} bytes, unpacked, in a file" in refused(path, "--unpack", size - 1)


@pytest.mark.parametrize("depth", [0, 1, 2, 3, 4])
def test_arrays_are_as_deep_as_they_are(tmp_path, depth):
    array = np.arange(float(2**depth)).reshape((2,) * depth)
    np.savez(tmp_path / "a.npz", log_probs_new=-np.ones((1, 2)), advantages=np.ones(1), note=array)
    (found,) = read(tmp_path / "a.npz")
    assert found["note"] == array.tolist()


TURNS = [
    {"uid": "ab"[at // 2], "reward": at % 2, "log_probs_new": [-0.5] * n, "token_ids": [7, 8][:n]}
    | {"tokens": ["yes", "no"][:n], "env": "math"}
    for at, n in enumerate([1, 2, 1, 2])
]
"""A response a row, some of them of one token."""


@pytest.mark.parametrize(
    "condition",
    [
        *("tokens[0]==yes", "tokens[0]!=yes", "tokens[0][0]==no", "tokens==yes"),
        *("token_ids[0]==7", "token_ids[0]!=7", "token_ids.0.1==8", "env.0==m"),
    ],
)
def test_a_row_of_a_table_is_chosen_as_the_list_that_it_is_in_json(tmp_path, condition):
    rows = [
        {key: value if key in ("env", "id") else [value] for key, value in row.items()}
        for row in TURNS
    ]
    rows = [{"id": f"r{number}", **row} for number, row in enumerate(rows)]
    text, words = tmp_path / "a.jsonl", ("--fields", "id,objective", "-f", "csv", "-q")
    text.write_bytes(lines(rows))
    found = [
        run("eval", path, "--where", condition, *words)
        for path in (text, written(tmp_path / "a.parquet", rows))
    ]
    said = [(one.exit_code, one.stdout, one.stderr) for one in found]
    assert said[0] == said[1]


def test_rows_grouped_by_a_token_have_its_name(tmp_path):
    written(tmp_path / "a.parquet", [TURNS[0], TURNS[2]])
    found = answer("eval", tmp_path / "a.parquet", "--group-by", "tokens[0]")
    assert [one["id"] for one in found["records"]] == ["yes"]


def test_a_batch_of_many_rows_is_read_in_parts(tmp_path):
    """Some rows of a batch share its values; each part has only those of its rows."""
    rows = [
        {"log_probs_new": [[-0.5] * (1 + at % 3), []], "rewards": [at % 2, 0], "id": at}
        | {"tokens": [[f"t{at}"] * (1 + at % 3), []]}
        for at in range(600)
    ]
    (tmp_path / "a.jsonl").write_bytes(lines(rows))
    table = pa.Table.from_pylist(rows)
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as sink:
        sink.write_table(table)
    assert evaluate(tmp_path / "a.arrow") == evaluate(tmp_path / "a.jsonl")
