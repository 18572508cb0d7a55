import gzip
import io
import os
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import zstandard
from command import run
from files import each
from hypothesis import given
from hypothesis import strategies as st

from grpo_cli.errors import InputError
from grpo_cli.records import cut, read
from grpo_cli.records.open import ranges
from grpo_cli.records.open import streams as sources
from grpo_cli.records.open.blocks import Block, Source, _joined, first_line, spans
from grpo_cli.records.open.foreign import LOOKED_AT, foreign
from grpo_cli.records.open.remote import CHANGED
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
    monkeypatch.setattr("grpo_cli.records.open.budget.LIMIT", 50)
    advice = "one JSON document of more than 1 GiB; write it as JSONL, one record a line"
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
            assert piece.size
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
    assert sources.read_bytes(str(tmp_path / "a"), 3, 7) == b"3456"
    assert sources.read_bytes(str(tmp_path / "a"), 0, 99) == b"0123456789"


# ---- places in a file -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        *[(1, [3] * 10), (3, [3] * 10), (4, [6] * 5), (6, [6] * 5), (7, [12, 9, 9])],
        *[(29, [30]), (30, [30]), (31, [30]), (1000, [30])],
    ],
)
def test_a_span_ends_with_the_line_that_fills_it(tmp_path, size, expected):
    """As much is read at once as a span has at least: where it is full is seen then."""
    (tmp_path / "a").write_bytes(b"{}\n" * 10)
    found = list(spans(Source.of(str(tmp_path / "a")), size))
    assert [one.size for one in found] == expected
    assert [one.start for one in found] == [sum(expected[:at]) for at in range(len(expected))]
    assert [one.line for one in found] == [1 + one.start // 3 for one in found]


def test_what_cannot_be_cut_in_places(tmp_path):
    for data in (
        b"",
        b"\n \n",
        packed(LINE),
        zstandard.compress(LINE),
        b"\xef\xbb\xbf" + LINE,
        b"[" + LINE + b"]",
        b"{\n}",
    ):
        (tmp_path / "a").write_bytes(data)
        assert first_line(str(tmp_path / "a"), sources.read_head(str(tmp_path / "a"))) is None
    for path in ("-", str(tmp_path), str(tmp_path / "none")):
        assert first_line(path, sources.read_head(path)) is None


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_the_lines_of_spans_are_counted_where_some_are_empty(tmp_path, size):
    data = b"{}\n\n\n{}\n" * 3
    (tmp_path / "a").write_bytes(data)
    found = list(spans(Source.of(str(tmp_path / "a")), size))
    assert [one.line for one in found] == [1 + data[: one.start].count(b"\n") for one in found]
    assert b"".join(data[one.start :][: one.size] for one in found) == data


def test_a_span_is_of_the_file_that_was_cut(tmp_path):
    path, size = tmp_path / "a", 2 * len(LINE) + 2
    path.write_bytes((LINE + b"\n") * 5)
    made = spans(Source.of(str(path)), size)
    span = next(made)
    assert span.fetch().lines == [LINE, LINE]
    path.write_bytes((LINE + b"\n") * 2)
    assert span.fetch().size == size
    path.write_bytes(LINE)
    for call in (span.fetch, lambda: list(made)):
        with pytest.raises(InputError) as caught:
            call()
        assert str(caught.value) == f"{path}: the file became shorter while it was read"
    path.rename(tmp_path / "b")
    with pytest.raises(InputError) as caught:
        span.fetch()
    assert str(caught.value) == f"{path}: cannot be read any more: no such file or directory"
    path.write_bytes((LINE + b"\n") * 5)
    with pytest.raises(InputError) as caught:
        span.fetch()
    assert str(caught.value) == f"{path}: the file was replaced while it was read"


@pytest.mark.parametrize("count", range(7))
def test_many_lines_are_one_text(monkeypatch, count):
    monkeypatch.setattr("grpo_cli.records.open.blocks._JOINED", 2)
    parts = [b"%d" % number for number in range(count)]
    assert _joined(parts) == b"\n".join(parts)
    assert Block("a", 1, parts).size == 2 * count


@pytest.mark.parametrize(
    ("name", "head", "expected"),
    [
        *[("a.gz", b"x", "is named .gz but does not start with gzip's 1F 8B")],
        *[
            (
                "a.b.PT",
                b"x y",
                "is named .pt but does not start with zip's PK, as torch.save writes",
            )
        ],
        *[(f"a.{end}", head, None) for end in ("gz", "npz") for head in (b"", b" {x", b"[x")],
        *[("a.npz", b"\xef\xbb\xbf\n{", None), ("gz", b"x", None), (".gz.x", b"x", None)],
        *[
            ("", b'"a","bc"', None),
            ("a", b"x", None),
            ("", b"a: {\0", None),
            ("", b'"a": 10', None),
            ("", b"[a: 10", None),
        ],
    ],
)
def test_what_is_named_otherwise(name, head, expected):
    assert foreign(head, name) == expected


def test_a_trainers_log_is_told_from_other_tables():
    advice = "a trainer's log is for grpo explain FILE"
    assert foreign(b"\n Step,loss\n1,2").endswith(advice)
    assert foreign(b"epoch,loss\n1,step").startswith("this looks like CSV")
    assert advice not in foreign(b"epoch,loss\n1,step")
    assert foreign(b"1,2\nstep,b") is None


# ---- blocks -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "size", "expected"),
    [
        (b"1\n2\n3\n", 2, [(1, [b"1"]), (2, [b"2"]), (3, [b"3"])]),
        (b"\n12345\n", 2, [(1, [b""]), (2, [b"12345"])]),
        (b"1\n2\n3", 100, [(1, [b"1", b"2", b"3"])]),
        (b"12345\n6\n", 2, [(1, [b"12345"]), (2, [b"6"])]),
        (b"", 2, []),
    ],
)
def test_a_block_is_what_was_read_to_the_last_end_of_a_line(data, size, expected):
    assert list(blocks(io.BytesIO(data), size)) == expected


