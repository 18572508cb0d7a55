"""``.npz`` and ``.safetensors``: one record, a padded array per field."""

from __future__ import annotations

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
from grpo_cli.records.open.budget import ROW, VALUE, Budget
from grpo_cli.records.open.remote import Address
from grpo_cli.records.open.streams import opened
from grpo_cli.records.record import Raw
from grpo_cli.records.tables.files import Rows, check_zip, damage_of

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


def raws(piece: Rows) -> Iterator[Raw | InputError]:
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
