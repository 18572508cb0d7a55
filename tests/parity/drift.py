"""Which rows a newer source of a framework has made stale.

``cd tests && python -m parity.drift SOURCE=PATH[@REVISION]...`` compares the functions that the
rows reproduce with sources as they are now; exit 1 where a function changed. A SOURCE is a
repository (PATH: its clone) or a wheel (PATH: it, unpacked) of the fingerprints below, or ``trl``
and ``verl`` (PATH: ``installed``, of the interpreter that runs this). Whether the numbers moved is
for the parity tests of the newer source to say. With ``--write`` the fingerprints of this source
are kept instead.

tests/frameworks/fingerprints has a file for each source: its name and version, "functions":
{"path:name": fingerprint}, and "rows": {row: ["path:name"]}, where a new row is entered by hand.
They were written by Python 3.11; other releases may write a syntax tree differently.
"""

from __future__ import annotations

import ast
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent.parent / "frameworks" / "fingerprints"
INSTALLED = ("trl", "verl")


class Fingerprints(NamedTuple):
    """Of one source: its version, function → fingerprint, row → the functions it reproduces."""

    source: str
    version: str
    functions: dict[str, str]
    rows: dict[str, list[str]]

    def is_of(self, stated: str) -> bool:
        """Whether this is the version that a row states: a commit's length and a date are free."""
        return stated.startswith((self.version, self.version.removeprefix(f"{self.source} ")))


class Source(NamedTuple):
    """A framework's source: its name, where it is, and the revision of a clone."""

    name: str
    path: str
    revision: str

    @property
    def version(self) -> str:
        """The release or the commit."""
        if self.name in INSTALLED:
            return f"{self.name} {version(self.name)}"
        if "/" in self.name:
            return self._git("rev-parse", "--short=7", self.revision).strip()
        release = next(Path(self.path).glob("*.dist-info")).name.removesuffix(".dist-info")
        return f"{self.name} {release.rpartition('-')[2]}"

    def text(self, path: str) -> str:
        """A file of it."""
        if "/" in self.name:
            return self._git("show", f"{self.revision}:{path}")
        folder = Path(self.path)
        if self.name in INSTALLED:
            spec = find_spec(self.name)
            assert spec is not None
            folder = Path(spec.origin or "").parent.parent
        return (folder / path).read_text()

    def _git(self, *words: str) -> str:
        command = ["git", "-C", self.path, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def source_of(argument: str) -> Source:
    """SOURCE=PATH[@REVISION]; a wheel has no revision."""
    name, _, where = argument.partition("=")
    path, _, revision = where.partition("@") if "/" in name else (where, "", "")
    return Source(name, path, revision or "HEAD")


def kept() -> dict[str, Fingerprints]:
    """What is kept, by source."""
    found = [Fingerprints(**json.loads(file.read_text())) for file in sorted(FOLDER.glob("*.json"))]
    return {known.source: known for known in found}


def fingerprints(functions: Iterable[str], text_of: Callable[[str], str]) -> dict[str, str]:
    """The fingerprints of functions ``path:name`` in files that ``text_of`` reads.

    One that is not there any more is "gone".
    """
    found = {}
    for function in functions:
        path, _, name = function.rpartition(":")
        try:
            tree = ast.parse(text_of(path))
        except (OSError, SyntaxError, subprocess.CalledProcessError):
            node = None
        else:
            node = _definition(tree, name.split("."))
        found[function] = "gone" if node is None else fingerprint(node)
    return found


def fingerprint(node: ast.AST) -> str:
    """16 hexadecimal digits of the syntax tree without docstrings and positions."""
    bare = ast.parse(ast.unparse(node))
    for part in ast.walk(bare):
        body = getattr(part, "body", None)
        if isinstance(body, list) and len(body) > 1 and _is_docstring(body[0]):
            del body[0]
    return hashlib.sha256(ast.dump(bare).encode()).hexdigest()[:16]


def _definition(node: Any, names: list[str]) -> ast.AST | None:
    """A function or class by its dotted name; one without a class also as some class's method."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    inside = [child for child in ast.iter_child_nodes(node) if isinstance(child, kinds)]
    for child in inside:
        if child.name == names[0]:
            return child if len(names) == 1 else _definition(child, names[1:])
    if len(names) == 1 and isinstance(node, ast.Module):
        classes = [child for child in inside if isinstance(child, ast.ClassDef)]
        return next((found for child in classes if (found := _definition(child, names))), None)
    return None


def _is_docstring(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def write(source: Source, known: Fingerprints) -> None:
    """Keeps the fingerprints of all functions that the file's rows name."""
    functions = sorted({name for names in known.rows.values() for name in names})
    made = known._replace(
        version=source.version, functions=fingerprints(functions, source.text)
    )._asdict()
    text = json.dumps(made, indent=1, sort_keys=True, ensure_ascii=False)
    (FOLDER / f"{source.name.replace('/', '+')}.json").write_text(text + "\n")


def report(source: Source, known: Fingerprints) -> bool:
    """Prints which rows went stale; whether any did."""
    now = fingerprints(known.functions, source.text)
    changed = {name for name, was in known.functions.items() if now[name] != was}
    stale = {row: [name for name in names if name in changed] for row, names in known.rows.items()}
    stale = {row: names for row, names in stale.items() if names}
    at = f"{source.name}: {known.version} -> {source.version}"
    print(f"{at}: {len(stale)} of {len(known.rows)} rows are stale")
    for row, names in stale.items():
        print(f"  {row}: {', '.join(names)}")
    return bool(stale)


def main(arguments: list[str]) -> int:
    """Exit 1 where a row went stale."""
    sources = [source_of(argument) for argument in arguments if argument != "--write"]
    known = kept()
    if "--write" in arguments:
        for source in sources:
            write(source, known[source.name])
        return 0
    stale = [report(source, known[source.name]) for source in sources]
    return int(any(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
