"""Samples of records whose columns are compared, and the findings that are kept of them."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.check import answer
from grpo_cli.commands.check.pair import LEAST_TOKENS, Pair
from grpo_cli.commands.check.rule import Finding, Rule, plain, rules_of
from grpo_cli.commands.check.tokens import TURN, Place, Tokens
from grpo_cli.objective.mismatch import Mismatch

Key = tuple[int, int, int, int, int]
"""What orders findings: source, record, rule, response, and the order in which they came."""
Row = tuple[Key, answer.Finding]


@dataclass
class Findings:
    """The first findings of each kind and severity in full, and the number of all.

    Attributes:
        limit: how many of each code and severity are shown; 0 for all.
        kept: (code, kind, severity) → those that are kept, as many as are shown of a code.
        counts: (code, kind, severity) → how many.
        added: how many were added here.
        slopes: step → of all records, and of those with a temperature between trainer and engine:
            their number, Σ xy and Σ xx of all tokens (``Pair.leaning``), Σ log T and Σ (log T)².
        equal: step → how many tokens are in records whose old log-probs equal the new ones.
    """

    limit: int
    kept: dict[tuple[str, str, str], list[Row]] = field(default_factory=dict)
    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    added: int = 0
    slopes: dict[str, F64] = field(default_factory=dict)
    equal: Counter[int] = field(default_factory=Counter)

    def add(self, rule: Rule, finding: Finding, place: Place, source: int = 0) -> None:
        """Adds a rule's finding in a record of a source.

        ``settle`` decides on temperatures of the engine in a single record.
        """
        pair: Any = finding.words.get("pair")
        step = ""
        if rule.code == "temperature" and pair.to_engine and "records" not in finding.evidence:
            step, size = _step(place), math.log(finding.evidence["slope"])
            sample = pair.view.sample_index[finding.record]
            own = (1.0, pair.leaning[1][sample], pair.leaning[2][sample], size, size * size)
            self.slopes.setdefault(step, np.zeros((2, 5)))[1] += own
        if rule.code == "on-policy" and finding.kind.startswith("equal"):
            self.equal[place.step] += finding.evidence["tokens"]
        severity, kind = rule.severity(finding), step or finding.kind
        self.counts[rule.code, kind, severity] += 1
        response = -1 if finding.response is None else finding.response

        def make() -> answer.Finding:
            message, advice = rule.describe(finding)
            where = (place.name, finding.response, finding.token, place.source, place.line)
            evidence, step = plain(finding.evidence), None if place.step < 0 else place.step
            return answer.Finding(rule.code, severity, *where, message, evidence, advice, step)

        self.added += 1
        key = (source, place.number, rule.rank, response, self.added)
        self._keep((rule.code, kind, severity), key, make)

    def pairs(self, records: Tokens) -> Iterator[Pair]:
        """Yields the pairs of columns one at a time: what is computed of two is some MB."""
        for names in records.pairs:
            pair = Pair(records, names)
            if pair.to_engine and not pair.equal.all():
                self._add_slopes(pair)
            yield pair

    def _add_slopes(self, pair: Pair) -> None:
        """Adds the slopes of samples that are one record, of the engine's pair."""
        n, *sums = pair.leaning
        alone = np.bincount(pair.view.sample_index) == 1
        for sample in np.flatnonzero(alone & (n >= LEAST_TOKENS)).tolist():
            step = _step(pair.place(sample))
            self.slopes.setdefault(step, np.zeros((2, 5)))[0, :3] += 1.0, *(x[sample] for x in sums)

    def settle(self) -> None:
        """Drops temperatures of single records that neither their step nor other findings confirm.

        An update moves a prompt as a temperature does, a temperature all prompts alike: the other
        records of the step have its slope, or all records that show one have the same.
        """
        steps = [(*sums, ("temperature", step, "error")) for step, sums in self.slopes.items()]
        steps = [one for one in steps if one[2] in self.counts]
        count, _, _, total, squares = sum((own for _, own, _ in steps), np.zeros(5)).tolist()
        alike = count >= _SEVERAL and count * squares - total**2 <= (_VARIED * total) ** 2
        for every, own, key in steps:
            found, rows, others = self.counts.pop(key), self.kept.pop(key, []), every - own
            ratio = others[1] * own[2] / (others[2] * own[1]) if others[0] > 1.0 else 1.0
            if alike or own[0] > others[0] or _AGREE < ratio < 1.0 / _AGREE:
                self.counts["temperature", "", "error"] += found
                for at, row in rows:
                    self._keep(("temperature", "", "error"), at, lambda: row)  # noqa: B023

    def merge(self, other: Findings, source: int) -> None:
        """Adds the findings of a piece of a source."""
        self.counts += other.counts
        self.equal += other.equal
        for step, sums in other.slopes.items():
            self.slopes[step] = self.slopes.get(step, 0.0) + sums
        for kind, rows in other.kept.items():
            for key, row in rows:
                self._keep(kind, (source, *key[1:]), lambda: row)  # noqa: B023 - called at once

    def _keep(
        self, kind: tuple[str, str, str], key: Key, make: Callable[[], answer.Finding]
    ) -> None:
        kept = self.kept.setdefault(kind, [])
        if self.limit and len(kept) >= self.limit and kept[-1][0] <= key:
            return
        insort(kept, (key, make()), key=itemgetter(0))
        if self.limit:
            del kept[self.limit :]

    def drop(self, code: str, *kinds: str) -> None:
        """Removes the findings of a code, or those of some of its kinds."""
        for key in self._keys(code, kinds):
            del self.counts[key]
            self.kept.pop(key, None)

    def complete(self, code: str, kinds: tuple[str, ...], **words: Any) -> None:
        """Puts words, which only the whole input gives, into the messages of some kinds."""
        for key in self._keys(code, kinds):
            self.kept[key] = [
                (
                    at,
                    replace(
                        row, message=row.message.format(**words), evidence={**row.evidence, **words}
                    ),
                )
                for at, row in self.kept[key]
            ]

    def lower(self, code: str, *kinds: str) -> None:
        """Makes infos of the findings of a code, or of those of some of its kinds."""
        for key in self._keys(code, kinds):
            info = (code, key[1], "info")
            self.counts[info] += self.counts.pop(key)
            self.kept[info] = [
                (at, replace(row, severity="info")) for at, row in self.kept.pop(key, [])
            ]

    def _keys(self, code: str, kinds: tuple[str, ...]) -> list[tuple[str, str, str]]:
        return [key for key in self.counts if key[0] == code and (not kinds or key[1] in kinds)]

    @property
    def rows(self) -> tuple[answer.Finding, ...]:
        """The first findings of each code and severity, in the order of the records."""
        every = sorted(chain.from_iterable(self.kept.values()), key=itemgetter(0))
        seen: Counter[tuple[str, str]] = Counter()
        found = []
        for _, row in every:
            seen[row.code, row.severity] += 1
            if not self.limit or seen[row.code, row.severity] <= self.limit:
                found.append(row)
        return tuple(found)

    def count_by(self, *parts: int) -> Counter[Any]:
        """Returns the number of findings by code (0), kind (1), severity (2), or several."""
        found: Counter[Any] = Counter()
        for key, count in self.counts.items():
            found[tuple(key[part] for part in parts) if parts[1:] else key[parts[0]]] += count
        return found


