"""Findings in their places: kept up to a limit, counted, and merged from pieces of the input."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from grpo_cli.commands.check import answer
from grpo_cli.commands.check.record_view import Place
from grpo_cli.commands.check.rule import Finding, Rule

Key = tuple[int, int, int, int]

_PAIRS = 1000
"""Added to the ranks of rules on pairs of columns, which come after the others."""


@dataclass(frozen=True)
class Row:
    """A finding in its place; ``key`` orders it: source, record, rule, response."""

    key: Key
    code: str
    finding: Finding
    place: Place

    @property
    def answer(self) -> answer.Finding:
        """The finding as the answer has it."""
        finding, place = self.finding, self.place
        return answer.Finding(
            code=self.code,
            severity=finding.severity,
            record=place.name,
            response=finding.response,
            token=finding.token,
            source=place.source,
            line=place.line,
            message=finding.message,
            evidence=dict(finding.evidence),
            advice=finding.advice,
        )


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
        self.counts[rule.code, finding.severity] += 1
        response = -1 if finding.response is None else finding.response
        rank = rule.rank + (_PAIRS if rule.scope == "pair" else 0)
        self._keep(
            rule.code, [Row((source, place.number, rank, response), rule.code, finding, place)]
        )

    def merge(self, other: Findings, source: int) -> None:
        """Adds the findings of a piece of a source."""
        self.counts += other.counts
        for code, rows in other.kept.items():
            self._keep(code, [replace(row, key=(source, *row.key[1:])) for row in rows])

    def _keep(self, code: str, rows: list[Row]) -> None:
        kept = self.kept.setdefault(code, [])
        in_order = not kept or kept[-1].key <= rows[0].key
        if in_order and self.limit and len(kept) >= self.limit:
            return
        kept += rows
        if not in_order:
            kept.sort(key=lambda row: row.key)
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
        return tuple(row.answer for row in sorted(every, key=lambda row: row.key))

    @property
    def codes(self) -> Counter[str]:
        """Code → number of findings."""
        return self._count(0)

    @property
    def severities(self) -> Counter[str]:
        """Severity → number of findings."""
        return self._count(1)

    def _count(self, part: int) -> Counter[str]:
        found: Counter[str] = Counter()
        for key, count in self.counts.items():
            found[key[part]] += count
        return found

    @property
    def more(self) -> dict[str, int]:
        """Code → number of findings that are not kept."""
        if not self.limit:
            return {}
        return {code: n - self.limit for code, n in self.codes.items() if n > self.limit}
