"""Every message of the package.

A message is a string of three words or more that is no docstring; ``{…}`` is what it fills in.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "grpo_cli"


class Message(NamedTuple):
    """A string of the package: where it is, and its text around what it fills in."""

    place: str
    parts: list[str]

    @property
    def text(self) -> str:
        return "{…}".join(self.parts)


def messages() -> Iterator[Message]:
    """All messages, in the order of files."""
    for path in sorted(PACKAGE.rglob("*.py")):
        nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
        bare = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        bare |= {
            id(part)
            for node in nodes
            if isinstance(node, ast.JoinedStr)
            for value in node.values
            for part in ast.walk(value)
        }
        for node in nodes:
            if id(node) in bare or not isinstance(node, ast.Constant | ast.JoinedStr):
                continue
            parts = _parts(node)
            if len(" ".join(parts).split()) >= 3 and re.search("[a-z]{2}", " ".join(parts)):
                yield Message(f"{path.relative_to(ROOT)}:{node.lineno}", parts)


def _parts(node: ast.Constant | ast.JoinedStr) -> list[str]:
    parts = [""]
    for value in node.values if isinstance(node, ast.JoinedStr) else [node]:
        if isinstance(value, ast.FormattedValue):
            parts.append("")
        elif isinstance(value, ast.Constant) and isinstance(value.value, str):
            parts[-1] += " ".join(re.split(r"\s+", value.value))
    return parts
