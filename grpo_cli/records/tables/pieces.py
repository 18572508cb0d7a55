"""Binary files: Parquet, Arrow, ``.npz``, ``.safetensors`` and torch's ``.pt``.

Numbers go from their columns into arrays; no Python float is made of them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from grpo_cli.errors import InputError
from grpo_cli.records.open.blocks import Source
from grpo_cli.records.open.streams import version_of
from grpo_cli.records.record import Raw
from grpo_cli.records.tables.files import WHOLE, Rows

_PARQUET, _ARROW_FILE, _ARROW_STREAM, _ZIP = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff", b"PK\x03\x04"


def raws(piece: Rows) -> Iterator[Raw | InputError]:
    """The rows of a piece as records; an unreadable one is replaced by its error."""
    try:
        if piece.kind == "torch":
            from grpo_cli.records.tables import torch_file

            yield from torch_file.raws(piece)
        elif not piece.is_table:
            from grpo_cli.records.tables import arrays

            yield from arrays.raws(piece)
        else:
            from grpo_cli.records.tables import arrow

            yield from arrow.raws(piece)
    except InputError as error:
        error.source = error.source or piece.source
        yield error


def slices(source: Source, *, whole: bool, most: int | None = None) -> Iterator[Rows] | None:
    """The pieces of a binary file; None for text.

    Args:
        source: the file.
        whole: whether all of it is one piece.
        most: what it may unpack to, as --unpack says; None: by its size.

    Raises:
        InputError: where the package that reads it is missing, or it is damaged.
    """
    kind = kind_of(source.head[:9], source.path)
    if kind is None:
        return None
    size = version_of(source.path).size
    if kind in WHOLE:
        return iter([Rows(source.name, source.path, kind, None, 0, size, most=most)])
    from grpo_cli.records.tables import arrow

    pieces = arrow.slices(source, kind, size, whole=whole, most=most)
    return pieces if most is None else (one._replace(most=most) for one in pieces)


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
