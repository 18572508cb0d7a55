"""The fingerprints of what the rows reproduce, which tests/parity/drift.py compares.

And that the modules there fit together, which only runs with clones at hand would show else.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from files import each
from parity.drift import fingerprint, fingerprints, kept

from grpo_cli import VARIANTS

KEPT = kept()
PLAIN = "def loss(ratio, advantage):\n    return -min(ratio * advantage, 2.0)"


def _of(text: str) -> str:
    return fingerprint(ast.parse(text).body[0])


@pytest.mark.parametrize(
    "same",
    [
        PLAIN + "  # PPO",
        'def loss(ratio, advantage):\n    """The loss."""\n    return -min(ratio * advantage, 2.0)',
        "def loss(\n    ratio,\n    advantage,\n):\n\n    return -(min((ratio * advantage), 2.0))",
    ],
)
def test_words_and_line_breaks_do_not_count(same: str) -> None:
    assert _of(same) == _of(PLAIN)


@pytest.mark.parametrize(
    "other",
    [
        PLAIN.replace("min", "max"),
        PLAIN.replace("-", ""),
        PLAIN.replace("2.0", "2.1"),
        PLAIN.replace("advantage)", "advantage=1.0)", 1),
    ],
)
def test_arithmetic_and_defaults_do(other: str) -> None:
    assert _of(other) != _of(PLAIN)


def test_a_function_that_is_not_there_any_more_is_gone() -> None:
    text = "class Trainer:\n    def loss(self):\n        return 1.0\n"
    found = fingerprints(["a.py:Trainer.loss", "a.py:loss", "a.py:other"], lambda _: text)
    assert found["a.py:Trainer.loss"] == found["a.py:loss"] != "gone"
    assert found["a.py:other"] == "gone"


@each("source", KEPT)
def test_each_row_has_the_functions_of_the_version_that_it_states(source: str) -> None:
    known = KEPT[source]
    assert "gone" not in known.functions.values()
    for row, functions in known.rows.items():
        assert functions, row
        assert set(functions) <= set(known.functions), row
        if "/" in row and not row.endswith(" advantage"):
            assert known.is_of(VARIANTS[row].version), row


def test_each_row_that_ran_has_fingerprints() -> None:
    ran = {name for name, row in VARIANTS.items() if row.checked == "executed"}
    assert ran - {row for known in KEPT.values() for row in known.rows} == set()


def test_each_row_of_a_framework_has_fingerprints() -> None:
    """``parity.drift`` looks at them alone. Tinker's servers compute its rows: none can be read."""
    named = {name for name in VARIANTS if "/" in name and not name.startswith("tinker/")}
    assert named <= {row for known in KEPT.values() for row in known.rows}


def test_the_weekly_run_looks_at_every_source_that_is_new() -> None:
    """All but those whose name has the release that they stay at."""
    workflow = Path(__file__).parents[2] / ".github" / "workflows" / "drift.yml"
    words = workflow.read_text(encoding="utf-8").partition("- name: Compare")[2].split()
    assert {source for source in KEPT if "@" not in source} <= {word.rstrip(";") for word in words}


PARITY = Path(__file__).parent.parent / "parity"


@each("file", sorted(PARITY.rglob("*.py")), ids=lambda file: str(file.relative_to(PARITY)))
def test_what_a_parity_module_imports_of_another_is_there(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            home = file.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            wanted = {alias.name for alias in node.names}
            assert wanted <= _names(home), f"{file.name}: {node.module}"


def _names(home: Path) -> set[str]:
    """What a module defines or imports; of a package its modules too."""
    within = {path.stem for path in home.glob("*.py")} | {path.name for path in home.glob("*/")}
    source = home / "__init__.py" if home.is_dir() else home.with_suffix(".py")
    body = ast.parse(source.read_text(encoding="utf-8")).body
    stored = (n.id for n in ast.walk(ast.Module(body, [])) if isinstance(n, ast.Name))
    defined = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    imported = (n for n in body if isinstance(n, ast.Import | ast.ImportFrom))
    names = {alias.asname or alias.name for node in imported for alias in node.names}
    return within | {*stored} | defined | names
