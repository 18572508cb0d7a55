"""Parquet, Arrow, npz and safetensors read as the same JSON does."""

import io
import json
import struct
import zipfile
from pathlib import Path

import numpy as np
import orjson
import pytest
from files import evaluation, gather
from typer.testing import CliRunner

from formats import dumps
from formats.dumps import ADVANTAGES, GROUPS, IDS, NEW, OLD, REWARDS, WORDS, lines
from grpo_cli.commands.eval.nested import encode_nested as encode_json
from grpo_cli.commands.main import application
from grpo_cli.errors import InputError
from grpo_cli.records import PLAIN, Reading
from grpo_cli.records.choose.grouping import Grouping
from grpo_cli.records.tables import arrays, parquet
from grpo_cli.records.tables.arrow import _rows_at_once
from grpo_cli.records.tables.pieces import kind_of
from grpo_cli.records.translate import _summed
from grpo_cli.variants.plan import plan

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


def evaluate(path, reading=PLAIN, variant="dr", **more):
    def encode(records, breakdown):
        return encode_json(records, breakdown, level="token", fields=None)

    run = evaluation(path, plan(variant), encode=encode, reading=reading, **more)
    found = [orjson.loads(piece) for pieces in run for piece in pieces]
    for one in found:
        del one["source"], one["line"]
    return found, run.total


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
@pytest.mark.parametrize("jobs", [1, 2])
def test_records(tmp_path, text, suffix, jobs):
    path = written(tmp_path / f"in.{suffix}", RECORDS)
    assert evaluate(path, jobs=jobs) == evaluate(text)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_row_groups(tmp_path, text, rows):
    path = written(tmp_path / "in.parquet", RECORDS, row_group_size=rows)
    assert evaluate(path, jobs=2) == evaluate(text)


@pytest.mark.parametrize(("tokens", "most"), [(1, 1 << 14), (64, 1 << 10), (1 << 13, 8)])
def test_of_long_rows_few_are_read_at_once(tmp_path, tokens, most):
    """Some 65,000 tokens, whatever short columns stand beside them."""
    rows = [{"id": str(at), "log_probs_new": [[-1.0] * tokens]} for at in range(20)]
    path = written(tmp_path / "in.parquet", rows)
    assert _rows_at_once(pq.ParquetFile(path).metadata, [0]) == most


def test_no_python_floats(tmp_path):
    path = written(tmp_path / "in.parquet", RECORDS)
    raws = [raw for piece in PLAIN.pieces(str(path)) for raw in PLAIN.raws(piece, {})]
    assert all(type(row) is np.ndarray for raw in raws for row in raw.value["log_probs_new"])
    assert gather([raw.value for raw in raws]) is not None


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
    (one,), _ = evaluate(tmp_path / "in.parquet")
    (tmp_path / "in.jsonl").write_bytes(lines([{"log_probs": NEW, "rewards": REWARDS}]))
    assert [one] == evaluate(tmp_path / "in.jsonl")[0]


def rows_of_one():
    return [
        {"logps": NEW[at], "old_log_probs": OLD[at], "reward": REWARDS[at], "uid": GROUPS[at]}
        for at in range(4)
    ]


@pytest.mark.parametrize("grouping", [Grouping(by=(("uid",),)), Grouping(size=2)])
@pytest.mark.parametrize("rows", [1, 3, 4])
def test_rows_put_together(tmp_path, grouping, rows):
    path = written(tmp_path / "in.parquet", rows_of_one(), row_group_size=rows)
    (tmp_path / "in.jsonl").write_bytes(lines(rows_of_one()))
    reading = Reading(grouping=grouping)
    found, total = evaluate(path, reading)
    wanted, same = evaluate(tmp_path / "in.jsonl", reading)
    assert len(found) == 2
    for one in found + wanted:
        del one["id"]  # the line, or the row, of the first
    assert found == wanted
    assert total == same


def test_rows_of_one_apart(tmp_path):
    path = written(tmp_path / "in.parquet", rows_of_one())
    (tmp_path / "in.jsonl").write_bytes(lines(rows_of_one()))
    assert evaluate(path)[0] == evaluate(tmp_path / "in.jsonl")[0]


