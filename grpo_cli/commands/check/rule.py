"""What a rule is, what it finds, and how it is declared: by a decorator above its function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from grpo_cli.records.fields import ALIASES

Severity = Literal["error", "warning", "info"]
Scope = Literal["record", "pair", "input"]

ORDER: tuple[Severity, ...] = ("error", "warning", "info")
SCOPES: tuple[Scope, ...] = ("record", "pair", "input")


@dataclass(frozen=True)
class Finding:
    """One fault, or one fact worth knowing.

    Attributes:
        message: what was found, in words.
        advice: what to do about it.
        evidence: the numbers that it rests on.
        record: the index of the record in its view.
        response, token: its index in the record, and the token's index in the response as written.
        severity: "error" makes the numbers wrong, "warning" makes them doubtful, "info" explains;
            None is the rule's first.
    """

    message: str
    advice: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    record: int = 0
    response: int | None = None
    token: int | None = None
    severity: Severity | None = None


@dataclass(frozen=True)
class Rule:
    """One declared rule. A declaration that contradicts itself is a ValueError.

    Attributes:
        code: the name of its findings.
        severities: the severities that its findings can have, the usual one first.
        meaning: what is wrong, in one sentence.
        rank: rules run from the lowest rank to the highest; causes come before what they explain.
        find: yields findings in a view of records (scope "record") or in a pair of columns
            ("pair"). The function of a scope "input" is called by the memory of all records.
        scope: what ``find`` sees. After the first finding in a sample the other rules on pairs
            are skipped there.
        explains: whether the log-probs of a record are not compared after such a finding, unless
            it is an info.
        suppressible: whether its findings are dropped if an earlier rule explains the record.
        about: what is skipped for records that lack what the rule needs, in words.
        needs: fields that records must have besides those that it judges: ``a|b`` is either.
        needs_key: one of these keys, which no objective reads, must be there too: ``a|b``.
        full_coverage_needs: a setting, or else keys (``a|b``), without which it sees only a part.
        fallback: which part.
        least_tokens: how many tokens the input must have for any rule of the topic that needs many.
    """

    code: str
    severities: tuple[Severity, ...]
    meaning: str
    rank: int
    find: Callable[..., Iterable[Finding]]
    scope: Scope = "record"
    explains: bool = False
    suppressible: bool = False
    about: str = ""
    needs: tuple[str, ...] = ()
    needs_key: str = ""
    full_coverage_needs: str = ""
    fallback: str = ""
    least_tokens: int = 0

    def __post_init__(self) -> None:
        for fault in _contradictions(self):
            raise ValueError(f"rule {self.code!r}: {fault}")


def _contradictions(rule: Rule) -> Iterable[str]:
    """Yields what is wrong with a declaration."""
    for severity in rule.severities:
        if severity not in ORDER:
            yield f"severity {severity!r}: expected {', '.join(ORDER)}"
    if rule.scope not in SCOPES:
        yield f"scope {rule.scope!r}: expected {', '.join(SCOPES)}"
    wants = (rule.needs, rule.needs_key, rule.full_coverage_needs, rule.least_tokens)
    if not rule.about and any(wants):
        yield "it has needs but no about: name the check that is skipped without them"
    if bool(rule.full_coverage_needs) != bool(rule.fallback):
        yield "full_coverage_needs and fallback must be given together"
    for name in "|".join(rule.needs).split("|") if rule.needs else ():
        if name not in ALIASES:
            yield f"it needs {name!r}, which is not a field of records (records/fields.py)"


DECLARED: dict[tuple[str, Scope], Rule] = {}
"""Every rule that was declared so far; ``rules.table()`` imports all of them."""

Find = TypeVar("Find", bound=Callable[..., Iterable[Finding]])


def rule(
    code: str, severity: str, meaning: str, *, rank: int, scope: Scope = "record", **details: Any
) -> Callable[[Find], Find]:
    """Declares the function below as a rule.

    A code is declared once, or once for records and once for pairs with the same meaning.

    Args:
        code, meaning, rank, scope: as of ``Rule``.
        severity: its severities, the usual one first: ``error|warning``.
        details: the other attributes of ``Rule``.

    Raises:
        ValueError: if the code is taken, or the declaration contradicts itself.
    """

    def declare(find: Find) -> Find:
        severities: Any = tuple(severity.split("|"))
        new = Rule(code, severities, meaning, rank, find, scope, **details)
        for known in DECLARED.values():
            if known.code == code and (known.scope == scope or known.meaning != meaning):
                raise ValueError(f"rule {code!r} is already declared in {known.find.__module__}")
        DECLARED[code, scope] = new
        return find

    return declare
