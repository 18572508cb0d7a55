"""Pieces of binary files; pyarrow, and the files that it opens."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from filecmp import cmp
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from grpo_cli.errors import InputError
from grpo_cli.records.open.budget import Budget
from grpo_cli.records.open.remote import Address, Version
from grpo_cli.records.open.streams import opened, version_of

if TYPE_CHECKING:
    from zipfile import ZipFile

WHOLE = ("npz", "torch")
"""Kinds of files that are one record."""


class _Bytes(str):
    """A path, equal to those of files that have the same bytes."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Bytes):
            return False
        return str(self) == str(other) or cmp(str(self), str(other), shallow=False)


class Rows(NamedTuple):
    """A piece of a binary file, for any process to fetch itself.

    Attributes:
        source: the file as the user named it.
        path: where it is.
        kind: how it is read.
        part: which row group or batch; None for all of them.
        first: the 0-based number of the first row.
        size: about how many bytes it has.
        most: what the file may unpack to, as --unpack says; None: by its size.
    """

    source: str
    path: str
    kind: str
    part: int | None
    first: int
    size: int
    most: int | None = None

    @property
    def budget(self) -> Budget:
        """What the file may unpack to."""
        return Budget.of(self.path, self.most)

    def content(self, number: int = 0) -> tuple[object, ...]:
        """What is read of it with so many others before, to be compared with other files'."""
        path = self.path if isinstance(self.path, Address) else _Bytes(self.path)
        return self.kind, self.part, number, path

    @property
    def line(self) -> int:
        """The 1-based number of its first row."""
        return self.first + 1

    @property
    def parts(self) -> tuple[int, ...] | None:
        """The row groups or batches that it has rows of; None for all."""
        return None if self.part is None else (self.part,)


def package() -> Any:
    """Pyarrow, imported when it is needed.

    Raises:
        InputError: where it is not installed.
    """
    try:
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.compute  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError:
        raise InputError(
            "Parquet and Arrow need pyarrow: pip install pyarrow (polars does from Python: "
            "evaluate(polars.read_parquet(FILE)), evaluate(…).to_polars().write_parquet(FILE))"
        ) from None
    return pyarrow


@contextmanager
def damage(pa: Any, source: str) -> Iterator[None]:
    """Says of a file that it is damaged, in one line, where it cannot be read."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        what = (str(error).splitlines() or ["?"])[0]
        raise InputError(f"the file is damaged: {what}", source=source) from None


def check_end(source: str, path: str, kind: str) -> None:
    """Refuses a Parquet or Arrow file that does not end as one.

    Raises:
        InputError: where it is cut off.
    """
    if kind not in _ENDS or isinstance(path, Address):
        return
    with opened(path) as stream:
        stream.seek(max(stream.seek(0, os.SEEK_END) - len(_ENDS[kind]), 0))
        ended = stream.read() == _ENDS[kind]
    if not ended:
        end = _ENDS[kind].decode()
        message = f"the file is damaged: it does not end with {end}; is the file cut off?"
        raise InputError(message, source=source)


def check_zip(archive: ZipFile, budget: Budget) -> None:
    """Refuses an archive of more bytes, as its directory says, which reading holds to."""
    budget.check(sum(entry.file_size for entry in archive.infolist()), "bytes, unpacked,", 1)


def damage_of(error: Exception, path: str) -> str:
    """What is wrong with a file, in short; of a zip without its end, that this is missing."""
    import zipfile  # slow to import, and rarely needed

    if isinstance(error, zipfile.BadZipFile) and not isinstance(path, Address):
        with opened(path) as stream, suppress(zipfile.BadZipFile):  # it has one, of many disks
            if not zipfile.is_zipfile(stream):
                return "its zip has no end; is the file cut off?"
    return str(error).splitlines()[0] if str(error) else type(error).__name__


_ENDS = {"parquet": b"PAR1", "arrow": b"ARROW1"}


def parquet_file(path: str) -> Any:
    """A Parquet file, wherever it is; opened once in a process, not for each of its row groups.

    With thousands of these, parsing the footer takes longer than reading a row group.
    """
    return _parquet_file(path, version_of(path), os.getpid())


@lru_cache(maxsize=2)
def _parquet_file(path: str, _version: Version, _process: int) -> Any:
    far = isinstance(path, Address)
    place, at_once = (opened(path), 0) if far else (path, _BUFFER)
    return package().parquet.ParquetFile(place, pre_buffer=far, buffer_size=at_once)


_BUFFER = 1 << 16
"""Bytes of a column that are read from a disk at once; 0 would read all of a column chunk."""


def mapped(pa: Any, path: str) -> Any:
    """An Arrow file, wherever it is, as a stream."""
    return pa.PythonFile(opened(path)) if isinstance(path, Address) else pa.memory_map(path)
