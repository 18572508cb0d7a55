"""Runs the rules on every record of the files, piece by piece, and merges what they find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.commands.check import coverage, denominators
from grpo_cli.commands.check.coverage import SkippedRules, count_skipped, missing_needs
from grpo_cli.commands.check.denominators import LossCount, count_zero_gradient
from grpo_cli.commands.check.findings import Findings
from grpo_cli.commands.check.packed import views
from grpo_cli.commands.check.record_view import View
from grpo_cli.commands.check.rule import ORDER
from grpo_cli.commands.check.rules import rule_named, rules_of, table
from grpo_cli.commands.check.rules.repeats import Facts, InputMemory, Located, collect_facts
from grpo_cli.commands.check.samples import (
    SmallRecords,
    compare_samples,
    join_views,
    select_records,
)
from grpo_cli.engine import Reader
from grpo_cli.engine.facts import FEW, Skipped
from grpo_cli.errors import InputError
from grpo_cli.records import DecodedChunk

_LARGE = 128
"""Tokens from which a record is a sample of its own."""


@dataclass
class Counts:
    """What was found in some records, and how many there are.

    Attributes:
        findings: what the rules found.
        records, responses, tokens: how many were read.
        skipped: the records that cannot be read.
        skipped_rules: records for which rules were skipped, by rules and missing fields.
        zero_gradient: empty responses and dead groups, by the loss that their records name.
    """

    findings: Findings
    records: int = 0
    responses: int = 0
    tokens: int = 0
    skipped: Skipped = field(default_factory=Skipped)
    skipped_rules: Counter[SkippedRules] = field(default_factory=Counter)
    zero_gradient: Counter[LossCount] = field(default_factory=Counter)


@dataclass
class Partial(Counts):
    """What was found in one piece of the input.

    Attributes:
        facts: what comparing its records with those of other pieces needs.
        edges: the small records at its beginning and end, whose samples may continue elsewhere.
    """

    facts: list[Facts] = field(default_factory=list)
    edges: Sequence[View] = ()


@dataclass(frozen=True)
class Look:
    """Checks the records of a piece, in any process.

    Attributes:
        limit: how many findings of each code are kept; 0 for all.
        skip: whether to continue after a record that cannot be read.
        most_errors: how many errors of such records are kept; 0 for all.
    """

    limit: int
    skip: bool
    most_errors: int = FEW

    def __call__(self, decoded: Iterable[DecodedChunk]) -> Partial:
        """Checks records in order; stops at the first bad one unless such records are skipped."""
        partial = Partial(Findings(self.limit), skipped=Skipped(self.most_errors))
        small = SmallRecords(partial.findings)
        for view in views(decoded):
            if isinstance(view, InputError):
                partial.skipped.add(view)
                if not self.skip:
                    break
                continue
            _check_view(view, partial, small)
        partial.edges = small.edges()
        return partial


def _check_view(view: View, partial: Partial, small: SmallRecords) -> None:
    partial.records += len(view.counts)
    partial.responses += view.responses.count
    partial.tokens += view.responses.total
    partial.skipped_rules += count_skipped(table(), view)
    partial.zero_gradient += count_zero_gradient(view)
    partial.facts.append(collect_facts(view))
    explained = check_records(view, partial.findings)
    large = ~explained & (view.tokens >= _LARGE)
    if large.any():
        compare_samples(select_records(view, large), partial.findings)
    rest = ~explained & ~large & (view.tokens > 0)
    if rest.any():
        small.add(select_records(view, rest))


def check_records(view: View, findings: Findings) -> NDArray[np.bool_]:
    """Adds what the rules on records find.

    Returns:
        [M] whether a finding explains the record's log-probs, so that they are not compared.
    """
    explained = np.zeros(len(view.counts), dtype=np.bool_)
    for rule in rules_of("record"):
        if missing_needs(rule, view):
            continue
        for finding in rule.find(view):
            if not (rule.suppressible and explained[finding.record]):
                explained[finding.record] |= rule.explains
                findings.add(rule, finding, view.places[finding.record])
    return explained


@dataclass
class Check(Counts):
    """The answer for files."""

    _memory: InputMemory = field(default_factory=InputMemory)
    _edge: tuple[int, View] | None = None

    def add(self, partial: Partial, source: int) -> None:
        """Adds a piece that follows those before."""
        self.records += partial.records
        self.responses += partial.responses
        self.tokens += partial.tokens
        self.skipped_rules += partial.skipped_rules
        self.zero_gradient += partial.zero_gradient
        self.skipped.merge(partial.skipped)
        self.findings.merge(partial.findings, source)
        for facts in partial.facts:
            self._add_located(self._memory.add(facts), source)
        for number, edge in enumerate(partial.edges):
            self._add_edge(edge, source, first=number == 0)

    def _add_edge(self, edge: View, source: int, *, first: bool) -> None:
        """Compares the sample before, unless this one continues it."""
        if self._edge is not None:
            before, view = self._edge
            continues = view.sample_numbers[-1] == edge.sample_numbers[0]
            if first and before == source and continues and view.layout == edge.layout:
                edge = join_views([view, edge])
            else:
                compare_samples(view, self.findings, before)
        self._edge = source, edge

    def _add_located(self, found: Iterable[Located], source: int) -> None:
        for code, finding, place in found:
            self.findings.add(rule_named(code), finding, place, source)

    def document(self) -> dict[str, Any]:
        """Returns everything as ``--json`` prints it."""
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
            "denominators": [*denominators.as_json(self.zero_gradient)],
            "not_checked": [*coverage.as_json(table(), self.skipped_rules)],
        }

    def end(self) -> None:
        """Adds what only the whole input shows."""
        if self._edge is not None:
            source, view = self._edge
            compare_samples(view, self.findings, source)
        uneven = bool(self.findings.codes["uneven-groups"])
        found = [*self._memory.finish(uneven_found=uneven)]
        if any(code == "torn-group" for code, _, _ in found):
            self.findings.drop("singleton-group")
        self._add_located(found, 0)


def check(reader: Reader, limit: int = 3) -> Check:
    """Checks every record. The answer is the same however the input is cut into pieces.

    Raises:
        InputError: at the first record that cannot be read, unless such records are skipped.
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
