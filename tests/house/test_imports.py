"""The house: imports point one way, answers are typed, catalogues are whole, each case is tried."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import catalogue
import pytest
from files import each

# ---- imports point one way, with no circle: the picture is in grpo_cli/README.md -----------------


TESTS = Path(__file__).parent.parent
PACKAGE = TESTS.parent / "grpo_cli"

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
    "api": {
        *("commands", "engine", "terminal", "variants", "records", "objective", "batch"),
        *("errors", "hyperparameters"),
    },
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


@cache
def modules(path: Path) -> list[tuple[str, str]]:
    """What a file imports, inside functions and for types too: each name in full, its module."""
    names = []
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [(f"{node.module}.{alias.name}", node.module) for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [(alias.name, alias.name) for alias in node.names]
    return names


def imported(path: Path) -> set[str]:
    """The parts of the package that a file imports."""
    return {name.split(".")[1] for name, _ in modules(path) if name.startswith("grpo_cli.")}


def files_imported(path: Path) -> set[Path]:
    """The files of the package that a file imports."""
    found: set[Path] = set()
    for name, module in modules(path):
        places = [PACKAGE.parent / one.replace(".", "/") for one in (name, module)]
        files = [
            file
            for place in places
            for file in (place.with_name(f"{place.name}.py"), place / "__init__.py")
            if file.exists()
        ]
        found |= set(files[:1]) - {path}
    return found


@pytest.mark.more
def test_no_file_imports_itself_by_way_of_others():
    """Files that import none of those that are left are taken away, until all are."""
    left = {file: files_imported(file) for file in PACKAGE.rglob("*.py")}
    while free := [file for file, needed in left.items() if not needed & left.keys()]:
        for file in free:
            del left[file]
    assert not {str(file.relative_to(PACKAGE)) for file in left}


@pytest.mark.more
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


PUBLIC = re.compile(
    r"grpo_cli(\.(batch|errors|mistakes|vectors|hooks(\.(trl|verl))?|objective(\..+)?))?"
)
"""The modules that users import, and the formulas."""


@pytest.mark.more
def test_few_test_files_import_internals():
    """The others speak through the command, Python's names, files, and ``rows`` and ``files``."""
    inside = {
        str(path.relative_to(TESTS))
        for path in TESTS.rglob("test_*.py")
        for _, module in modules(path)
        if module.partition(".")[0] == "grpo_cli" and not PUBLIC.fullmatch(module)
    }
    assert len(inside) <= 30, sorted(inside)


EXTRAS = ("fsspec", "pyarrow", "ray", "zstandard")
WITHOUT = f"""
import sys
sys.modules.update(dict.fromkeys({EXTRAS}))  # to import one of them is an error
import grpo_cli, grpo_cli.api
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
    for package in ("fsspec", "'ray[client]'"):
        assert f"pip install {package}" in run.stderr


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


ALONE = """
import sys
from grpo_cli.commands.main import main
sys.argv = ["grpo", "eval", "samples/arithmetic.jsonl", "-q"]
try:
    main()
except SystemExit:
    loaded = [name for name in sys.modules if name.startswith("grpo_cli.frameworks.")]
    print(*loaded, file=sys.stderr)
"""


def test_a_paper_s_row_loads_no_framework() -> None:
    """Their rows and choices take as long to import as a small file to evaluate."""
    command = [sys.executable, "-c", ALONE]
    done = subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, text=True, check=True)
    assert done.stderr.split() == ["grpo_cli.frameworks.framework"]


# ---- the catalogue of messages, held to plain words ----------------------------------------------


PRIVATE = re.compile(r"\b(told|dearest|(is|are) meant|are ours|ours times|knows no such)\b")


@pytest.mark.more
def test_messages_use_the_fields_words() -> None:
    listed = [*catalogue.messages()]
    assert len(listed) > 1000
    assert [one for one in listed if PRIVATE.search(one.text)] == []


def test_an_example_is_what_a_snapshot_shows() -> None:
    shown = {"a.txt": "grpo: note: 3 groups are dead: their advantages are all 0 $ next"}
    made = catalogue.Message("x.py:1", ["", " groups are dead: their advantages are all 0"])
    assert made.example(shown) == "a.txt: grpo: note: 3 groups are dead: their advantages are all 0"
    assert made.example({"b.txt": "nothing"}) == ""


# ---- what ``files.each`` makes of many cases: all are tried, and those that fail are named -------


def test_all_are_tried_and_those_that_fail_are_named(tmp_path):
    tried = []

    @each(("left", "right"), [(2, 2), (3, 3), (4, 4), (6, 6)], ids=lambda case: f"<{case[0]}>")
    @each("factor", [1, 10])
    def compared(folder, factor, left, right):
        tried.append((folder, factor * left))
        assert (left, factor) != (4, 10), "four"
        with pytest.raises(ZeroDivisionError):
            1 / (left - right if left != 6 else 1)

    with pytest.raises(AssertionError) as caught:
        compared(folder=tmp_path)
    assert tried == [(tmp_path, n) for n in (2, 20, 3, 30, 4, 40, 6, 60)]
    said = str(caught.value)
    assert said.startswith("2 of 4\nthe case <4>: 1 of 2\nthe case 10: four")
    assert "the case <6>: 2 of 2\nthe case 1: DID NOT RAISE" in said
    assert "<2>" not in said
