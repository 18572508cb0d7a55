import math

import pytest

from grpo_cli.errors import InputError
from grpo_cli.records import Block, read, records
from grpo_cli.records.decode.text import decode


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
