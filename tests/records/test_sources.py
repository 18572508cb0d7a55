"""Files and streams: what they hold, where they are cut, and what is said of those that fail."""

import gzip
import io
import json
import os
import struct
import sys
from functools import partial
from pathlib import Path

import pytest
import zstandard
from command import run
from files import blocks_of, each, expressions, numbered_lines, some
from hypothesis import given
from hypothesis import strategies as st

import grpo_cli
from grpo_cli import InputError

packed = partial(gzip.compress, mtime=0)  # the same bytes at any time

LINE = b'{"log_probs_new":[[-1,-2]],"rewards":[1]}'
WAYS = ("blocks", "spans", "ranges")


def lines(path):
    found = run("eval", path, "-qv", "dr", "-f", "jsonl", "--fields", "line").stdout
    return [json.loads(line)["line"] for line in found.splitlines()]


def error(path):
    with pytest.raises(InputError) as caught:
        list(grpo_cli.read(path))
    return str(caught.value)


@pytest.mark.parametrize("data", [LINE, packed(LINE), b"\xef\xbb\xbf" + LINE])
@pytest.mark.parametrize(
    "wrap",
    [io.BytesIO, lambda data: io.BufferedReader(io.BytesIO(data))],
    ids=["a test's stdin", "a real one"],
)
def test_standard_input_is_read_and_left_open(monkeypatch, data, wrap):
    stdin = io.TextIOWrapper(wrap(data))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert len(list(grpo_cli.read("-"))) == 1
    assert not stdin.buffer.closed


def test_closed_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert error("-") == "<stdin>: standard input is closed"


def test_what_is_read_of_a_file_and_said_of_it(tmp_path):
    fine = b'{"log_probs_new": [[-1, -2], [-3]], "advantages": [1, -1]}'

    def called(data, name="data.jsonl"):
        (tmp_path / name).write_bytes(data)
        return tmp_path / name

    def refused(*given):
        return error(called(*given)).replace(f"{tmp_path}/", "")

    modules = {"struct": struct, "zstandard": zstandard}
    names = {"LINE": LINE, "FINE": fine, "packed": packed}
    names |= {"error": refused, "lines": lambda data: repr(lines(called(data)))}
    expressions(Path(__file__).with_name("cases") / "files.txt", names | modules)


def test_missing_file_and_directory(tmp_path):
    assert error(tmp_path / "nothing") == f"{tmp_path}/nothing: no such file"
    assert error(tmp_path) == f"{tmp_path}: is an empty folder"


def test_zstd_without_its_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    path = tmp_path / "data.jsonl.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd")
    advice = "reading .zst needs zstandard: pip install zstandard"
    assert error(path) == f"{path}: {advice}"


def test_too_large(tmp_path, monkeypatch):
    path = tmp_path / "data.json"
    path.write_bytes(b"[\n" + b"1,\n" * 100 + b"1]")
    monkeypatch.setattr("grpo_cli.records.open.budget.LIMIT", 50)
    advice = "one JSON document of more than 1.07 GB; write it as JSONL, one record a line"
    assert error(path) == f"{path}: {advice}"


@each("size", [1, 20, 49, 50, 51, 1000])
@each("length", [48, 49, 50, 51, 99, 100, 101, 400])
@each("end", [b"", b"\n", b"\nx"])
def test_the_longest_line_is_the_same_for_every_block_size(
    tmp_path, monkeypatch, size, length, end
):
    monkeypatch.setattr("grpo_cli.records.open.budget.LIMIT", 50)
    monkeypatch.setattr("grpo_cli.records.open.blocks.LIMIT", 50)
    path = tmp_path / "data.jsonl"
    path.write_bytes(b"{}\n" + b"x" * length + end)
    expected = [(1, b"{}"), (2, b"x" * length), (3, b"x")][: 2 + end.endswith(b"x")], None
    if length >= 50:
        expected = [(1, b"{}")], f"{path}:2: expected lines of less than 1.07 GB"
    for way in ("blocks", "spans"):
        assert numbered_lines(path, size, way) == expected


@pytest.mark.parametrize("size", [1, 100, 4 << 20])
def test_what_comes_before_a_fault_in_packed_data_is_read(tmp_path, size):
    path = tmp_path / "data.jsonl.gz"
    path.write_bytes(packed((LINE + b"\n") * 9)[:-4])
    message = f"{path}: the compressed data end too early; is the file cut off?"
    assert numbered_lines(path, size) == (list(enumerate([LINE] * 9, 1)), message)


def test_a_line_may_be_longer_than_a_block(tmp_path):
    path = tmp_path / "data.jsonl"
    long = LINE[:-1] + b',"x":"' + b"y" * 10_000_000 + b'"}'
    path.write_bytes(b"\n".join([LINE, long, LINE]))
    assert lines(path) == [1, 2, 3]


