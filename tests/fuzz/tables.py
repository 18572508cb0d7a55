"""Objects → Parquet, Arrow and npz, with columns of the right and of other types."""

from __future__ import annotations

import gzip
import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fuzz.changes import Raw, text_of

Object = dict[str, Any]
KINDS = ("parquet", "arrow", "arrow-stream", "npz", "slime")
_ENDINGS = {"parquet": ".parquet", "arrow": ".arrow", "arrow-stream": ".arrows", "npz": ".npz"}

SLIME = Path(__file__).parent.parent / "data/slime/train_data/7.pt"

_ODD: list[Callable[[int], pa.Array]] = [
    lambda n: pa.array([b"\xff\x00"] * n, pa.binary()),
    lambda n: pa.array([1] * n, pa.duration("ns")),
    lambda n: pa.array([1] * n, pa.timestamp("ns")),
    lambda n: pa.array([1] * n, pa.timestamp("ns", "Europe/Berlin")),
    lambda n: pa.array([2**62] * n, pa.timestamp("us")),
    lambda n: pa.array([1] * n, pa.date32()),
    lambda n: pa.array([1] * n, pa.time64("ns")),
    lambda n: pa.array([b"0123456789abcdef"] * n, pa.binary(16)),
    lambda n: pa.array([1] * n, pa.decimal128(5, 0)),
    lambda n: pa.array(["a"] * n).dictionary_encode(),
    lambda n: pa.array([{"a": 1, "b": None}] * n),
    lambda n: pa.array([[("k", 1)]] * n, pa.map_(pa.string(), pa.int64())),
    lambda n: pa.nulls(n),
    lambda n: pa.array([[1.0, None]] * n, pa.list_(pa.float32())),
    lambda n: pa.array([[1.0, 2.0]] * n, pa.list_(pa.float64(), 2)),
    lambda n: pa.array([[[1.0], None]] * n, pa.large_list(pa.list_(pa.float16()))),
    lambda n: pa.array([float("nan")] * n),
    lambda n: pa.array([True, None] * n)[:n],
    lambda n: pa.array([2**64 - 1] * n, pa.uint64()),
    lambda n: pa.array(["5", "null", "[1]", '{"rewards": 1}', "{", ""] * n)[:n],
    lambda n: pa.array(['{"a": {"b": NaN}}', None] * n)[:n],
]
_NAMES = (
    *("grpo_json", "rewards", "group_ids", "id", "uid", "log_probs_old", "mask", "tokens", "when"),
    *("advantages", "token_ids", "expected", "hyperparameters", "group_size", "meta", "\x1b[1m"),
)


def table(objects: list[Any], draw: random.Random) -> tuple[bytes, str]:
    """The bytes of a file of some kind, sometimes damaged, and the ending of its name."""
    kind = draw.choice(KINDS)
    if kind == "slime":
        return damaged(SLIME.read_bytes(), draw), ".pt"
    plain = [_plain(one) for one in objects if isinstance(one, dict)]
    make = _arrays if kind == "npz" else _rows
    data = make(plain, kind, draw)
    if draw.random() < 0.25:
        data = damaged(data, draw)
    return data, _ENDINGS.get(kind, ".npz")


def _plain(value: Any) -> Any:
    """Without what only text can hold."""
    if isinstance(value, Raw):
        return None
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _rows(objects: list[Object], kind: str, draw: random.Random) -> bytes:
    columns = {}
    for name in dict.fromkeys(key for one in objects for key in one):
        columns[name] = _column([one.get(name) for one in objects], draw)
    for _ in range(draw.choice((0, 0, 1, 1, 3))):
        odd = draw.choice(_ODD)(max(1, len(objects)))
        columns[draw.choice(_NAMES)] = odd
    size = max(map(len, columns.values()), default=0)
    columns = {name: one for name, one in columns.items() if len(one) == size}
    try:
        return _file(pa.table(columns), kind, draw)
    except pa.ArrowException:  # some types cannot be written into some files
        texts = {name: ["x"] * size for name in columns}
        return _file(pa.table(texts), kind, draw)


def _column(values: list[Any], draw: random.Random) -> pa.Array:
    try:
        found = pa.array(values)
        if draw.random() < 0.3:
            found = found.cast(_other(found.type, draw))
        found.validate()
        return found
    except (pa.ArrowException, ValueError, OverflowError, TypeError):
        return pa.array([json.dumps(one, default=str) for one in values])


def _other(kind: pa.DataType, draw: random.Random) -> pa.DataType:
    """The same nesting with other numbers, or other lists."""
    if pa.types.is_list(kind):
        make = draw.choice((pa.list_, pa.list_, pa.large_list))
        return make(_other(kind.value_type, draw))
    if pa.types.is_floating(kind):
        return draw.choice((pa.float32(), pa.float16(), pa.float64()))
    if pa.types.is_integer(kind):
        return draw.choice((pa.int8(), pa.uint8(), pa.int32(), pa.bool_(), pa.float32()))
    return kind


def _file(made: pa.Table, kind: str, draw: random.Random) -> bytes:
    sink = io.BytesIO()
    if kind == "parquet":
        packing = draw.choice(("none", "snappy", "gzip"))
        pq.write_table(made, sink, compression=packing, row_group_size=draw.choice((1, 2, 1000)))
    else:
        new = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
        with new(sink, made.schema) as writer:
            writer.write_table(made, max_chunksize=draw.choice((1, 1000)))
    return sink.getvalue()


_TYPES = ("<f8", "<f8", "<f4", "<f2", "<i8", "i1", "?", "<u8", "<c16", "<M8[ns]", "S3", "<U2")


