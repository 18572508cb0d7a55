"""What a rule is, and what it finds: a function, a row of ``relations.json``, and sentences."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.resources import files
from pkgutil import iter_modules
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from grpo_cli.commands.check.tokens import Place

Severity = Literal["error", "warning", "info"]
Scope = Literal["record", "pair", "input"]

ORDER: tuple[Severity, ...] = ("error", "warning", "info")


@dataclass(frozen=True)
class Finding:
    """One fault, or one fact worth knowing.

    Attributes:
        evidence: the numbers that it rests on, by the names that its sentence has for them.
        record: the index of the record in its view.
        response, token: its index in the record, and the token's index in the response as written.
        kind: which of its code's sentences it has, where there are several.
        severity: "error" makes the numbers wrong, "warning" makes them doubtful, "info" explains;
            None is that of the sentence, or else the rule's first.
        words: what the sentence reads in addition to the evidence.
        by_training: whether an update may lead to it in a single small record.
    """

    evidence: Mapping[str, Any]
    record: int = 0
    response: int | None = None
    token: int | None = None
    kind: str = ""
    severity: Severity | None = None
    words: Mapping[str, Any] = field(default_factory=dict)
    by_training: bool = False


Placed = tuple[Finding, Place]
"""What is found in all of the input, and where."""


class Sentence(NamedTuple):
    """What a finding says, with names of evidence and words in braces, and what to do about it."""

    message: str
    advice: str
    severity: Severity | None = None


@dataclass(frozen=True)
class Topic:
    """What rules of one kind need, and the notice where records lack it.

    Attributes:
        topic: what is skipped, in words; empty for rules that need nothing.
        needs: further fields that records must have, not those that a rule judges: ``a|b`` is
            either.
        needs_key: one of these keys, which no objective reads, must be there too: ``a|b``.
        full_coverage_needs: a setting, or else keys (``a|b``), without which only a part is seen.
        fallback: which part.
        least_tokens: how many tokens the input must have for the rules that need many.
    """

    topic: str = ""
    needs: tuple[str, ...] = ()
    needs_key: str = ""
    full_coverage_needs: str = ""
    fallback: str = ""
    least_tokens: int = 0


@dataclass(frozen=True)
class Rule:
    """One relation between columns that holds in a correct dump, and the function that tests it.

    Attributes:
        code: the name of its findings.
        scope: what ``find`` sees: a view of records, a pair of columns of log-probs, or all of the
            input. After the first finding in a sample the other rules on pairs are skipped there.
        severities: the severities that its findings can have, the usual one first.
        columns: the columns that are related, each with each other; a single one with itself.
        breaks: what is wrong where it does not hold, in one sentence.
        topic: what it needs.
        explains: whether the log-probs of a record are not compared after such a finding, unless
            it is an info.
        suppressible: whether its findings are dropped if an earlier rule explains the record; a
            rule on the values of the log-probs alone explains what is related to them.
        against: of a rule on pairs, the second columns that it judges; empty: all.
        rank: rules run from the lowest rank to the highest; causes come before what they explain.
        find: yields findings. That of the scope "input" is called by the memory of all records, and
            may yield each with its place.
    """

    code: str
    scope: Scope
    severities: tuple[Severity, ...]
    columns: tuple[str, ...]
    breaks: str
    topic: Topic
    rank: int
    find: Callable[..., Iterable[Any]]
    against: tuple[str, ...] = ()
    explains: bool = False
    suppressible: bool = False

    def sentence(self, finding: Finding) -> Sentence:
        """Returns the sentence of a finding as it is in the table."""
        return sentences()[f"{self.code}.{finding.kind}" if finding.kind else self.code]

    def severity(self, finding: Finding) -> Severity:
        """Returns how severe a finding is."""
        return finding.severity or self.sentence(finding).severity or self.severities[0]

    def describe(self, finding: Finding) -> tuple[str, str]:
        """Returns what was found, and what to do about it."""
        values = plain({**finding.evidence, **finding.words})
        sentence = self.sentence(finding)
        return sentence.message.format(**values), sentence.advice.format(**values)


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values with Python's numbers instead of numpy's."""
    return {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in values.items()
    }


def _load(name: str) -> Any:
    return json.loads(files(__package__).joinpath(name).read_text(encoding="utf-8"))


@cache
def sentences() -> Mapping[str, Sentence]:
    """Returns ``sentences.json``: the sentence of each code, or of each ``code.kind``."""
    return {name: Sentence(**row) for name, row in _load("sentences.json").items()}


FUNCTIONS: dict[tuple[str, str], Callable[..., Iterable[Any]]] = {}
"""(code, scope) → the function of a rule; ``table()`` imports all of them."""

Find = TypeVar("Find", bound=Callable[..., Iterable[Any]])


def rule(code: str, scope: Scope = "record") -> Callable[[Find], Find]:
    """Declares the function below as that of a rule in ``relations.json``."""

    def declare(find: Find) -> Find:
        FUNCTIONS[code, scope] = find
        return find

    return declare


@cache
def relations() -> Mapping[str, Any]:
    """Returns ``relations.json``: topics and relations."""
    found: Mapping[str, Any] = _load("relations.json")
    return found


@cache
def table() -> tuple[Rule, ...]:
    """Returns every rule in the order in which they run."""
    rooms = import_module(f"{__package__}.rules")
    for module in iter_modules(rooms.__path__):
        import_module(f"{rooms.__name__}.{module.name}")
    given = relations()
    named = {row["topic"]: Topic(**_with_tuples(row)) for row in given["topics"]}
    found = []
    for rank, row in enumerate(given["relations"]):
        topic = named[row["topic"]] if "topic" in row else Topic()
        find = FUNCTIONS[row["code"], row["scope"]]
        found.append(Rule(**_with_tuples(row) | {"topic": topic, "rank": rank, "find": find}))
    if unlisted := FUNCTIONS.keys() - {(one.code, one.scope) for one in found}:
        raise ValueError(f"rules without a row in relations.json: {sorted(unlisted)}")
    return tuple(found)


def _with_tuples(row: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}


@cache
def topics() -> tuple[Topic, ...]:
    """Returns the topics of the rules, in the order in which skipped ones are listed."""
    return tuple(dict.fromkeys(rule.topic for rule in table() if rule.topic.topic))


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
