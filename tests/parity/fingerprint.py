"""What a function's source comes to, whatever its comments, docstrings and line breaks.

The fingerprints of what the rows reproduce are in tests/frameworks/fingerprints, a file for each
source: its name and version, "functions": {"path:name": fingerprint}, and "rows": {row:
["path:name"]}. They were written by Python 3.11; another one may write a syntax tree otherwise.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent.parent / "frameworks" / "fingerprints"


class Fingerprints(NamedTuple):
    """Of one source: its version, function → fingerprint, row → the functions it reproduces."""

    source: str
    version: str
    functions: dict[str, str]
    rows: dict[str, list[str]]

    def is_of(self, stated: str) -> bool:
        """Whether this is the version that a row states: a commit's length and a date are free."""
        return stated.startswith((self.version, self.version.removeprefix(f"{self.source} ")))

    @property
    def file(self) -> Path:
        """Where they are kept."""
        return FOLDER / f"{self.source.replace('/', '+')}.json"

    def write(self) -> None:
        """Keeps them."""
        FOLDER.mkdir(exist_ok=True)
        text = json.dumps(self._asdict(), indent=1, sort_keys=True, ensure_ascii=False)
        self.file.write_text(text + "\n")


def kept() -> dict[str, Fingerprints]:
    """What is kept, by source."""
    found = [Fingerprints(**json.loads(file.read_text())) for file in sorted(FOLDER.glob("*.json"))]
    return {one.source: one for one in found}


def of(functions: Iterable[str], text_of: Callable[[str], str]) -> dict[str, str]:
    """The fingerprints of functions ``path:name`` in files that ``text_of`` reads.

    One that is not there any more is "gone".
    """
    trees: dict[str, ast.Module | None] = {}
    found = {}
    for function in functions:
        path, _, name = function.rpartition(":")
        if path not in trees:
            trees[path] = _tree(path, text_of)
        node = None if trees[path] is None else _definition(trees[path], name.split("."))
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


def _tree(path: str, text_of: Callable[[str], str]) -> ast.Module | None:
    try:
        return ast.parse(text_of(path))
    except (OSError, SyntaxError, LookupError):
        return None


def _definition(node: Any, names: list[str]) -> ast.AST | None:
    """A function or class by its dotted name; one without a class also as some class's method."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    inside = [one for one in ast.iter_child_nodes(node) if isinstance(one, kinds)]
    for one in inside:
        if one.name == names[0]:
            return one if len(names) == 1 else _definition(one, names[1:])
    if len(names) == 1 and isinstance(node, ast.Module):
        classes = [one for one in inside if isinstance(one, ast.ClassDef)]
        return next((found for one in classes if (found := _definition(one, names))), None)
    return None


def _is_docstring(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
