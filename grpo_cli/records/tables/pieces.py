"""Binary files: Parquet, Arrow, ``.npz`` and torch's ``.pt``.

Numbers go from their columns into arrays; no Python float is made of them.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterator
from functools import partial
from itertools import accumulate, islice
from math import prod
from operator import mul
from typing import Any

import numpy as np

from grpo_cli.errors import InputError
from grpo_cli.records.formats import candidates
from grpo_cli.records.open.blocks import Source
from grpo_cli.records.open.budget import ROW, VALUE, Budget
from grpo_cli.records.open.streams import opened, version_of
from grpo_cli.records.record import DecodedChunk, Decoding, Made, Raw, always, listed
from grpo_cli.records.tables.files import WHOLE, Rows, check_zip, damage_of

_KINDS = (
    (b"PAR1", "", "parquet"),
    (b"ARROW1", "", "arrow"),
    (b"\xff\xff\xff\xff", "", "arrow-stream"),
    (b"PK\x03\x04", ".npz", "npz"),
    (b"PK\x03\x04", (".pt", ".pth"), "torch"),
)
"""How files begin, how their names end, and how they are read."""
_DAMAGE = (
    *(OSError, ValueError, LookupError, TypeError, EOFError, AttributeError, OverflowError),
    *(zlib.error, NotImplementedError, RuntimeError, MemoryError),
    *(pickle.UnpicklingError, AssertionError),
)


_OBJECTS = (
    "an array of objects (dtype=object), which only pickle reads: save lists of unequal lengths as "
    "JSONL, or padded with a mask"
)


def decoded(piece: Rows, decoding: Decoding = always) -> Iterator[DecodedChunk]:
    """The rows of a piece as records; an unreadable one is replaced by its error."""
    try:
        if piece.kind in WHOLE:
            yield DecodedChunk([*_records(piece, decoding)])
        else:
            from grpo_cli.records.tables import arrow

            yield from arrow.decoded(piece, decoding)
    except InputError as error:
        error.source = error.source or piece.source
        yield DecodedChunk([error])


def _records(piece: Rows, decoding: Decoding = always) -> Iterator[Raw]:
    """The record that a file is, or each of the list that ``torch.save`` wrote."""
    from zipfile import BadZipFile  # slow to import, and rarely needed

    path, kind = piece.path, piece.kind
    try:
        value, size = decoding(piece.content(), partial(_load, piece))
    except (BadZipFile, *_DAMAGE) as error:
        if kind == "npz" and "allow_pickle" in str(error):
            raise InputError(_OBJECTS) from None
        also = ", or torch.save did not write it" if kind == "torch" else ""
        raise InputError(f"the file is damaged{also}: {damage_of(error, path)}") from None
    alone = not isinstance(value, list) or not value
    for number, one in enumerate([value] if alone else value):
        known = candidates(tuple(one)) if isinstance(one, dict) else ()
        arrays = kind != "torch" or any(form.arrays for form in known)
        kept, again = one if arrays else listed(one), partial(_value_of, piece, number)
        prefix = "" if alone else f"[{number}]."
        yield Raw(kept, piece.source, None, prefix, size, again, arrays=arrays)


def _load(piece: Rows) -> Made:
    if piece.kind == "torch":
        from grpo_cli.records.tables import torch_file

        return torch_file.load(piece.path, piece.budget)
    return _arrays(_npz(piece.path, piece.budget), piece.budget)


def _value_of(piece: Rows, number: int) -> Any:
    """The value of one of a file's records, in any process."""
    return next(islice(_records(piece), number, None)).kept


def slices(source: Source, *, whole: bool, most: int | None = None) -> Iterator[Rows] | None:
    """The pieces of a binary file; None for text.

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

    return arrow.slices(source, kind, size, whole=whole, most=most)


def kind_of(head: bytes, path: str) -> str | None:
    """How a file that begins so is read; None for text."""
    for magic, ending, kind in _KINDS:
        if head.startswith(magic) and path.endswith(ending):
            return kind
    return None


def _arrays(found: dict[str, Any], budget: Budget) -> tuple[dict[str, Any], int]:
    """A field for each array, and how many bytes they have."""
    shapes = [array.shape for array in found.values()]  # the rows of some may be empty
    budget.check(sum(map(prod, shapes)), "values", VALUE)
    budget.check(sum(sum(accumulate(shape[:-1], mul)) for shape in shapes), "rows", ROW)
    size = sum(array.nbytes for array in found.values())
    return {name: _field(array) for name, array in found.items()}, size


def _npz(path: str, budget: Budget) -> dict[str, Any]:
    # numpy leaves a damaged file open that it opened itself
    with opened(path) as stream, np.load(stream, allow_pickle=False) as file:
        check_zip(file.zip, budget)
        return {name: file[name] for name in file.files}


def _field(array: Any) -> Any:
    """A list whose innermost lists are arrays, as deep as the field is nested."""
    if array.ndim < 2:
        return array.tolist()
    if array.ndim == 2:
        return list(array)
    return [_field(one) for one in array]
