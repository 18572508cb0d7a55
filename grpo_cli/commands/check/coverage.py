"""What could not be looked at, since records lack what rules say that they need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from grpo_cli.commands.check.record_view import View
from grpo_cli.commands.check.rule import Rule
from grpo_cli.records.fields import read_fields
from grpo_cli.records.parse.settings import read_settings


class Lack(NamedTuple):
    """What is not looked at: in words, the part that still is, and what is missing, ``a|b``."""

    about: str
    partly: str
    missing: tuple[str, ...]


def missing(rule: Rule, view: View) -> tuple[str, ...]:
    """The columns that the rule needs and the records of a view lack."""
    return tuple(need for need in rule.needs if not any(map(view.tells, need.split("|"))))


def lacks(rules: Sequence[Rule], view: View) -> Counter[Lack]:
    """How many records of the view lack what a family of rules needs."""
    found: dict[Lack, int] = {}
    for rule in rules:
        without, count = missing(rule, view), len(view.counts)
        if rule.beside:
            bare = sum(_bare(rule.beside, value) for value in view.values)
            found[Lack(rule.about, "", (*without, rule.beside))] = bare
            count -= bare
        found[Lack(rule.about, "", without)] = count
        if rule.better:
            found[Lack(rule.about, rule.partly, (rule.better,))] = _worse(rule.better, view)
    return Counter({lack: count for lack, count in found.items() if lack.missing and count})


def _bare(names: str, value: Mapping[str, Any]) -> bool:
    return all(value.get(name) is None for name in names.split("|"))


def _worse(better: str, view: View) -> int:
    """The records that have none of these, the first of which is a setting."""
    setting, _, others = better.partition("|")
    fields = read_fields(view.values[0])
    known = fields.hyperparameters or "hyperparameters" in fields.names
    return sum(
        not (known and setting in read_settings(value, fields)) and _bare(others, value)
        for value in view.values
    )


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
