"""Rows in numbered files of a folder, which workers write: each is there whole, or not at all.

A file's name says which task's bytes its rows are of, and of which run, so a run that is resumed
skips the files that are there.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from grpo_cli.errors import UsageError
from grpo_cli.records.open import remote
from grpo_cli.records.open.remote import is_remote

if TYPE_CHECKING:
    from grpo_cli.engine.accumulator import Folded

Pack = Callable[[Sequence[Any], BinaryIO], None]
"""Writes pieces of output as a file."""


def joined(pieces: Sequence[Any], stream: BinaryIO, *, head: bytes = b"") -> None:
    """Writes lines, behind those that each file begins with."""
    stream.writelines([head, *pieces])


@dataclass(frozen=True)
class Parts:
    """Where workers write rows.

    Attributes:
        folder: which every worker can write to; a path with a scheme is one in a store.
        suffix: how a file's name ends.
        pack: writes the rows of a task as a file.
        run: what is the same in the names of all parts of a run, and of no other.
    """

    folder: str
    suffix: str
    pack: Pack = joined
    run: str = ""

    def name(self, number: int, skipped: int = 0) -> str:
        """The file of a task; that of one which left out records is not kept by a later run."""
        left_out = f"-{skipped}-skipped" if skipped else ""
        return f"part-{number:06}-{self.run}{left_out}{self.suffix}"

    def write(self, number: int, values: Sequence[Folded[Any]]) -> None:
        """Writes the rows of a task; nothing where there are none, or it ends in an error."""
        pieces = [piece for value in values for piece in value.sums.pieces]
        for value in values:
            value.sums.pieces = []
        if pieces and all(value.sums.error is None for value in values):
            skipped = sum(len(value.skipped) for value in values)
            with _writing(self.folder, self.name(number, skipped)) as stream:
                self.pack(pieces, stream)


class PartFolder:
    """The folder of a run's parts, as the process sees it that gives out tasks.

    Args:
        parts: where they go; the folder is made if it is not there.
        about: everything that changes a byte of them.
        resume: whether to keep the parts of an earlier run that left out no record.

    Attributes:
        parts: where they go, with the name of the run.
        kept: how many parts of an earlier run were kept.
        complete: whether the run that a block writes them in came to its end.

    Raises:
        UsageError: where there are parts already, or those of something else.
    """

    complete = True

    def __init__(self, parts: Parts, about: Mapping[str, Any], *, resume: bool) -> None:
        path = parts.folder if is_remote(parts.folder) else str(Path(parts.folder).absolute())
        run = hashlib.sha256(json.dumps(dict(about)).encode()).hexdigest()[:12]
        self.parts = Parts(path.rstrip("/"), parts.suffix, parts.pack, run)
        self.kept = 0
        self._end = 0
        try:
            self._there = set(_names(path))
        except OSError as error:
            raise UsageError(f"--output: cannot write {parts.folder}: {error.strerror}") from None
        known = [name for name in self._there if name.startswith("part-")]
        if known and not resume:
            raise UsageError(f"--output: {path} already has parts: --resume continues with them")
        if self._there and not known:
            raise UsageError(f"--output: {path} is not empty and has no parts")
        if any(f"-{run}" not in name or not name.endswith(parts.suffix) for name in known):
            raise UsageError(
                f"--resume: the parts in {path} belong to another run (other input, objective, "
                "flags or version of grpo)"
            )

    def keeps(self, number: int) -> bool:
        """Whether the part of a task is there already."""
        found = self.parts.name(number) in self._there
        self.kept += found
        return found

    def add(self, number: int) -> None:
        """Says that a task and all before it are done."""
        self._end = number + 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Removes what was not written to its end, and the parts of tasks behind an error."""
        complete = kind is None and self.complete
        for name in _names(self.parts.folder):
            number = name.removeprefix("part-").partition("-")[0]
            behind = not complete and number.isdecimal() and int(number) >= self._end
            if not (name.startswith(".part-") or behind):
                continue
            if is_remote(self.parts.folder):
                remote.remove(f"{self.parts.folder}/{name}")
            else:
                (Path(self.parts.folder) / name).unlink(missing_ok=True)


def _names(folder: str) -> list[str]:
    """The files in a folder, which is made if it is not there."""
    if is_remote(folder):
        return remote.names(folder)
    Path(folder).mkdir(parents=True, exist_ok=True)
    return [path.name for path in Path(folder).iterdir()]


@contextmanager
def _writing(folder: str, name: str) -> Iterator[BinaryIO]:
    """The stream of a file that is there, whole, when the block ends well."""
    if is_remote(folder):
        with TemporaryFile() as stream:
            yield stream
            remote.send(stream, f"{folder}/{name}")
        return
    # Its name is known before it is there, so that Ctrl-C in between leaves nothing.
    written = Path(folder) / f".{name}.{os.urandom(4).hex()}"
    try:
        with written.open("xb") as stream:
            yield stream
        written.replace(Path(folder) / name)
    finally:
        written.unlink(missing_ok=True)
