"""Which rows a newer source of a framework has made stale, and whether their numbers moved.

``cd tests && python -m parity.drift SOURCE=PATH[@REVISION]...`` compares what the rows reproduce
with sources as they are now; exit 1 where a row went stale. Rows that no parity runs are in
``read_rows``. A SOURCE is a repository of ``framework_sources.COMMITS`` (PATH: its clone), the
name of a wheel there (PATH: it, unpacked), or ``trl`` and ``verl`` (PATH: ``installed``, of the
interpreter that runs this). With ``--write`` the fingerprints are kept instead.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from grpo_cli import VARIANTS

from . import fingerprint
from .drift_numbers import installed_moved, installed_rows, moved, traced_rows
from .fingerprint import Fingerprints
from .framework_sources import COMMITS, Clones
from .read_rows import READ

INSTALLED = ("trl", "verl")


class Source(NamedTuple):
    """A framework's source: its name, where it is, and the revision of a clone."""

    name: str
    path: str
    revision: str

    @property
    def installed(self) -> bool:
        """Whether it is a package of this interpreter."""
        return self.name in INSTALLED

    @property
    def clones(self) -> Clones:
        """As the parity modules take it."""
        return Clones({self.name: Path(self.path)}, {**COMMITS, self.name: self.revision})

    @property
    def version(self) -> str:
        """The release or the commit."""
        if self.installed:
            return f"{self.name} {version(self.name)}"
        if "/" in self.name:
            command = ["git", "-C", self.path, "rev-parse", "--short=7", self.revision]
            return subprocess.run(
                command, check=True, capture_output=True, text=True
            ).stdout.strip()
        release = next(Path(self.path).glob("*.dist-info")).name.removesuffix(".dist-info")
        return f"{self.name} {release.rpartition('-')[2]}"

    def text(self, path: str) -> str:
        """A file of it."""
        if self.installed:
            package = Path(sys.modules[self.name].__file__ or "").parent.parent
            return (package / path).read_text()
        try:
            return self.clones.text(self.name, path)
        except subprocess.CalledProcessError as error:
            raise LookupError(path) from error


def source_of(argument: str) -> Source:
    """SOURCE=PATH[@REVISION]; a clone is taken as it is, a wheel has no revision."""
    name, _, where = argument.partition("=")
    path, _, revision = where.partition("@") if "/" in name else (where, "", "")
    return Source(name, path, revision or "HEAD")


def write(source: Source) -> None:
    """Keeps the fingerprints of what the rows that state this version reproduce."""
    if source.installed:
        rows = installed_rows(source.name)
    else:
        if "/" in source.name:
            source = source._replace(revision=COMMITS[source.name])
        rows = traced_rows(source.name, source.clones)
        for row, names in READ.get(source.name, {}).items():
            rows.setdefault(row, set()).update(names)
    known = Fingerprints(source.name, source.version, {}, {})
    others = {row for row in rows if row in VARIANTS and not known.is_of(VARIANTS[row].version)}
    rows = {row: names for row, names in rows.items() if row not in others}
    functions = sorted({function for names in rows.values() for function in names})
    known.functions.update(fingerprint.of(functions, source.text))
    known.rows.update({row: sorted(names) for row, names in sorted(rows.items())})
    known.write()


def drifted(source: Source, known: Fingerprints) -> dict[str, list[str]]:
    """Row → what it reproduces that reads otherwise now; the rows that went stale."""
    now = fingerprint.of(known.functions, source.text)
    changed = {name for name, was in known.functions.items() if now[name] != was}
    stale = {row: [name for name in names if name in changed] for row, names in known.rows.items()}
    return {row: names for row, names in stale.items() if names}


def report(source: Source, known: Fingerprints) -> bool:
    """Prints what went stale; whether anything did."""
    stale = drifted(source, known)
    at = f"{source.name}: {known.version} -> {source.version}"
    if not stale:
        as_were = "row is as it was" if len(known.rows) == 1 else "rows are as they were"
        print(f"{at}: {len(known.rows)} {as_were}")
        return False
    print(f"{at}: {len(stale)} of {len(known.rows)} rows went stale")
    numbers = (
        installed_moved(source.name) if source.installed else moved(source.name, source.clones)
    )
    for row, names in stale.items():
        print(f"  {row}: {numbers(row)}; changed: {', '.join(names)}")
    return True


def main(arguments: list[str]) -> int:
    """Exit 1 where a row went stale."""
    sources = [source_of(argument) for argument in arguments if argument != "--write"]
    for name in {source.name for source in sources if source.installed}:
        __import__(name)
    if "--write" in arguments:
        for source in sources:
            write(source)
        return 0
    known = fingerprint.kept()
    stale = [report(source, known[source.name]) for source in sources]
    return int(any(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
