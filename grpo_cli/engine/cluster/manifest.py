"""What says of what run the parts in a folder are, and which there are.

``manifest.jsonl`` has a line for the run, one for each part, in the input's order, and a last one
where the run was complete.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from grpo_cli.engine.cluster.folder import folder_of
from grpo_cli.engine.cluster.parts import Parts, Written
from grpo_cli.errors import UsageError
from grpo_cli.records.open.address import is_remote

NAME = "manifest.jsonl"


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
        path = parts.folder if is_remote(parts.folder) else str(Path(parts.folder).absolute())
        self._folder = folder_of(path)
        self.kept = 0
        self._there = bytearray()  # by number: a million parts are a megabyte
        self._suffix = parts.suffix
        try:
            self._folder.make()
            known = self._begin(path, json.loads(json.dumps(dict(about))), resume=resume)
        except OSError as error:
            raise UsageError(f"--output: cannot write {parts.folder}: {error.strerror}") from None
        self.parts = replace(parts, folder=path, known=known)

    def _begin(self, path: str, about: dict[str, Any], *, resume: bool) -> dict[int, Written]:
        """Opens it, and returns the parts that were there."""
        lines = self._lines()
        if lines and not resume:
            raise UsageError(f"--output: {path} has parts already: --resume goes on with them")
        if not lines and self._folder.names():
            raise UsageError(f"--output: {path} is not empty, and has no {NAME}")
        if lines and lines[0] != about:
            differing = [key for key in about if lines[0].get(key) != about[key]]
            raise UsageError(
                f"--resume: the parts in {path} are of another run: "
                f"{', '.join(differing) or 'its manifest'} differs"
            )
        parts = [Written(**line) for line in lines[1:] if "number" in line]
        self._log = self._folder.log(NAME)
        self._write(about)
        return {part.number: part for part in parts if not part.skipped}

    def _lines(self) -> list[dict[str, Any]]:
        """The whole lines of the manifest that is there; what was cut off is nothing."""
        lines = []
        for text in self._folder.read(NAME).splitlines():
            with suppress(ValueError):
                lines.append(json.loads(text))
        return lines

    def _write(self, line: Mapping[str, Any]) -> None:
        self._log.add(json.dumps(line).encode() + b"\n")

    def add(self, written: Written) -> None:
        """Lists a part that is there."""
        self._there += bytes(max(0, written.number + 1 - len(self._there)))
        self._there[written.number] = 1
        self.kept += written.kept
        self._write(asdict(replace(written, kept=False)))

    def close(self, *, complete: bool) -> None:
        """Ends the list; what it does not name is removed."""
        if complete:
            self._write({"complete": True, "parts": sum(self._there)})
        self._log.close()
        for name in self._folder.names():
            if name.lstrip(".").startswith("part-") and not self._lists(name):
                self._folder.remove(name)

    def _lists(self, name: str) -> bool:
        number = name.removeprefix("part-").removesuffix(self._suffix)
        at = int(number) if number.isdecimal() else len(self._there)
        return at < len(self._there) and bool(self._there[at])
