"""Files in object stores and on the web, through fsspec (the extra ``remote``).

Ranges of bytes are read, again where a connection is dropped, throttled or cut short. What is read
is of the version that the file had when the run began, or an error: never a mixture.
"""

from __future__ import annotations

import io
import random
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from typing import Any, TypeVar

from grpo_cli.errors import GrpoError, InputError, UsageError
from grpo_cli.records.open.address import CHANGED, Address, Version

T = TypeVar("T")

_STAMPS = ("ETag", "etag", "md5Hash", "content_md5", "mtime", "last_modified", "LastModified")
_STEP = 16 << 20  # read at once where all of a file is read in order
_FEW = 256 << 10  # and where it is not
_BUFFER = 64 << 10
_ATTEMPTS = 8  # with the pauses between them: ten seconds
_pause = time.sleep
_FINAL = (
    *(FileNotFoundError, PermissionError, IsADirectoryError, NotImplementedError),
    *(InputError, UsageError),
)
_FINAL_NAMES = {"NoCredentialsError", "PartialCredentialsError", "GatedRepoError"}


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
            raise OSError(f"{len(data):,} bytes came instead of {end - start:,}")
        return data

    data = patiently(attempt, path)
    if version(path) != path.version:
        raise InputError(CHANGED, source=path)
    return data


def opened(path: Address, *, whole: bool) -> io.BufferedReader:
    """The bytes of a file.

    Args:
        path: where it is.
        whole: whether all of it will be read, in order.
    """
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
        advice = "pip install 'grpo-cli[remote]'"
        raise InputError(f"{scheme}:// needs one more package: {advice}", source=path) from None
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
    if isinstance(stamp, datetime):  # in one answer, and seconds in another
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
            if _is_final(error) or attempts == _ATTEMPTS:
                raise _told(error, path, attempts) from None
        _pause(0.05 * 2**attempts * random.uniform(0.5, 1.0))


def _is_final(error: Exception) -> bool:
    return isinstance(error, _FINAL) or type(error).__name__ in _FINAL_NAMES


def _told(error: Exception, path: str, attempts: int) -> GrpoError:
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
    """A remote file; where all of it is read, the next part is fetched beside the work."""

    def __init__(self, path: Address, *, whole: bool) -> None:
        self._path = path
        self._step = _STEP if whole else _FEW
        self._at = 0
        self._start, self._part = 0, path.head if whole else b""
        self._thread = ThreadPoolExecutor(1) if whole else None
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
