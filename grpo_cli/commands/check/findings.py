"""Findings in their places: kept up to a limit, counted, and merged from pieces of the input."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter

from grpo_cli.commands.check import answer
from grpo_cli.commands.check.record_view import Place
from grpo_cli.commands.check.rule import Finding, Rule, plain

Key = tuple[int, int, int, int]
"""What orders findings: source, record, rule, response."""
Row = tuple[Key, answer.Finding]


@dataclass
class Findings:
    """The first findings of each code in full, and the number of all.

    Attributes:
        limit: how many of each code are kept; 0 for all.
        kept: those that are kept, by code.
        counts: (code, severity) → how many.
    """

    limit: int
    kept: dict[str, list[Row]] = field(default_factory=dict)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, rule: Rule, finding: Finding, place: Place, source: int = 0) -> None:
        """Adds a rule's finding in a record of a source."""
        severity = rule.severity(finding)
        self.counts[rule.code, severity] += 1
        response = -1 if finding.response is None else finding.response

        def make() -> answer.Finding:
            message, advice = rule.describe(finding)
            where = (place.name, finding.response, finding.token, place.source, place.line)
            return answer.Finding(
                rule.code, severity, *where, message, plain(finding.evidence), advice
            )

        self._keep(rule.code, (source, place.number, rule.rank, response), make)

    def merge(self, other: Findings, source: int) -> None:
        """Adds the findings of a piece of a source."""
        self.counts += other.counts
        for code, rows in other.kept.items():
            for key, row in rows:
                self._keep(code, (source, *key[1:]), lambda: row)  # noqa: B023 - called at once

    def _keep(self, code: str, key: Key, make: Callable[[], answer.Finding]) -> None:
        kept = self.kept.setdefault(code, [])
        if self.limit and len(kept) >= self.limit and kept[-1][0] <= key:
            return
        insort(kept, (key, make()), key=itemgetter(0))
        if self.limit:
            del kept[self.limit :]

    def drop(self, code: str) -> None:
        """Removes the findings of a code."""
        self.kept.pop(code, None)
        for key in [key for key in self.counts if key[0] == code]:
            del self.counts[key]

    @property
    def rows(self) -> tuple[answer.Finding, ...]:
        """The findings that are kept, in the order of the records."""
        every = [row for rows in self.kept.values() for row in rows]
        return tuple(finding for _, finding in sorted(every, key=lambda row: row[0]))

    def count_by(self, part: int) -> Counter[str]:
        """Returns the number of findings by code (0) or by severity (1)."""
        found: Counter[str] = Counter()
        for key, count in self.counts.items():
            found[key[part]] += count
        return found
