import math
import sys

import numpy as np
import pytest

from grpo_cli.errors import InputError
from grpo_cli.records import Block, Raw, cut, objects, read, records
from grpo_cli.records.decode import decode
from grpo_cli.records.record import DROPPED, in_chunks, keys_in_common


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"a":1,', "malformed JSON at column 8: expected a key in double quotes, got the end"),
        (b'{"a":', "malformed JSON at column 6: expected a value, got the end"),
        (b'{"a":[1,nan]}', "malformed JSON at column 9: expected a value, got nan]}"),
        (b"{'a':1}", "malformed JSON at column 2: expected a key in double quotes, got 'a':1}"),
        (b'{"a":1} x', "malformed JSON at column 9: expected nothing more, got x"),
        (b'{"a":"b', "malformed JSON at column 6: the string that begins here never ends"),
        (b'{"a" 1}', "malformed JSON at column 6: expected a colon, got 1}"),
        (
            b'{"a":1 "rewards":[1]}',
            'malformed JSON at column 8: expected a comma or a closing bracket, got "rewards":[1…',
        ),
        (b'{"a":"\xff"}', "malformed JSON at column 7: expected UTF-8 text"),
        (b'{"\xc3\xa9":"\xff"}', "malformed JSON at column 7: expected UTF-8 text"),
        (b"[" * 100_000, "the JSON is nested too deeply"),
        (b'{"a":"\\x"}', "malformed JSON at column 7: invalid \\escape"),
        (b"x" * 12, f"malformed JSON at column 1: expected a value, got {'x' * 12}"),
        (b"x" * 13, f"malformed JSON at column 1: expected a value, got {'x' * 12}…"),
        (b"x y z", "malformed JSON at column 1: expected a value, got x"),
        (b'{"a"'.ljust(120), "malformed JSON at column 121: expected a colon, got the end"),
        (
            b'{"a"'.ljust(121),
            "malformed JSON at column 122: expected a colon, got the end: the line is cut off "
            "(was it still being written?)",
        ),
    ],
)
def test_malformed(text, message):
    with pytest.raises(InputError) as caught:
        decode(text)
    assert str(caught.value) == message


def test_numbers_that_json_does_not_have():
    nan, inf, huge = decode(b'{"a":[NaN,-Infinity,1e999]}')["a"]
    assert math.isnan(nan)
    assert (inf, huge) == (-math.inf, math.inf)
    assert decode(b"[NaN," + b"9" * 5000 + b"]")[1] == math.inf
    long = b"12345678901234567890123"  # a float without the NaN as well
    assert decode(b"[NaN," + long + b"]")[1:] == decode(b"[" + long + b"]") == [float(long)]


@pytest.mark.parametrize("digits", [19, 20, 21])
@pytest.mark.parametrize("sign", [1, -1])
def test_an_integer_is_what_it_is_without_a_nan_beside_it(digits, sign):
    near = [10 ** (digits - 1), 10**digits - 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1, 2**64]
    for number in near:
        text = b"%d" % (sign * number)
        assert repr(decode(b"[NaN,%b]" % text)[1]) == repr(decode(text))


@pytest.mark.parametrize(("before", "line"), [(b"", 1), (b"\n", 2), (b"[1,\n\n", 3)])
def test_the_line_of_a_byte_that_is_no_text(before, line):
    with pytest.raises(InputError, match="column 4: expected UTF-8 text") as caught:
        decode(before + b'{"a\xff')
    assert caught.value.line == line


def test_half_a_surrogate_pair_is_replaced():
    assert decode(b'["\\ud83d", "\\ud83d\\ude00", NaN]')[:2] == ["?", "😀"]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (b'\n{"a": [1,}\n{"a": 1}', "d:2: malformed JSON at column 10"),
        (b'{"a": 1,\n "b": [1,\n 2,, 3]}', "d:3: malformed JSON at column 4"),
        (b'\n\n[{"a": 1},\n{"b": x}]', "d:4: malformed JSON at column 7"),
    ],
)
def test_the_line_and_column_are_those_of_the_file(tmp_path, monkeypatch, text, place):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").write_bytes(text)
    with pytest.raises(InputError) as caught:
        list(read("d"))
    assert str(caught.value).startswith(place)


def test_a_bad_record_does_not_stop_the_others():
    good = b'{"log_probs_new":[[-1]]}'
    found = list(records(Block("d", 7, [good, b"{]", b"[1]", good, b"{}"])))
    assert [isinstance(one, InputError) for one in found] == [False, True, True, False, True]
    assert [one.line for one in found] == [7, 8, 9, 10, 11]
    assert str(found[2]) == "d:9: expected an object, got a list"


