"""Binary files: Parquet, Arrow, ``.npz``, ``.safetensors`` and torch's ``.pt``.

Numbers go from their columns into arrays; no Python float is made of them.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from itertools import accumulate
from math import prod
from operator import mul
from typing import Any

import numpy as np
import orjson

from grpo_cli.errors import InputError
from grpo_cli.records.open.blocks import Source
from grpo_cli.records.open.budget import ROW, VALUE, Budget
from grpo_cli.records.open.remote import Address
from grpo_cli.records.open.streams import opened, version_of
from grpo_cli.records.record import Raw
from grpo_cli.records.tables.files import WHOLE, Rows, check_zip, damage_of

_PARQUET, _ARROW_FILE, _ARROW_STREAM, _ZIP = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff", b"PK\x03\x04"


def raws(piece: Rows) -> Iterator[Raw | InputError]:
    """The rows of a piece as records; an unreadable one is replaced by its error."""
    try:
        if piece.kind == "torch":
            from grpo_cli.records.tables import torch_file

            yield from torch_file.raws(piece)
        elif piece.kind in WHOLE:
            yield from _of_arrays(piece)
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


_DAMAGE = (
    *(OSError, ValueError, LookupError, TypeError, EOFError, AttributeError, OverflowError),
    *(zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, MemoryError),
)
_CUT_OFF = "is the file cut off?"
_TYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "?",
}


def _of_arrays(piece: Rows) -> Iterator[Raw | InputError]:
    """The only record of a file."""
    path, budget = piece.path, piece.budget
    try:
        found = _npz(path, budget) if piece.kind == "npz" else _safetensors(path)
        shapes = [array.shape for array in found.values()]  # the rows of some may be empty
        budget.check(sum(map(prod, shapes)), "values", VALUE)
        budget.check(sum(sum(accumulate(shape[:-1], mul)) for shape in shapes), "rows", ROW)
        value = {name: _field(array) for name, array in found.items()}
        size = sum(array.nbytes for array in found.values())
    except _DAMAGE as error:
        raise InputError(f"the file is damaged: {damage_of(error, path)}") from None
    yield Raw(value, piece.source, None, "", size, arrays=True)


def _npz(path: str, budget: Budget) -> dict[str, Any]:
    # numpy leaves a damaged file open that it opened itself
    with opened(path) as stream, np.load(stream, allow_pickle=False) as file:
        check_zip(file.zip, budget)
        return {name: file[name] for name in file.files}


def _bytes(path: str) -> Any:
    if not isinstance(path, Address):
        return np.memmap(path, dtype=np.uint8, mode="r")
    with opened(path, whole=True) as stream:
        return np.frombuffer(stream.read(), dtype=np.uint8)


def _safetensors(path: str) -> dict[str, Any]:
    file = _bytes(path)
    size = int(file[:8].view("<u8")[0])
    if size > len(file) - 8:
        raise ValueError(f"a header of {size} bytes, but only {len(file) - 8} are left; {_CUT_OFF}")
    header = orjson.loads(file[8 : 8 + size].tobytes())
    header.pop("__metadata__", None)
    data = file[8 + size :]
    _check_offsets(header, len(data))
    return {name: _tensor(data, one) for name, one in header.items()}


def _check_offsets(header: dict[str, Any], size: int) -> None:
    """Refuses tensors that are not within the data, or overlap."""
    before = 0
    ends = [one["data_offsets"][1] for one in header.values()]
    if ends and max(ends) > size:
        raise ValueError(f"its tensors need {max(ends)} bytes, but the file has {size}; {_CUT_OFF}")
    for (begin, end), name in sorted((one["data_offsets"], name) for name, one in header.items()):
        if not before <= begin <= end <= size:
            wanted = f"data_offsets of {name} between {before} and {size}"
            raise ValueError(
                f"expected {wanted} that do not overlap other tensors, got [{begin}, {end}]"
            )
        before = end


def _tensor(data: Any, entry: dict[str, Any]) -> Any:
    begin, end = entry["data_offsets"]
    kind = entry["dtype"]
    if kind not in _TYPES:
        raise ValueError(f"numbers of type {kind} are not supported")
    flat = np.frombuffer(data[begin:end].tobytes(), dtype=_TYPES[kind])
    if kind == "BF16":
        flat = (flat.astype(np.uint32) << 16).view(np.float32)
    return flat.reshape(entry["shape"])


def _field(array: Any) -> Any:
    """A list whose innermost lists are arrays, as deep as the field is nested."""
    if array.ndim < 2:
        return array.tolist()
    if array.ndim == 2:
        return list(array)
    return [_field(one) for one in array]
