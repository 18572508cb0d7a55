"""The extra ``fast``: the same bits and the same words with and without it.

What orjson makes of a text is the reference; where simdjson is not installed nothing is compared.
"""

from __future__ import annotations

import random
import struct
from decimal import Decimal, localcontext

import numpy as np
import orjson
import pytest
from files import each
from typer.testing import CliRunner

from grpo_cli.commands.main import app
from grpo_cli.records import buffers, pack
from grpo_cli.records.buffers import Decoder
from grpo_cli.records.fast import headers
from grpo_cli.records.fields import read_fields
from grpo_cli.records.record import Raw

simdjson = pytest.importorskip("simdjson")

PLAIN = {
    "id": "a",
    "log_probs_new": [[-0.1, -0.2], [-0.3]],
    "log_probs_old": [[-0.1, -0.25], [-1]],
    "rewards": [1, 0.5],
}


def served(*texts: bytes) -> buffers.Served | None:
    return Decoder(simdjson.Parser).served(texts)


def line(**changes: object) -> bytes:
    record = {key: value for key, value in (PLAIN | changes).items() if value is not ...}
    return orjson.dumps(record)


# ---- numbers -----------------------------------------------------------------------------------


def ties(count: int) -> list[str]:
    """Numbers halfway between two doubles, to the last digit, and right beside that."""
    draw, found = random.Random(1), []
    with localcontext() as context:
        context.prec = 1200
        while len(found) < count:
            bits = draw.getrandbits(63) % 0x7FE0000000000000
            low, high = struct.unpack("2d", struct.pack("2q", bits, bits + 1))
            middle = (Decimal(low) + Decimal(high)) / 2
            found.append(f"{middle:e}")
            found += [f"{middle * (1 + Decimal(10) ** at):.1100e}" for at in (-1000, -30, -17)]
    return found


def subnormals(count: int) -> list[str]:
    draw = random.Random(2)
    bits = np.array([draw.getrandbits(draw.randint(1, 52)) for _ in range(count)])
    return [f"{number:.{draw.randint(0, 30)}e}" for number in bits.view(np.float64).tolist()]


def spelled(count: int) -> list[str]:
    """Digits, a point and an exponent at will."""
    draw, found = random.Random(3), []
    for _ in range(count):
        whole = str(draw.getrandbits(draw.choice([1, 8, 60, 64])))
        part = f".{draw.getrandbits(draw.choice([4, 60, 90]))}" if draw.random() < 0.8 else ""
        power = draw.choice(["e0", f"e{draw.randint(-330, 280)}", f"E+{draw.randint(0, 250)}"])
        found.append(f"{draw.choice(['', '-'])}{whole}{part}{power}")
    return found


def bit_patterns(count: int) -> bytes:
    """Any doubles, as orjson writes them."""
    numbers = np.random.default_rng(4).integers(0, 1 << 64, count, dtype=np.uint64)
    finite = numbers.view(np.float64)
    return orjson.dumps(finite[np.isfinite(finite)], option=orjson.OPT_SERIALIZE_NUMPY)


def in_list(texts: list[str]) -> bytes:
    return f"[{','.join(texts)}]".encode()


@pytest.mark.parametrize(
    "make",
    [
        lambda: bit_patterns(200_000),
        lambda: in_list(spelled(45_000)),
        lambda: in_list(subnormals(30_000)),
        lambda: in_list(ties(600)),
        lambda: b"[-0,-0.0,0,1e-400,9007199254740993,18446744073709551615,-9223372036854775808]",
    ],
    ids=["bit patterns", "spelled", "subnormals", "ties", "edges"],
)
def test_numbers_have_the_same_bits(make):
    text = make()
    numbers = orjson.loads(text)
    expected = struct.pack(f"{len(numbers)}d", *numbers)
    assert bytes(simdjson.Parser().parse(text).as_buffer(of_type="d")) == expected