def test_formats_in_tables(tmp_path):
    rows = [{k: v for k, v in row.items() if k != "losses"} for row in dumps.prime_rl()]
    path = written(tmp_path / "in.parquet", rows)
    (tmp_path / "in.jsonl").write_bytes(lines(rows))
    assert evaluate(path)[0] == evaluate(tmp_path / "in.jsonl")[0]
    path = written(tmp_path / "trl.parquet", [dumps.texts()["trl-completions"]])
    with pytest.raises(InputError, match=r"TRL's completions_{step}.parquet, which holds texts"):
        evaluate(path)


FAULTS = [
    ({"log_probs_new": [[0.5, -1.0], [-1.0, -1.0, -1.0], [-1.0]]}, "log_probs_new[0][0]: .* 0.5"),
    ({"log_probs_new": [[None, -1.0], [-1.0, -1.0, -1.0], [-1.0]]}, "log_probs_new[0][0]: .* NaN"),
    ({"log_probs_new": [[-1.0], [-1.0, -1.0, -1.0], [-1.0]]}, "mask[0]: expected 1 number "),
    ({"log_probs_new": None}, "expected log_probs_new, found none"),
    ({"mask": [[1, 1], [0, 1, 2], [1]]}, "mask[1][2]: expected 0 or 1, got 2"),
]


@pytest.mark.parametrize(("change", "message"), FAULTS)
def test_errors(tmp_path, change, message):
    path = written(tmp_path / "in.parquet", [*RECORDS[:3], {**RECORDS[3], **change}])
    pattern = message.replace("[", r"\[").replace("]", r"\]")
    with pytest.raises(InputError, match=rf"in.parquet: \[3\]\.?.*{pattern}"):
        evaluate(path)


@pytest.mark.parametrize("key", ["uid", "advantages"])
def test_a_column_that_is_too_long_here_and_too_short_there(tmp_path, key):
    """All in all there are as many values as responses."""
    values = {"uid": list("aabbab"), "advantages": [1.0, 2.0, 3.0, -1.0, -2.0, -3.0]}[key]
    plain = {name: one for name, one in RECORDS[0].items() if name != "hyperparameters"}
    rows = [plain | {key: values[:4]}, plain | {key: values[4:]}]
    with pytest.raises(InputError, match=rf"\[0\]\.{key}: expected 3 .*, got 4"):
        evaluate(written(tmp_path / "in.parquet", rows))


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
    for one in found[0] + wanted[0]:
        del one["id"]
    assert found == wanted


def test_nanoseconds_inside_of_other_values(tmp_path):
    """They are text with all their digits, as in a column of their own; the others stay numbers."""
    times = pa.array([1, 2001], pa.timestamp("ns"))
    offsets, rows = pa.array([0, 1, 2], pa.int32()), {"log_probs_new": [[[-0.5]]] * 2}
    deep = {
        "when": times,
        "lists": pa.ListArray.from_arrays(offsets, times),
        "fixed": pa.FixedSizeListArray.from_arrays(times, 1),
        "structs": pa.StructArray.from_arrays([times, pa.array([1, 2])], ["at", "count"]),
        "maps": pa.MapArray.from_arrays(offsets, pa.array(["a", "b"]), times),
        "words": times.dictionary_encode(),
    }
    pq.write_table(pa.table(rows | deep), tmp_path / "in.parquet")
    result = CliRunner().invoke(application(), ["convert", str(tmp_path / "in.parquet")])
    first, second = ("1970-01-01 00:00:00.000000001", "1970-01-01 00:00:00.000002001")
    for line, at, letter in zip(result.stdout.splitlines(), (first, second), "ab", strict=True):
        found = json.loads(line)
        assert (found["when"], found["lists"], found["fixed"], found["words"]) == (
            at,
            [at],
            [at],
            at,
        )
        assert found["structs"] == {"at": at, "count": "ab".index(letter) + 1}
        assert found["maps"] == [[letter, at]]


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
    with pytest.raises(InputError, match=said):
        evaluate(tmp_path / "in.parquet")


