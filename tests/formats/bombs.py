"""Small files that unpack to gigabytes; run as a script, says what each takes to read.

Each is made and read in a process of its own, whose peak of memory is measured.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

LIMIT = 340 << 20
"""Bytes that reading any file of less than 1 MB may take."""
_MAY_TAKE = 2 << 30
"""Bytes of address space, so that a test that fails leaves the machine alone."""
_SECONDS = 40
_RECORD = b'{"log_probs_new": [[-0.5, -1]], "rewards": [1]}\n'


def _npy(shape: tuple[int, ...], data: bytes = b"") -> bytes:
    file = io.BytesIO()
    about = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, about)
    return file.getvalue() + data


def _zip(entries: dict[str, bytes], *, packed: bool = False) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED if packed else 0) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return file.getvalue()


def _lying(entries: dict[str, bytes], size: int) -> bytes:
    """A zip whose directory says that an entry is of some bytes, of which it has more."""
    data = bytearray(_zip(entries, packed=True))
    at = data.index(b"PK\x01\x02")
    data[at + 24 : at + 28] = struct.pack("<I", size)
    return bytes(data)


def _tensor(shape: tuple[int, ...], stride: tuple[int, ...]) -> bytes:
    """A pickle of ``{"log_probs_new": tensor}``, as torch writes it."""

    def integers(numbers: tuple[int, ...]) -> bytes:
        return b"(" + b"".join(b"\x8a\x08" + struct.pack("<q", one) for one in numbers) + b"t"

    storage = b"(X\x07\x00\x00\x00storagectorch\nDoubleStorage\n"
    storage += b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x01tQ"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00"
    tensor += integers(shape) + integers(stride) + b"\x89ccollections\nOrderedDict\n)RtR"
    return b"\x80\x02}X\x0d\x00\x00\x00log_probs_new" + tensor + b"s."


def _torch(pickled: bytes) -> bytes:
    return _zip({"a/data.pkl": pickled, "a/data/0": struct.pack("<d", -0.5)})


def _laughs() -> bytes:
    """Lists that hold each other twice, and so 2⁴⁰ numbers."""
    value: list[object] = [-0.5]
    for _ in range(40):
        value = [value, value]
    return pickle.dumps({"log_probs_new": value}, 2)


def _gzipped(*parts: tuple[bytes, int]) -> bytes:
    """Texts, each so many times."""
    packer, found = zlib.compressobj(9, wbits=31), b""
    for text, times in parts:
        block = text * max(1, min(times, (1 << 20) // len(text)))
        for _ in range(times * len(text) // len(block)):
            found += packer.compress(block)
    return found + packer.flush()


def _zstd(*parts: tuple[bytes, int]) -> bytes:
    import zstandard

    file = io.BytesIO()
    with zstandard.ZstdCompressor().stream_writer(file, closefd=False) as stream:
        for text, times in parts:
            block = text * max(1, min(times, (1 << 20) // len(text)))
            for _ in range(times * len(text) // len(block)):
                stream.write(block)
    return file.getvalue()


def _parquet(**columns: object) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = io.BytesIO()
    pq.write_table(pa.table(columns), file, compression="zstd", store_schema=False)
    return file.getvalue()


def lists(lengths: list[int], *inner: list[int]) -> object:
    """A column of lists of zeros of these lengths, and of lists of these."""
    import pyarrow as pa

    last = (inner or (lengths,))[-1]
    values: object = pa.array(np.zeros(sum(last), np.int8))
    for one in reversed((lengths, *inner)):
        ends = np.concatenate(([0], np.cumsum(one))).astype(np.int32)
        values = pa.ListArray.from_arrays(ends, values)
    return values


def _empty_lists(count: int) -> object:
    import pyarrow as pa

    ends = pa.array(np.zeros(count + 1, np.int32))
    empty = pa.ListArray.from_arrays(ends, pa.array(np.zeros(0)))
    return pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), empty)


def arrow(*, packed: str | None = None, **columns: object) -> bytes:
    import pyarrow as pa

    file = io.BytesIO()
    table = pa.table(columns)
    options = pa.ipc.IpcWriteOptions(compression=packed)
    with pa.ipc.new_file(file, table.schema, options=options) as writer:
        writer.write_table(table)
    return file.getvalue()


def nothing(count: int, *, of: str = "null") -> object:
    """A column of so many rows that takes no bytes."""
    import pyarrow as pa

    if of == "null":
        return pa.nulls(count)
    kind = pa.list_(pa.float64(), 0)
    return pa.Array.from_buffers(kind, count, [None], children=[pa.array([], pa.float64())])


def _dictionary(count: int, size: int) -> object:
    import pyarrow as pa

    numbers = pa.array(np.zeros(count, np.int8))
    return pa.DictionaryArray.from_arrays(numbers, pa.array(["x" * size]))


_SPACES, _LINES, _LISTS = (b" ", 1 << 28), (b"\n", 1 << 28), (b"[],", 20 << 20)
BOMBS: dict[str, Callable[[], bytes]] = {
    "rows-without-width.npz": lambda: _zip({"log_probs_new.npy": _npy((10**8, 0))}),
    "zeros.npz": lambda: _zip(
        {"log_probs_new.npy": _npy((1, 10**7), bytes(8 * 10**7))}, packed=True
    ),
    "lying.npz": lambda: _lying({"rewards.npy": _npy((10**7,), bytes(8 * 10**7))}, 400),
    "rows-without-width.pt": lambda: _torch(_tensor((10**8, 0), (0, 0))),
    "one-number.pt": lambda: _torch(_tensor((10**8,), (0,))),
    "memo.pt": lambda: _torch(b"\x80\x02Nr" + struct.pack("<I", 1 << 28) + b"."),
    "memo-in-digits.pt": lambda: _torch(b"Np268435456\n."),
    "no-text.pt": lambda: _torch(b"\x80\x04\x8d" + struct.pack("<Q", 1 << 32) + b"x."),
    "laughs.pt": lambda: _torch(_laughs()),
    "lying.pt": lambda: _lying({"a/data.pkl": b"\x80\x02" + bytes(10**8)}, 400),
    "spaces.json.gz": lambda: _gzipped(_SPACES),
    "spaces.json.zst": lambda: _zstd(_SPACES),
    "spaces-behind.jsonl.zst": lambda: _zstd((_RECORD, 1), _SPACES),
    "newlines.jsonl.gz": lambda: _gzipped(_LINES),
    "newlines.jsonl.zst": lambda: _zstd(_LINES, _LINES),
    "newlines-behind.jsonl.zst": lambda: _zstd((_RECORD, 1), _LINES),
    "records.jsonl.zst": lambda: _zstd((_RECORD, 3_000_000)),
    "empty-lists.json.zst": lambda: _zstd((b'{"log_probs_new": [', 1), _LISTS, (b"[]]}", 1)),
    "empty-lists.jsonl.gz": lambda: _gzipped(
        (b'{"log_probs_new": [', 1), (b"[],", 5 << 20), (b"[]]}\n", 1)
    ),
    "one-list.parquet": lambda: _parquet(log_probs_new=lists([1], [2 * 10**7]), rewards=lists([1])),
    "one-row.parquet": lambda: _parquet(log_probs_new=lists([2 * 10**7]), reward=[1.0]),
    "empty-lists.parquet": lambda: _parquet(
        log_probs_new=_empty_lists(2 * 10**7), rewards=lists([1])
    ),
    "rows.parquet": lambda: _parquet(
        log_probs_new=lists([1] * 5_000_000), reward=np.zeros(5_000_000)
    ),
    "text.parquet": lambda: _parquet(
        log_probs_new=lists([1] * 20_000),
        reward=np.zeros(20_000),
        prompt=_dictionary(20_000, 50_000),
    ),
    "nulls.arrow": lambda: arrow(log_probs_new=nothing(10**9), reward=nothing(10**9)),
    "lists-without-width.arrow": lambda: arrow(log_probs_new=nothing(10**9, of="list")),
    "packed.arrow": lambda: arrow(log_probs_new=lists([2 * 10**7]), reward=[1.0], packed="zstd"),
    "text.arrow": lambda: arrow(
        log_probs_new=lists([1] * 20_000),
        reward=np.zeros(20_000),
        prompt=_dictionary(20_000, 50_000),
    ),
}


def measured(commands: list[str], wanted: list[str]) -> Iterator[dict[str, object]]:
    """What reading each of the wanted files takes: its size, exit code, peak, first message."""
    import pyarrow.parquet  # noqa: F401 - so that no child has to

    import grpo_cli.commands.main as command

    with tempfile.TemporaryDirectory() as folder:
        for name in wanted or BOMBS:
            path = Path(folder) / name
            made = os.fork()
            if not made:
                path.write_bytes(BOMBS[name]())
                os._exit(0)
            os.waitpid(made, 0)
            for verb in commands:
                yield {"name": name, "command": verb, **_read(command.main, verb, path)}


def _read(run: Callable[[], object], verb: str, path: Path) -> dict[str, object]:
    import resource

    noise = path.with_suffix(".err")
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_AS, (_MAY_TAKE, _MAY_TAKE))
        resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
        os.dup2(os.open(noise, os.O_CREAT | os.O_RDWR | os.O_TRUNC), 2)
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        sys.argv = ["grpo", verb, str(path)]
        code = 1
        try:
            run()
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            code = 99
        finally:
            sys.stderr.flush()
            os._exit(code)
    _, status, used = os.wait4(child, 0)
    words = noise.read_text(errors="replace").replace(str(path.parent) + "/", "")
    return {
        "size": path.stat().st_size,
        "code": os.waitstatus_to_exitcode(status),
        "peak": used.ru_maxrss << 10,
        "seconds": round(used.ru_utime + used.ru_stime, 1),
        "message": words.strip().splitlines()[-1:] or [""],
    }


if __name__ == "__main__":
    verbs, *names = sys.argv[1:]
    for found in measured(verbs.split(","), names):
        print(json.dumps(found), flush=True)
