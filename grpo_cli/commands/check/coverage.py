"""Which rules were skipped, for how many records, and which fields were missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from grpo_cli.commands.check.answer import NotChecked
from grpo_cli.commands.check.record_view import View
from grpo_cli.commands.check.rule import Rule

FEWER_THAN = "fewer than "
"""Begins what an input has too few of, in the place of a field."""


class SkippedRules(NamedTuple):
    """Rules that are skipped together, and why.

    Attributes:
        about: what they look for, in words.
        fallback: the part that they still find; empty if they find nothing.
        missing: the fields that records lack; ``a|b`` is either.
    """

    about: str
    fallback: str
    missing: tuple[str, ...]


def missing_needs(rule: Rule, view: View) -> tuple[str, ...]:
    """Returns the fields that the rule needs and that the records of a view lack."""
    return tuple(need for need in rule.needs if not any(map(view.has_field, need.split("|"))))


def count_skipped(rules: Sequence[Rule], view: View) -> Counter[SkippedRules]:
    """Counts the records of a view for which rules are skipped, by what they lack."""
    found: dict[SkippedRules, int] = {}
    for rule in rules:
        missing, count = missing_needs(rule, view), len(view.counts)
        if rule.needs_key:
            bare = sum(_lacks_all(rule.needs_key, value) for value in view.values)
            found[SkippedRules(rule.about, "", (*missing, rule.needs_key))] = bare
            count -= bare
        found[SkippedRules(rule.about, "", missing)] = count
        if wanted := rule.full_coverage_needs:
            found[SkippedRules(rule.about, rule.fallback, (wanted,))] = _count_partly(wanted, view)
    return Counter(
        {skipped: count for skipped, count in found.items() if skipped.missing and count}
    )


def count_short(
    rules: Sequence[Rule],
    skipped: Counter[SkippedRules],
    found: Iterable[str],
    records: int,
    tokens: int,
) -> Counter[SkippedRules]:
    """Counts the records of an input of too few tokens for rules that lack nothing else.

    Not where a rule of the topic found something: it needs fewer tokens than the others.
    """
    lacking = {one.about for one in skipped if not one.fallback and skipped[one] == records}
    lacking |= {rule.about for rule in rules if rule.code in {*found}}
    return Counter(
        {
            SkippedRules(rule.about, "", (f"{FEWER_THAN}{rule.least_tokens} tokens",)): records
            for rule in rules
            if 0 < tokens < rule.least_tokens and rule.about not in lacking
        }
    )


def _lacks_all(names: str, value: Mapping[str, Any]) -> bool:
    return all(value.get(name) is None for name in names.split("|"))


def _count_partly(needs: str, view: View) -> int:
    """Counts the records without the setting, the first name of ``needs``, and without the keys."""
    setting, _, keys = needs.partition("|")
    return sum(
        setting not in settings and _lacks_all(keys, value)
        for settings, value in zip(view.packed.settings, view.values, strict=True)
    )


def not_checked(
    rules: Sequence[Rule], counts: Mapping[SkippedRules, int]
) -> tuple[NotChecked, ...]:
    """Returns the skipped rules as the answer has them, in the order in which rules run."""
    codes: dict[str, list[str]] = {}
    for rule in rules:
        if rule.about:
            codes.setdefault(rule.about, []).append(rule.code)
    order = [*codes]
    return tuple(
        NotChecked(
            about=skipped.about,
            codes=tuple(dict.fromkeys(codes[skipped.about])),
            missing=tuple(tuple(need.split("|")) for need in skipped.missing),
            partly=skipped.fallback or None,
            records=counts[skipped],
        )
        for skipped in sorted(counts, key=lambda item: (order.index(item.about), item.missing))
    )
