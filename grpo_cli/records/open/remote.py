"""Files in object stores and on the web, through fsspec (the extra ``remote``).

Ranges of bytes are read, again where a connection is dropped, throttled or cut short. What is read
is of the version that the file had when the run began, or an error: never a mixture.
"""

from __future__ import annotations

import io
import random
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeVar, cast

from grpo_cli.errors import GrpoError, InputError, UsageError

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor


T = TypeVar("T")

HEAD = 64 << 10
"""Bytes at the beginning of a file that are read to know what it is."""
CHANGED = "the file changed while grpo read it; start again when it is complete"
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")
_AT_ONCE = 16 << 20  # fetched by one connection

_STAMPS = ("ETag", "etag", "md5Hash", "content_md5", "mtime", "last_modified", "LastModified")
_STEP = 16 << 20  # read at once where all of a file is read in order
_SHORT_STEP = 256 << 10  # and where it is not
_BUFFER = 64 << 10
_ATTEMPTS = 8  # with the pauses between them: ten seconds
_pause = time.sleep
_FINAL = (
    *(FileNotFoundError, PermissionError, IsADirectoryError, NotImplementedError),
    *(InputError, UsageError),
)
_FINAL_NAMES = {"NoCredentialsError", "PartialCredentialsError", "GatedRepoError"}


class Version(NamedTuple):
    """What identifies a version of a file: its size, and an etag or the like."""

    size: int
    stamp: str


class Address(str):
    """A path with a scheme, and the version that the file there had when the run began."""

    version: Version
    _head: bytes | None

    def __new__(cls, path: str, version: Version) -> Address:
        """The address of a file whose version is known."""
        made = super().__new__(cls, path)
        made.version, made._head = version, None
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return Address, (str(self), self.version)

    @property
    def head(self) -> bytes:
        """The first bytes, which say what the file is; they are read once."""
        if self._head is None:
            self._head = read(self, 0, min(HEAD, self.version.size))
        return self._head


def is_remote(path: str) -> bool:
    """Whether it has a scheme, as ``s3://``."""
    return isinstance(path, Address) or _SCHEME.match(path) is not None


def address(path: str) -> Address:
    """The file at a path with a scheme, with its version.

    Raises:
        InputError: where there is none, or a package is missing.
    """
    return path if isinstance(path, Address) else Address(path, version(path))


def read_many(path: Address, start: int, end: int) -> bytes:
    """A large range of a file, by several connections at once."""
    from concurrent.futures import ThreadPoolExecutor

    starts = range(start, end, _AT_ONCE)
    with ThreadPoolExecutor(4) as connections:
        parts = connections.map(lambda at: read(path, at, min(end, at + _AT_ONCE)), starts)
        return b"".join(parts)


def read(path: Address, start: int, end: int) -> bytes:
    """A range of a file.

    Raises:
        InputError: where it cannot be read after some attempts, or the file changed.
    """
    if start >= end:
        return b""
    files, place = filesystem(path)

    def attempt() -> bytes:
        data: bytes = files.cat_file(place, start=start, end=end)
        if len(data) == path.version.size > end - start:  # a server that knows no ranges
            data = data[start:end]
        if len(data) < end - start and _now(path) == path.version:
            raise OSError(f"expected {end - start:,} bytes, got {len(data):,}")
        return data

    data = patiently(attempt, path)
    if version(path) != path.version:
        raise InputError(CHANGED, source=path)
    return data


def opened(path: Address, *, whole: bool) -> io.BufferedReader:
    """The bytes of a file."""
    return io.BufferedReader(_Stream(path, whole=whole), _BUFFER)