@each(
    "number",
    [
        *("01", "+1", ".5", "5.", "1e", "-", "NaN", "Infinity", "-Infinity", "1e400", "0x1", "1_0"),
        *("18446744073709551616", "-9223372036854775809", "123456789012345678901234567890"),
        *("true", "null", '"1"', "{}", "[-1]", "", "1 2"),
    ],
)
def test_what_is_no_plain_number_is_left_to_others(number):
    text = line().replace(b"-0.25", number.encode())
    assert served(line()) is not None
    assert served(line(), text) is None


# ---- records -----------------------------------------------------------------------------------

SERVED = {
    "plain": line(),
    "mask": line(mask=[[1, 0], [1]]),
    "mask of ones": line(mask=[[1, 1], [1]]),
    "advantages": line(advantages=[0.5, -2]),
    "groups": line(group_ids=["x", "y"]),
    "one group": line(group_ids=[7, 7]),
    "aliases": line(log_probs_new=..., logprobs=[[-1.0], [-2]], log_probs_old=...),
    "ids of tokens": line(token_ids=[[5, 6], [7]]),
    "empty response": line(log_probs_new=[[], [-1.0]], log_probs_old=[[], [-2.0]]),
    "no token": line(log_probs_new=[[]], log_probs_old=[[]], rewards=[1]),
    "more beside it": line(
        prompt="[a, [b", meta={"x": [1, [2]], "y": None}, other=None, expected=3
    ),
    "no id": line(id=...),
    "number as id": line(id=-0.5),
    "spaces": orjson.dumps(PLAIN, option=orjson.OPT_INDENT_2).replace(b"\n", b" ") + b"\r",
}
UNSERVED = {
    "lists in lists": line(log_probs_new=[[-0.1, [-0.2]], [-0.3]]),
    "deeper": line(log_probs_new=[[[-0.1], [-0.2]], [[-0.3]]]),
    "a bracket for a bracket": line(id="X", log_probs_new=[[-0.1, [-0.2]], [-0.3]]).replace(
        b"X", rb"\u005b"
    ),
    "rewards in lists": line(rewards=[[1], [2]]),
    "too few rewards": line(rewards=[1]),
    "one reward": line(rewards=1),
    "booleans": line(rewards=[True, False]),
    "booleans in a mask": line(mask=[[True, False], [True]]),
    "a mask of 2": line(mask=[[1, 2], [1]]),
    "a mask of -1": line(mask=[[1, -1], [1]]),
    "a mask of floats": line(mask=[[1.0, 0.0], [1.0]]),
    "other widths": line(log_probs_old=[[-0.1], [-0.2, -1]]),
    "flat": line(log_probs_new=[-0.1, -0.2], log_probs_old=[-0.1, -0.2]),
    "no responses": line(log_probs_new=[], log_probs_old=[], rewards=[]),
    "advantages by token": line(advantages=[[1.0, 1.0], [0.5]]),
    "words": line(tokens=[["a", "b"], ["c"]]),
    "hyperparameters": line(epsilon=0.3),
    "hyperparameters in it": line(hyperparameters={"beta": 0}),
    "typing slip": line(log_prob_ref=[[-1.0, -1], [-1]]),
    "two names": line(logprobs=[[-0.1, -0.2], [-0.3]]),
    "two masks": line(loss_mask=[[1, 0], [1]], response_mask=[[1, 1], [1]]),
    "null": line(rewards=None),
    "list as id": line(id=[1]),
    "groups of floats": line(group_ids=[1.0, 2.0]),
    "too few groups": line(group_ids=[1]),
    "duplicate keys": line()[:-1] + b',"rewards":[0,0]}',
    "two ids": line()[:-1] + b',"id":"b"}',
    "no record": b"[1, 2]",
    "malformed": line()[:-2],
    "more": line() + b"1",
    "empty": b"",
    "byte order mark": b"\xef\xbb\xbf" + line(),
    "no UTF-8": line(id="X").replace(b"X", b"\xff"),
    "half a pair": line(id="X").replace(b"X", rb"\ud800"),
    "deep": line()[:-1] + b',"x":' + b"[" * 600 + b"]" * 600 + b"}",
}


