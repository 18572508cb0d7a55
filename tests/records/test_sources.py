import gzip
import io
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import zstandard
from files import each
from hypothesis import given
from hypothesis import strategies as st

from grpo_cli.errors import InputError
from grpo_cli.records import cut, read
from grpo_cli.records.open import streams as sources
from grpo_cli.records.open.blocks import Block, Source, spans
from grpo_cli.records.open.ranges import _bytes_of
from grpo_cli.records.open.streams import blocks, split

packed = partial(gzip.compress, mtime=0)  # the same bytes at any time

LINE = b'{"log_probs_new":[[-1,-2]],"rewards":[1]}'


def lines(path):
    return [record.line for record in read(str(path))]


def error(path):
    with pytest.raises(InputError) as caught:
        list(read(str(path)))
    return str(caught.value)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (LINE, [1]),
        (LINE + b"\n" + LINE, [1, 2]),
        (LINE + b"\n\n  \n" + LINE + b"\n\n", [1, 4]),
        (LINE + b"\r\n" + LINE + b"\r\n", [1, 2]),
        (b"\xef\xbb\xbf" + LINE + b"\n" + LINE, [1, 2]),
        (b"\n\n" + LINE, [3]),
        (b"  " + LINE + b"  ", [1]),
        (b"[" + LINE + b"," + LINE + b"]", [None, None]),
        (b"[\n" + LINE + b",\n" + LINE + b"\n]\n", [None, None]),
        (LINE.replace(b",", b",\n"), [None]),
        (b"\xef\xbb\xbf{\n" + LINE[1:], [None]),
    ],
)
def test_json_and_jsonl_are_told_apart_by_content(tmp_path, data, expected):
    path = tmp_path / "any.name"
    path.write_bytes(data)
    assert lines(path) == expected


@pytest.mark.parametrize(
    "pack",
    [
        packed,
        lambda data: packed(data[:50]) + packed(data[50:]),
        zstandard.compress,
        lambda data: zstandard.compress(data[:50]) + zstandard.compress(data[50:]),
    ],
    ids=["gz", "two gz", "zst", "two zst"],
)
def test_compressed_files_are_known_by_their_content(tmp_path, pack):
    path = tmp_path / "data.jsonl"
    path.write_bytes(pack(b"\n".join([LINE] * 3)))
    assert lines(path) == [1, 2, 3]


@pytest.mark.parametrize("data", [LINE, packed(LINE), b"\xef\xbb\xbf" + LINE])
@pytest.mark.parametrize(
    "wrap",
    [io.BytesIO, lambda data: io.BufferedReader(io.BytesIO(data))],
    ids=["a test's stdin", "a real one"],
)
def test_standard_input_is_read_and_left_open(monkeypatch, data, wrap):
    stdin = io.TextIOWrapper(wrap(data))
    monkeypatch.setattr(sys, "stdin", stdin)
    (record,) = read("-")
    assert (record.source, record.line) == ("<stdin>", 1)
    assert not stdin.buffer.closed


def test_closed_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert error("-") == "<stdin>: standard input is closed"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no records: the input is empty"),
        (b" \n\r\n\t\n", "no records: the input is empty"),
        (b"\xef\xbb\xbf", "no records: the input is empty"),
        (b"[]", "no records: the array is empty"),
        (packed(LINE * 9)[:-9], "the compressed data end too early; is the file cut off?"),
        (packed(LINE)[:10] + b"\xff" * 30, "the gzip data are corrupt"),
        (packed(LINE)[:-8] + bytes(8), "the gzip data are corrupt"),
        (
            zstandard.compress(LINE * 9)[:-2],
            "the compressed data end too early; is the file cut off?",
        ),
        (zstandard.compress(LINE)[:4] + b"\xff" * 30, "the zstd data are corrupt"),
        (
            LINE.decode().encode("utf-16"),
            "expected UTF-8, got UTF-16; convert it with iconv -f UTF-16 -t UTF-8",
        ),
    ],
)
def test_what_cannot_be_read(tmp_path, data, message):
    path = tmp_path / "data.jsonl"
    path.write_bytes(data)
    assert error(path) == f"{path}: {message}"


def test_missing_file_and_directory(tmp_path):
    assert error(tmp_path / "nothing") == f"{tmp_path}/nothing: no such file"
    assert error(tmp_path) == f"{tmp_path}: is a directory; name the files in it"


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (PermissionError(13, "Permission denied"), "no permission to read it"),
        (OSError(5, "Input/output error"), "input/output error"),
    ],
)
def test_the_system_refuses(monkeypatch, problem, message):
    def refuse(*_):
        raise problem

    monkeypatch.setattr(Path, "open", refuse)
    assert error("data.jsonl") == f"data.jsonl: {message}"


def test_zstd_without_its_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    path = tmp_path / "data.jsonl.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd")
    advice = "pip install 'grpo-cli[zstd]'"
    assert error(path) == f"{path}: reading zstd needs one more package: {advice}"


