"""How much a file may unpack to, so that a small one fills neither memory nor hours.

Packed files may hold gigabytes of zeros in some bytes, tables a billion rows in none. Everything
is counted in bytes of one budget, so that one flag raises it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from grpo_cli.errors import InputError, UsageError
from grpo_cli.records.open.remote import Address

LIMIT = 1 << 30
"""The longest line, and the largest document that is not lines, in bytes."""
LITTLE, _SMALL, _RATIO = 128 << 20, 1 << 20, 512
"""Bytes that any file may unpack to, and for each of its bytes beyond the first so many."""
VALUE, ROW, STREAMED, _TEXT = 64, 64, 8, 4
"""Bytes for a value or a row that is held, a value that is passed over, a byte of a line."""


@dataclass(slots=True)
class Budget:
    """What may come out of a file.

    Attributes:
        size: its bytes; of a pipe, those that have come.
        most: the budget, as --unpack says; None: by the size.
    """

    size: int
    most: int | None = None

    @classmethod
    def of(cls, path: str, most: int | None = None) -> Budget:
        """The budget of a file; that of a pipe grows with what comes."""
        if isinstance(path, Address):
            return cls(path.version.size, most)
        known = path != "-" and Path(path).is_file()
        return cls(Path(path).stat().st_size if known else 0, most)

    @property
    def limit(self) -> int:
        """How many bytes may come out of it."""
        return self.most or LITTLE + _RATIO * max(0, self.size - _SMALL)

    @property
    def line(self) -> int:
        """How long a line, or a document that is not lines, may be, in bytes."""
        return min(LIMIT, self.limit // _TEXT)

    def check(self, count: int, unit: str, cost: int, *, ahead: int = 1) -> None:
        """Refuses more of something than the budget allows.

        Args:
            count: how many there are, or are known to be.
            unit: what they are called.
            cost: bytes of each.
            ahead: how many times as many there may be, where they are counted as they come.

        Raises:
            InputError: (without its source) where they are too many.
        """
        if count * cost > self.limit:
            what = f"{count:,} {unit} in a file of {self.size:,} bytes"
            raise InputError(f"{what}{self._advice(count * max(cost, 16) * ahead)}")

    def check_line(self, text: bytes, line: int | None = None) -> None:
        """Refuses a line with more values than the budget allows."""
        if len(text) * VALUE > self.limit:
            values = sum(map(text.count, (b",", b"[", b"{")))
            try:
                self.check(values, "values in one line", VALUE)
            except InputError as error:
                error.line = line
                raise

    def too_long(self) -> str:
        """The message on a line that is too long."""
        return f"expected lines of less than {self._unpacked()}"

    def too_large(self) -> str:
        """The message on a document that is too large."""
        advice = "" if self.line < LIMIT else "; write it as JSONL, one record a line"
        return f"one JSON document of more than {self._unpacked()}{advice}"

    def _unpacked(self) -> str:
        if self.line == LIMIT:
            return "1.07 GB"
        return f"{self.line / 1e6:.3g} MB unpacked{self._advice(16 * self.limit)}"

    def _advice(self, needed: int) -> str:
        """A budget that suffices, in round numbers."""
        mebibytes = 1 << max(0, (needed - 1 >> 20).bit_length())
        size = f"{mebibytes}M" if mebibytes < 1 << 10 else f"{mebibytes >> 10}G"
        return f"; if the file is correct, --unpack {size} reads it"


UNLIMITED = Budget(0, _TEXT * LIMIT)
"""Of text that is not packed."""


def read_size(text: str | int | None) -> int | None:
    """Bytes, as ``4G`` or ``500M`` say them.

    Raises:
        UsageError: for what is no size.
    """
    if text is None:
        return None
    given = str(text).upper().removesuffix("B").removesuffix("I")
    found = re.fullmatch(r"(\d+)([KMGT]?)", given)
    if found is None or not int(found[1]):
        raise UsageError(f"--unpack: expected a size like 500M or 4G, got {text!r}")
    return int(found[1]) << 10 * " KMGT".index(found[2] or " ")