def check(texts: list[bytes]) -> bool:
    """Whether the lines are served; if so, as the others would have packed them."""
    found = served(*texts)
    if found is None:
        return False
    values = [orjson.loads(text) for text in texts]
    packed = pack(values)
    assert packed is not None
    for name in packed.__slots__:
        mine, theirs = getattr(found.packed, name), getattr(packed, name)
        assert mine == theirs, name
    names = read_fields(values[0]).names
    raws = [Raw(value, "dump", 1, "", 0) for value in values]
    for one, other in zip(
        headers(raws, packed, names), headers(raws, packed, names, found.shown), strict=True
    ):
        assert [getattr(one, name) for name in one.__slots__] == [
            getattr(other, name) for name in other.__slots__
        ]
    return True


@pytest.mark.parametrize("text", SERVED.values(), ids=[*SERVED])
def test_plain_records_are_packed_alike(text):
    assert check([text])
    assert check([text, text])


@each("text", UNSERVED.values())
def test_unusual_records_are_left_to_others(text):
    assert not check([text])
    assert not check([line(), text])


def test_what_is_wrong_in_two_records_does_not_cancel_out():
    short, long = line(rewards=[1]), line(rewards=[1, 2, 3])
    assert not check([short, long])
    assert not check([line(group_ids=[1]), line(group_ids=[1, 2, 3])])
    assert not check([line(other=1), line(another=1)])


def mutated(text: bytes, draw: random.Random) -> bytes:
    data = bytearray(text)
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(data))
        kind = draw.randrange(4)
        if kind == 0:
            data[at] = draw.choice(b'0123456789.eE+-[]{},:"\\ trufalsn')
        elif kind == 1:
            del data[at : at + draw.randint(1, 4)]
        elif kind == 2:
            data[at:at] = draw.choice([b"[", b"]", b"[]", b"[0]", b",", b"0", b"-", b"e9", b"null"])
        else:
            end = at + draw.randint(1, 12)
            data[at:at] = data[at:end]
    return bytes(data)


def test_mutated_records_are_read_alike_or_not_at_all():
    draw, count = random.Random(5), 0
    for _ in range(8_000):
        texts = [mutated(draw.choice([*SERVED.values()]), draw) for _ in range(draw.randint(1, 2))]
        count += check(texts)
    assert count > 200


def test_it_is_tried_again_less_and_less_often():
    decoder, bad = Decoder(simdjson.Parser), UNSERVED["words"]
    assert [decoder.served([one]) is not None for one in [line(), bad, line()]] == [1, 0, 1]
    tried = [decoder.served([bad]) for _ in range(8)]  # the 1st, 2nd, 4th and 8th
    assert tried == [None] * 8
    assert [decoder.served([line()]) is not None for _ in range(9)] == [0] * 7 + [1, 1]


# ---- the command -------------------------------------------------------------------------------


def evaluated(monkeypatch, path, *flags: str, fast: bool) -> tuple[int, str, str]:
    decoder = Decoder(simdjson.Parser) if fast else None
    monkeypatch.setattr("grpo_cli.records.decode.blocks.decoder", lambda: decoder)
    result = CliRunner().invoke(app, ["eval", str(path), *flags])
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("level", ["batch", "record", "response", "token"])
@pytest.mark.parametrize("lines", [[*SERVED.values()], [*SERVED.values(), *UNSERVED.values()]])
def test_the_command_says_the_same(monkeypatch, tmp_path, lines, level):
    path = tmp_path / "dump.jsonl"
    mixed = random.Random(6).sample(lines * 3, 3 * len(lines))
    path.write_bytes(b"\n".join(mixed) + b"\n")
    flags = ("--beta", "0", "--on-error", "skip", "--level", level, "-f", "jsonl")
    without = evaluated(monkeypatch, path, *flags, fast=False)
    assert evaluated(monkeypatch, path, *flags, fast=True) == without
    assert without[0] == (0 if lines == [*SERVED.values()] else 3)


@pytest.mark.parametrize("text", UNSERVED.values(), ids=[*UNSERVED])
def test_an_error_is_the_same(monkeypatch, tmp_path, text):
    path = tmp_path / "dump.jsonl"
    path.write_bytes(line() + b"\n" + text + b"\n")
    without = evaluated(monkeypatch, path, "--json", fast=False)
    assert evaluated(monkeypatch, path, "--json", fast=True) == without