def test_too_large(tmp_path, monkeypatch):
    path = tmp_path / "data.json"
    path.write_bytes(b"[\n" + b"1,\n" * 100 + b"1]")
    monkeypatch.setattr(sources, "LIMIT", 50)
    advice = "one JSON document of more than 1 GiB; write it as JSONL, one record a line"
    assert error(path) == f"{path}: {advice}"
    with pytest.raises(InputError, match="expected lines of less than 1 GiB") as caught:
        list(blocks(io.BytesIO(b"1\n" + b"2" * 80), size=1))
    assert caught.value.line == 2


@each("size", [1, 20, 49, 50, 51, 1000])
@each("length", [48, 49, 50, 51, 99, 100, 101, 400])
@each("end", [b"", b"\n", b"\nx"])
def test_the_longest_line_is_the_same_for_every_block_size(
    tmp_path, monkeypatch, size, length, end
):
    monkeypatch.setattr(sources, "LIMIT", 50)
    monkeypatch.setattr("grpo_cli.records.open.blocks.LIMIT", 50)
    path = tmp_path / "data.jsonl"
    path.write_bytes(b"{}\n" + b"x" * length + end)
    expected = [(1, b"{}"), (2, b"x" * length), (3, b"x")][: 2 + end.endswith(b"x")]
    for pieces in (cut(str(path), size), spans(Source.of(str(path)), size)):
        lines, error = read_all(pieces)
        if length < 50:
            assert (lines, error) == (expected, None)
        else:
            assert (lines, error) == ([(1, b"{}")], f"{path}:2: expected lines of less than 1 GiB")


def read_all(pieces):
    """Numbered lines, and the message where they end with an error."""
    found = []
    try:
        for piece in pieces:
            block = piece if isinstance(piece, Block) else piece.fetch()
            found += enumerate(block.lines, block.line)
    except InputError as error:
        return found, str(error)
    return found, None


@pytest.mark.parametrize("size", [1, 100, 4 << 20])
def test_what_comes_before_a_fault_in_packed_data_is_read(tmp_path, size):
    path = tmp_path / "data.jsonl.gz"
    path.write_bytes(packed((LINE + b"\n") * 9)[:-4])
    lines, error = read_all(cut(str(path), size))
    assert lines == list(enumerate([LINE] * 9, 1))
    assert error == f"{path}: the compressed data end too early; is the file cut off?"


def test_a_line_may_be_longer_than_a_block(tmp_path):
    path = tmp_path / "data.jsonl"
    long = LINE[:-1] + b',"x":"' + b"y" * 10_000_000 + b'"}'
    path.write_bytes(b"\n".join([LINE, long, LINE]))
    assert lines(path) == [1, 2, 3]
    assert [block.line + len(block.lines) for block in cut(str(path))][-1] == 4


texts = st.lists(st.sampled_from([b"", b"a", b"bcd\r", b"\xc3\xa9", b"  "]), max_size=20)


class Dripping(io.RawIOBase):
    """A file that gives a few bytes at a time, as pipes do."""

    def __init__(self, pieces):
        self.pieces = pieces

    def readable(self):
        return True

    def readinto(self, room):
        piece = self.pieces.pop(0) if self.pieces else b""
        if len(piece) > len(room):
            self.pieces.insert(0, piece[len(room) :])
            piece = piece[: len(room)]
        room[: len(piece)] = piece
        return len(piece)


@given(texts, st.booleans(), st.booleans(), st.data())
def test_wherever_the_bytes_are_cut_the_lines_are_the_same(parts, end, bom, data):
    text = b"\n".join(parts) + b"\n" * end
    raw = b"\xef\xbb\xbf" * bom + text
    cuts = sorted(data.draw(st.sets(st.integers(1, len(raw) - 1)))) if len(raw) > 1 else []
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    stream = io.BufferedReader(Dripping(pieces), 64)
    found = list(blocks(stream, size=data.draw(st.integers(1, 30))))
    expected = text.removesuffix(b"\n").split(b"\n") if text else []
    assert [line for _, lines in found for line in lines] == expected
    for (line, lines), (following, _) in pairwise(found):
        assert following == line + len(lines)
    assert not found or found[0][0] == 1


@pytest.mark.parametrize("first", [b"1\n", b"2" * 40_000 + b"\n"])
@pytest.mark.parametrize("then", [b"\n3\n" * 20_000, b"4" * 90_000 + b"\n5"])
def test_lines_are_cut_alike_whatever_the_first_ones_look_like(first, then):
    """Short and long lines are cut in two ways, which the first ones decide."""
    text = first * 20_000 * (len(first) < 9) + first + then
    expected = text.removesuffix(b"\n").split(b"\n")
    assert split(bytearray(text) + b"left over", len(text)) == expected


def test_a_range_of_a_file_is_that_range(tmp_path):
    (tmp_path / "a").write_bytes(b"0123456789")
    assert _bytes_of(str(tmp_path / "a"), 3, 7) == b"3456"
    assert _bytes_of(str(tmp_path / "a"), 0, 99) == b"0123456789"