def test_damaged_files(tmp_path):
    path = written(tmp_path / "in.parquet", RECORDS)
    data = path.read_bytes()
    for number, cut in enumerate((data[:-20], data[:8], b"PAR1", data[:100] + b"x" * 50)):
        (tmp_path / f"{number}.parquet").write_bytes(cut)
        with pytest.raises(InputError, match="the file is damaged"):
            evaluate(tmp_path / f"{number}.parquet")
    empty = written(tmp_path / "empty.parquet", RECORDS[:1])
    pq.write_table(pq.read_table(empty).slice(0, 0), empty)
    with pytest.raises(InputError, match="no records: the table has no rows"):
        evaluate(empty)


def test_a_pipe_is_no_file(tmp_path):
    path = written(tmp_path / "in.parquet", RECORDS)
    result = CliRunner().invoke(application(), ["eval"], input=path.read_bytes())
    assert result.exit_code == 3
    assert "<stdin>: Parquet, Arrow and npz are read from files, not from pipes" in result.stderr


def test_without_the_package(tmp_path, monkeypatch):
    path = written(tmp_path / "in.parquet", RECORDS)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pip install 'grpo-cli\[parquet\]'"):
        evaluate(path)


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
    _, total = evaluate(tmp_path / "nested.npz")
    assert total["groups"] == 2
    (tmp_path / "bad.npz").write_bytes((tmp_path / "in.npz").read_bytes()[:50])
    with pytest.raises(InputError, match=r"bad.npz: the file is damaged"):
        evaluate(tmp_path / "bad.npz")


@pytest.mark.parametrize(
    ("head", "name", "kind"),
    [
        (b"PK\x03\x04", "a.npz", "npz"),
        (b"PK\x03\x04", "a.pt", "torch"),
        (b"PK\x03\x04", "a.pth", "torch"),
        (b"PK\x03\x04", "a.jsonl", None),
        (b'{"a": 1}', "a.pt", None),
        (b'{"a": 1}', "a.npz", None),
        (struct.pack("<Q", 80) + b"{", "a", "safetensors"),
        (struct.pack("<Q", 80) + b"[", "no.safetensors", None),
        (struct.pack("<Q", 1 << 40) + b"{", "huge.safetensors", None),
    ],
)
def test_the_kind_of_a_file(head, name, kind):
    assert kind_of(head, name) == kind


class _Trap:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_npz_is_never_unpickled(tmp_path):
    trap = np.array([_Trap(tmp_path / "sprung"), None], dtype=object)
    np.savez(tmp_path / "in.npz", log_probs_new=trap, rewards=np.zeros(2))
    with pytest.raises(InputError, match=r"in\.npz"):
        evaluate(tmp_path / "in.npz")
    assert not (tmp_path / "sprung").exists()


