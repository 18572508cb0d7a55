"""The table of all rules: rows of ``relations.json`` with the functions that test them."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from grpo_cli.commands.check.rule import FUNCTIONS, ORDER, Rule, Scope, Topic, relations

_LISTS = ("severities", "columns", "needs")


@cache
def table() -> tuple[Rule, ...]:
    """Returns every rule in the order in which they run."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    given = relations()
    topics = {row["topic"]: Topic(**_with_tuples(row)) for row in given["topics"]}
    found = []
    for rank, row in enumerate(given["relations"]):
        topic = topics[row["topic"]] if "topic" in row else Topic()
        find = FUNCTIONS[row["code"], row["scope"]]
        found.append(Rule(**_with_tuples(row) | {"topic": topic, "rank": rank, "find": find}))
    return tuple(found)


@cache
def topics() -> tuple[Topic, ...]:
    """Returns the topics of the rules, in the order in which skipped ones are listed."""
    return tuple(dict.fromkeys(rule.topic for rule in table() if rule.topic.topic))


def _with_tuples(row: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if key in _LISTS else value for key, value in row.items()}


@cache
def rules_of(scope: Scope) -> tuple[Rule, ...]:
    """Returns the rules that see a record, a pair of columns, or the whole input."""
    return tuple(rule for rule in table() if rule.scope == scope)


@cache
def rule_named(code: str) -> Rule:
    """Returns the rule of a code on the whole input, or else on records."""
    return next(rule for rule in (*rules_of("input"), *rules_of("record")) if rule.code == code)


def codes() -> list[dict[str, Any]]:
    """Returns each code once with its severities and meaning, the worst first."""
    found = {rule.code: rule for rule in table()}
    rules = sorted(found.values(), key=lambda rule: (ORDER.index(rule.severities[0]), rule.code))
    return [
        {"code": rule.code, "severity": list(rule.severities), "meaning": rule.breaks}
        for rule in rules
    ]
