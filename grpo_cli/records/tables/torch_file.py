"""``torch.save``'s files, without torch: a zip of raw tensors and a pickle that says what they are.

A pickle may call anything that it names. This one may name what rebuilds a tensor, and nothing
else: any other name is refused before it is looked up.
"""

from __future__ import annotations

import io
import math
import pickle
import re
import zipfile
from collections.abc import Callable, Mapping
from itertools import accumulate
from operator import mul
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.errors import InputError
from grpo_cli.records.open.budget import VALUE, Budget
from grpo_cli.records.open.streams import opened
from grpo_cli.records.places import as_float
from grpo_cli.records.tables.files import check_zip

_STORAGES = {"Double": "<f8", "Float": "<f4", "Half": "<f2", "BFloat16": "<u2", "Bool": "?"}
_STORAGES |= {"Long": "<i8", "Int": "<i4", "Short": "<i2", "Char": "i1", "Byte": "u1"}
_PLAIN_CODES = re.compile(
    rb"(?:[().012NQRabdelostu}\]\x81\x85-\x89\x8f-\x94\x97\x98]|[Khq\x80\x82].|M..|\x83.."
    rb"|[Jj\x84]....|[G\x95]........|r..[\0-\x1f]\0)*+",
    re.DOTALL,
)
"""Instructions of a pickle whose arguments are of fixed lengths, and small places of its memo."""
_LENGTHS = {
    **dict.fromkeys(b"UC\x8a\x8c", 1),
    **dict.fromkeys(b"TXB\x8b", 4),
    **dict.fromkeys(b"\x8d\x8e\x96", 8),
}
"""Those with a text behind its length → bytes of the length."""


class _Kind(NamedTuple):
    """What a storage's numbers are."""

    dtype: str


class _Storage(NamedTuple):
    """The raw bytes of tensors, and what their numbers are."""

    data: bytes
    dtype: str


_HALVES = np.dtype("<u2")
"""What numbers in bfloat16 are read as: the upper half of a float32's bits."""


def _rebuilt(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> NDArray[Any]:
    """A tensor as a view of its storage."""
    if not isinstance(storage, _Storage):
        raise ValueError("a tensor without its numbers")
    kind, size = np.dtype(storage.dtype), tuple(map(int, size))
    first, *steps = (kind.itemsize * int(step) for step in (offset, *stride))
    if len(size) != len(steps) or min((first, *size, *steps)) < 0:
        raise ValueError("a tensor with an impossible shape")
    if 0 in size:  # also where it begins beyond the end
        return np.zeros(size)
    try:
        return np.ndarray(size, kind, storage.data, first, steps)
    except (ValueError, OverflowError):
        raise ValueError("a tensor that is larger than its data") from None


_NAMES: Mapping[tuple[str, str], Callable[..., Any] | _Kind] = {
    ("torch._utils", "_rebuild_tensor_v2"): _rebuilt,
    ("torch", "Size"): lambda values=(): tuple(values),
    ("collections", "OrderedDict"): lambda *items: dict(*items),
    **{("torch", f"{name}Storage"): _Kind(dtype) for name, dtype in _STORAGES.items()},
}


class _Unpickler(pickle.Unpickler):
    """Rebuilds tensors, and refuses every name but theirs."""

    def __init__(self, archive: zipfile.ZipFile, folder: str) -> None:
        data = _entry(archive, f"{folder}data.pkl")
        _check_codes(data)
        super().__init__(io.BytesIO(data))
        self._archive, self._folder = archive, folder
        self._storages: dict[str, bytes] = {}

    def find_class(self, module: str, name: str) -> Any:
        found = _NAMES.get((module, name))
        if found is None:
            raise InputError(
                f"the file loads {module}.{name}, which may run code; only tensors, numbers, "
                "texts, lists and dicts are supported"
            )
        return found

    def persistent_load(self, pid: Any) -> _Storage:
        _, kind, key, _, _ = pid
        if not isinstance(kind, _Kind) or not isinstance(key, str):
            raise ValueError("a storage of an unknown kind")
        if key not in self._storages:
            self._storages[key] = _entry(self._archive, f"{self._folder}data/{key}")
        return _Storage(self._storages[key], kind.dtype)


def _entry(archive: zipfile.ZipFile, name: str) -> bytes:
    """A file of an archive, of as many bytes as its directory says and the budget has."""
    with archive.open(name) as stream:
        return stream.read(archive.getinfo(name).file_size)


def _check_codes(data: bytes) -> None:
    """Refuses a pickle that has memory reserved: for its memo, or for a text that is not there."""
    at = 0
    while True:
        at = _PLAIN_CODES.match(data, at).end()  # type: ignore[union-attr]
        code, at = data[at : at + 1], at + 1
        if not code:
            return
        size = _LENGTHS.get(code[0])
        if size is not None:
            at += size + int.from_bytes(data[at : at + size], "little")
        elif code == b"c":
            at = data.find(b"\n", data.find(b"\n", at) + 1) + 1 or len(data) + 1
        elif code == b"r":
            size = int.from_bytes(data[at : at + 4], "little")
            at += 4 if size <= len(data) else len(data)
        else:
            raise ValueError(f"an instruction that torch.save does not write, {code!r}")
        if at > len(data):
            raise ValueError("a text or memo position beyond its end")


def load(path: str, budget: Budget) -> tuple[Any, int]:
    """What a file holds, of lists, dicts, numbers and texts, and how many bytes it unpacks to."""
    with opened(path) as stream, zipfile.ZipFile(stream) as archive:
        check_zip(archive, budget)
        size = sum(entry.file_size for entry in archive.infolist())
        names = archive.namelist()
        pickled = [name for name in names if name.endswith("data.pkl")]
        if len(pickled) != 1:
            raise ValueError("expected one data.pkl in it")
        folder = pickled[0].removesuffix("data.pkl")
        order = f"{folder}byteorder"
        if order in names and _entry(archive, order) != b"little":
            raise ValueError("its numbers are big-endian")
        return _Plain(budget).of(_Unpickler(archive, folder).load()), size


class _Plain:
    """What was unpickled as lists, dicts, numbers and texts; arrays for tensors of one row."""

    def __init__(self, budget: Budget) -> None:
        self._budget, self._count, self._most = budget, 0, budget.limit // VALUE

    def of(self, value: Any) -> Any:
        """A value, and everything in it."""
        self._take(1)
        if isinstance(value, np.ndarray):
            self._take(sum(accumulate(value.shape, mul)))
            if value.dtype == _HALVES:
                value = (value.astype(np.uint32) << 16).view(np.float32)
            return value if value.ndim == 1 else value.tolist()
        if isinstance(value, dict):
            return {str(key): self.of(one) for key, one in value.items()}
        if isinstance(value, list | tuple | set):
            return [self.of(one) for one in value]
        if isinstance(value, int) and math.isinf(as_float(value)):
            return as_float(value)  # as such a number in JSON
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise ValueError(f"a {type(value).__name__} in it")

    def _take(self, count: int) -> None:
        self._count += count
        if self._count > self._most:
            self._budget.check(self._count, "values", VALUE, ahead=16)
