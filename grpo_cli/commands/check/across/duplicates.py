"""Responses and groups that occur in several places."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator

from grpo_cli.commands.check.across.facts import Facts
from grpo_cli.commands.check.finding import Finding, Rule
from grpo_cli.commands.check.groups.sizes import UNEVEN, uneven
from grpo_cli.commands.check.places import Place

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
            yield DUPLICATE, _copied(found, facts.counts[record]), facts.places[record]
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
            yield TORN, _torn(label, first, facts, self._torn_count), place
        if len(self._sizes) > 1 and not told_uneven:
            odd, _ = min(self._sizes.items(), key=lambda item: item[1])
            yield UNEVEN, uneven(self._sizes), self._first[odd]


def _copied(found: list[tuple[int, tuple[str, int]]], of: int) -> Finding:
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


def _torn(label: object, first: Place, facts: Facts, count: int) -> Finding:
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
