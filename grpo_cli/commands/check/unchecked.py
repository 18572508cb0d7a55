"""What could not be looked at, since records lack what rules say that they need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from grpo_cli.commands.check.finding import Rule
from grpo_cli.commands.check.record_view import View
from grpo_cli.records.fields import read_fields
from grpo_cli.records.parse.settings import read_settings


class Lack(NamedTuple):
    """What is not looked at: in words, the part that still is, and what is missing, ``a|b``."""

    about: str
    partly: str
    missing: tuple[str, ...]


def missing(rule: Rule, view: View) -> tuple[str, ...]:
    """What the rule needs and the records of a view lack."""
    return tuple(need for need in rule.needs if not any(map(view.tells, need.split("|"))))


def lacks(rules: Sequence[Rule], view: View) -> Counter[Lack]:
    """How many records of the view lack what a family of rules needs."""
    found: dict[Lack, int] = {}
    for rule in rules:
        without = missing(rule, view)
        if without:
            found[Lack(rule.about, "", without)] = len(view.counts)
        elif rule.better and (count := _without(rule.better, view)):
            found[Lack(rule.about, rule.partly, (rule.better,))] = count
    return Counter(found)


def _without(setting: str, view: View) -> int:
    """The records that lack a setting."""
    fields = read_fields(view.values[0])
    if not fields.hyperparameters and "hyperparameters" not in fields.names:
        return len(view.counts)
    return sum(setting not in read_settings(value, fields) for value in view.values)


def as_json(rules: Sequence[Rule], counts: Mapping[Lack, int]) -> Iterator[dict[str, Any]]:
    """The lacks of all records as reports have them, in the order of the rules."""
    codes: dict[str, list[str]] = {}
    for rule in rules:
        if rule.about:
            codes.setdefault(rule.about, []).append(rule.code)
    order = [*codes]
    for lack in sorted(counts, key=lambda one: (order.index(one.about), one.missing)):
        yield {
            "about": lack.about,
            "codes": list(dict.fromkeys(codes[lack.about])),
            "missing": [need.split("|") for need in lack.missing],
            "partly": lack.partly or None,
            "records": counts[lack],
        }
