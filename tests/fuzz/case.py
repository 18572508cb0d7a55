"""One input: a command line with a file, drawn by hypothesis or kept because it once broke."""

from __future__ import annotations

import base64
import gzip
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from fuzz import tables
from fuzz.changes import changed, objects, usable
from fuzz.words import SEEDS, command_lines

CORPUS = Path(__file__).parent / "corpus"
FILE = "FILE"
"""What stands for the file in a command line."""
_NAMES = ("in.jsonl",) * 30 + ("in.json", "in put.jsonl", "-in.jsonl", "a=b.jsonl", "dr", "é.jsonl")
_ODD_NAMES = ("\x1b[31m.jsonl", "\udcff.jsonl", "\u202ein.jsonl", "x" * 300, "a\nb.jsonl", "")


@dataclass(frozen=True)
class Case:
    """A command line and the file that it reads.

    Attributes:
        words: the command line; ``FILE`` stands for the file.
        data: what is in it.
        name: what it is called.
        how: how the objects were laid out.
        seed: which of the relations are looked at.
    """

    words: tuple[str, ...]
    data: bytes
    name: str = "in.jsonl"
    how: str = ""
    seed: int = 0

    @property
    def command(self) -> str:
        return self.words[0]

    @property
    def is_text(self) -> bool:
        """Whether it can come from standard input as well."""
        return self.how != "table"

    @property
    def array(self) -> bytes:
        """The same objects as one array; empty where the file is not an object a line."""
        lines = self.data.split(b"\n")[:-1]
        if self.how == "table" or not lines or not self.data.endswith(b"\n"):
            return b""
        if any(not (line.startswith(b"{") and line.endswith(b"}")) for line in lines):
            return b""
        return b"[" + b",".join(lines) + b"]"

    def words_for(self, name: str) -> list[str]:
        """The command line with a file's name in its place."""
        return [name if word == FILE else word for word in self.words]

    def option(self, *flags: str) -> str | None:
        """The value of an option, the last one where it is given more than once."""
        places = [at for at, word in enumerate(self.words[:-1]) if word in flags]
        return self.words[places[-1] + 1] if places else None

    def __repr__(self) -> str:
        """As a file of the corpus has it: hypothesis prints the smallest case that fails."""
        return json.dumps({"words": self.words, "name": self.name, "how": self.how} | self._data())

    def _data(self) -> dict[str, str]:
        try:
            return {"text": self.data.decode()}
        except UnicodeDecodeError:
            return {"gzip": base64.b64encode(gzip.compress(self.data, mtime=0)).decode()}


def kept(place: Path) -> Case:
    """A case of the corpus."""
    value = json.loads(place.read_text(encoding="utf-8"))
    text, packed = value.get("text", ""), base64.b64decode(value.get("gzip", ""))
    data = gzip.decompress(packed) if packed else text.encode()
    return Case(tuple(value["words"]), data, value["name"], value["how"])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Every command with flags, on every kind of file that is read, changed in a few places."""
    command, words = draw(command_lines())
    begin = draw(st.sampled_from(usable()))
    changes = draw(st.lists(SEEDS, max_size=4))
    seed = draw(SEEDS)
    data, name, how = _file(begin, changes, random.Random(seed))
    file = ["--", FILE] if name.startswith("-") else [FILE]
    return Case((command, *words, *file), data, name, how, seed)


def _file(begin: str, changes: list[int], draw: random.Random) -> tuple[bytes, str, str]:
    kind = draw.random()
    if kind < 0.0001:
        data, ending = tables.bomb(draw)
        return data, f"in.jsonl{ending}", "bomb"
    values: list[Any] = json.loads(objects()[begin])
    if kind < 0.08:  # two formats in one file, or one that fails as it is
        values += json.loads(objects()[draw.choice((*objects(),))])
    for seed in changes:
        changed(values, random.Random(seed))
    if kind > 0.85:
        data, ending = tables.table(values, draw)
        return data, f"in{ending}", "table"
    data, how = tables.laid_out(values, draw)
    data, ending = tables.packed(data, draw)
    name = draw.choice(_NAMES)
    if draw.random() < 0.02:
        name = draw.choice(_ODD_NAMES) + name[2:]
    return data, name + ending, "packed" if ending else how
