"""Rows in numbered files of a folder, which workers write, each whole or not at all.

``manifest.jsonl`` says of what run they are, and which there are: a line for each, in the input's
order, and a last one where the run was complete.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from grpo_cli.errors import UsageError

_MANIFEST = "manifest.jsonl"


@dataclass(frozen=True)
class Written:
    """A part that is there.

    Attributes:
        number: its place among the parts.
        name: the file.
        source, line: where its input begins.
        records: how many it is of.
        skipped: how many were left out.
        size, sha256: of the file.
        kept: whether it is of an earlier run.
    """

    number: int
    name: str
    source: str
    line: int
    records: int
    skipped: int
    size: int
    sha256: str
    kept: bool = False


@dataclass(frozen=True)
class Parts:
    """Where rows go.

    Attributes:
        folder: which every worker can write to.
        suffix: how a file's name ends.
        head: what each file begins with.
        known: the parts of an earlier run of the same, which are kept if they match.
    """

    folder: str
    suffix: str
    head: bytes = b""
    known: Mapping[int, Written] = field(default_factory=dict)

    def kept(self, number: int) -> Written | None:
        """The part of an earlier run, where it is there and matches."""
        known = self.known.get(number)
        if known is None:
            return None
        with suppress(OSError), (Path(self.folder) / known.name).open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() == known.sha256:
                return replace(known, kept=True)
        return None

    def write(self, number: int, results: Sequence[Any]) -> Written | None:
        """Writes the rows of a portion; nothing where there are none, or it ends in an error."""
        outcomes = [result.value for result in results]
        rows = [row for outcome in outcomes for row in outcome.pieces]
        for outcome in outcomes:
            outcome.pieces = []
        if not rows or any(outcome.error is not None for outcome in outcomes):
            return None
        data = self.head + b"".join(rows)
        name = f"part-{number:06}{self.suffix}"
        place = Path(self.folder) / name
        with NamedTemporaryFile(dir=self.folder, prefix=f".{name}.", delete=False) as stream:
            stream.write(data)
        Path(stream.name).chmod(0o644)
        Path(stream.name).replace(place)
        done = results[0].done
        return Written(
            number,
            name,
            done.source,
            done.line,
            sum(outcome.totals.records for outcome in outcomes),
            sum(len(outcome.skipped) for outcome in outcomes),
            len(data),
            hashlib.sha256(data).hexdigest(),
        )


class Manifest:
    """What says which parts there are; lines are added as parts come, in order.

    Args:
        parts: where they go; the folder is made if it is not there.
        about: what the parts are of; all that changes a byte of them.
        resume: whether to go on with those of an earlier run.

    Attributes:
        parts: the same, with the parts of an earlier run that left out no record.
        kept: how many of these were kept.

    Raises:
        UsageError: where there are parts already, or those of something else.
    """

    def __init__(self, parts: Parts, about: Mapping[str, Any], *, resume: bool) -> None:
        self._folder = Path(parts.folder).absolute()
        self._path = self._folder / _MANIFEST
        self.kept = 0
        self._listed: set[str] = set()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            known = self._begin(json.loads(json.dumps(dict(about))), resume=resume)
        except OSError as error:
            raise UsageError(f"--output: cannot write {parts.folder}: {error.strerror}") from None
        self.parts = replace(parts, folder=str(self._folder), known=known)

    def _begin(self, about: dict[str, Any], *, resume: bool) -> dict[int, Written]:
        """Opens it, and returns the parts that were there."""
        lines = self._lines()
        if lines and not resume:
            raise UsageError(
                f"--output: {self._folder} has parts already: --resume goes on with them"
            )
        if not lines and any(self._folder.iterdir()):
            raise UsageError(f"--output: {self._folder} is not empty, and has no {_MANIFEST}")
        if lines and lines[0] != about:
            differing = [key for key in about if lines[0].get(key) != about[key]]
            raise UsageError(
                f"--resume: the parts in {self._folder} are of another run: "
                f"{', '.join(differing) or 'its manifest'} differs"
            )
        parts = [Written(**line) for line in lines[1:] if "number" in line]
        self._stream = self._path.open("w")
        self._write(about)
        return {part.number: part for part in parts if not part.skipped}

    def _lines(self) -> list[dict[str, Any]]:
        """The whole lines of the manifest that is there; what was cut off is nothing."""
        if not self._path.exists():
            return []
        lines = []
        for text in self._path.read_text().splitlines():
            with suppress(ValueError):
                lines.append(json.loads(text))
        return lines

    def _write(self, line: Mapping[str, Any]) -> None:
        self._stream.write(json.dumps(line) + "\n")
        self._stream.flush()

    def add(self, written: Written) -> None:
        """Lists a part that is there."""
        self._listed.add(written.name)
        self.kept += written.kept
        self._write(asdict(replace(written, kept=False)))

    def close(self, *, complete: bool) -> None:
        """Ends the list; what it does not name is removed."""
        if complete:
            self._write({"complete": True, "parts": len(self._listed)})
        self._stream.close()
        for path in [*self._folder.glob(".part-*"), *self._folder.glob("part-*")]:
            if path.name not in self._listed:
                path.unlink(missing_ok=True)