def _step(place: Place) -> str:
    """Returns the name of the step of a record, or else of the lines about it."""
    unit = f"lines {place.number // _LINES}" if place.step < 0 else f"step {place.step}"
    return f"{place.source} {unit}"


_AGREE, _VARIED, _SEVERAL = 0.7, 0.3, 3
"""The least ratio of the slopes of a record and of the others of its step; by how much of their
mean so many slopes spread at most."""
_LARGE = 128
"""Tokens from which a record is a sample of its own."""
_LINES = 64
"""Small records on this many consecutive lines form a sample. Which ones depends only on their
numbers, so that the answer does not depend on how the input is cut into pieces."""


def compare_samples(
    records: Tokens, findings: Findings, mismatch: Mismatch, source: int = 0
) -> None:
    """Adds what the rules find in the pairs of columns of samples, and the engines' mismatch.

    A small record that fails by itself is an error of its own, and in no sample.
    """
    for trainer, other in records.pairs:
        if other == "log_probs_rollout":
            steps = np.repeat([place.step for place in records.places], records.counts)
            mismatch.add(
                records.log_probs[trainer],
                records.log_probs[other],
                records.responses,
                records.whole_numbers(TURN),
                records.whole_numbers("weight_versions"),
                steps if (steps >= 0).any() else None,
            )
    small = np.bincount(records.sample_index)[records.sample_index] > 1
    if small.any():
        each = records.take(small)
        each.samples = np.arange(len(each.counts))
        errors = {rule.code for rule in rules_of("pair") if "error" in rule.severities}
        errors -= {"extreme-ratio"}  # one token shows it in any sample, but not its cause
        failed = np.zeros(len(each.counts), dtype=np.bool_)
        for rule, finding in find_in_pairs(findings.pairs(each), errors):
            findings.add(rule, finding, each.places[finding.record], source)
            failed[finding.record] = True
        small[small] = failed
        if small.all():
            return
        records = records.take(~small)
    for rule, finding in find_in_pairs(findings.pairs(records)):
        found = _narrow(rule, finding, records)
        updated = found.by_training and found.words["second"] == records.key("log_probs_old")
        if updated and "records" not in found.evidence:
            found = replace(found, kind="alone")
        findings.add(rule, found, records.places[found.record], source)