def test_places_in_an_array():
    data = b'[{"log_probs_new":[[-1]]}, 5, {"log_probs_new":[["x"]]}]'
    first, second, third = records(Block("d", 1, data.split(b"\n"), document=True))
    assert first.prefix == "[0]."
    assert str(second) == "d: [1]: expected an object, got 5"
    assert str(third) == 'd: [2].log_probs_new[0][0]: expected a number, got "x"'


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_the_line_of_a_mistake_is_the_same_for_every_block_size(tmp_path, size):
    for text, line in ((b"\n\n[\n1,\nx", 5), (b"\n\n[\n" + b"[" * 100_000, None)):
        (tmp_path / "d").write_bytes(text)
        (block,) = cut(str(tmp_path / "d"), size)
        (error,) = records(block)
        assert error.line == line


# ---- in chunks --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [([5, 5, 1], [2, 1]), ([4, 4, 4, 4], [3, 1]), ([9, 9], [2]), ([10, 10], [1, 1]), ([], [])],
)
def test_a_chunk_ends_with_the_object_that_fills_it(monkeypatch, sizes, expected):
    monkeypatch.setattr(sys.modules[Raw.__module__], "CHUNK_BYTES", 10)
    monkeypatch.setattr(objects, "CHUNK_BYTES", 10)
    raws = [Raw(size, "d", None, "", size) for size in sizes]
    assert [len(chunk.items) for chunk in in_chunks(raws)] == expected
    lines = Block("d", 1, [b"1".rjust(size) for size in sizes])
    assert [len(chunk.items) for chunk in objects.decoded(lines)] == expected
    errors = [InputError("none")] * 20  # of no size
    assert [len(chunk.items) for chunk in in_chunks([*errors, *raws])][:1] == [
        20 + sum(expected[:1])
    ]


def test_a_mistake_is_of_its_own_chunk(monkeypatch):
    monkeypatch.setattr(objects, "CHUNK_BYTES", 4)
    found = list(objects.raws(Block("d", 3, [b"[1]", b"{]", b"", b" ", b"5", b"6"])))
    assert [(one.line, isinstance(one, InputError)) for one in found] == [
        *((3, False), (4, True)), *((7, False), (8, False)),
    ]  # fmt: skip


def test_what_is_dropped_is_decoded_again_from_its_text():
    with_text, without = Raw([1], "d", 1, "", 3, lambda: [2]), Raw([1], "d", 1, "", 3)
    for raw in (with_text, without):
        raw.drop()
    assert (with_text.kept, with_text.value, with_text.value) == (DROPPED, [2], [2])
    assert (without.kept, without.value) == ([1], [1])


def test_arrays_are_listed_once():
    raw = Raw({"a": [np.ones(2)]}, "d", 1, "", 3, arrays=True)
    assert raw.with_lists() is raw
    assert (raw.kept, raw.arrays) == ({"a": [[1.0, 1.0]]}, False)
    assert raw.plain() is raw.kept


@pytest.mark.parametrize(
    ("values", "keys"),
    [
        ([{"a": 1, "b": 0}, {"a": 2, "b": []}], ("a", "b")),
        ([{"a": 1, "b": 0}, {"b": 1, "a": 0}], None),
        ([{"a": 1}, {"b": 1}], None),
        ([{"a": 1}, {"b": 1}, {"c": 1}], None),
        ([{"a": 1}, {"a": None}], None),
        ([{"a": 1}, [1]], None),
        ([{}], ()),
        ([], None),
    ],
)
def test_keys_in_common(values, keys):
    assert keys_in_common(values) == keys


@pytest.mark.parametrize("lines", [[b"12345"], [b"1", b"12345"], [b"123456", b"1"]])
def test_what_there_is_no_memory_for_is_not_decoded(monkeypatch, lines):
    monkeypatch.setattr(objects, "_OBJECTS", 1 << 60)
    monkeypatch.setattr(objects, "_LARGE", 5)
    assert len(list(objects.raws(Block("d", 1, lines)))) == len(lines)
    with pytest.raises(MemoryError):
        list(objects.raws(Block("d", 1, [*lines, b"123456"])))
    sizes = []
    monkeypatch.setattr(objects, "_OBJECTS", 8)
    monkeypatch.setattr(objects, "bytearray", sizes.append, raising=False)
    assert len(list(objects.raws(Block("d", 1, [*lines, b"123456"])))) == len(lines) + 1
    assert sizes == [8 * 6]
