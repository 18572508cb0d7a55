"""Binary files: Parquet, Arrow, ``.npz``, ``.safetensors`` and torch's ``.pt``.

Numbers go from their columns into arrays; no Python float is made of them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from grpo_cli.batch import I64
from grpo_cli.errors import InputError
from grpo_cli.records.choose.grouping import Grouping
from grpo_cli.records.open.blocks import Source
from grpo_cli.records.open.remote import Address
from grpo_cli.records.record import Raw

_WHOLE = ("npz", "safetensors", "torch")
"""Kinds of files that are one record."""
_PARQUET, _ARROW_FILE, _ARROW_STREAM, _ZIP = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff", b"PK\x03\x04"


class Cut(NamedTuple):
    """Where a piece begins and ends that was cut between groups.

    Attributes:
        parts: the row groups that it has rows of.
        skip: how many rows of the first one belong to the piece before.
        bounds: [G+1] where its groups begin, from its first row on, and where the last one ends.
        faults: the groups that cannot be one, and why.
    """

    parts: tuple[int, ...]
    skip: int
    bounds: I64
    faults: Mapping[int, InputError]


class Rows(NamedTuple):
    """A piece of a binary file, for any process to fetch itself.

    Attributes:
        source: the file as the user named it.
        path: where it is.
        kind: how it is read.
        part: which row group or batch; None for all of them.
        first: the 0-based number of the first row.
        size: about how many bytes it has.
        cut: which rows of several parts, where it was cut between groups.
    """

    source: str
    path: str
    kind: str
    part: int | None
    first: int
    size: int
    cut: Cut | None = None

    @property
    def line(self) -> int:
        """The 1-based number of its first row."""
        return self.first + 1

    @property
    def parts(self) -> tuple[int, ...] | None:
        """The row groups or batches that it has rows of; None for all."""
        if self.cut is not None:
            return self.cut.parts
        return None if self.part is None else (self.part,)

    @property
    def is_table(self) -> bool:
        """Whether it has columns of several records."""
        return self.kind not in _WHOLE

    def raws(self) -> Iterator[Raw | InputError]:
        """Its rows as records; in the place of what cannot be read stands the error."""
        try:
            if self.kind == "torch":
                from grpo_cli.records.tables import torch_file

                yield from torch_file.raws(self.source, self.path)
                return
            if not self.is_table:
                from grpo_cli.records.tables import arrays

                yield from arrays.raws(self.source, self.path, self.kind)
                return
            from grpo_cli.records.tables import arrow

            found = arrow.raws(self)
            if self.cut is not None:
                skip = self.cut.skip
                found = islice(found, skip, skip + int(self.cut.bounds[-1]))
            yield from found
        except InputError as error:
            error.source = error.source or self.source
            yield error


def slices(
    source: Source, *, grouping: Grouping | None = None, whole: bool
) -> Iterator[Rows] | None:
    """The pieces of a binary file; None for text.

    Args:
        source: the file.
        grouping: what rows are put together, where that is all that happens to them.
        whole: whether all of it is one piece, where it cannot be cut between groups.

    Raises:
        InputError: where the package that reads it is missing, or it is damaged.
    """
    kind = _kind(source)
    if kind is None:
        return None
    path = source.path
    size = path.version.size if isinstance(path, Address) else Path(path).stat().st_size
    if kind in _WHOLE:
        return iter([Rows(source.name, source.path, kind, None, 0, size)])
    from grpo_cli.records.tables import arrow

    return arrow.slices(source, kind, size, grouping=grouping, whole=whole)


def _kind(source: Source) -> str | None:
    if isinstance(source.path, Address):
        return kind_of(source.path.head[:9], source.path)
    if source.path == "-" or not Path(source.path).is_file():
        return None
    try:
        with Path(source.path).open("rb") as stream:
            head = stream.read(9)
    except OSError:
        return None  # what is wrong is told by whoever reads it as text
    return kind_of(head, source.path)


def kind_of(head: bytes, path: str) -> str | None:
    """How a file that begins so is read; None for text."""
    if head.startswith(_PARQUET):
        return "parquet"
    if head.startswith(_ARROW_FILE):
        return "arrow"
    if head.startswith(_ARROW_STREAM):
        return "arrow-stream"
    if head.startswith(_ZIP) and path.endswith(".npz"):
        return "npz"
    if head.startswith(_ZIP) and path.endswith((".pt", ".pth")):
        return "torch"
    if len(head) == 9 and head[8:] == b"{" and struct.unpack("<Q", head[:8])[0] < 1 << 40:
        return "safetensors"
    return None
