"""One question to the product: a section, what is asked, and the seed that it is made from."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass

import numpy as np


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