def tensors(arrays):
    """The layout of the safetensors format's README: a length, a JSON header, the numbers."""
    header, data = {}, b""
    names = {"<f4": "F32", "<f8": "F64", "<i8": "I64", "|b1": "BOOL", "<u2": "BF16"}
    for name, array in arrays.items():
        raw = array.tobytes()
        header[name] = {
            "dtype": names[array.dtype.str],
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    return struct.pack("<Q", len(text)) + text + data


def test_safetensors(tmp_path, padded):
    path = tmp_path / "in.safetensors"
    path.write_bytes(tensors(PADDED))
    assert evaluate(path) == evaluate(padded)
    halves = {name: array for name, array in PADDED.items() if array.dtype != np.float32}
    for name in ("log_probs", "old_log_probs"):  # bfloat16 holds these numbers exactly
        halves[name] = (PADDED[name].view(np.uint32) >> 16).astype(np.uint16)
    path.write_bytes(tensors(halves))
    assert evaluate(path) == evaluate(padded)
    for cut in (30, -10):
        path.write_bytes(tensors(PADDED)[:cut])
        with pytest.raises(InputError, match=r"in.safetensors: the file is damaged"):
            evaluate(path)


def test_as_much_as_an_archive_may_unpack_to(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, **PADDED)
    size = sum(entry.file_size for entry in zipfile.ZipFile(path).infolist())
    assert evaluate(path)[1]["records"] == 1
    for most in (size, size - 1):
        monkeypatch.setattr(arrays, "most_unpacked", lambda _, most=most: most)
        if most == size:
            assert evaluate(path)[1]["records"] == 1
        else:
            with pytest.raises(InputError, match="arrays of more than 0 MiB, unpacked; if it is"):
                evaluate(path)


def with_header(header, data=b"\0" * 16):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(begin, end, kind="F64", shape=(1,)):
    return {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ({"a": entry(0, 8, "C64")}, "numbers of type C64 are not read"),
        ({"a": entry(0, 8), "b": entry(8, 17)}, "its tensors take 17 bytes, and 16 are there"),
        ({"a": entry(0, 8), "b": entry(7, 16)}, "data_offsets of b between 8 and 16, apart from"),
        ({"a": entry(-1, 8)}, "expected data_offsets of a between 0 and 16"),
        ({"a": entry(8, 0)}, "expected data_offsets of a between 0 and 16"),
    ],
)
def test_tensors_that_do_not_lie_apart(tmp_path, header, said):
    path = tmp_path / "a.safetensors"
    path.write_bytes(with_header(header))
    with pytest.raises(InputError, match="the file is damaged: ") as caught:
        evaluate(path)
    assert said in str(caught.value)


def test_a_header_that_is_longer_than_its_file(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", 30) + b"{" + b" " * 28)
    with pytest.raises(InputError, match="a header of 30 bytes, and 29 are left; is the file cut"):
        evaluate(path)


TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2"}


@pytest.mark.parametrize("kind", [*TYPES, "I8", "U8", "BOOL", "BF16"])
def test_every_type_of_number(tmp_path, kind):
    """Those of safetensors 0.6's README; bfloat16 is the upper half of float32."""
    numbers = np.array([[1, 0, 1], [1, 1, 0]])
    if kind == "BF16":
        data = (numbers.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    else:
        data = numbers.astype(TYPES.get(kind, {"U8": "u1", "I8": "i1"}.get(kind, "?"))).tobytes()
    gap = b"\xff" * 3
    (tmp_path / "a").write_bytes(
        with_header({"n": entry(3, 3 + len(data), kind, (2, 3))}, gap + data + gap)
    )
    (raw,) = arrays.raws("a", str(tmp_path / "a"), "safetensors")
    assert [row.tolist() for row in raw.value["n"]] == numbers.tolist()


@pytest.mark.parametrize("depth", [0, 1, 2, 3, 4])
def test_arrays_are_as_deep_as_they_are(tmp_path, depth):
    array = np.arange(float(2**depth)).reshape((2,) * depth)
    np.savez(tmp_path / "a.npz", n=array)
    (raw,) = arrays.raws("a", str(tmp_path / "a.npz"), "npz")
    assert raw.plain() == {"n": array.tolist()}
    assert raw.size == array.nbytes


@pytest.mark.parametrize("found", [None, 5, [], [1, 2], [[0.5, 0.25], []], [[["x"]]], [[1], 2]])
def test_scores_by_token_are_summed(found):
    wanted = [0.75, 0.0] if found == [[0.5, 0.25], []] else found
    assert _summed(found) == wanted


def test_scores_of_groups_are_summed():
    assert _summed([[[1, 2], [3]], [[4]], []]) == [[3.0, 3.0], [4.0], 0.0]


@pytest.mark.parametrize("waiting", [1, 10**9])
def test_a_file_without_records_is_none(monkeypatch, waiting):
    monkeypatch.setattr(parquet, "_WAITING", waiting)
    stream = io.BytesIO()
    with parquet.Table(stream) as made:
        for number in range(3):
            made.add({"id": number, "log_probs_new": [[-1.0]]})
    assert pq.read_table(stream).num_rows == 3
    with pytest.raises(InputError, match="no records to write"), parquet.Table(io.BytesIO()):
        pass
