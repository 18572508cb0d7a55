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


class PartFolder:
    """The folder of a run's parts. Workers, which it travels to, write them.

    Args:
        folder: which every worker can write to, made if it is not there; a path with a scheme is
            one in a store.
        suffix: how a file's name ends.
        pack: writes the rows of a task as a file.
        about: everything that changes a byte of them.
        resume: whether to keep the parts of an earlier run that left out no record.

    Attributes:
        kept: how many parts of an earlier run were kept.
        complete: whether the run that a block writes them in came to its end.

    Raises:
        UsageError: where there are parts already, or those of something else.
    """

    complete = True

    def __init__(
        self,
        folder: str,
        suffix: str,
        pack: Pack = joined,
        *,
        about: Mapping[str, Any],
        resume: bool = False,
    ) -> None:
        path = folder if is_remote(folder) else str(Path(folder).absolute())
        self._folder, self._suffix, self._pack = path.rstrip("/"), suffix, pack
        self._run = hashlib.sha256(json.dumps(dict(about)).encode()).hexdigest()[:12]
        self.kept = self._end = 0
        try:
            self._there = {*self._names()}
        except OSError as error:
            raise UsageError(f"--output: cannot write {folder}: {error.strerror}") from None
        known = [name for name in self._there if name.startswith("part-")]
        if known and not resume:
            raise UsageError(f"--output: {path} already has parts: --resume continues with them")
        if self._there and not known:
            raise UsageError(f"--output: {path} is not empty and has no parts")
        if any(f"-{self._run}" not in name or not name.endswith(suffix) for name in known):
            raise UsageError(
                f"--resume: the parts in {path} belong to another run (other input, objective, "
                "flags or version of grpo)"
            )

    def _names(self) -> list[str]:
        """The files that are there."""
        if is_remote(self._folder):
            return remote.names(self._folder)
        Path(self._folder).mkdir(parents=True, exist_ok=True)
        return [path.name for path in Path(self._folder).iterdir()]

    def _name(self, number: int, skipped: int = 0) -> str:
        """The file of a task; that of one which left out records is not kept by a later run."""
        left_out = f"-{skipped}-skipped" if skipped else ""
        return f"part-{number:06}-{self._run}{left_out}{self._suffix}"

    def write(self, number: int, values: Sequence[Folded[Any]]) -> None:
        """Writes the rows of a task; nothing where there are none, or it ends in an error."""
        pieces = [piece for value in values for piece in value.sums.pieces]
        for value in values:
            value.sums.pieces = []
        if pieces and all(value.sums.error is None for value in values):
            skipped = sum(len(value.skipped) for value in values)
            with _writing(self._folder, self._name(number, skipped)) as stream:
                self._pack(pieces, stream)

    def keeps(self, number: int) -> bool:
        """Whether the part of a task is there already."""
        found = self._name(number) in self._there
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
        for name in self._names():
            number = name.removeprefix("part-").partition("-")[0]
            behind = not complete and number.isdecimal() and int(number) >= self._end
            if not (name.startswith(".part-") or behind):
                continue
            if is_remote(self._folder):
                remote.remove(f"{self._folder}/{name}")
            else:
                (Path(self._folder) / name).unlink(missing_ok=True)


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
