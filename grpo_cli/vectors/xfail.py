"""The file of known failures: a case or a flag a line, and why, with a link."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from grpo_cli.vectors.case import Case
from grpo_cli.vectors.data import cases, flags

LINK = re.compile(r"https?://\S+")


class Xfail(NamedTuple):
    """One line: ``name`` is a case's id or a flag."""

    name: str
    reason: str

    def covers(self, case: Case) -> bool:
        """Whether the line is about the case."""
        return self.name == case.id or self.name in case.flags

    @property
    def strict(self) -> bool:
        """A case that is named must fail; one that only has the flag may pass."""
        return "/" in self.name


def read(path: Path) -> list[Xfail]:
    """The lines of a file; ``#`` begins a comment line.

    Raises:
        ValueError: a name that no vector has, a line without a link, or the same name twice.
    """
    known = {case.id for case in cases()} | set(flags())
    found: dict[str, Xfail] = {}
    for place, line in _lines(path):
        name, _, reason = line.partition(" ")
        if name not in known:
            raise ValueError(f"{place}: no vector and no flag is called {name!r}")
        if not LINK.search(reason):
            raise ValueError(f"{place}: {name} needs a reason with a link to the thread")
        if name in found:
            raise ValueError(f"{place}: {name} is there twice")
        found[name] = Xfail(name, reason.strip())
    return list(found.values())


def covering(lines: list[Xfail], case: Case) -> Xfail | None:
    """The line about a case: the one that names it, before one that names a flag of it."""
    about = [line for line in lines if line.covers(case)]
    return next((line for line in about if line.strict), next(iter(about), None))


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            yield f"{path.name}:{number}", line.strip()
