"""Damaged binary files, and what depends on neither blocks nor neighbours, as once found."""

import json
import zipfile

import numpy as np
import pytest
from command import run

from formats import dumps
from formats.dumps import NEW, OLD, REWARDS, lines


def said(path, *flags):
    result = run("convert", path, *flags)
    return result.exit_code, result.stdout + result.stderr


def test_npz_that_zip_files_can_be_but_npz_are_not(tmp_path):
    path = tmp_path / "in.npz"
    np.savez(path, log_probs=np.array([[-1.0]]))
    whole = path.read_bytes()
    entry = whole.rindex(b"PK\x01\x02")
    for at, byte in ((entry + 6, 255), (entry + 8, 1), (entry + 8, 32), (entry + 10, 77)):
        data = bytearray(whole)
        data[at] = byte
        path.write_bytes(bytes(data))
        code, words = said(path)
        assert code == 0 or "the file is damaged" in words
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("log_probs.npy", b"no array")
    assert said(path)[0] == 3


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
    for damaged in (bytes(data), whole.replace(b"rewards", b"\xff" * 7)):  # no text
        path.write_bytes(damaged)
        code, words = said(path)
        assert code == 3
        assert "the file is damaged" in words


def test_arrays_of_booleans_are_no_numbers(tmp_path):
    np.savez(tmp_path / "in.npz", log_probs=np.array([[False, False]]), rewards=np.array([1.0]))
    assert "log_probs[0][0]: expected a number, got false" in said(tmp_path / "in.npz")[1]


def test_an_overflow_is_the_fault_of_its_own_record(tmp_path):
    path = tmp_path / "in.jsonl"
    # ρ ≈ 9e307 at three tokens with A < 0: each is finite, their sum is not
    old = ([-0.5, -1.0, -2.0], [-709.6, -710.1, -711.1], [-0.5, -1.0, -2.0])
    rows = [
        {"logps": [[-0.5, -1, -2]], "old_log_probs": [row], "advantages": [-1.0]} for row in old
    ]
    path.write_bytes(lines(rows))
    result = run("eval", path, "-v", "dr", "--on-error", "skip", "--only", "line")
    assert result.stdout.split() == ["1", "3"]
    assert f"{path}:2: response 0: the sum over the response's tokens overflows" in result.stderr


@pytest.mark.parametrize("long", [False, True])
def test_notes_do_not_depend_on_blocks(tmp_path, long):
    """Each is said once, with the rows of several formats in one block or in several."""
    path, value = tmp_path / "in.jsonl", {"log_probs_new": NEW, "rewards": REWARDS}
    rows = [*dumps.sglang(), *dumps.prime_rl(), *dumps.unipo_lines()]
    more = {"x": "y" * 900_000} if long else {}
    path.write_bytes(lines([value | {"old_log_probs": OLD}, *(row | more for row in rows)]))
    found = said(path, "--on-error", "skip")[1]
    for name in ("sglang", "prime-rl", "unipo"):
        assert found.count(f"read as {name}") == 1


def test_a_nan_that_counts_stays_one(tmp_path):
    """In what is written, which also holds integers beyond 64 bits."""
    record = (
        '{"log_probs_new": [[-1.0]], "rewards": [1], "a": [NaN, 1180591620717411303424], "é": 1}'
    )
    (tmp_path / "a.json").write_text(record)
    written = run("convert", tmp_path / "a.json").stdout
    assert '"a": [NaN, 1.1805916207174113e+21], "é": 1' in written
    assert json.loads(written)["log_probs_new"] == [[-1.0]]