@pytest.mark.parametrize("head", [b"", b"x" * 700_000 + b"\n", (b"x" * 99 + b"\n") * 9000])
@pytest.mark.parametrize("tail", [b"", b"{}", b"y" * 700_000])
def test_short_lines_come_in_small_blocks(tmp_path, head, tail):
    """Each is an object of 50 bytes: 4 MiB of ``{}`` took 80 MB, of which some are read ahead."""
    data = head + b"{}\n" * 900_000 + tail
    (tmp_path / "a").write_bytes(data)
    made = list(spans(Source.of(str(tmp_path / "a"))))
    for found in (list(blocks(io.BytesIO(data))), [(one.line, one.fetch().lines) for one in made]):
        assert b"\n".join(line for _, lines in found for line in lines) == data.removesuffix(b"\n")
        assert max(len(lines) for _, lines in found) < 200_000
        assert all(one + len(lines) == other for (one, lines), (other, _) in pairwise(found))


def test_pieces_that_are_larger_than_the_room_for_them():
    stream = sources.Pieces(iter([b"abc", b"", b"d"]))
    assert [stream.read(2) for _ in range(4)] == [b"ab", b"c", b"d", b""]


@pytest.mark.parametrize("at", [1, 150_000])
def test_a_file_that_is_cut_off_while_it_is_read(tmp_path, at):
    path = tmp_path / "a"
    path.write_bytes((LINE + b"\n") * 10_000)
    made = cut(str(path), 100)
    next(made)
    os.truncate(path, at)
    with pytest.raises(InputError) as caught:
        list(made)
    assert str(caught.value) == f"{path}: the file became shorter while it was read"


def test_a_file_that_is_left_in_the_middle(tmp_path):
    path = tmp_path / "a"
    path.write_bytes((LINE + b"\n") * 10_000)
    with sources.unpacked(str(path)) as stream:
        assert stream.readline() == LINE + b"\n"


def test_the_first_bytes_tell_what_a_file_is(tmp_path):
    """Whatever follows: a table's first line may be long."""
    for length in (LOOKED_AT - 1, LOOKED_AT):
        (tmp_path / "a").write_bytes(b"a,".ljust(length, b"b") + b"{\n1,2\n")
        told = "looks like CSV" in error(tmp_path / "a")
        assert told == (length == LOOKED_AT)