texts = st.lists(st.sampled_from([b"", b"a", b"bcd\r", b"\xc3\xa9", b"  "]), max_size=20)


@given(texts, st.booleans(), st.booleans(), st.integers(1, 30))
def test_wherever_the_bytes_are_cut_the_lines_are_the_same(tmp_path_factory, parts, end, bom, size):
    text = b"{}\n" + b"\n".join(parts) + b"\n" * end
    path = tmp_path_factory.getbasetemp() / "cut.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" * bom + text)
    expected = list(enumerate(text.removesuffix(b"\n").split(b"\n"), 1))
    for way in WAYS[:1] if bom else WAYS:
        assert numbered_lines(path, size, way) == (expected, None)


@pytest.mark.parametrize("first", [b"{}\n", b"{" + b"2" * 4_000 + b"}\n"])
@pytest.mark.parametrize("then", [b"\n3\n" * 2_000, b"4" * 9_000 + b"\n5"])
def test_lines_are_cut_alike_whatever_the_first_ones_look_like(tmp_path, first, then):
    """Short and long lines are cut in two ways, which the first ones decide."""
    text = first * 2_000 * (len(first) < 9) + first + then
    (tmp_path / "a").write_bytes(text)
    expected = list(enumerate(text.removesuffix(b"\n").split(b"\n"), 1))
    for way in WAYS:
        assert numbered_lines(tmp_path / "a", 1 << 17, way) == (expected, None)


@pytest.mark.parametrize("size", some([100, 200, 300], 1))
@pytest.mark.parametrize("pack", [None, packed, zstandard.compress])
def test_a_file_of_some_blocks_by_any_number_of_processes(tmp_path, size, pack):
    """Spans, and blocks of what is packed, end where lines end."""
    record = LINE[:-1] + b',"x":"' + os.urandom(size * 50).hex().encode() + b'"}\n'
    data = record * (800_000 // len(record))
    (tmp_path / "a").write_bytes(data if pack is None else pack(data))
    words = ("eval", tmp_path / "a", "-qv", "dr", "--only", "line", "--jobs")
    with blocks_of(1 << 17):
        found = [run(*words, jobs) for jobs in (1, 2)]
    assert found[0].stdout.split() == [*map(str, range(1, 1 + data.count(b"\n")))]
    assert found[1].stdout == found[0].stdout


@pytest.mark.more
def test_a_file_that_is_cut_off_while_it_is_read(tmp_path):
    """At the end of a line, or in the middle of one."""
    path = tmp_path / "a"
    path.write_bytes((LINE + b"\n") * 30_000)
    with blocks_of(1 << 16):
        records = grpo_cli.read(path)
        next(records)
        os.truncate(path, 1)
        with pytest.raises(InputError, match=r"malformed JSON|the file became shorter"):
            list(records)


@pytest.mark.parametrize("pack", [packed, zstandard.compress])
@pytest.mark.parametrize(
    ("size", "data", "message"),
    [
        (1000, LINE + b"\n", ""),
        (64 * 9, (b" " * 63 + b"\n") * 9, "no records: the input is empty"),
        (64 * 9, (b" " * 63 + b"\n") * 9 + b" ", "577 bytes, unpacked, in a file of"),
        (64 * 9, b"\n" * 9, "no records: the input is empty"),
        (64 * 9 - 1, b"\n" * 9, "9 lines in a file of"),
        (1 << 22, b" " * (1 << 20), "expected lines of less than 1.05 MB unpacked; if the file is"),
        (1 << 22, LINE[:-1] + b" " * (1 << 20), "correct, --unpack 64M reads it"),
        (1 << 22, b"[\n" + LINE + (b" " * 99 + b"\n") * 10_000 + b"]", ""),
        (1 << 21, b"[\n" + LINE + (b" " * 99 + b"\n") * 10_000 + b"]", "one JSON document of more"),
        (1 << 20, b'{"x":[' + b"[]," * (1 << 14) + b"[]]}", "32,771 values in one line in a file"),
    ],
)
def test_how_much_may_come_out_of_a_file(tmp_path, pack, size, data, message):
    path = tmp_path / "data.jsonl"
    path.write_bytes(pack(data))
    result = run("convert", path, "--unpack", size)
    assert (result.exit_code == 3) == bool(message)
    assert message in result.stderr


def test_what_is_told_before_anything_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a").write_bytes(b"")
    Path("b").write_bytes(LINE)
    said = run("eval", "b", "a", "none").stderr
    assert "a: no records: the input is empty" in said
    assert "none: no such file" in said