def files(pattern: str) -> list[Address]:
    """The files that a path with a scheme names: one, those in a folder, or those that fit.

    Raises:
        InputError: where there are none.
    """
    listing, place = filesystem(pattern)
    if any(mark in place for mark in "*?["):
        found = patiently(lambda: listing.glob(place, detail=True), pattern)
    elif patiently(lambda: listing.isfile(place), pattern) or pattern.startswith("http"):
        return [Address(pattern, version(pattern))]
    else:
        found = patiently(lambda: listing.find(place, detail=True), pattern)
    kept = {name: about for name, about in found.items() if about["type"] == "file"}
    if not kept:
        raise InputError("no such file", source=pattern)
    return [
        Address(listing.unstrip_protocol(name), _of(about)) for name, about in sorted(kept.items())
    ]


def filesystem(path: str) -> tuple[Any, str]:
    """What speaks to a store, and the place in it.

    Raises:
        InputError: where nothing does.
    """
    scheme = path.partition("://")[0]
    try:
        import fsspec
    except ImportError:
        advice = f"{scheme}:// needs fsspec: pip install fsspec"
        raise InputError(advice, source=path) from None
    try:
        files, place = fsspec.core.url_to_fs(str(path), use_listings_cache=False)
    except ImportError as error:
        raise InputError(f"{scheme}:// needs one more package ({error})", source=path) from None
    except ValueError as error:
        raise InputError(f"cannot be read: {error}".lower(), source=path) from None
    return files, place


def version(path: str) -> Version:
    """The version that a file has now."""
    return patiently(lambda: _now(path), path)


def _now(path: str) -> Version:
    files, place = filesystem(path)
    return _of(files.info(place))


def _of(about: dict[str, Any]) -> Version:
    stamp = next((about[name] for name in _STAMPS if about.get(name) is not None), None)
    stamp = about.get("created") if stamp is None else stamp
    if stamp is not None and hasattr(stamp, "timestamp"):  # a date, or seconds
        stamp = stamp.timestamp()
    return Version(int(about.get("size") or 0), str(stamp or ""))


def patiently(attempt: Callable[[], T], path: str) -> T:
    """Tries again where that may help, longer and longer after each failure.

    Raises:
        GrpoError: the last failure.
    """
    attempts = 0
    while True:
        try:
            return attempt()
        except Exception as error:
            attempts += 1
            is_final = isinstance(error, _FINAL) or type(error).__name__ in _FINAL_NAMES
            if is_final or attempts == _ATTEMPTS:
                raise _as_grpo_error(error, path, attempts) from None
        _pause(0.05 * 2**attempts * random.uniform(0.5, 1.0))


def _as_grpo_error(error: Exception, path: str, attempts: int) -> GrpoError:
    if isinstance(error, InputError | UsageError):
        return error
    if isinstance(error, FileNotFoundError):
        return InputError("no such file", source=path)
    if isinstance(error, PermissionError):
        return InputError("no permission to read it", source=path)
    reason = (str(error).splitlines() or [""])[0] or type(error).__name__
    tried = f" ({attempts} attempts)" if attempts > 1 else ""
    if isinstance(error, GrpoError):
        return GrpoError(f"{reason}{tried}")
    return InputError(f"cannot be read: {reason}{tried}", source=path)


class _Stream(io.RawIOBase):
    """A remote file; where all of it is read, the next part is fetched during the work."""

    def __init__(self, path: Address, *, whole: bool) -> None:
        self._path = path
        self._step = _STEP if whole else _SHORT_STEP
        self._at = 0
        self._start, self._part = 0, path.head if whole else b""
        self._thread: ThreadPoolExecutor | None = None
        if whole:
            from concurrent.futures import ThreadPoolExecutor  # slow to import

            self._thread = ThreadPoolExecutor(1)
        self._next: tuple[int, Future[bytes]] | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {0: 0, 1: self._at, 2: self._path.version.size}[whence]
        return self._at

    def readinto(self, room: Any) -> int:
        if not self._start <= self._at < self._start + len(self._part):
            self._start, self._part = self._at, self._fetched(len(room))
        begin = self._at - self._start
        part = self._part[begin : begin + len(room)]
        room[: len(part)] = part
        self._at += len(part)
        return len(part)

    def _fetched(self, wanted: int) -> bytes:
        start, size = self._at, self._path.version.size
        if self._thread is None:
            return read(self._path, start, min(size, start + max(wanted, self._step)))
        known = self._next if self._next is not None and self._next[0] == start else None
        end = min(size, start + self._step)
        data = read(self._path, start, end) if known is None else known[1].result()
        after = min(size, end + self._step)
        self._next = end, self._thread.submit(read, self._path, end, after)
        return data

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
        super().close()


