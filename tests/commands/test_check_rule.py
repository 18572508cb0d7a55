"""The table of relations is whole: each pair of columns has a rule, or a reason why it has none."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, combinations_with_replacement

from grpo_cli.commands.check.rule import FUNCTIONS, ORDER, relations, sentences, table

GIVEN = relations()
COLUMNS = [*GIVEN["columns"]]
LOG_PROBS = [name for name in COLUMNS if name.startswith("log_probs_")]


def spread(words: str) -> list[str]:
    """The columns of a list in which ``log_probs`` is each of the four."""
    found = []
    for word in words.split():
        found += LOG_PROBS if word == "log_probs" else [word]
    assert {*found} <= {*COLUMNS}, words
    return found


def pair(one: str, other: str) -> tuple[str, ...]:
    return tuple(sorted((one, other), key=COLUMNS.index))


def related(words: str) -> set[tuple[str, ...]]:
    """The pairs that a rule tests: a single column with itself, several each with each other."""
    parts = [spread(word) for word in words.split()]
    if len(parts) == 1:
        return {(one, one) for one in parts[0]}
    every = ((a, b) for one, two in combinations(parts, 2) for a in one for b in two)
    return {pair(a, b) for a, b in every if a != b}


def test_every_pair_of_columns_has_a_relation_or_a_reason():
    tested = {one for rule in table() for words in rule.columns for one in related(words)}
    reasons: Counter[tuple[str, ...]] = Counter()
    for row in GIVEN["no_relation"]:
        pairs = {pair(a, b) for a in spread(row["columns"]) for b in spread(row["with"])}
        new = pairs - tested - {*reasons}
        assert new, f"a reason that no pair needs: {row}"
        reasons.update(new)
    every = {*combinations_with_replacement(COLUMNS, 2)}
    missing = every - tested - {*reasons}
    assert not missing, sorted(missing)


def test_every_relation_is_whole_and_has_a_function():
    """A row without a function is an error where the table is read; here is the other side."""
    assert len(table()) == len(FUNCTIONS) == len({(rule.code, rule.scope) for rule in table()})
    meanings: dict[str, str] = {}
    for rule in table():
        assert rule.columns, rule.code
        assert rule.holds, rule.code
        assert rule.breaks.endswith("."), rule.code
        assert {*rule.severities} <= {*ORDER}, rule.code
        mine = [one for name, one in sentences().items() if name.partition(".")[0] == rule.code]
        assert {one.severity for one in mine} <= {*ORDER, None}, rule.code
        assert meanings.setdefault(rule.code, rule.breaks) == rule.breaks, rule.code
    assert {*meanings} == {name.partition(".")[0] for name in sentences()}
    scopes = [rule.scope for rule in table()]
    assert scopes == sorted(scopes, key=["record", "input", "pair"].index)


def test_every_topic_names_what_it_needs():
    for topic in {rule.topic for rule in table() if rule.topic.topic}:
        assert topic.needs or topic.full_coverage_needs, topic
        assert bool(topic.full_coverage_needs) == bool(topic.fallback), topic
