"""Paths with a scheme: what they name, and in which version. ``remote`` reads what is there."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")
_HEAD = 64 << 10
CHANGED = "the file changed while it was read; start again when it is complete"


class Version(NamedTuple):
    """What tells one version of a file from another: its size, and an etag or the like."""

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
            from grpo_cli.records.open import remote

            self._head = remote.read(self, 0, min(_HEAD, self.version.size))
        return self._head


def is_remote(path: str) -> bool:
    """Whether it has a scheme, as ``s3://``."""
    return isinstance(path, Address) or _SCHEME.match(path) is not None


def address(path: str) -> Address:
    """The file at a path with a scheme, with its version.

    Raises:
        InputError: where there is none, or a package is missing.
    """
    from grpo_cli.records.open import remote

    return path if isinstance(path, Address) else Address(path, remote.version(path))


def addresses(path: str) -> list[str]:
    """The files that a path names: itself, or with a scheme those in a folder, or that fit.

    Raises:
        InputError: where there are none.
    """
    from grpo_cli.records.open import remote

    return [*remote.files(path)] if is_remote(path) else [path]
