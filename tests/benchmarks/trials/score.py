"""What was counted: how often an answer was right, and every case where it was not."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Case = dict[str, Any]


@dataclass
class Count:
    """Hits among trials, with the cases to be looked at.

    Attributes:
        hits, of: how many of how many.
        cases: what is worth listing (the misses; for a row that counts errors, the hits).
    """

    hits: int = 0
    of: int = 0
    cases: list[Case] = field(default_factory=list)

    @property
    def share(self) -> float:
        return self.hits / self.of if self.of else math.nan


def counted(hit: bool, case: Case | None, keep: bool | None = None) -> Count:
    """One trial; its case is kept where it is a hit, or as ``keep`` says."""
    kept = case is not None and (hit if keep is None else keep)
    return Count(int(hit), 1, [case] if kept else [])


def merged(parts: Iterable[dict[str, Count]]) -> dict[str, Count]:
    """Counts of the same name added up, in the order in which the names first turn up."""
    total: dict[str, Count] = {}
    for part in parts:
        for name, count in part.items():
            into = total.setdefault(name, Count())
            into.hits += count.hits
            into.of += count.of
            into.cases += count.cases
    return total


def wilson(hits: int, of: int, z: float = 1.959964) -> tuple[float, float]:
    """The 95 % interval of a share.

    References:
        Wilson, Probable inference, the law of succession, and statistical inference, 1927.
    """
    if not of:
        return 0.0, 1.0
    share, square = hits / of, z * z / of
    middle = (share + square / 2.0) / (1.0 + square)
    half = z / (1.0 + square) * math.sqrt(share * (1.0 - share) / of + square / (4.0 * of))
    return middle - half if hits else 0.0, middle + half if hits < of else 1.0


def shown(count: Count) -> str:
    """``44 % (437 of 987; 41–47 %)``."""
    if not count.of:
        return "not asked"
    low, high = wilson(count.hits, count.of)
    percent = [f"{100 * value:.3g}" for value in (count.share, low, high)]
    return f"{percent[0]} % ({count.hits} of {count.of}; {percent[1]}–{percent[2]} %)"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    drawn = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in drawn)


# ---- questions -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """A question.

    Attributes:
        section: "check", "verify", "match" or "threads".
        name: what is asked, as parts with "/" between them.
        seed: what it is drawn from.
    """

    section: str
    name: str
    seed: int

    def random(self) -> np.random.Generator:
        """A generator of its own, whatever else is asked."""
        return np.random.default_rng([self.seed, zlib.crc32(self.name.encode())])

    @property
    def words(self) -> str:
        """The command that asks this again."""
        return (
            f"python tests/benchmarks/answers.py --only {self.section} "
            f"--case '^{re.escape(self.name)}$' --seed {self.seed} --dump DIR"
        )
