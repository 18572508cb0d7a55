"""Asks the rules of every record of the files, by pieces, and puts the answers together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grpo_cli.commands.check import coverage, denominators
from grpo_cli.commands.check.coverage import Lack, lacks, missing
from grpo_cli.commands.check.denominators import Named, tally
from grpo_cli.commands.check.findings import Findings
from grpo_cli.commands.check.packed import views
from grpo_cli.commands.check.record_view import Place, View
from grpo_cli.commands.check.rule import ORDER, Finding, Rule
from grpo_cli.commands.check.rules import record_rules, table
from grpo_cli.commands.check.rules.repeats import Facts, Seen, collect_facts
from grpo_cli.commands.check.samples import Small, compare_all, join_views, select_records
from grpo_cli.engine import Reader
from grpo_cli.engine.skipped import FEW, Skipped
from grpo_cli.errors import InputError
from grpo_cli.records import DecodedChunk

_ALONE = 128
"""Tokens from which a record is a sample of its own."""
_SINGLE = "singleton-group"


@dataclass
class Partial:
    """What became of a piece.

    Attributes:
        findings: what was found in its records.
        facts: what is needed to compare them with the records of other pieces.
        edges: the small records at its beginning and end, whose sample may go on in another piece.
        records, responses, tokens: what was looked at.
        skipped: the records that cannot be read.
        lacks: how many records could not be looked at, by what they lack.
        idle: how many responses and groups teach nothing, by the loss that their records name.
    """

    findings: Findings
    facts: list[Facts] = field(default_factory=list)
    edges: Sequence[View] = ()
    records: int = 0
    responses: int = 0
    tokens: int = 0
    skipped: Skipped = field(default_factory=Skipped)
    lacks: Counter[Lack] = field(default_factory=Counter)
    idle: Counter[Named] = field(default_factory=Counter)


@dataclass(frozen=True)
class Look:
    """What is done with the records of a piece, in any process.

    Attributes:
        limit: how many findings of each code are kept; 0 for all.
        skip: whether to go on behind a record that cannot be read.
        most_errors: how many errors of such records are kept; 0 for all.
    """

    limit: int
    skip: bool
    most_errors: int = FEW

    def __call__(self, decoded: Iterable[DecodedChunk]) -> Partial:
        """Looks at records in order; stops at the first bad one unless it is to be skipped."""
        partial = Partial(Findings(self.limit), skipped=Skipped(self.most_errors))
        small = Small(partial.findings)
        for view in views(decoded):
            if isinstance(view, InputError):
                partial.skipped.add(view)
                if not self.skip:
                    break
                continue
            _look_at(view, partial, small)
        partial.edges = small.edges()
        return partial


def look(view: View) -> Iterator[tuple[Rule, Finding]]:
    """What the rules find in records."""
    explained = np.zeros(len(view.counts), dtype=np.bool_)
    for rule in record_rules():
        if missing(rule, view):
            continue
        for finding in rule.look(view):
            if rule.yields and explained[finding.record]:
                continue
            if rule.explains:
                explained[finding.record] = True
            yield rule, finding


def _look_at(view: View, partial: Partial, small: Small) -> None:
    partial.records += len(view.counts)
    partial.responses += view.responses.count
    partial.tokens += view.responses.total
    partial.lacks += lacks(table(), view)
    partial.idle += tally(view)
    explained = np.zeros(len(view.counts), dtype=np.bool_)
    for rule, finding in look(view):
        explained[finding.record] |= rule.explains
        partial.findings.add(rule, finding, view.places[finding.record])
    partial.facts.append(collect_facts(view))
    alone = view.tokens >= _ALONE
    if (alone & ~explained).any():
        compare_all(select_records(view, alone & ~explained), partial.findings)
    few = ~alone & ~explained & (view.tokens > 0)
    if few.any():
        small.take(select_records(view, few))


@dataclass
class Check:
    """The answer for files.

    Attributes:
        findings: what was found.
        records, responses, tokens: what was looked at.
        skipped: the records that cannot be read.
        lacks: how many records could not be looked at, by what they lack.
        idle: how many responses and groups teach nothing, by the loss that their records name.
    """

    findings: Findings
    records: int = 0
    responses: int = 0
    tokens: int = 0
    skipped: Skipped = field(default_factory=Skipped)
    lacks: Counter[Lack] = field(default_factory=Counter)
    idle: Counter[Named] = field(default_factory=Counter)
    _seen: Seen = field(default_factory=Seen)
    _edge: tuple[int, View] | None = None

    def add(self, partial: Partial, source: int) -> None:
        """Adds what was found in a piece that follows those before."""
        self.records += partial.records
        self.responses += partial.responses
        self.tokens += partial.tokens
        self.lacks += partial.lacks
        self.idle += partial.idle
        self.skipped.merge(partial.skipped)
        self.findings.merge(partial.findings, source)
        for kept in partial.facts:
            self._tell(self._seen.take(kept), source)
        for number, edge in enumerate(partial.edges):
            self._join(edge, source, first=number == 0)

    def _join(self, edge: View, source: int, *, first: bool) -> None:
        if self._edge is not None:
            before, view = self._edge
            assert view.samples is not None
            assert edge.samples is not None
            goes_on = view.samples[-1] == edge.samples[0] and view.layout == edge.layout
            if first and before == source and goes_on:
                self._edge = source, join_views([view, edge])
                return
            compare_all(view, self.findings, before)
        self._edge = source, edge

    def _tell(self, told: Iterable[tuple[Rule, Finding, Place]], source: int) -> None:
        for rule, finding, place in told:
            self.findings.add(rule, finding, place, source)

    def document(self) -> dict[str, Any]:
        """Everything as ``--json`` prints it."""
        findings, rows = self.findings, self.findings.rows
        kinds = dict.fromkeys(row["code"] for row in rows)
        counts = {severity: findings.severities[severity] for severity in ORDER}
        return {
            "ok": not counts["error"],
            "findings": rows,
            "more": {code: findings.more[code] for code in kinds if code in findings.more},
            "counts": {code: findings.codes[code] for code in kinds},
            "severities": counts,
            "records": self.records,
            "responses": self.responses,
            "tokens": self.tokens,
            "denominators": [*denominators.as_json(self.idle)],
            "not_checked": [*coverage.as_json(table(), self.lacks)],
        }

    def end(self) -> None:
        """Tells what only the whole input shows."""
        if self._edge is not None:
            source, view = self._edge
            compare_all(view, self.findings, source)
        uneven = bool(self.findings.codes["uneven-groups"])
        for rule, finding, place in self._seen.end(told_uneven=uneven):
            if rule.code == "torn-group":
                self.findings.drop(_SINGLE)
            self._tell([(rule, finding, place)], 0)


def check(reader: Reader, limit: int = 3) -> Check:
    """Asks the rules of every record. The answer is the same however the input is cut.

    Raises:
        InputError: at the first record that cannot be read, unless it is to be skipped.
    """
    found = Check(Findings(limit), skipped=Skipped(reader.most_errors))
    source, before = -1, None
    for piece, partial in reader.map(Look(limit, reader.skip, reader.most_errors)):
        if piece.source != before:
            source, before = source + 1, piece.source
        found.add(partial, source)
        if partial.skipped and not reader.skip:
            raise partial.skipped.first[0]
    found.end()
    if reader.reading.selects and not found.records and not found.skipped:
        raise reader.nothing()
    return found
