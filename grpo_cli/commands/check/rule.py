"""What a rule is, and what it finds. Everything but its function is a row of ``relations.json``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypeVar

Severity = Literal["error", "warning", "info"]
Scope = Literal["record", "pair", "input"]

ORDER: tuple[Severity, ...] = ("error", "warning", "info")


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
class Topic:
    """What rules of one kind need, and what is said where records lack it.

    Attributes:
        topic: what is skipped, in words; empty for rules that need nothing.
        needs: fields that records must have besides those that a rule judges: ``a|b`` is either.
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
        holds: what is true of a correct dump.
        breaks: what is wrong where it is not, in one sentence.
        topic: what it needs.
        explains: whether the log-probs of a record are not compared after such a finding, unless
            it is an info.
        suppressible: whether its findings are dropped if an earlier rule explains the record.
        rank: rules run from the lowest rank to the highest; causes come before what they explain.
        find: yields findings. That of the scope "input" is called by the memory of all records.
    """

    code: str
    scope: Scope
    severities: tuple[Severity, ...]
    columns: tuple[str, ...]
    holds: str
    breaks: str
    topic: Topic
    rank: int
    find: Callable[..., Iterable[Finding]]
    explains: bool = False
    suppressible: bool = False


@cache
def relations() -> Mapping[str, Any]:
    """Returns ``relations.json``: columns, relations, topics, and why other columns have none."""
    text = files(__package__).joinpath("relations.json").read_text(encoding="utf-8")
    found: Mapping[str, Any] = json.loads(text)
    return found


FUNCTIONS: dict[tuple[str, str], Callable[..., Iterable[Finding]]] = {}
"""(code, scope) → the function of a rule; ``rules.table()`` imports all of them."""

Find = TypeVar("Find", bound=Callable[..., Iterable[Finding]])


def rule(code: str, scope: Scope = "record") -> Callable[[Find], Find]:
    """Declares the function below as that of a rule in ``relations.json``."""

    def declare(find: Find) -> Find:
        FUNCTIONS[code, scope] = find
        return find

    return declare
