"""Which topics of rules were skipped, for how many records, and which fields were missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from grpo_cli.commands.check.answer import NotChecked
from grpo_cli.commands.check.record_view import View
from grpo_cli.commands.check.rule import Topic, table, topics

FEWER_THAN = "fewer than "
"""Begins what an input has too few of, in the place of a field."""


class SkippedRules(NamedTuple):
    """Rules that are skipped together, and why.

    Attributes:
        topic: what they look for, in words.
        fallback: the part that they still find; empty if they find nothing.
        missing: the fields that records lack; ``a|b`` is either.
    """

    topic: str
    fallback: str
    missing: tuple[str, ...]


def missing_needs(topic: Topic, view: View) -> tuple[str, ...]:
    """Returns the fields that rules of a topic need and that the records of a view lack."""
    return tuple(need for need in topic.needs if not any(map(view.has_field, need.split("|"))))


def count_skipped(view: View) -> Counter[SkippedRules]:
    """Counts the records of a view for which rules are skipped, by what they lack."""
    found: Counter[SkippedRules] = Counter()
    for topic in topics():
        missing, count = missing_needs(topic, view), len(view.counts)
        if topic.needs_key:
            bare = sum(_lacks_all(topic.needs_key, value) for value in view.values)
            found[SkippedRules(topic.topic, "", (*missing, topic.needs_key))] = bare
            count -= bare
        if missing:
            found[SkippedRules(topic.topic, "", missing)] = count
        if wanted := topic.full_coverage_needs:
            partly = SkippedRules(topic.topic, topic.fallback, (wanted,))
            found[partly] = _count_partly(wanted, view)
    return +found


def count_short(
    skipped: Counter[SkippedRules], found: Iterable[str], records: int, tokens: int
) -> Counter[SkippedRules]:
    """Counts the records of an input of too few tokens for rules that lack nothing else.

    Not where a rule of the topic found something: it needs fewer tokens than the others.
    """
    lacking = {one.topic for one in skipped if not one.fallback and skipped[one] == records}
    lacking |= {rule.topic.topic for rule in table() if rule.code in {*found}}
    return Counter(
        {
            SkippedRules(topic.topic, "", (f"{FEWER_THAN}{topic.least_tokens} tokens",)): records
            for topic in topics()
            if 0 < tokens < topic.least_tokens and topic.topic not in lacking
        }
    )


def _lacks_all(names: str, value: Mapping[str, Any]) -> bool:
    keys = names.split("|")
    return value.keys().isdisjoint(keys) or all(value.get(key) is None for key in keys)


def _count_partly(needs: str, view: View) -> int:
    """Counts the records without the setting, the first name of ``needs``, and without the keys."""
    setting, _, keys = needs.partition("|")
    return sum(
        setting not in settings and _lacks_all(keys, value)
        for settings, value in zip(view.packed.settings, view.values, strict=True)
    )


def not_checked(counts: Mapping[SkippedRules, int]) -> tuple[NotChecked, ...]:
    """Returns the skipped rules as the answer has them, in the order of the topics."""
    order = [topic.topic for topic in topics()]
    codes = {name: [rule.code for rule in table() if rule.topic.topic == name] for name in order}
    return tuple(
        NotChecked(
            about=skipped.topic,
            codes=tuple(dict.fromkeys(codes[skipped.topic])),
            missing=tuple(tuple(need.split("|")) for need in skipped.missing),
            partly=skipped.fallback or None,
            records=counts[skipped],
        )
        for skipped in sorted(counts, key=lambda item: (order.index(item.topic), item.missing))
    )