_COPIED = 1 << 20


@contextmanager
def uploading(path: str, flag: str = "--output") -> Iterator[BinaryIO]:
    """The stream of a file in a store. What is sent becomes a file when the block ends well.

    Stores have that as an upload in many parts that is completed, or given up, at the end.

    Raises:
        UsageError: where nothing can be written there.
        GrpoError: where the store fails.
    """
    files, place = _writable(path, flag)
    with _store_errors(path):
        file = files.open(place, "wb", autocommit=False)
    try:
        stream = io.BufferedWriter(cast(io.RawIOBase, _Sending(file, path)), _COPIED)
        yield cast(BinaryIO, stream)
        stream.flush()
        with _store_errors(path):
            file.close()
            file.commit()
    except BaseException:
        with suppress(Exception):
            file.discard()
        file.closed = True  # or closing it would complete what was given up
        raise
    finally:
        with suppress(AttributeError, ValueError):  # fsspec keeps it for a transaction
            files.transaction.files.remove(file)


def send(stream: IO[bytes], path: str) -> None:
    """Has a file in a store be what a stream holds, which is read from its beginning.

    Raises:
        GrpoError: where the store fails again and again.
    """

    def attempt() -> None:
        stream.seek(0)
        with uploading(path) as far:
            shutil.copyfileobj(stream, far, _COPIED)

    try:
        patiently(attempt, path)
    finally:
        stream.seek(0, io.SEEK_END)


def names(folder: str) -> list[str]:
    """The files in a folder of a store; none where there is no folder."""
    files, place = filesystem(folder)

    def attempt() -> list[str]:
        try:
            found = files.ls(place, detail=True)
        except FileNotFoundError:
            return []
        return [one["name"].rpartition("/")[2] for one in found if one["type"] == "file"]

    return patiently(attempt, folder)


def is_folder(path: str) -> bool:
    """Whether there is something below a path."""
    files, place = filesystem(path)
    return bool(patiently(lambda: files.isdir(place), path))


def remove(path: str) -> None:
    """Removes a file, if it is there."""
    files, place = filesystem(path)

    def attempt() -> None:
        with suppress(FileNotFoundError):
            files.rm_file(place)

    patiently(attempt, path)


def _writable(path: str, flag: str) -> tuple[Any, str]:
    """What speaks to a store, and the place in it; the container has to be there already.

    Raises:
        UsageError: where it is not, or nothing speaks to it.
    """
    try:
        files, place = filesystem(path)
        container = place.partition("/")[0]
        there = not container or patiently(lambda: files.exists(container), path)
    except InputError as error:
        raise UsageError(f"{flag}: cannot write {path}: {error.message}") from None
    if not there:
        raise UsageError(f"{flag}: cannot write {path}: {container} does not exist")
    return files, place


@contextmanager
def _store_errors(path: str) -> Iterator[None]:
    """What goes wrong with a store is one line."""
    try:
        yield
    except PermissionError:
        raise UsageError(f"cannot write {path}: no permission") from None
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise GrpoError(f"cannot write {path}: {reason}") from None


class _Sending(io.RawIOBase):
    """What fsspec writes to, with errors that name the file."""

    def __init__(self, file: Any, path: str) -> None:
        self._file, self._path = file, path

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        with _store_errors(self._path):
            self._file.write(bytes(data))
        return len(data)
