"""The numbers that a page carries, read as its script reads them, are those of ``grpo eval``."""

from __future__ import annotations

import base64
import json
import math
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

DATA = Path(__file__).parent.parent / "data" / "rollouts" / "trl-1.16.0-grpo.jsonl"
COLUMNS = (
    *("log_ratio", "ratio", "advantage", "surrogate", "kl", "weight", "contribution", "gradient"),
)
FAR = -(2**31)


class Block:
    """What ``assets/codec.js`` makes of a page's record, one number after the other."""

    def __init__(self, text: str) -> None:
        (block,) = re.findall(r'<script[^>]* id="record"[^>]*>([^<]+)<', text)
        self.data = zlib.decompress(base64.b64decode(block))
        size = int.from_bytes(self.data[:4], "little")
        head, self.at = json.loads(self.data[4 : 4 + size]), 4 + size
        self.lengths = head["lengths"]
        self.count = sum(self.lengths)
        self.clip = self.take(self.count, "i1")
        self.take(self.count, "<u4")  # the words
        self.columns = {"free": [float(side == 0) for side in self.clip]}
        self.ways = {spec["way"] for spec in head["columns"].values()}
        for name, spec in head["columns"].items():
            self.columns[name] = self.column(spec)
        assert self.at == len(self.data)

    def take(self, count: int, kind: str) -> list[Any]:
        """So many numbers: the first bytes of all, then the second ones."""
        width = np.dtype(kind).itemsize
        planes = [self.data[self.at + at * count :][:count] for at in range(width)]
        self.at += width * count
        together = bytes(one for each in zip(*planes, strict=True) for one in each)
        return np.frombuffer(together, kind).tolist()

    def column(self, spec: dict[str, Any]) -> list[float]:
        way = spec["way"]
        if way == "each":
            values = zip(self.take(len(self.lengths), "<f8"), self.lengths, strict=True)
            return [value for value, length in values for _ in range(length)]
        if way in ("f4", "f8"):
            return self.take(self.count, f"<{way}")
        whole = self.take(self.count, "<i4")
        if way == "dec":
            return [value / 10.0 ** spec["digits"] for value in whole]
        far = iter(self.take(spec["far"], "<f8"))
        return [
            next(far) if step == FAR else moved(self.guessed(spec["of"], at), step)
            for at, step in enumerate(whole)
        ]

    def guessed(self, expression: Any, at: int) -> float:
        if isinstance(expression, str):
            return self.columns[expression][at]
        if isinstance(expression, int | float):
            return float(expression)
        operator, *operands = expression
        first, *rest = (self.guessed(one, at) for one in operands)
        if operator.startswith("exp"):
            return power(first, less_one=operator == "expm1")
        return {"+": first.__add__, "-": first.__sub__, "*": first.__mul__}[operator](*rest)


def moved(value: float, steps: int) -> float:
    """The number so many units in the last place on."""
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return struct.unpack("<d", struct.pack("<q", bits + steps))[0]


def power(x: float, *, less_one: bool) -> float:
    """The script's exponential: its operations, in its order."""
    if not abs(x) < 700:
        return 0.0
    twos = math.floor(x * 1.4426950408889634 + 0.5)
    rest = x - twos * 6.93147180369123816490e-1 - twos * 1.90821492927058770002e-10
    sum_ = 1 / math.factorial(13)
    for term in range(12, 1, -1):
        sum_ = sum_ * rest + 1 / math.factorial(term)
    small = rest + rest * rest * sum_
    if less_one and twos == 0:
        return small
    return math.ldexp(small + 1, twos) - less_one


def numbers(record: dict[str, Any], name: str) -> list[Any]:
    return [value for one in record["responses"] for value in one["tokens"][name] or ()]


@pytest.mark.parametrize("variant", ["grpo", "dr", "gspo", "cispo"])
def test_every_number_is_the_float64_of_eval(grpo, tmp_path, variant):
    out = tmp_path / "page.html"
    assert grpo("show", DATA, "--html", out, "--record", "grpo/3", "-v", variant).exit_code == 0
    words = ("--batch", "record", "--level", "token", "-f", "jsonl", "--nest", "-v", variant)
    record = json.loads(grpo("eval", DATA, *words).stdout.splitlines()[3])
    block = Block(out.read_text(encoding="utf-8"))
    assert block.ways >= {"each", "near"}
    for name in COLUMNS:
        wanted = numbers(record, name)
        assert block.columns[name] == wanted if name in block.columns else not any(wanted), name
    sides = {-1: "low", 0: None, 1: "high"}
    assert [sides[side] for side in block.clip] == numbers(record, "clip")


@pytest.mark.parametrize(
    ("digits", "way"), [(None, "f8"), (5, "dec"), ("float32", "f4")], ids=["f8", "dec", "f4"]
)
def test_log_probs_are_those_of_the_file(grpo, dump, tmp_path, digits, way):
    values = -np.random.default_rng(1).gamma(1.0, 1.0, (2, 40))
    if way == "f4":
        values = values.astype(np.float32).astype(np.float64)
    elif digits:
        values = np.round(values, digits)
    old = np.where(np.arange(80).reshape(2, 40) % 20 == 7, -1.5, values)  # far from the new ones
    columns = {"log_probs_new": values, "log_probs_old": old, "log_probs_ref": old - 1.0}
    path, out = dump({name: one.tolist() for name, one in columns.items()}), tmp_path / "page.html"
    assert grpo("show", path, "--html", out).exit_code == 0
    block = Block(out.read_text(encoding="utf-8"))
    assert way in block.ways
    for name, one in columns.items():
        assert block.columns[name] == one.ravel().tolist(), name
