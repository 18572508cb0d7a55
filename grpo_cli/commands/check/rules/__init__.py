"""The table of all rules. A function declared with ``@rule`` in this package is in it."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from grpo_cli.commands.check.rule import DECLARED, ORDER, SCOPES, Rule, Scope


@cache
def table() -> tuple[Rule, ...]:
    """Returns every rule in the order in which they run: those on records first."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return tuple(
        sorted(DECLARED.values(), key=lambda rule: (SCOPES.index(rule.scope), rule.rank, rule.code))
    )


@cache
def rules_of(scope: Scope) -> tuple[Rule, ...]:
    """Returns the rules that see a record, a pair of columns, or the whole input."""
    return tuple(rule for rule in table() if rule.scope == scope)


def rule_named(code: str) -> Rule:
    """Returns the rule of a code; of two with one code, the one on records."""
    return next(rule for rule in table() if rule.code == code)


def codes() -> list[dict[str, Any]]:
    """Returns each code once with its severities and meaning, the worst first."""
    found = {rule.code: rule for rule in table()}
    rules = sorted(found.values(), key=lambda rule: (ORDER.index(rule.severities[0]), rule.code))
    return [
        {"code": rule.code, "severity": list(rule.severities), "meaning": rule.meaning}
        for rule in rules
    ]
