"""Responses and groups that occur in several records."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import I64
from grpo_cli.commands.check.record_view import Place, View
from grpo_cli.commands.check.rule import Finding, Rule
from grpo_cli.commands.check.rules.rewards import UNEVEN, count_sizes, describe_uneven

# ---- what is kept of records ---------------------------------------------------------------------

_COPY_CHANCE = math.log(1e-6)
_HASH_FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)


@dataclass
class Facts:
    """Of the records of one view.

    Attributes:
        places: [M] where they stand.
        counts: [M] their responses.
        rows: [k] responses that chance repeats less than once in a million.
        records: [k] the record of each.
        digests: [k] of all log-probs of each.
        labels: (record, step, label) of groups of one response.
        given: whether advantages are given.
        label_key: what the user calls the labels.
        sizes: size of groups → how many, of records whose groups are all of that size.
        first: size → the first such record.
    """

    places: list[Place]
    counts: list[int]
    rows: list[int]
    records: list[int]
    digests: list[int]
    labels: list[tuple[int, str, Any]]
    given: bool
    label_key: str
    sizes: Counter[int]
    first: dict[int, Place]


def collect_facts(view: View) -> Facts:
    """What is to be kept of a view."""
    rows = _rare_responses(view)
    digests = _digest(view)[rows] if len(rows) else rows
    records = view.records.index[rows]
    starts = view.records.starts[records]
    counted, first = _even_sizes(view)
    return Facts(
        list(view.places),
        view.counts.tolist(),
        (rows - starts).tolist(),
        records.tolist(),
        digests.tolist(),
        list(_single_labels(view)),
        view.advantages_given,
        view.names.get("group_ids", ""),
        counted,
        first,
    )


def _rare_responses(view: View) -> I64:
    """[k] the responses so unlikely that one that occurs again is a copy.

    Two samples are equal with probability e^L, L being the log-prob of the response, so a row
    that occurs again is a copy where that is below 1e-6 (short, sure answers are not).
    """
    new = view.column("log_probs_new")
    if new is None:
        return np.zeros(0, dtype=np.int64)
    with np.errstate(invalid="ignore"):
        found: I64 = np.flatnonzero(view.responses.sum(new) < _COPY_CHANCE)
    return found


def _digest(view: View) -> NDArray[np.uint64]:
    """[R] 64 bits of all log-probs of each response, bit by bit, in order.

    Each number is multiplied by odd ones, its place added, and folded (as splitmix64 does); the
    sum over a response, modulo 2⁶⁴, is the same for equal rows only, but for one pair in 10¹⁹.
    """
    places = np.arange(view.responses.total) - view.responses.spread(view.responses.starts)
    at = (places.astype(np.uint64) + np.uint64(1)) * np.uint64(_HASH_FACTORS[0])
    total = np.zeros(view.responses.count, dtype=np.uint64)
    for number, column in enumerate(view.log_probs.values()):
        bits = np.ascontiguousarray(column).view(np.uint64) + at
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(_HASH_FACTORS[1])
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(_HASH_FACTORS[2])
        bits ^= bits >> np.uint64(31)
        total = total * np.uint64(_HASH_FACTORS[0]) + view.responses.sum(bits) + np.uint64(number)
    return total


def _single_labels(view: View) -> list[tuple[int, str, Any]]:
    """The labels of groups in records all of whose groups have one response."""
    key = view.names.get("group_ids")
    if not key or not view.values:
        return []
    single = np.ones(len(view.counts), dtype=np.bool_)
    np.logical_and.at(single, view.records.index[view.first_members], view.sizes == 1)
    found = []
    for record in np.flatnonzero(single).tolist():
        value = view.values[record]
        labels = value[key]
        for label in dict.fromkeys(labels) if isinstance(labels, list) else [labels]:
            found.append((record, str(value.get("step")), label))
    return found


def _even_sizes(view: View) -> tuple[Counter[int], dict[int, Place]]:
    counted: Counter[int] = Counter()
    first: dict[int, Place] = {}
    several = np.unique(view.sizes[view.sizes > 1])
    if len(several) == 1:
        of = np.unique(view.records.index[view.first_members[view.sizes > 1]])
        size = int(several[0])
        counted[size] = int(np.count_nonzero(view.sizes == size))
        first[size] = view.places[int(of[0])]
        return counted, first
    for record, own in count_sizes(view).items():
        if len(own) == 1:
            ((size, times),) = own.items()
            counted[size] += times
            first.setdefault(size, view.places[record])
    return counted, first


# ---- what is found across them -------------------------------------------------------------------

_MEMORY = 100_000
"""Rows remembered, so that memory stays flat on files of any size."""

Told = tuple[Rule, Finding, Place]


class Seen:
    """The rows, labels and sizes of all records so far; the oldest rows are forgotten."""

    def __init__(self) -> None:
        self._rows: OrderedDict[int, tuple[str, int]] = OrderedDict()
        self._labels: OrderedDict[tuple[str, object], Place] = OrderedDict()
        self._torn: list[tuple[object, Place, Place, Facts]] = []
        self._torn_count = 0
        self._sizes: Counter[int] = Counter()
        self._first: dict[int, Place] = {}

    def take(self, facts: Facts) -> Iterator[Told]:
        """The copies among the rows of some records, which follow those before."""
        copies: dict[int, list[tuple[int, tuple[str, int]]]] = {}
        rows = self._rows
        for at, digest in enumerate(facts.digests):
            known = rows.get(digest)
            record = facts.records[at]
            if known is not None:
                copies.setdefault(record, []).append((facts.rows[at], known))
                continue
            rows[digest] = (str(facts.places[record].name), facts.rows[at])
            if len(rows) > _MEMORY:
                rows.popitem(last=False)
        for record, found in copies.items():
            yield DUPLICATE, _describe_copies(found, facts.counts[record]), facts.places[record]
        self._remember(facts)

    def _remember(self, facts: Facts) -> None:
        self._sizes += facts.sizes
        for size, place in facts.first.items():
            self._first.setdefault(size, place)
        for record, step, label in facts.labels:
            place = facts.places[record]
            known = self._labels.setdefault((step, label), place)
            if known is not place:
                self._torn_count += 1
                if not self._torn:
                    self._torn.append((label, known, place, facts))
            if len(self._labels) > _MEMORY:
                self._labels.popitem(last=False)

    def end(self, *, told_uneven: bool) -> Iterator[Told]:
        """What only the whole input shows."""
        for label, first, place, facts in self._torn:
            yield TORN, _describe_torn(label, first, facts, self._torn_count), place
        if len(self._sizes) > 1 and not told_uneven:
            odd, _ = min(self._sizes.items(), key=lambda item: item[1])
            yield UNEVEN, describe_uneven(self._sizes), self._first[odd]


def _describe_copies(found: list[tuple[int, tuple[str, int]]], of: int) -> Finding:
    response, (name, row) = found[0]
    first = f"record {name}, response {row}"
    return Finding(
        "warning",
        f"{len(found)} of {of} responses occur already, the first of them in {first}: all "
        "log-probs are equal to the last bit",
        "copies weigh double; look at how the batch was gathered (repeat, padding to a multiple "
        "of the workers, a file read twice)",
        {"responses": len(found), "of": of, "first": first},
        response=response,
    )


def _describe_torn(label: object, first: Place, facts: Facts, count: int) -> Finding:
    given = "; the advantages given are used as they are" if facts.given else ""
    return Finding(
        "info" if facts.given else "warning",
        f"a group is torn over records: {label!r} is in record {first.name} and others too "
        f"({count:,} such){given}",
        f"--group-by {facts.label_key} puts rows of one {facts.label_key} together, so that they "
        "share a baseline",
        {"records": count, "key": facts.label_key},
    )


def _nothing(view: object) -> Iterator[Finding]:
    """Told by ``Seen``, which alone knows the records before."""
    del view
    return iter(())


DUPLICATE = Rule(
    "duplicate",
    ("warning",),
    "Responses occur twice, equal to the last bit.",
    130,
    _nothing,
)
TORN = Rule(
    "torn-group",
    ("warning", "info"),
    "The responses of one group are in several records.",
    131,
    _nothing,
)
RULES = (DUPLICATE, TORN)
