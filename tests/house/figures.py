"""The figures of ``grpo_cli/README.md``, as they are counted.

    python tests/house/figures.py
    python tests/house/figures.py tree    # what a small evaluation calls, in order

Code is lines without docstrings, comments and blanks. A small evaluation passes a function if it
calls it when the package is imported; nested functions count, lambdas, comprehensions and the
bodies of modules and classes do not. A private function has one use if its name stands once in its
file besides its definition: it is called there, or it is an entry of a table.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "grpo_cli"
ROOMS = {
    "commands and api": ("commands", "api"),
    "records and engine": ("records", "engine"),
    "the mathematics": ("objective", "papers", "variants", "frameworks", "hyperparameters.py"),
}
_NO_CODE = (
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER),
    *(tokenize.INDENT, tokenize.DEDENT),
)


def code_lines(path: Path) -> int:
    """The lines of a file without docstrings, comments and blanks."""
    text = path.read_text(encoding="utf-8")
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            found.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        alone = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if alone and isinstance(node.value.value, str):
            found.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(found)


Call = tuple[int, str, str]
"""How deep it is, the function, and its file."""


def calls(words: list[str]) -> list[Call]:
    """What a command line calls after imports, in order; each pair of functions once."""
    found: dict[tuple[str, str, str, str], Call] = {}
    open_calls: list[tuple[FrameType, str, str]] = []
    importing: list[FrameType] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        name, file = code.co_qualname, code.co_filename.removeprefix(f"{PACKAGE}/")
        if event == "call" and name == "<module>":
            importing.append(frame)
        elif event == "call" and not importing and file != code.co_filename:
            if not code.co_name.startswith("<"):
                caller = open_calls[-1][1:] if open_calls else ("", "")
                found.setdefault((*caller, name, file), (len(open_calls), name, file))
                open_calls.append((frame, name, file))
        elif event == "return" and importing and importing[-1] is frame:
            importing.pop()
        elif event == "return" and open_calls and open_calls[-1][0] is frame:
            open_calls.pop()

    sys.argv = ["grpo", *words]
    gc.disable()
    sys.setprofile(note)
    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())):
        from grpo_cli.commands.main import main

        with contextlib.suppress(SystemExit):
            main()
    sys.setprofile(None)
    return [*found.values()]


def used_once(path: Path) -> int:
    """The private functions of a file that have one use."""
    nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    uses = Counter(one.id for one in nodes if isinstance(one, ast.Name))
    uses += Counter(one.attr for one in nodes if isinstance(one, ast.Attribute))
    functions = (one.name for one in nodes if isinstance(one, ast.FunctionDef))
    return sum(n.startswith("_") and not n.startswith("__") and uses[n] == 1 for n in functions)


def main() -> None:
    """Prints the figures."""
    sys.path.insert(0, str(ROOT))
    wanted = sys.argv[1:]
    found = calls(["eval", str(ROOT / "samples" / "arithmetic.jsonl")])
    if "tree" in wanted:
        print("\n".join(f"{'  ' * depth}{name}  {file}" for depth, name, file in found))
        return
    files = sorted(PACKAGE.rglob("*.py"))
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    print(f"{sum(lines.values()):,} lines in {len(files)} files")
    print(f"{sum(map(code_lines, files)):,} lines of code")
    for title, names in ROOMS.items():
        rooms = [path for path in files if path.relative_to(PACKAGE).parts[0] in names]
        print(f"{title}: {sum(lines[path] for path in rooms):,} lines")
    print(f"{sum(map(used_once, files))} private functions with one use")
    functions, places = {call[1:] for call in found}, {file for *_, file in found}
    print(f"grpo eval samples/arithmetic.jsonl: {len(functions)} functions in {len(places)} files")


if __name__ == "__main__":
    main()
