"""Findings in their places: kept up to a limit, counted, and merged from pieces of the input."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter
from typing import Any

from grpo_cli.commands.check import answer
from grpo_cli.commands.check.record_view import Place
from grpo_cli.commands.check.rule import Finding, Rule, plain

Key = tuple[int, int, int, int, int]
"""What orders findings: source, record, rule, response, and the order in which they came."""
Row = tuple[Key, answer.Finding]


@dataclass
class Findings:
    """The first findings of each kind in full, and the number of all.

    Attributes:
        limit: how many of each code are shown; 0 for all.
        kept: (code, kind) → those that are kept, as many as are shown of a code.
        counts: (code, kind, severity) → how many.
        added: how many were added here.
    """

    limit: int
    kept: dict[tuple[str, str], list[Row]] = field(default_factory=dict)
    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    added: int = 0

    def add(self, rule: Rule, finding: Finding, place: Place, source: int = 0) -> None:
        """Adds a rule's finding in a record of a source."""
        severity = rule.severity(finding)
        self.counts[rule.code, finding.kind, severity] += 1
        response = -1 if finding.response is None else finding.response

        def make() -> answer.Finding:
            message, advice = rule.describe(finding)
            where = (place.name, finding.response, finding.token, place.source, place.line)
            return answer.Finding(
                rule.code, severity, *where, message, plain(finding.evidence), advice
            )

        self.added += 1
        key = (source, place.number, rule.rank, response, self.added)
        self._keep((rule.code, finding.kind), key, make)

    def merge(self, other: Findings, source: int) -> None:
        """Adds the findings of a piece of a source."""
        self.counts += other.counts
        for kind, rows in other.kept.items():
            for key, row in rows:
                self._keep(kind, (source, *key[1:]), lambda: row)  # noqa: B023 - called at once

    def _keep(self, kind: tuple[str, str], key: Key, make: Callable[[], answer.Finding]) -> None:
        kept = self.kept.setdefault(kind, [])
        if self.limit and len(kept) >= self.limit and kept[-1][0] <= key:
            return
        insort(kept, (key, make()), key=itemgetter(0))
        if self.limit:
            del kept[self.limit :]

    def drop(self, code: str, kind: str = "") -> None:
        """Removes the findings of a code's kind."""
        self.kept.pop((code, kind), None)
        for key in [key for key in self.counts if key[:2] == (code, kind)]:
            del self.counts[key]

    @property
    def rows(self) -> tuple[answer.Finding, ...]:
        """The first findings of each code, in the order of the records."""
        every = sorted(chain.from_iterable(self.kept.values()), key=itemgetter(0))
        seen: Counter[str] = Counter()
        found = []
        for _, row in every:
            seen[row.code] += 1
            if not self.limit or seen[row.code] <= self.limit:
                found.append(row)
        return tuple(found)

    def count_by(self, *parts: int) -> Counter[Any]:
        """Returns the number of findings by code (0), kind (1), severity (2), or several."""
        found: Counter[Any] = Counter()
        for key, count in self.counts.items():
            found[tuple(key[part] for part in parts) if parts[1:] else key[parts[0]]] += count
        return found
