"""Runs the rules on every record of the files, piece by piece, and merges what they find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import I64
from grpo_cli.commands.check.answer import Checked, Finding, MismatchFound
from grpo_cli.commands.check.facts import Facts, collect_facts
from grpo_cli.commands.check.lines import FORMULAS
from grpo_cli.commands.check.notes import (
    SkippedRules,
    WordSums,
    count_short,
    count_skipped,
    judge,
    missing_needs,
    not_checked,
)
from grpo_cli.commands.check.read_views import views
from grpo_cli.commands.check.record_view import View
from grpo_cli.commands.check.rule import ORDER, rule_named, rules_of, table
from grpo_cli.commands.check.rules.formulas import count_formulas, count_tilted
from grpo_cli.commands.check.rules.ratios import find_uneven_mismatch
from grpo_cli.commands.check.rules.repeats import InputMemory, Located
from grpo_cli.commands.check.samples import Findings, Samples, compare_samples
from grpo_cli.commands.check.tokens import Place, Tokens
from grpo_cli.engine import Reader
from grpo_cli.engine.fold import Accumulator, fold_pieces
from grpo_cli.errors import InputError
from grpo_cli.objective.mismatch import TOKEN, Mismatch
from grpo_cli.records import DecodedChunk

_PILED_UP = 3.0
"""Times the mean of the lengths from three quarters of the maximum on that the maximum occurs where
responses were cut; lengths that end by themselves have no peak there."""


_COMMON = 0.25
"""The share of records from which on a fault explains others of the input."""
_PADDED = 0.1
"""The share of records that count padding from which on it explains a drift in the others."""
_CAUSES = ("padding-id", "shifted", "last-token", "filler")
_OTHER_CAUSES = {("outliers", "warning"), ("constant-log-ratio", "warning")}
_EFFECTS = ("unrelated", "mean-weight", "drift", "outliers", "rollout-mismatch")
"""What the causes lead to in records that are too short to show the cause."""
_OF_GROWING = ("temperature", "last-token", "mean-weight", "outliers", "rollout-mismatch")
"""What weights that grow older in the engine lead to in single records."""
_BY_UPDATES = (("temperature", "alone", _COMMON), ("drift", "alone", _COMMON), ("drift", "", 0.05))
"""Code, kind and share of records up to which it may be what one update did to some prompts."""
_SMALL, _MOST = 0.1, 0.5
_HUNDRED = 100
_OF_SHUFFLED = ("sign", "order", "exchanged", "lone", "stride", "blocks", "reordered", "negated")
"""Kinds of findings on advantages in single records that rewards in another order lead to."""
_EXACT, _LEAST_EXACT, _LEAST_EXACT_ODD = 0.8, 5, 20
"""The share of groups of one formula from which on others are odd, and how many these are."""


class Check(Accumulator[Any]):
    """Checks records: ``read`` those of a piece of the input, ``merge`` the pieces in order.

    Args:
        limit: how many findings of each code are kept; 0 for all.

    Attributes:
        findings: what the rules found.
        mismatch: of the engine that sampled, over all records whose log-probs are compared.
        words: the part of it at each id or text of a token.
        sizes: how many records, responses and tokens were read.
        lengths: [longest span + 1] how many responses have such a span.
        skipped_rules: records for which rules were skipped, by rules and missing fields.
        formulas: groups, by the formula that their advantages follow.
    """

    def __init__(self, limit: int = 3) -> None:
        self.findings = Findings(limit)
        self.mismatch = Mismatch()
        self.words = WordSums()
        self.sizes: Counter[str] = Counter()
        self.lengths = np.zeros(1, dtype=np.int64)
        self.skipped_rules: Counter[SkippedRules] = Counter()
        self.formulas: Counter[str] = Counter()
        # of a piece: what comparing its records with others needs; the small records at its
        # beginning and end, whose samples may continue elsewhere; the file of its first record
        self._facts: list[Facts] = []
        self._edges: Sequence[Tokens] = ()
        self._first = ""
        self._compared: dict[int, Place] = {}  # step → its first record, in the input's order
        # of all pieces so far: the number of the last file, and its name
        self._memory = InputMemory()
        self._edge: tuple[int, Tokens] | None = None
        self._source = 0
        self._last = ""
        self._judged: MismatchFound | None = None

    def read(self, decoded: Iterable[DecodedChunk]) -> Iterator[InputError]:
        """Checks records in order, and yields the errors of those that cannot be read."""
        samples = Samples(self.findings, self.mismatch)
        for view in views(decoded):
            if isinstance(view, InputError):
                yield view
            elif (records := self._check(view)) is not None:
                del view  # and its objects
                samples.add(records)
        self._edges = samples.edges()

    def _check(self, view: View) -> Tokens | None:
        """Runs the rules on records; returns those whose columns are to be compared, if any."""
        self._first = self._first or view.places[0].source
        self._last = view.places[-1].source
        count, rows = len(view.counts), view.responses
        self.sizes.update(records=count, responses=rows.count, tokens=rows.total)
        self.skipped_rules += count_skipped(view)
        self.formulas += count_formulas(view)
        self.sizes["tilted"] += count_tilted(view)
        for kind, groups in view.odd_groups.items():
            self.sizes[kind] += len(groups)
        self._facts.append(collect_facts(view))
        self._note_lengths(np.bincount(view.spans, minlength=1), self.findings)
        explained = check_records(view, self.findings, len(self.lengths) - 1) & (view.tokens > 0)
        self.sizes["not_compared"] += int(np.count_nonzero(explained))
        compared = ~explained & (view.tokens > 0)
        if not compared.any():
            return None
        self.words.add(view, compared)
        for at in np.flatnonzero(compared).tolist():
            self._compared.setdefault(view.places[at].step, view.places[at])
        return view.take(compared)

    def _note_lengths(self, lengths: I64, findings: Findings) -> None:
        """Drops what seemed to have the maximum length, where others are longer."""
        shorter, longer = sorted((self.lengths, lengths), key=len)
        if len(shorter) != len(longer):
            (self.findings if longer is lengths else findings).drop("length-cap", "lengths")
        self.lengths = longer.copy()
        self.lengths[: len(shorter)] += shorter

    def merge(self, later: Check) -> None:
        """Adds a piece that follows those before."""
        self._source += bool(self._last) and bool(later._first) and later._first != self._last
        self._last = later._last or self._last
        for step, place in later._compared.items():
            self._compared.setdefault(step, place)
        source = self._source
        self.sizes += later.sizes
        self.skipped_rules += later.skipped_rules
        self.formulas += later.formulas
        self._note_lengths(later.lengths, later.findings)
        self.findings.merge(later.findings, source)
        self.mismatch.merge(later.mismatch)
        self.words.merge(later.words)
        for facts in later._facts:
            self._add_located(self._memory.add(facts), source)
        for number, edge in enumerate(later._edges):
            self._add_edge(edge, source, first=number == 0)

    def _add_edge(self, edge: Tokens, source: int, *, first: bool) -> None:
        """Compares the sample before, unless this one continues it."""
        if self._edge is not None:
            before, view = self._edge
            continues = view.samples[-1] == edge.samples[0]
            if first and before == source and continues and view.layout == edge.layout:
                edge = Tokens.join([view, edge])
            else:
                compare_samples(view, self.findings, self.mismatch, before)
        self._edge = source, edge

    def _add_located(self, found: Iterable[Located], source: int) -> None:
        for code, finding, place in found:
            self.findings.add(rule_named(code), finding, place, source)

    def finish(self) -> None:
        """Adds what only the whole input shows."""
        if self._edge is not None:
            source, view = self._edge
            compare_samples(view, self.findings, self.mismatch, source)
        self.findings.settle()
        mismatch = self._judged = judge(self.mismatch.result(), self.words)
        grown = mismatch is not None and self._drop_grown(mismatch)
        for code, kind, share in _BY_UPDATES:
            if self.findings.count_by(0, 1)[code, kind] <= share * self.sizes["records"]:
                self.findings.lower(code, kind)
        self._lower_single_base()
        counts, errors = self.findings.count_by(0), self.findings.count_by(0, 2)
        found = [*self._memory.finish(uneven_found=bool(counts["uneven-groups"]))]
        if any(code == "torn-group" for code, _, _ in found):
            self.findings.drop("singleton-group")
        of_input = {finding.kind for code, finding, _ in found if code == "advantages"}
        if of_input & {"shuffled", "scattered"}:
            self.findings.drop("advantages", *_OF_SHUFFLED)
        self._settle_odd_groups(of_input)
        others = max(counts["old-log-probs"], counts["log-base"])
        if others > counts["temperature"]:  # the wrong column, or a base that updates hide
            self.findings.drop("temperature")
        if any(errors[cause, "error"] > _COMMON * self.sizes["records"] for cause in _CAUSES):
            for code in _EFFECTS:
                self.findings.drop(code)
        if errors["padding-id", "error"] > _PADDED * self.sizes["records"]:
            self.findings.drop("drift")  # in records with too little padding to be sure of it
        self._add_located(found, 0)
        if mismatch is not None and mismatch.named == TOKEN:
            self.findings.drop("mean-weight")  # which one word makes
            ends = [row.evidence for row in self.findings.rows if row.code == "last-token"]
            if all(2 * one.get("responses", 0) < one.get("of", 0) for one in ends):
                self.findings.drop("last-token", "")  # it ends the minority of the responses
        uneven = [] if mismatch is None else [*self._find_uneven_mismatch(mismatch)]
        overwritten = any(one.kind == "overwritten" for _, one, _ in uneven)
        if overwritten:
            self.findings.drop("on-policy")
        if mismatch is not None and (grown or overwritten or not mismatch.normal):
            if any(
                one.severity is None and one.evidence["explains"] > _MOST for _, one, _ in uneven
            ):
                self.findings.drop("rollout-mismatch")  # of samples, which have the same cause
            self._add_located(uneven, 0)
        *others, last = self.lengths[len(self.lengths) * 3 // 4 :].tolist()
        if last <= _PILED_UP * sum(others) / max(len(others), 1):
            self.findings.drop("length-cap", "lengths")
        if self.findings.count_by(0, 2)["advantages", "error"]:
            self.findings.drop("advantages", "departed")
        if self.findings.count_by(0, 1)["advantages", "constant"] <= self.sizes["tilted"]:
            self.findings.drop("advantages", "constant")

    def _settle_odd_groups(self, of_input: Collection[str]) -> None:
        """Drops groups that follow no formula, unless nearly all others follow one.

        Those in another order must be most of them: rewards of 0 and 1 that the advantages were not
        computed from have as many of each by chance.
        """
        live = sum(self.formulas.values()) - self.formulas[FORMULAS[0]]
        formula = max(FORMULAS[3:6], key=self.formulas.__getitem__)
        follow, sizes = self.formulas[formula], self.sizes
        reordered = sizes["reordered"] + sizes["negated"]
        mixed = follow < _EXACT * live
        if mixed or follow < _LEAST_EXACT or reordered <= sizes["odd"]:
            self.findings.drop("advantages", "reordered", "negated")
        if mixed or follow < _LEAST_EXACT_ODD or of_input:
            self.findings.drop("advantages", "odd")
        words = {"follow": follow, "of": live, "formula": formula}
        self.findings.complete("advantages", ("reordered", "negated", "odd"), **words)

    def _lower_single_base(self) -> None:
        """Makes an info of a base that one record of a hundred shows: an update gives one too."""
        rows = [row for row in self.findings.rows if row.code == "log-base"]
        single = self.findings.count_by(0)["log-base"] == 1 and "records" not in rows[0].evidence
        if single and self.sizes["records"] >= _HUNDRED:
            self.findings.lower("log-base")

    def _drop_grown(self, mismatch: MismatchFound) -> bool:
        """Drops what a mismatch that grows from step to step leads to; returns whether it did.

        Samples of short records may begin before the step, if the mismatch there is a tenth.
        """
        cause = next((one for one in mismatch.causes if one.grows), None)
        if cause is None:
            return False
        before, after = sorted(one.kl for one in cause.kinds)

        def follows(row: Finding) -> bool:
            pooled = row.records > 1 and before < _SMALL * after
            later = pooled or (row.step or 0) >= (cause.step or 0)
            return later and "log_probs_rollout" in row.evidence.get("columns", ())

        kept = {
            code for (code, _, _), rows in self.findings.kept.items()
            if not all(follows(row) for _, row in rows)
        }  # fmt: skip
        grown = [one for one in self.findings.count_by(0) if one in _OF_GROWING and one not in kept]
        for code in grown:
            self.findings.drop(code)
        return bool(grown)

    def _find_uneven_mismatch(self, mismatch: MismatchFound) -> Iterator[Located]:
        """Yields where most of the mismatch is, unless findings explain the log-probs."""
        explaining = {rule.code for rule in table() if rule.explains or rule.scope == "pair"}
        if mismatch.named == TOKEN:
            explaining.discard("last-token")  # which may be that token
        for code, severity in self.findings.count_by(0, 2):
            if (severity == "error" and code in explaining) or (code, severity) in _OTHER_CAUSES:
                return
        for finding, step in find_uneven_mismatch(mismatch, self.findings.equal):
            first = next(iter(self._compared))
            yield "rollout-mismatch", finding, self._compared[first if step is None else step]

    def result(self) -> Checked:
        """Returns the answer."""
        rows, counts = self.findings.rows, self.findings.count_by(0)
        severities, sizes = self.findings.count_by(2), self.sizes
        kinds = dict.fromkeys(row.code for row in rows)
        rest = self.findings.count_by(0, 2)
        rest.subtract((row.code, row.severity) for row in rows)
        more: dict[str, dict[str, int]] = {}
        for code, severity in ((code, severity) for code in kinds for severity in ORDER):
            if hidden := rest[code, severity]:
                more.setdefault(code, {})[severity] = hidden
        short = count_short(self.skipped_rules, kinds, sizes["records"], sizes["tokens"])
        return Checked(
            ok=not severities["error"],
            findings=rows,
            more={code: sum(each.values()) for code, each in more.items()},
            more_by_severity=more,
            counts={code: counts[code] for code in kinds},
            severities={name: severities[name] for name in ORDER},
            records=sizes["records"],
            responses=sizes["responses"],
            tokens=sizes["tokens"],
            not_checked=not_checked(self.skipped_rules + short),
            not_compared=sizes["not_compared"],
            mismatch=self._judged,
            advantages={one: self.formulas[one] for one in FORMULAS if self.formulas[one]},
        )


def check_records(view: View, findings: Findings, longest: int) -> NDArray[np.bool_]:
    """Adds what the rules on records find, ``longest`` being the most tokens of a response so far.

    Returns:
        [M] whether a finding explains the record's log-probs, so that they are not compared.
    """
    explained = np.zeros(len(view.counts), dtype=np.bool_)
    misplaced = explained.copy()  # by more than the values of the log-probs
    with np.errstate(over="ignore", invalid="ignore"):  # of rewards that are infinite
        for rule in rules_of("record"):
            for finding in rule.find(view) if not missing_needs(rule.topic, view) else ():
                if finding.kind == "lengths" and finding.evidence["length"] < longest:
                    continue  # it ended by itself, since another response of the input is longer
                reason = explained if "log_probs" in rule.columns[0] else misplaced
                if rule.suppressible and reason[finding.record]:
                    continue
                if rule.explains and rule.severity(finding) != "info":
                    explained[finding.record] = True
                    misplaced[finding.record] |= rule.columns != ("log_probs",)
                findings.add(rule, finding, view.places[finding.record])
    return explained


def check(reader: Reader, limit: int = 3) -> Checked:
    """Checks every record. The answer is the same however the input is cut into pieces.

    Raises:
        InputError: at the first record that cannot be read, unless such records are skipped.
    """
    checked = Check(limit)
    for checked in fold_pieces(reader, partial(Check, limit)):  # noqa: B007
        pass
    checked.finish()
    return checked.result()
