"""Files → batches of records that can be evaluated together, for commands that ask of the data."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from tempfile import NamedTemporaryFile
from typing import IO

from grpo_cli.batch import Batch
from grpo_cli.engine.chunks import chunks
from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import HyperparameterError
from grpo_cli.records import PLAIN, Reading, Record, Source, assemble, record


@dataclass(frozen=True, eq=False)
class Piece:
    """Consecutive records of one layout, and the same as flat arrays."""

    records: Sequence[Record]
    batch: Batch

    @property
    def advantages_given(self) -> bool:
        """Whether the records give advantages themselves."""
        return self.records[0].advantages is not None

    def located(self, error: InputError | HyperparameterError) -> InputError:
        """What went wrong when these records were evaluated, with its place."""
        if isinstance(error, InputError) and error.source is not None:
            return error
        if isinstance(error, HyperparameterError):
            path, number = error.name, 0
        else:
            path, number = error.path, error.record or 0
        culprit = self.records[number]
        return InputError(
            error.message,
            path=culprit.prefix + path.removeprefix(culprit.prefix),
            source=culprit.source,
            line=culprit.line,
        )


class Input:
    """The pieces of files, in order and in flat memory; can be iterated again.

    Args:
        paths: files; ``-`` is standard input, which is kept in a temporary file.
        skip: whether to go on behind records that cannot be read.
        reading: how the files become records.

    Raises:
        InputError: while iterating, at the first bad record, unless it is to be skipped.
    """

    def __init__(
        self, paths: Sequence[str], *, skip: bool = False, reading: Reading = PLAIN
    ) -> None:
        self._paths = paths
        self._skip = skip
        self._reading = reading
        self._spool: IO[bytes] | None = None
        self.skipped: list[InputError] = []
        self.notes: dict[str, None] = {}

    def __iter__(self) -> Iterator[Piece]:
        self.skipped = []
        raws = self._reading.items(map(self._place, self._paths), self.notes)
        found = (one if isinstance(one, InputError) else record(one) for one in raws)
        for item in chunks(found):
            if isinstance(item, InputError):
                self._bad(item)
            else:
                yield from self._pieces(item)

    def _pieces(self, group: list[Record]) -> Iterator[Piece]:
        while group:
            try:
                yield Piece(group, assemble(group))
                return
            except InputError as error:
                bad = error.record or 0
                if bad:
                    yield from self._pieces(group[:bad])
                self._bad(error)
                group = group[bad + 1 :]

    def _bad(self, error: InputError) -> None:
        if not self._skip:
            raise error
        self.skipped.append(error)

    def _place(self, path: str) -> Source:
        """Where a file is; standard input lives in a file as long as this object."""
        place = Source.of(path)
        if path != "-":
            return place
        if self._spool is None:
            self._spool = NamedTemporaryFile(prefix="grpo-")  # noqa: SIM115 - closed when collected
            shutil.copyfileobj(sys.stdin.buffer, self._spool)
            self._spool.flush()
        return Source(place.name, self._spool.name)
