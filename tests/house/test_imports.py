"""Imports point one way, with no circle: the picture is in grpo_cli/README.md."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from files import each

PACKAGE = Path(__file__).parent.parent.parent / "grpo_cli"

BELOW: dict[str, set[str]] = {
    "errors": set(),
    "version": set(),
    "batch": set(),
    "bundle": set(),
    "mistakes": set(),
    "hyperparameters": {"errors"},
    "objective": {"batch", "errors", "hyperparameters", "version"},
    "records": {"batch", "errors", "hyperparameters"},
    "frameworks": {"objective", "batch", "errors", "hyperparameters"},
    "papers": {"objective", "batch", "errors", "hyperparameters"},
    "variants": {"frameworks", "papers", "objective", "errors", "hyperparameters"},
    "engine": {
        *("variants", "records", "objective", "batch", "errors", "hyperparameters", "version"),
    },
    "terminal": {"errors"},
    "hooks": {"bundle", "errors"},
    "vectors": {"errors", "mistakes"},
    "api": {"commands", "engine", "variants", "records", "objective", "batch", "errors"},
    "fold": {"engine", "variants", "records", "objective", "errors"},
    "commands": {
        *("engine", "terminal", "variants", "records", "objective", "batch"),
        *("bundle", "errors", "hyperparameters", "version", "vectors", "mistakes"),
    },
    "__init__": {"api", "errors", "variants", "version"},
    "__main__": {"commands", "terminal"},
}
"""What may import what: each part, and the parts below it that it knows."""


def parts() -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        found.setdefault(part, []).append(path)
    return found


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """What stands in it, at any depth; not the expressions, which are most of a tree."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, field, ()):
            yield child
            yield from statements(child)


def imported(path: Path) -> set[str]:
    """The parts of the package that a file imports, inside functions and for types too."""
    names: set[str] = set()
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        else:
            continue
        names |= {m.split(".")[1] for m in modules if m.startswith("grpo_cli.")}
    return names


def files_imported(path: Path) -> set[Path]:
    """The files of the package that a file imports, inside functions and for types too."""
    found: set[Path] = set()
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [(f"{node.module}.{alias.name}", node.module) for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [(alias.name, alias.name) for alias in node.names]
        else:
            continue
        for name, module in names:
            places = [PACKAGE.parent / one.replace(".", "/") for one in (name, module)]
            files = [
                file
                for place in places
                for file in (place.with_name(f"{place.name}.py"), place / "__init__.py")
                if file.exists()
            ]
            found |= set(files[:1]) - {path}
    return found


def below(graph: dict[Path, set[Path]], file: Path) -> set[Path]:
    """Every file that a file imports, or that those import."""
    reached: set[Path] = set()
    waiting = [file]
    while waiting:
        more = graph[waiting.pop()] - reached
        reached |= more
        waiting += more
    return reached


def test_no_file_imports_itself_by_way_of_others():
    graph = {file: files_imported(file) for file in PACKAGE.rglob("*.py")}
    circular = {str(file.relative_to(PACKAGE)) for file in graph if file in below(graph, file)}
    assert not circular


@each("part", parts())
def test_a_part_imports_only_what_is_below_it(part):
    allowed = BELOW[part] | {part}
    wrong = {
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in parts()[part]
        for name in imported(path) - allowed
    }
    assert not wrong


def test_the_picture_has_no_circle():
    order: list[str] = []
    rest = dict(BELOW)
    while rest:
        free = [part for part, below in rest.items() if below <= set(order)]
        assert free, f"a circle among {sorted(rest)}"
        order += free
        for part in free:
            del rest[part]


KNOWN_CIRCLES = {"commands.eval.formats"}
"""A file of each circle that is still to be broken; to be empty."""


EXTRAS = ("fsspec", "pyarrow", "ray", "zstandard")
WITHOUT = f"""
import sys
sys.modules.update(dict.fromkeys({EXTRAS}))  # to import one of them is an error
import grpo_cli, grpo_cli.api, grpo_cli.fold
from grpo_cli.commands.main import application, main
application()
for line in sys.argv[1:]:
    sys.argv = ["grpo", *line.split()]
    try:
        main()
    except SystemExit as ended:
        print(ended.code, file=sys.stderr)
"""


def test_no_extra_is_imported_unasked():
    here = "eval samples/dr_grpo.json -v dr"
    asked = (f"{here} -j 2", "eval s3://runs/a.jsonl", f"{here} --on ray")
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT, *asked],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    codes = [line for line in run.stderr.splitlines() if line.isdigit()]
    assert codes == ["0", "3", "2"], run.stderr
    for extra in ("remote", "ray"):
        assert f"needs one more package: pip install 'grpo-cli[{extra}]'" in run.stderr


def test_stages_import_numpy_alone():
    wrong = set()
    for path in (PACKAGE / "objective").rglob("*.py"):
        for node in statements(ast.parse(path.read_text())):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
            wrong |= {n for n in names if n and n.split(".")[0] in ("typer", "orjson", "rich")}
    assert not wrong


FOREIGN = ("torch", "trl", "verl", "transformers")
"""No command needs a framework, and the hooks none before they are used."""


BROUGHT = """
import sys
from importlib import import_module
for name in ("grpo_cli", "grpo_cli.commands.main", "grpo_cli.hooks.trl", "grpo_cli.hooks.verl"):
    import_module(name)
    print(name, *[other for other in sys.argv[1:] if other in sys.modules])
"""


def test_what_an_import_brings_along() -> None:
    command = [sys.executable, "-c", BROUGHT, *FOREIGN, "grpo_cli.hooks"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "grpo_cli",
        "grpo_cli.commands.main",
        "grpo_cli.hooks.trl grpo_cli.hooks",
        "grpo_cli.hooks.verl grpo_cli.hooks",
    ]
