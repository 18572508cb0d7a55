"""The numbers that a page carries, read as its script reads them, are those of ``grpo eval``."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

DATA = Path(__file__).parent.parent / "data" / "rollouts" / "trl-1.16.0-grpo.jsonl"
COLUMNS = (
    *("log_ratio", "ratio", "advantage", "surrogate", "kl", "weight", "contribution", "gradient"),
)


class Block:
    """What ``assets/codec.js`` makes of a page's record, one number after the other."""

    def __init__(self, text: str) -> None:
        (block,) = re.findall(r'<script[^>]* id="record-0"[^>]*>([^<]+)<', text)
        self.data = zlib.decompress(base64.b64decode(block))
        size = int.from_bytes(self.data[:4], "little")
        head, self.at = json.loads(self.data[4 : 4 + size]), 4 + size
        self.lengths = head["lengths"]
        self.count = sum(self.lengths)
        self.clip = self.take(self.count, "i1")
        self.take(self.count, "<u4")  # the words
        self.ways = head["columns"]
        self.columns = {name: self.column(way) for name, way in self.ways.items()}
        assert self.at == len(self.data)

    def take(self, count: int, kind: str) -> list[Any]:
        """So many numbers: the first bytes of all, then the second ones."""
        width = np.dtype(kind).itemsize
        planes = [self.data[self.at + at * count :][:count] for at in range(width)]
        self.at += width * count
        together = bytes(one for each in zip(*planes, strict=True) for one in each)
        return np.frombuffer(together, kind).tolist()

    def column(self, way: str) -> list[float]:
        if way in ("f4", "f8"):
            return self.take(self.count, f"<{way}")
        values = zip(self.take(len(self.lengths), "<f8"), self.lengths, strict=True)
        return [value for value, length in values for _ in range(length)]


def numbers(record: dict[str, Any], name: str) -> list[Any]:
    return [value for one in record["responses"] for value in one["tokens"][name] or ()]


@pytest.mark.parametrize("variant", ["grpo", "dr", "gspo", "cispo"])
def test_every_number_is_the_float64_of_eval(grpo, tmp_path, variant):
    out = tmp_path / "page.html"
    assert grpo("show", DATA, "--html", out, "--record", "grpo/3", "-v", variant).exit_code == 0
    words = ("--batch", "record", "--level", "token", "-f", "jsonl", "--nest", "-v", variant)
    record = json.loads(grpo("eval", DATA, *words).stdout.splitlines()[3])
    block = Block(out.read_text(encoding="utf-8"))
    assert {*block.ways.values()} >= {"each", "f8"}
    for name in COLUMNS:
        wanted = numbers(record, name)
        assert block.columns[name] == wanted if name in block.columns else not any(wanted), name
    sides = {-1: "low", 0: None, 1: "high"}
    assert [sides[side] for side in block.clip] == numbers(record, "clip")


@pytest.mark.parametrize("way", ["f8", "f4"])
def test_log_probs_are_those_of_the_file(grpo, dump, tmp_path, way):
    values = -np.random.default_rng(1).gamma(1.0, 1.0, (2, 40)).astype(way).astype(np.float64)
    old = np.where(np.arange(80).reshape(2, 40) % 20 == 7, -1.5, values)
    columns = {"log_probs_new": values, "log_probs_old": old, "log_probs_ref": old - 1.0}
    path, out = dump({name: one.tolist() for name, one in columns.items()}), tmp_path / "page.html"
    assert grpo("show", path, "--html", out).exit_code == 0
    block = Block(out.read_text(encoding="utf-8"))
    assert block.ways["log_probs_new"] == way
    for name, one in columns.items():
        assert block.columns[name] == one.ravel().tolist(), name
