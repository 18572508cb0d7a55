"""A rule's declaration is checked where it is made: at import, not in the middle of a run."""

from __future__ import annotations

from typing import Any

import pytest

from grpo_cli.commands.check import rule as declarations
from grpo_cli.commands.check.rule import Rule, rule
from grpo_cli.commands.check.rules import table


def find(view: object) -> tuple[()]:
    del view
    return ()


@pytest.fixture(autouse=True)
def declared(monkeypatch) -> dict[Any, Rule]:
    """The declared rules; what a test declares is forgotten."""
    table()
    rules = dict(declarations.DECLARED)
    monkeypatch.setattr(declarations, "DECLARED", rules)
    return rules


def declare(code: str = "new", severity: str = "error", meaning: str = "M.", **details: Any) -> Any:
    return rule(code, severity, meaning, **{"rank": 1, **details})(find)


def test_a_declaration_leaves_the_function_as_it_is(declared):
    assert declare(severity="warning|info", about="masks", needs=("mask",)) is find
    assert declared["new", "record"] == Rule(
        "new", ("warning", "info"), "M.", 1, find, about="masks", needs=("mask",)
    )


@pytest.mark.parametrize(
    ("details", "words"),
    [
        ({"needs": ("mask",)}, "rule 'new': it has needs and no about"),
        ({"needs_key": "finish_reasons"}, "it has needs and no about"),
        ({"full_coverage_needs": "truncated", "fallback": "a part"}, "it has needs and no about"),
        ({"about": "x", "full_coverage_needs": "truncated"}, "fallback go together"),
        ({"about": "x", "fallback": "a part"}, "fallback go together"),
        ({"about": "x", "needs": ("mask|masc",)}, "it needs 'masc', which is no field"),
        ({"severity": "fatal"}, "severity 'fatal': expected error, warning, info"),
        ({"severity": ""}, "severity ''"),
        ({"severity": "error|"}, "severity ''"),
        ({"scope": "pairs"}, "scope 'pairs': expected record, pair, input"),
        ({"code": "filler", "scope": "pair"}, "'filler' is declared already, in grpo_cli"),
        ({"code": "filler", "meaning": "Another."}, "'filler' is declared already"),
        ({"code": "mask"}, "'mask' is declared already"),
    ],
)
def test_a_declaration_that_contradicts_itself_or_another_is_an_error(declared, details, words):
    before = dict(declared)
    with pytest.raises(ValueError, match=words):
        declare(**details)
    assert declared == before


def test_one_code_may_be_declared_for_records_and_for_pairs(declared):
    declare()
    declare(scope="pair")
    assert {("new", "record"), ("new", "pair")} <= {*declared}
    with pytest.raises(ValueError, match="declared already"):
        declare()
