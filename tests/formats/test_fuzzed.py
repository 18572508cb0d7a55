"""What random changes of the fixtures have brought to light, each kept as it was found."""

import json
import zipfile

import numpy as np
import pytest
from files import evaluation, gather, raws, records

from formats import dumps
from formats.dumps import NEW, OLD, REWARDS, lines
from grpo_cli.commands.eval.nested import encode_nested as encode_json
from grpo_cli.errors import InputError
from grpo_cli.records import PLAIN, record
from grpo_cli.records.choose.grouping import Grouping
from grpo_cli.records.choose.where import read_conditions
from grpo_cli.records.decode import decode
from grpo_cli.records.tables.canonical import dumps as dumps_of
from grpo_cli.variants.plan import plan


@pytest.fixture
def read(tmp_path):
    def run(data, **options):
        path = tmp_path / "in.jsonl"
        path.write_bytes(data)
        return records(path, {}, **options)

    return run


@pytest.mark.parametrize("data", [b"[[-1.0]]\n", b"Infinity\n[1]", b'"text"\n', b"null\n"])
@pytest.mark.parametrize("options", [{"group": "1"}, {"grouping": Grouping(size=1)}, {}])
def test_what_is_no_object(read, data, options):
    assert all("expected an object" in str(one) for one in read(data, **options))


def test_a_length_that_is_infinite(read):
    row = {**dumps.nemo_rl()[0], "input_lengths": [float("inf")]}
    assert "this is not what NeMo-RL" in str(read(lines([row]))[0])
    assert "this is not what NeMo-RL" in str(
        read(lines([row]), grouping=Grouping(by=(("prompt",),)))[0]
    )


def test_rows_without_any_column(read):
    data = lines([{"input": "p", "output": 1, "gts": "1", "score": 0, "step": 3}])
    (one,) = read(data, format="roll-board", grouping=Grouping(by=(("step",),)))
    assert isinstance(one, InputError)


def test_a_group_called_infinity(read):
    row = {"logps": [-0.5, -1], "reward": 1}
    assert len(read(lines([{**row, "uid": float("inf")}, {**row, "uid": 2.0}]), group="2")) == 1


def test_an_object_without_records_among_rows(read):
    data = lines([dumps.unipo_lines()[0]])
    assert read(data, grouping=Grouping(by=(("id",),))) == []


def test_whole_numbers_are_the_same_beside_a_nan():
    big = 10**30
    assert decode(json.dumps([big]).encode()) == decode(json.dumps([big, 0]).encode())[:1]
    assert type(decode(f"[{big}, NaN]".encode())[0]) is type(decode(f"[{big}]".encode())[0])


def _evaluated(path, size):
    def encode(records, breakdown):
        return encode_json(records, breakdown, level="token", fields=None)

    run = evaluation(path, plan("dr"), encode=encode, skip=True, block_bytes=size)
    pieces = [piece for pieces in run for piece in pieces]
    return pieces, list(map(str, run.skipped)), run.total, run.notices


def test_an_overflow_is_the_fault_of_its_own_record(tmp_path):
    path = tmp_path / "in.jsonl"
    # ρ ≈ 9e307 at three tokens with A < 0: each is finite, their sum is not
    old = ([-0.5, -1.0, -2.0], [-709.6, -710.1, -711.1], [-0.5, -1.0, -2.0])
    rows = [
        {"logps": [[-0.5, -1, -2]], "old_log_probs": [row], "advantages": [-1.0]} for row in old
    ]
    path.write_bytes(lines(rows))
    assert _evaluated(path, 1) == _evaluated(path, 1 << 20)
    _, skipped, total, _ = _evaluated(path, 1)
    assert skipped == [f"{path}:2: response 0: the sum over the response's tokens overflows"]
    assert total["records"] == 2


def test_notes_do_not_depend_on_blocks(tmp_path):
    path = tmp_path / "in.jsonl"
    value = {"logps": NEW, "old_log_probs": OLD, "rewards": REWARDS}
    path.write_bytes(lines([value, *dumps.sglang(), *dumps.prime_rl(), *dumps.unipo_lines()]))
    assert _evaluated(path, 1) == _evaluated(path, 1 << 20)


def test_npz_that_zip_files_can_be_but_npz_are_not(tmp_path):
    path = tmp_path / "in.npz"
    np.savez(path, log_probs=np.array([[-1.0]]))
    whole = path.read_bytes()
    entry = whole.rindex(b"PK\x01\x02")
    for at, byte in ((entry + 6, 255), (entry + 8, 1), (entry + 8, 32), (entry + 10, 77)):
        data = bytearray(whole)
        data[at] = byte
        path.write_bytes(bytes(data))
        try:
            found = [raw for piece in PLAIN.pieces(str(path)) for raw in PLAIN.raws(piece, {})]
        except InputError as error:
            found = [error]
        assert all("the file is damaged" in str(one) for one in found if not hasattr(one, "value"))
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("log_probs.npy", b"no array")
    (error,) = [raw for piece in PLAIN.pieces(str(path)) for raw in PLAIN.raws(piece, {})]
    assert isinstance(error, InputError)


def _items(path):
    try:
        yield from raws(path, {})
    except InputError as error:
        yield error


def test_arrow_files_are_not_believed(tmp_path):
    pa = pytest.importorskip("pyarrow")
    path = tmp_path / "in.arrow"
    table = pa.table({"log_probs": [[[-0.5, -1.0]]], "rewards": [[1.0]]})
    with pa.ipc.new_stream(str(path), table.schema) as sink:
        sink.write_table(table)
    whole = path.read_bytes()
    offsets = whole.rindex(np.array([0, 2], dtype="<i4").tobytes())
    data = bytearray(whole)
    data[offsets + 4 : offsets + 8] = b"\xff\xff\xff\x7f"  # an offset beyond the numbers
    path.write_bytes(bytes(data))
    assert "the file is damaged" in str([*_items(path)][-1])
    path.write_bytes(whole.replace(b"rewards", b"\xff" * 7))  # a name that is no text
    assert "the file is damaged" in str([*_items(path)][-1])


def test_keys_that_are_written_with_escapes(read):
    data = b'{"st\\u0065p": 1, "logps": [[-1.0]], "reward": [1]}\n'
    assert len(read(data, where=read_conditions(["step==1"]))) == 1


def test_a_nan_that_counts_stays_one():
    assert dumps_of({"a": [float("nan")], "b": None}) == b'{"a": [NaN], "b": null}'
    assert dumps_of({"a": [2**70]}) == b'{"a": [1180591620717411303424]}'
    said = dumps_of({"a": 2**70, "é": ["ü"]})
    assert said.decode() == '{"a": 1180591620717411303424, "é": ["ü"]}'


def test_arrays_of_booleans_are_no_numbers(tmp_path):
    path = tmp_path / "in.npz"
    np.savez(path, log_probs=np.array([[False, False]]), rewards=np.array([1.0]))
    (raw,) = [raw for piece in PLAIN.pieces(str(path)) for raw in PLAIN.raws(piece, {})]
    assert gather([raw.value]) is None
    assert "log_probs[0][0]: expected a number, got false" in str(record(raw))
