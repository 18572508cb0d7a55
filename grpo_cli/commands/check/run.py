"""Asks the rules of every record of the files, by pieces, and puts the answers together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grpo_cli.commands.check import denominators, unchecked
from grpo_cli.commands.check.across.duplicates import Seen
from grpo_cli.commands.check.across.facts import facts
from grpo_cli.commands.check.asking import look
from grpo_cli.commands.check.denominators import Named, tally
from grpo_cli.commands.check.finding import ORDER, Finding, Rule
from grpo_cli.commands.check.packed import views
from grpo_cli.commands.check.partial import Findings, Partial
from grpo_cli.commands.check.parts import compared, joined
from grpo_cli.commands.check.places import Place
from grpo_cli.commands.check.record_view import View
from grpo_cli.commands.check.rules import table
from grpo_cli.commands.check.samples import Small, compare_all
from grpo_cli.commands.check.unchecked import Lack, lacks
from grpo_cli.engine import Reader
from grpo_cli.engine.skipped import FEW, Skipped
from grpo_cli.errors import InputError
from grpo_cli.records import DecodedChunk

_ALONE = 128
"""Tokens from which a record is a sample of its own."""
_SINGLE = "singleton-group"


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
    partial.facts.append(facts(view))
    alone = view.tokens >= _ALONE
    if (alone & ~explained).any():
        compare_all(compared(view, alone & ~explained), partial.findings)
    few = ~alone & ~explained & (view.tokens > 0)
    if few.any():
        small.take(compared(view, few))


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
                self._edge = source, joined([view, edge])
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
            "not_checked": [*unchecked.as_json(table(), self.lacks)],
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
