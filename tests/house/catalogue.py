"""Lists every message of the package, with an example from snapshots, help pages or tests.

    python tests/house/catalogue.py > messages.txt      # to be read in one sitting

A message is a string of three words or more that is no docstring; ``{…}`` is what it fills in.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "grpo_cli"
EXAMPLES = (
    "README.md",
    "grpo_cli/commands/help/pages/*.md",
    "tests/**/*.txt",
    "tests/**/test_*.py",
)


class Message(NamedTuple):
    """A string of the package: where it is, and its text around what it fills in."""

    place: str
    parts: list[str]

    @property
    def text(self) -> str:
        return "{…}".join(self.parts)

    def example(self, screens: Mapping[str, str]) -> str:
        """The first screen line that it made, with the file; "" if no snapshot has one."""
        longest = max(self.parts, key=len)
        if len(longest) < 8:
            return ""
        pattern = re.compile(".{0,60}?".join(map(re.escape, self.parts)))
        for name, text in screens.items():
            if longest in text and (found := pattern.search(text)):
                return f"{name}: {found[0]}"
        return ""


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


def screens() -> dict[str, str]:
    """What snapshots, pages and tests show, by file, on one line."""
    files = (path for pattern in EXAMPLES for path in sorted(ROOT.glob(pattern)))
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in files}
    joined = {name: re.sub(r'"\s+f?"', "", text) for name, text in texts.items()}
    return {name: " ".join(text.split()) for name, text in joined.items()}


def main() -> None:
    shown, count, without = screens(), 0, 0
    for message in messages():
        example = message.example(shown)
        print(f"{message.place}\n  {message.text.strip()}\n" + f"    {example}\n" * bool(example))
        count, without = count + 1, without + (not example)
    print(f"{count} messages, {count - without} with an example")


if __name__ == "__main__":
    main()