def find_in_pairs(
    pairs: Iterable[Pair], codes: Collection[str] | None = None
) -> Iterator[tuple[Rule, Finding]]:
    """Runs the rules on pairs of columns, or some of them.

    One fault gives one finding: after the first error or warning in a sample no later rule and no
    later pair is asked there. Other faults show once that one is mended.
    """
    rules = [rule for rule in rules_of("pair") if codes is None or rule.code in codes]
    explained = set[int]()
    for pair in pairs:
        asked = [one for one in rules if not one.against or pair.names[1] in one.against]
        for rule in [] if pair.equal.all() else asked:
            if len(explained) == pair.samples.count:
                break
            before = {*explained}
            found = rule.find(pair)
            for finding in found if codes is None else _without_isolated(found, pair):
                sample = int(pair.view.sample_index[finding.record])
                if sample not in before:
                    if rule.severity(finding) != "info":
                        explained.add(sample)
                    yield rule, _with_names(finding, pair)


_STEP_RECORDS = 3


def _without_isolated(findings: Iterable[Finding], pair: Pair) -> Iterator[Finding]:
    """Yields findings that training does not explain, or that other records confirm.

    One update may sharpen one prompt as a temperature does, and long training move one prompt
    anywhere from the reference. A fault is in most records of a step. What is not yielded stays in
    a sample of many records.
    """
    every = [*findings]
    if not any(one.by_training for one in every):
        yield from every
        return
    steps = Counter(place.step for place in pair.view.places)
    found = Counter(pair.view.places[one.record].step for one in every)
    for one in every:
        step = pair.view.places[one.record].step
        most = steps[step] >= _STEP_RECORDS and 2 * found[step] > steps[step]
        if most or not one.by_training:
            yield one


def _with_names(finding: Finding, pair: Pair) -> Finding:
    columns = {} if "column" in finding.evidence else {"columns": [*pair.names]}
    words = {"pair": pair, "first": pair.keys[0], "second": pair.keys[1]}
    return replace(
        finding, evidence={**columns, **finding.evidence}, words={**words, **finding.words}
    )


def _narrow(rule: Rule, finding: Finding, records: Tokens) -> Finding:
    """Returns what is found in a sample of several records, from the first that shows it on.

    The fewest consecutive records that show it are found by halving. The first as many that do
    begin with the record, unless they do without it as well.
    """
    mine = records.sample_index == records.sample_index[finding.record]
    count, first = int(np.count_nonzero(mine)), int(np.argmax(mine))
    if count == 1:
        return finding
    if finding.response is not None:
        return replace(finding, evidence={**finding.evidence, "records": count})
    sample, names = records.take(mine), finding.words["pair"].names

    def find(start: int, end: int) -> Finding | None:
        places = np.arange(count)
        pair = Pair(sample.take((start <= places) & (places < end)), names)
        found = (one for one in rule.find(pair) if one.kind == finding.kind)
        return next((_with_names(one, pair) for one in found), None)

    def count_least(most: int, find_in: Callable[[int], Finding | None]) -> int:
        return 1 + bisect_left(range(1, most), 1, key=lambda many: find_in(many) is not None)

    end = count_least(count, lambda many: find(0, many))
    size = count_least(end, lambda many: find(end - many, end))
    end = next((at for at in range(size, end) if find(at - size, at)), end)
    start = end - count_least(size, lambda many: find(end - many, end))
    rest = find(start, count)
    end = end if rest is None else count
    found = rest or find(start, end) or finding
    return replace(found, record=first + start, evidence={**found.evidence, "records": end - start})


class Samples:
    """Cuts records into samples: large ones, and small ones of one layout on consecutive lines.

    Samples that are complete are compared at once. The first and the last of a piece of the input
    may continue in the pieces before and after it, and are kept as ``edges``.
    """

    def __init__(self, findings: Findings, mismatch: Mismatch) -> None:
        self._findings, self._mismatch = findings, mismatch
        self._first: Tokens | None = None
        self._last: Tokens | None = None

    def add(self, records: Tokens) -> None:
        """Adds records that follow those before."""
        large = records.tokens >= _LARGE
        complete = [records.take(large)] if large.any() else []
        if not large.all():
            small = records.take(~large)
            small.samples = small.samples // _LINES
            if self._last is not None and self._last.layout != small.layout:
                self._compare(self._without_first(self._last))
                self._last = None
            if self._last is not None:
                small = Tokens.join([self._last, small])
            last = small.samples == small.samples[-1]
            if not last.all():
                complete.append(self._without_first(small.take(~last)))
            self._last = small.take(last)
        if complete:
            self._compare(Tokens.join(complete))

    def _without_first(self, small: Tokens) -> Tokens:
        """Returns complete samples, except the first of the piece, which is kept."""
        if self._first is not None:
            return small
        first = small.sample_index == 0
        self._first = small.take(first)
        return small.take(~first)

    def _compare(self, records: Tokens) -> None:
        if len(records.counts):
            compare_samples(records, self._findings, self._mismatch)

    def edges(self) -> list[Tokens]:
        """Returns the first and the last sample of the piece; one if they are the same."""
        return [edge for edge in (self._first, self._last) if edge is not None]