def _arrays(objects: list[Object], kind: str, draw: random.Random) -> bytes:
    first = objects[0] if objects else {}
    arrays = {name: array for name, one in first.items() if (array := _array(one)) is not None}
    for name in [*arrays]:
        if draw.random() < 0.15:
            arrays[name] = _cast(arrays[name], draw.choice(_TYPES))
        if draw.random() < 0.1:
            shape = draw.choice(((0,), (1, 0), (2, 2), (), (1, 1, 1, 2), (3,)))
            arrays[name] = np.zeros(shape, dtype=draw.choice(_TYPES))
    if draw.random() < 0.01:
        arrays["log_probs_new"] = np.zeros((1, draw.choice((1 << 16, 1 << 22))), np.float32)
    return _npz(arrays)


def _array(value: Any) -> Any:
    """A padded array; None for what is no array of numbers."""
    if isinstance(value, list) and value and all(isinstance(one, list) for one in value):
        width = max(map(len, value))
        value = [[*row, *[0] * (width - len(row))] for row in value]
    try:
        found = np.array(value)
    except (ValueError, OverflowError):
        return None
    return found if found.dtype.kind in "fiub" else None


def _cast(array: Any, kind: str) -> Any:
    try:
        with np.errstate(all="ignore"):
            return array.astype(kind)
    except (ValueError, TypeError):
        return array


def _npz(arrays: dict[str, Any]) -> bytes:
    sink = io.BytesIO()
    np.savez_compressed(
        sink, **{name or "_": one for name, one in arrays.items() if "/" not in name}
    )
    return sink.getvalue()


_BITS: tuple[bytes, ...] = (
    *(b"", b"\n", b"\r\n", b"\0", b"\xff", b"\xef\xbb\xbf", b"\xff\xfe", b"NaN", b"null", b"1e999"),
    *(b"[", b"]", b"{", b"}", b'"', b",", b":", b"[" * 2000, b'{"a":' * 500, b"\\u0065", b"-"),
    *(b"PAR1", b"PK\x03\x04", b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xed\xa0\x80", b"\xe2\x80\xa8"),
)


def laid_out(objects: list[Any], draw: random.Random) -> tuple[bytes, str]:
    """The bytes, and how they were laid out; ``lines`` where each object is a plain line."""
    how = draw.choices((*_LAYOUTS,), (60, 12, 8, 5, 4, 3, 3, 3, 2))[0]
    data = _LAYOUTS[how](objects)
    if draw.random() < 0.12:
        data, how = damaged(data, draw), "damaged"
    return data, how


def lines(objects: list[Any]) -> bytes:
    """An object a line."""
    return "".join(text_of(one) + "\n" for one in objects).encode("utf-8", "replace")


def array(objects: list[Any]) -> bytes:
    """All objects in one array."""
    return text_of(objects).encode("utf-8", "replace")


def _documents(objects: list[Any]) -> bytes:
    return "\n".join(text_of(one, indent=1) for one in objects).encode("utf-8", "replace")


def _blank_lines(objects: list[Any]) -> bytes:
    return b"\n \n" + lines(objects).replace(b"\n", b"\r\n\n")


def _one_line(objects: list[Any]) -> bytes:
    return b" ".join(lines(objects).splitlines())


_LAYOUTS: dict[str, Callable[[list[Any]], bytes]] = {
    "lines": lines,
    "array": array,
    "document": lambda objects: text_of(objects[0] if objects else {}, indent=1).encode(),
    "blank lines": _blank_lines,
    "documents": _documents,
    "no last newline": lambda objects: lines(objects).rstrip(b"\n"),
    "byte order mark": lambda objects: b"\xef\xbb\xbf" + lines(objects),
    "one line": _one_line,
    "utf-16": lambda objects: lines(objects).decode().encode("utf-16"),
}


def damaged(data: bytes, draw: random.Random) -> bytes:
    """The bytes after a few changes that know nothing of what they mean."""
    found = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.randrange(len(found) + 1)
        end = min(len(found), at + draw.choice((0, 1, 1, 2, 8, 64)))
        kind = draw.random()
        if kind < 0.35:
            found[at:end] = draw.choice(_BITS)
        elif kind < 0.6:
            found[at:end] = draw.randbytes(end - at)
        elif kind < 0.75:
            del found[at:]
        elif kind < 0.9:
            found[at:at] = found[at:end] * draw.choice((1, 2, 30))
        else:
            del found[at:end]
    return bytes(found)


def packed(data: bytes, draw: random.Random) -> tuple[bytes, str]:
    """The bytes, packed or not, and the ending of a name that goes with it."""
    kind = draw.random()
    if kind < 0.82:
        return data, ""
    if kind < 0.9:
        made, ending = gzip.compress(data, 1, mtime=0), ".gz"
    elif kind < 0.97:
        made, ending = _zst(data), ".zst"
    else:
        half = len(data) // 2
        made = gzip.compress(data[:half], 1, mtime=0) + gzip.compress(data[half:], 1, mtime=0)
        ending = draw.choice((".gz", ".json", ""))
    if draw.random() < 0.05:
        made = gzip.compress(made, 1, mtime=0)
    return (damaged(made, draw) if draw.random() < 0.3 else made), ending


def _zst(data: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(1).compress(data)


def bomb(draw: random.Random) -> tuple[bytes, str]:
    """A small file that is large when it is unpacked."""
    filling = draw.choice((b"\0", b" ", b"\n", b"[", b"0", b'{"a":', b"{}\n"))
    size = draw.choice((1 << 20, 20 << 20, 300 << 20)) // len(filling)
    head = draw.choice((b"", b'{"log_probs_new": [[', b"["))
    return gzip.compress(head + filling * size, 1, mtime=0), ".gz"
