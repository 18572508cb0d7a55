"""One input of the fuzzer: a command line with a file, made from a seed and a number."""

from __future__ import annotations

import base64
import gzip
import json
import random
import re
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from formats import dumps

from fuzz import flags, layout, tables
from fuzz.mutate import mutated
from fuzz.templates import objects

CORPUS = Path(__file__).parent / "corpus"
FILE = "FILE"
"""What stands for the file in a command line."""


@dataclass(frozen=True)
class Case:
    """A command line and the file that it reads.

    Attributes:
        words: the command line; ``FILE`` stands for the file.
        data: what is in it.
        name: what it is called.
        how: how the objects were laid out.
    """

    words: tuple[str, ...]
    data: bytes
    name: str = "in.jsonl"
    how: str = ""

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

    def saved(self) -> dict[str, Any]:
        """As JSON."""
        return {"words": [*self.words], "name": self.name, "how": self.how, **_text(self.data)}

    @classmethod
    def loaded(cls, value: dict[str, Any]) -> Case:
        """From JSON."""
        packed = base64.b64decode(value.get("gzip", ""))
        data = value["text"].encode() if "text" in value else gzip.decompress(packed)
        return cls(tuple(value["words"]), data, value["name"], value["how"])


def _text(data: bytes) -> dict[str, str]:
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"gzip": base64.b64encode(gzip.compress(data, mtime=0)).decode()}


_NAMES = ("in.jsonl",) * 30 + ("in.json", "in put.jsonl", "-in.jsonl", "a=b.jsonl", "dr", "é.jsonl")
_ODD_NAMES = ("\x1b[31m.jsonl", "\udcff.jsonl", "\u202ein.jsonl", "x" * 300, "a\nb.jsonl", "")


def made(seed: int, number: int) -> Case:
    """The case with this number; the same for the same seed, whatever ran before it."""
    draw = random.Random(f"{seed}/{number}")
    command, words = flags.command(draw)
    data, name, how = _file(draw)
    if draw.random() < 0.02:
        name = draw.choice(_ODD_NAMES) + name[2:]
    file = ["--", FILE] if name.startswith("-") else [FILE]
    return Case((command, *words, *file), data, name, how)


def _file(draw: random.Random) -> tuple[bytes, str, str]:
    if draw.random() < 0.0001:
        data, ending = layout.bomb(draw)
        return data, f"in.jsonl{ending}", "bomb"
    values = _objects(draw)
    if draw.random() < 0.15:
        data, ending = tables.table(values, draw)
        return data, f"in{ending}", "table"
    data, how = layout.laid_out(values, draw)
    data, ending = layout.packed(data, draw)
    return data, draw.choice(_NAMES) + ending, how if not ending else "packed"


_TEXTS = frozenset(dumps.texts())


def _objects(draw: random.Random) -> list[Any]:
    every = objects()
    chosen = draw.choice((*every,))
    for _ in range(2):
        if "bad_" in chosen or chosen in _TEXTS:  # they fail as they are
            chosen = draw.choice((*every,))
    found = json.loads(every[chosen])
    if draw.random() < 0.08:  # two formats in one file
        found += json.loads(every[draw.choice((*every,))])
    return mutated(found, draw)


@dataclass(frozen=True)
class Kept:
    """A case of the corpus.

    Attributes:
        slug: what its file is called.
        case: the case.
        finding: what was wrong with it when it was found.
        known: why that is not right yet; empty where it is.
    """

    slug: str
    case: Case
    finding: str
    known: str = ""


def corpus(folder: Path = CORPUS) -> list[Kept]:
    """Every case that was kept, by name."""
    found = []
    for place in sorted(folder.glob("*.json")):
        value = json.loads(place.read_text(encoding="utf-8"))
        case = Case.loaded(value)
        found.append(Kept(place.stem, case, value["finding"], value.get("known", "")))
    return found


def slug(kind: str) -> str:
    """A finding's kind as the name of a file."""
    return re.sub(r"[^a-z0-9]+", "-", kind.lower()).strip("-")[:100]


def keep(kept: Kept, folder: Path = CORPUS) -> Path:
    """Writes a case into the corpus, beside another of its kind that was mended before."""
    folder.mkdir(parents=True, exist_ok=True)
    value = {"finding": kept.finding, "known": kept.known, **kept.case.saved()}
    text = json.dumps(value, indent=1) + "\n"
    for number in count(1):
        place = folder / (f"{kept.slug}.json" if number == 1 else f"{kept.slug}-{number}.json")
        if not place.exists() or place.read_text(encoding="utf-8") == text:
            place.write_text(text, encoding="utf-8")
            return place
    raise AssertionError


def smaller(case: Case, data: bytes) -> Case:
    """The same command with other data; what else was known of them holds no longer."""
    return replace(case, data=data, how="table" if case.how == "table" else "damaged")