# ---- limits -----------------------------------------------------------------------------------


@pytest.mark.parametrize("pack", [packed, zstandard.compress])
@pytest.mark.parametrize(
    ("size", "data", "message"),
    [
        (1000, LINE + b"\n", ""),
        (64 * 9, (b" " * 63 + b"\n") * 9, "no records: the input is empty"),
        (64 * 9, (b" " * 63 + b"\n") * 9 + b" ", "577 bytes, unpacked, in a file of"),
        (64 * 9, b"\n" * 9, "no records: the input is empty"),
        (64 * 9 - 1, b"\n" * 9, "9 lines in a file of"),
        (1 << 22, b" " * (1 << 20), "expected lines of less than 1 MiB, unpacked; if the file is"),
        (1 << 22, LINE[:-1] + b" " * (1 << 20), "sound, --unpack 64M reads it"),
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
    Path("b").write_bytes(b"x")
    said = [sources.unopened(path) for path in ("-", ".", "b", "a", "none")]
    assert said[:3] == [None] * 3
    assert [*map(str, said[3:])] == ["a: no records: the input is empty", "none: no such file"]


# ---- ranges -----------------------------------------------------------------------------------

STEPS = (
    b'{"type":"header","hparams":{"clip_eps":0.3}}\n{"type":"eval"}\n\n{"type":"step","step":1}\n'
)


def by_ranges(path, size):
    """Numbered lines: of each range those that begin in it."""
    found, before = [], 0
    for wanted in ranges.ranges(Source.of(path), size):
        count, _ = ranges.look(wanted)
        for block in ranges.blocks_of(wanted, before):
            found += enumerate(block.lines, block.line)
        before += count
    return found


@pytest.mark.parametrize("block", [1, 7, 1000])
@pytest.mark.parametrize("data", [b"\n" + STEPS + STEPS[45:], b"{}\n" * 9 + b"{}", LINE + b"\n"])
def test_wherever_ranges_are_cut_the_lines_are_the_same(tmp_path, monkeypatch, data, block):
    monkeypatch.setattr(ranges, "BLOCK", block)
    monkeypatch.setattr(ranges, "_BEYOND", block)
    monkeypatch.setattr(ranges, "_SCANNED", 5)
    path = tmp_path / "a"
    path.write_bytes(data)
    expected = read_all(cut(str(path)))[0]
    for size in (*range(1, 12), *range(12, len(data) + 2, 5)):
        assert by_ranges(str(path), size) == expected


@pytest.mark.parametrize("length", [8, 9, 32, 33, 1000])
def test_of_a_file_as_much_is_read_as_tells_its_first_line(tmp_path, monkeypatch, length):
    monkeypatch.setattr("grpo_cli.records.open.remote.HEAD", 8)
    path = tmp_path / "a"
    path.write_bytes(b"{}".rjust(length - 1, b"\n") + b"\n" + LINE * 100)
    assert (
        first_line(str(path), sources.read_head(str(path)))
        == b"{}".rjust(length - 1, b"\n").strip()
    )


@pytest.mark.parametrize("what", ["none", "longer", "shorter", "touched"])
def test_a_range_is_of_the_version_that_was_cut(tmp_path, what):
    path = tmp_path / "a"
    path.write_bytes(LINE)
    (made,) = ranges.ranges(Source.of(str(path)), 100)
    assert (made.start, made.end, made.size) == (0, len(LINE), len(LINE))
    if what == "none":
        path.unlink()
    elif what == "touched":
        os.utime(path, (1, 1))
    else:
        path.write_bytes(LINE + b"\n" if what == "longer" else LINE[1:])
    with pytest.raises(InputError) as caught:
        list(ranges.blocks_of(made))
    told = "no such file" if what == "none" else CHANGED
    assert str(caught.value) == f"{path}: {told}"


def test_a_tar_archive_is_known_by_what_stands_at_its_place():
    """257 bytes in, as POSIX has it."""
    assert "tar archive" in foreign(bytes(257) + b"ustar\0" + bytes(9))
    for head in (bytes(256) + b"ustar", bytes(258) + b"ustar", b"ustar" + bytes(300)):
        assert foreign(head) is None
