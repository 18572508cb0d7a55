"""Streams the records of files past the rules, in flat memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from grpo_cli.commands.check.duplicates import Seen
from grpo_cli.commands.check.finding import Finding
from grpo_cli.commands.check.groups import uneven
from grpo_cli.commands.check.record_view import View
from grpo_cli.commands.check.rules import EXPLAINED, compare, look
from grpo_cli.records import Raw, Record

_SAMPLE = 48
"""Tokens below which a record is compared together with those after it."""


@dataclass
class Findings:
    """What was found so far: the first few of each code in full, all of them by number.

    Attributes:
        limit: how many of each code are kept; 0 for all.
        rows: those that are kept, as JSON, in the order in which they were found.
        counts: code → how many.
        severities: severity → how many.
        records, responses, tokens: what was looked at.
    """

    limit: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    severities: Counter[str] = field(default_factory=Counter)
    records: int = 0
    responses: int = 0
    tokens: int = 0

    def add(self, one: Finding, place: Record) -> None:
        """Adds a finding in a record."""
        self.counts[one.code] += 1
        self.severities[one.severity] += 1
        if not self.limit or self.counts[one.code] <= self.limit:
            self.rows.append(
                {
                    "code": one.code,
                    "severity": one.severity,
                    "record": place.name,
                    "response": one.response,
                    "token": one.token,
                    "source": place.source,
                    "line": place.line,
                    "message": one.message,
                    "evidence": dict(one.evidence),
                    "advice": one.advice,
                }
            )

    @property
    def more(self) -> dict[str, int]:
        """How many of each code are not kept."""
        if not self.limit:
            return {}
        return {code: n - self.limit for code, n in self.counts.items() if n > self.limit}


def check(records: Iterable[tuple[Raw, Record]], findings: Findings) -> None:
    """Asks the rules of every record.

    Raises:
        InputError: at the first record that cannot be read, unless it is to be skipped.
    """
    stream = _Stream(findings)
    for raw, record in records:
        stream.take(raw, record)
    stream.end()


class _Stream:
    """What has to be remembered from one record to the next."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._seen = Seen()
        self._sizes: dict[int, Record] = {}
        self._counts: Counter[int] = Counter()
        self._waiting: list[tuple[Raw, Record]] = []
        self._uneven = False

    def take(self, raw: Raw, one: Record) -> None:
        view = View([one], [raw])
        self._count(view)
        found = [*look(view)]
        found += self._seen.rows(view, str(one.name))
        found += self._seen.groups(view, str(one.name))
        for finding in found:
            self._findings.add(finding, one)
            self._uneven |= finding.code == "uneven-groups"
        self._remember_sizes(view)
        if not EXPLAINED & {finding.code for finding in found}:
            self._sample(raw, one)

    def _count(self, view: View) -> None:
        self._findings.records += 1
        self._findings.responses += view.responses.count
        self._findings.tokens += view.responses.total

    def _sample(self, raw: Raw, one: Record) -> None:
        if self._waiting and tuple(self._waiting[0][1].columns) != tuple(one.columns):
            self._flush()
        self._waiting.append((raw, one))
        if sum(sum(waiting.widths) for _, waiting in self._waiting) >= _SAMPLE:
            self._flush()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        raws, records = zip(*waiting, strict=True)
        for finding in compare(View(records, raws)):
            at = finding.record
            if len(records) > 1:
                together = {**finding.evidence, "records": len(records)}
                finding = replace(finding, evidence=together)
            self._findings.add(finding, records[at])

    def _remember_sizes(self, view: View) -> None:
        one = view.records[0]
        sizes = {len(members) for members in view.groups} - {1}
        if len(sizes) == 1:
            (size,) = sizes
            self._counts[size] += len(view.groups)
            self._sizes.setdefault(size, one)

    def end(self) -> None:
        self._flush()
        if len(self._counts) > 1 and not self._uneven:
            odd, _ = min(self._counts.items(), key=lambda item: item[1])
            self._findings.add(uneven(self._counts), self._sizes[odd])
