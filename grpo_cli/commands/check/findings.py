"""What is found in a piece of the input, and how pieces become one answer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from grpo_cli.commands.check.record_view import Place
from grpo_cli.commands.check.rule import Finding, Rule

Key = tuple[int, int, int, int]

_PAIRS = 1000
"""Rules on pairs of columns come after the others."""


@dataclass(frozen=True)
class Row:
    """A finding in its place; ``key`` orders it: source, record, rule, response."""

    key: Key
    code: str
    finding: Finding
    place: Place

    def as_json(self) -> dict[str, Any]:
        """The finding as reports have it."""
        finding, place = self.finding, self.place
        return {
            "code": self.code,
            "severity": finding.severity,
            "record": place.name,
            "response": finding.response,
            "token": finding.token,
            "source": place.source,
            "line": place.line,
            "message": finding.message,
            "evidence": dict(finding.evidence),
            "advice": finding.advice,
        }


@dataclass
class Findings:
    """What was found so far: the first few of each code in full, all of them by number.

    Attributes:
        limit: how many of each code are kept; 0 for all.
        kept: those that are kept, by code.
        counts: (code, severity) → how many.
    """

    limit: int
    kept: dict[str, list[Row]] = field(default_factory=dict)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, rule: Rule, finding: Finding, place: Place, source: int = 0) -> None:
        """Adds what a rule found in a record."""
        self.counts[rule.code, finding.severity] += 1
        response = -1 if finding.response is None else finding.response
        rows = self.kept.setdefault(rule.code, [])
        key = (source, place.number, rule.rank + (_PAIRS if rule.pairs else 0), response)
        if self.limit and len(rows) >= self.limit and rows[-1].key <= key:
            return
        rows.append(Row(key, rule.code, finding, place))
        self._cut(rule.code)

    def _cut(self, code: str) -> None:
        rows = self.kept[code]
        if len(rows) > 1 and rows[-1].key < rows[-2].key:
            rows.sort(key=lambda row: row.key)
        if self.limit:
            del rows[self.limit :]

    def merge(self, other: Findings, source: int) -> None:
        """Adds the findings of a piece of a source."""
        self.counts += other.counts
        for code, rows in other.kept.items():
            mine = self.kept.setdefault(code, [])
            mine += [Row((source, *row.key[1:]), code, row.finding, row.place) for row in rows]
            mine.sort(key=lambda row: row.key)
            if self.limit:
                del mine[self.limit :]

    def drop(self, code: str) -> None:
        """Takes the findings of a code back."""
        self.kept.pop(code, None)
        for key in [key for key in self.counts if key[0] == code]:
            del self.counts[key]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Those that are kept, as JSON, in the order of the records."""
        every = [row for rows in self.kept.values() for row in rows]
        return [row.as_json() for row in sorted(every, key=lambda row: row.key)]

    @property
    def codes(self) -> Counter[str]:
        """Code → how many."""
        found: Counter[str] = Counter()
        for (code, _), count in self.counts.items():
            found[code] += count
        return found

    @property
    def severities(self) -> Counter[str]:
        """Severity → how many."""
        found: Counter[str] = Counter()
        for (_, severity), count in self.counts.items():
            found[severity] += count
        return found

    @property
    def more(self) -> dict[str, int]:
        """How many of each code are not kept."""
        if not self.limit:
            return {}
        return {code: n - self.limit for code, n in self.codes.items() if n > self.limit}
