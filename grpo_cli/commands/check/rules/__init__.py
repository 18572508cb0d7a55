"""The table of all rules. A new file of this package is in it without another edit."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from grpo_cli.commands.check.rule import ORDER, Rule


@cache
def table() -> tuple[Rule, ...]:
    """Every rule, in the order in which they are asked."""
    return tuple(sorted(_stated(), key=lambda rule: (rule.pairs, rule.rank, rule.code)))


@cache
def record_rules() -> tuple[Rule, ...]:
    """What each record is asked."""
    return tuple(rule for rule in table() if not rule.pairs)


@cache
def pair_rules() -> tuple[Rule, ...]:
    """What each pair of columns is asked, until one finds something: it explains the rest."""
    return tuple(rule for rule in table() if rule.pairs)


def codes() -> list[dict[str, Any]]:
    """Each code once with its severities and meaning, the worst first."""
    found = {rule.code: rule for rule in reversed(table())}
    rules = sorted(found.values(), key=lambda rule: (ORDER.index(rule.severity[0]), rule.code))
    return [
        {"code": rule.code, "severity": list(rule.severity), "meaning": rule.meaning}
        for rule in rules
    ]


def _stated() -> Iterator[Rule]:
    for found in iter_modules(__path__):
        yield from import_module(f"{__name__}.{found.name}").RULES
