"""What only several records show: repeated responses, torn groups, a reference that moves along."""

from __future__ import annotations

import hashlib
import math
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from grpo_cli.batch import F64, Segments
from grpo_cli.commands.check.kinds import Kinds
from grpo_cli.commands.check.record_view import LOG_PROBS, Place, View
from grpo_cli.commands.check.rule import Finding, Placed, Severity, rule
from grpo_cli.commands.check.rules.formulas import (
    compare_formulas,
    compare_orders,
    count_advantages,
    find_changed_formulas,
    find_scattered_advantages,
    find_shuffled_rewards,
)
from grpo_cli.commands.check.rules.responses import MaskedRows, count_masked, find_random_drops
from grpo_cli.commands.check.rules.rewards import (
    compare_rewards,
    count_sizes,
    describe_uneven,
    find_dead_ends,
)
from grpo_cli.commands.check.rules.values import (
    Entropies,
    collect_entropies,
    compare_decimals,
    find_rounded_records,
    judge_entropies,
)
from grpo_cli.records.unread import PROMPT_IDS, PROMPTS, STEP_FIELDS

_TEXT = (str, list, dict, np.ndarray)
_COPY_CHANCE, _SECOND_CHANCE = math.log(1e-6), math.log(1e-2)
_HASH_FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)


class Copies(NamedTuple):
    """Records that hold a copy of one of their own responses, to the last bit.

    Attributes:
        records: how many there are.
        doubtful: those of which no copy is beyond chance by itself.
        of: how many records have several responses of one group.
        expected: how many records would hold copies by chance, at most.
        place: of the first.
    """

    records: int = 0
    doubtful: int = 0
    of: int = 0
    expected: float = 0.0
    place: Place | None = None

    def join(self, later: Copies) -> Copies:
        """Returns these and those of records that follow."""
        return Copies(
            self.records + later.records,
            self.doubtful + later.doubtful,
            self.of + later.of,
            self.expected + later.expected,
            self.place or later.place,
        )


_COLUMNS = dict.fromkeys(LOG_PROBS[1:], ()) | {
    "log_probs_old": ("ratios",),
    "rewards": ("advantages", "token_rewards", "turn_rewards"),
}
"""Columns that all records have, or none; and those that may be there in their place."""


@dataclass
class Facts:
    """What is kept of the records of one view to compare them with other records.

    Attributes:
        places: [M] where they are in the input.
        counts: [M] how many responses they have.
        label_key: the user's key of the groups' labels.
        step_key: that of the records' steps; "" where they have none.
        kinds: by the formula of their advantages ("formulas"), their order ("orders"), whether
            their rewards are equal ("dead"), the decimals of their log-probs ("decimals") and
            whether their reference is the policy ("references") kinds of groups or records, and by
            the name of a column whether records have it.
        given: whether advantages are given.
        digests: (record, None or response, digest of all log-probs) of records of several
            responses, then of responses, that are repeated by chance less than once in a million.
        labels: (record, (step, label)) of groups of one response.
        sizes: size of groups → how many, of records whose groups are all of that size.
        first: size → the first such record.
        references: how many records have a reference that is the policy to the last bit ("equal",
            "moved" where the old log-probs differ from both) or not ("differing"); and how many
            have old log-probs of the trainer, not of the engine that sampled ("trained").
        steps: the steps of these records, three at most.
        keys: the user's keys of its columns.
        entropies: those of its tokens, against their log-probs.
        masked: the lengths of responses that a mask drops whole, and of others.
        prompts: (record, (step, digest of the prompt)) of records of one response.
        prompt_key: the user's key of the prompts.
        raw: whether the advantages are the rewards.
        copies: records with copies of their own responses.
        advantages: how many responses have which, as given and by formulas of the rewards.
    """

    places: list[Place]
    counts: list[int]
    label_key: str
    given: bool
    kinds: dict[str, Kinds] = field(default_factory=dict)
    digests: list[tuple[int, int | None, int]] = field(default_factory=list)
    labels: list[tuple[int, tuple[str, Any]]] = field(default_factory=list)
    sizes: Counter[int] = field(default_factory=Counter)
    first: dict[int, Place] = field(default_factory=dict)
    references: Counter[str] = field(default_factory=Counter)
    steps: tuple[str, ...] = ()
    step_key: str = ""
    keys: Mapping[str, str] = field(default_factory=dict)
    entropies: Entropies | None = None
    masked: MaskedRows = field(default_factory=MaskedRows)
    prompts: list[tuple[int, tuple[str, bytes]]] = field(default_factory=list)
    prompt_key: str = ""
    raw: bool = False
    copies: Copies = field(default_factory=Copies)
    advantages: Counter[tuple[int, int]] = field(default_factory=Counter)


def collect_facts(view: View) -> Facts:
    """Collects what is kept of a view."""
    key = view.names.get("group_ids", "")
    given = "advantages" in view.names
    facts = Facts(list(view.places), view.counts.tolist(), key, given)
    facts.kinds = {
        "formulas": compare_formulas(view),
        "orders": compare_orders(view),
        "dead": compare_rewards(view),
        "decimals": compare_decimals(view),
    }
    for name, others in _COLUMNS.items():
        has = any(one in view.packed.columns or view.has_field(one) for one in (name, *others))
        facts.kinds[name] = Kinds.of(np.full(len(view.counts), has), view.places.__getitem__)
    facts.keys, facts.advantages = view.names, count_advantages(view)
    facts.entropies, facts.masked = collect_entropies(view), count_masked(view)
    if view.advantages is not None and view.summed is not None:
        facts.raw = np.array_equal(view.advantages, view.summed)
    _note_prompts(view, facts)
    new = view.columns.get("log_probs_new")
    if new is not None:
        # Two samples are equal with probability e^L, L being the log-prob of the response.
        digests = np.zeros(view.responses.count, dtype=np.uint64)
        columns = [column.view(np.uint64) for column in view.log_probs.values()]
        for number, bits in enumerate(_fold(columns, view.responses)):
            digests = digests * np.uint64(_HASH_FACTORS[0]) + bits + np.uint64(number)
        with np.errstate(invalid="ignore"):
            sums = view.responses.sum(new)
            rows = np.flatnonzero(sums < _COPY_CHANCE)
            several = np.flatnonzero((view.records.sum(sums) < _COPY_CHANCE) & (view.counts > 1))
        facts.copies = _count_copies(view, digests, sums)
        whole = next(_fold([digests], view.records))[several]
        facts.digests = [
            (at, None, one) for at, one in zip(several.tolist(), whole.tolist(), strict=True)
        ]
        records = view.records.index[rows]
        parts = records, rows - view.records.starts[records], digests[rows]
        facts.digests += zip(*(part.tolist() for part in parts), strict=True)
    if "log_probs_ref" in view.columns and new is not None:
        facts.references, facts.steps, equal = _compare_references(view, new)
        facts.kinds["references"] = Kinds.of(equal, view.places.__getitem__)
    for record, sizes in count_sizes(view).items():
        if len(sizes) == 1:
            (size,) = sizes
            facts.sizes += sizes
            facts.first.setdefault(size, view.places[record])
    if key:
        single = np.ones(len(view.counts), dtype=np.bool_)
        np.logical_and.at(single, view.records.index[view.first_members], view.sizes == 1)
        for record in np.flatnonzero(single).tolist():
            value = view.values[record]
            labels = value[key] if isinstance(value[key], list) else [value[key]]
            facts.step_key, step = _step_of(value)
            facts.labels += [(record, (step, label)) for label in dict.fromkeys(labels)]
    return facts


def _count_copies(view: View, digests: NDArray[np.uint64], sums: F64) -> Copies:
    """Counts records with copies, and how many chance gives.

    The next sample of a group is equal to one of log-prob L with probability e^L. Here it is
    e^(L/2), as if a lower temperature than that of the log-probs had sampled.
    """
    order = np.lexsort((digests, view.groups))
    equal = (np.diff(digests[order]) == 0) & (np.diff(view.groups[order]) == 0)
    rows = order[1:][equal & (view.lengths[order[1:]] > 0)]
    copied, sure = np.zeros((2, len(view.counts)), dtype=np.bool_)
    copied[view.records.index[rows]] = True
    sure[view.records.index[rows[sums[rows] < _COPY_CHANCE]]] = True
    pairs = (view.sizes[view.groups] - 1) / 2.0
    chance = view.records.sum(pairs * np.exp(np.minimum(np.nan_to_num(sums), 0.0) / 2.0))
    several = view.count_rows(pairs > 0.0) > 0
    places = (view.places[at] for at in np.flatnonzero(copied).tolist())
    return Copies(
        int(copied.sum()),
        int((copied & ~sure).sum()),
        int(several.sum()),
        float(np.minimum(chance, 1.0)[several].sum()),
        next(places, None),
    )


def _note_prompts(view: View, facts: Facts) -> None:
    """Adds the prompts of records of one response, in each step."""
    for record in np.flatnonzero(view.counts == 1).tolist():
        value = view.values[record]
        texts = (key for key in (*PROMPTS, *PROMPT_IDS) if isinstance(value.get(key), _TEXT))
        if key := next(texts, ""):
            facts.prompt_key = facts.prompt_key or key
            facts.step_key, step = _step_of(value)
            text = orjson.dumps(value[key], option=orjson.OPT_SERIALIZE_NUMPY, default=str)
            digest = hashlib.blake2b(text, digest_size=8).digest()
            facts.prompts.append((record, (step, digest)))


def _step_of(value: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the key and the value of a record's step; "" where there is none."""
    key = next((name for name in STEP_FIELDS if name in value), "")
    return key, str(value.get(key, ""))


def _compare_references(
    view: View, new: F64
) -> tuple[Counter[str], tuple[str, ...], NDArray[np.bool_]]:
    old = view.columns.get("log_probs_old", new)

    def differ(first: F64, second: F64) -> NDArray[np.bool_]:
        return view.count(first != second) > 0

    reference = view.columns["log_probs_ref"]
    differs, moved = differ(reference, new), differ(old, new)
    trained = ~moved | differ(view.columns.get("log_probs_rollout", old), old)
    kinds = {"equal": ~differs, "differing": differs, "moved": ~differs & moved, "trained": trained}
    steps = (_step_of(value)[1] for value in view.values)
    return (
        Counter({kind: int((found & (view.tokens > 0)).sum()) for kind, found in kinds.items()}),
        tuple(dict.fromkeys(steps))[:_STEPS],
        ~(differs & differ(reference, old)),
    )


def _fold(columns: list[NDArray[np.uint64]], parts: Segments) -> Iterator[NDArray[np.uint64]]:
    """Yields [S] a hash of the elements of each segment, in their order, for each column.

    The bits of each, with its place added, are multiplied by odd numbers and folded as in
    splitmix64. The sums over two different segments, modulo 2⁶⁴, are equal once in 10¹⁹.
    """
    at = (parts.positions.astype(np.uint64) + np.uint64(1)) * np.uint64(_HASH_FACTORS[0])
    for column in columns:
        bits = column + at
        for shift, factor in zip((30, 27), _HASH_FACTORS[1:], strict=True):
            bits ^= bits >> np.uint64(shift)
            bits *= np.uint64(factor)
        yield parts.sum(bits ^ (bits >> np.uint64(31)))


@rule("duplicate")
def find_repeated_beginnings(view: View) -> Iterator[Finding]:
    """Finds responses of a group that are others by their ids, or begin with the whole of another.

    Sampling gives such a beginning with the probability of its log-probs, here below 1e-6; below
    1e-2 in a group that has one such response already. Copies to the last bit are found over all of
    the input.
    """
    ids, new = view.counted_ids, view.columns.get("log_probs_new")
    if ids is None or new is None or not len(ids):
        return
    with np.errstate(invalid="ignore"):
        chance = view.responses.sum(new)
    found: dict[int, list[tuple[int, int]]] = {}
    starts, ends = view.responses.starts, view.responses.starts + view.lengths
    tokens = "token ids" if "token_ids" in view.names else "tokens"
    for group in np.flatnonzero(view.sizes > 1).tolist():
        mine = view.members(group).tolist()
        words = {row: ids[starts[row] : ends[row]].tobytes() for row in mine if view.lengths[row]}
        order = sorted(words, key=words.__getitem__)
        alike = [
            (one, other)
            for one, other in pairwise(order)
            if chance[one] < _SECOND_CHANCE and words[other].startswith(words[one])
        ]
        if not any(chance[one] < _COPY_CHANCE for one, _ in alike):
            continue
        for one, other in alike:
            part = slice(starts[other], starts[other] + view.lengths[one])
            equal = all(
                (column[starts[one] : ends[one]] == column[part]).all()
                for column in view.log_probs.values()
            )
            if not equal or len(words[one]) < len(words[other]):
                found.setdefault(int(view.records.index[one]), []).append((one, other))
    for record, pairs in found.items():
        one, other = pairs[0]
        longer = sum(view.lengths[a] < view.lengths[b] for a, b in pairs)
        first = one - int(view.records.starts[record])
        yield Finding(
            {"responses": len(pairs), "longer": longer, "first": first},
            **view.at(other),
            kind="longer" if longer else "ids",
            words={"of": view.counts[record], "tokens": tokens},
        )


_STEPS = 3
"""In two the reference may be the policy by right: before the first update, and after one of a
learning rate of 0 (warm-up)."""
_MEMORY = 100_000
"""Rows remembered, so that memory stays flat on files of any size."""

Copy = tuple[int, str]
"""A response's index in its record, and the place of the response that it repeats, in words."""
Located = tuple[str, Finding, Place]
"""A rule's code, what it found, and where."""
_MANY_RECORDS = 10


class InputMemory:
    """Digests, labels and group sizes of the records so far; the oldest are forgotten."""

    def __init__(self) -> None:
        self._rows: OrderedDict[int, str] = OrderedDict()
        self._labels: OrderedDict[tuple[str, object], Place] = OrderedDict()
        self._torn: tuple[object, Place, Place, Facts] | None = None
        self._torn_count = 0
        self._sizes: Counter[int] = Counter()
        self._first: dict[int, Place] = {}
        self._references: Counter[str] = Counter()
        self._steps: tuple[str, ...] = ()
        self._reference: Place | None = None
        self._kinds: defaultdict[str, Kinds] = defaultdict(Kinds)
        self._keys: dict[str, str] = {}
        self._entropies: dict[str, Entropies] = {}
        self._masked = MaskedRows()
        self._copies = Copies()
        self._advantages: Counter[tuple[int, int]] = Counter()
        self._prompts: OrderedDict[tuple[str, bytes], int] = OrderedDict()
        self._lone: tuple[Place, Facts] | None = None

    def add(self, facts: Facts) -> Iterator[Located]:
        """Adds records that follow those before, and yields the copies among them."""
        copies: dict[int, list[Copy]] = {}
        repeated = set()
        for record, row, digest in facts.digests:
            if record in repeated:
                continue
            place = facts.places[record]
            line = "" if place.line is None else f" (line {place.line})"
            known = self._rows.get(digest)
            if known is None:
                self._rows[digest] = f"record {place.name}" + (
                    line if row is None else f", response {row}"
                )
                if len(self._rows) > _MEMORY:
                    self._rows.popitem(last=False)
            elif row is None:
                repeated.add(record)
                evidence = {"responses": facts.counts[record], "of": facts.counts[record]}
                yield "duplicate", Finding(evidence | {"first": known}, kind="record"), place
            else:
                copies.setdefault(record, []).append((row, known))
        for record, found in copies.items():
            for finding in find_copies(found, facts.counts[record]):
                yield "duplicate", finding, facts.places[record]
        for record, label in facts.labels:
            place = facts.places[record]
            known_place = self._labels.setdefault(label, place)
            if known_place is not place:
                self._torn_count += 1
                self._torn = self._torn or (label[1], known_place, place, facts)
            if len(self._labels) > _MEMORY:
                self._labels.popitem(last=False)
        self._references += facts.references
        self._steps = tuple(dict.fromkeys(self._steps + facts.steps))[:_STEPS]
        if facts.references:
            self._reference = self._reference or facts.places[0]
        self._sizes += facts.sizes
        for name, kinds in facts.kinds.items():
            self._kinds[name].merge(kinds)
        self._keys |= facts.keys
        self._first = facts.first | self._first
        if facts.entropies is not None:
            before = self._entropies.setdefault(facts.entropies.place.source, facts.entropies)
            if before is not facts.entropies:
                before.merge(facts.entropies)
        self._masked.merge(facts.masked)
        self._copies = self._copies.join(facts.copies)
        self._advantages.update(facts.advantages)
        for record, prompt in facts.prompts:
            self._prompts[prompt] = self._prompts.get(prompt, 0) + 1
            if self._prompts[prompt] > 1 and self._lone is None:
                self._lone = facts.places[record], facts
            if len(self._prompts) > _MEMORY:
                self._prompts.popitem(last=False)

    def finish(self, *, uneven_found: bool) -> Iterator[Located]:
        """Yields what only the whole input shows."""
        if self._torn is not None:
            label, first, place, facts = self._torn
            several = len({step for step, _ in self._labels}) > 1
            key = f"{facts.step_key},{facts.label_key}" if several else facts.label_key
            for finding in find_torn_groups(label, first, key, facts, self._torn_count):
                yield "torn-group", finding, place
        for finding in find_pooled_copies(self._copies):
            assert self._copies.place is not None
            yield "duplicate", finding, self._copies.place
        if self._reference is not None:
            for finding in find_equal_references(self._references, len(self._steps)):
                yield "reference", finding, self._reference
        for code, name, find in _KINDS:
            for finding, place in find(self._kinds[name]):
                yield code, finding, place
        for finding, place in find_scattered_advantages(self._kinds["orders"], self._advantages):
            yield "advantages", finding, place
        for name in _COLUMNS:
            for finding, place in find_missing_columns(name, self._kinds[name], self._keys):
                yield "missing-column", finding, place
        if self._lone is not None and not self._sizes and True in self._kinds["rewards"].spans:
            place, facts = self._lone
            for finding in find_lone_rows(self._prompts, facts):
                yield "torn-group", finding, place
        for finding in find_random_drops(self._masked):
            assert self._masked.place is not None
            yield "mask", finding, self._masked.place[0]
        for entropies in self._entropies.values():
            yield from judge_entropies(entropies)
        if len(self._sizes) > 1 and not uneven_found:
            rarest = min(self._sizes, key=self._sizes.__getitem__)
            yield "uneven-groups", describe_uneven(self._sizes), self._first[rarest]


@rule("duplicate", "input")
def find_copies(copies: list[Copy], of: int) -> Iterator[Finding]:
    """Yields the copies among the responses of one record."""
    response, first = copies[0]
    evidence = {"responses": len(copies), "of": of, "first": first}
    yield Finding(evidence, response=response, kind="copies")


def find_pooled_copies(copies: Copies) -> Iterator[Finding]:
    """Yields that more records hold copies than chance gives once in a million (Chernoff's bound).

    Where chance could give the copies of most such records, each by itself.
    """
    count, expected = copies.records, max(copies.expected, 1e-300)
    if count > expected and 2 * copies.doubtful > count:
        log_chance = count - expected + count * math.log(expected / count)
        if log_chance < _COPY_CHANCE:
            yield Finding(
                {"records": count, "of": copies.of, "expected": copies.expected}, kind="pooled"
            )


@rule("torn-group", "input")
def find_torn_groups(
    label: object, first: Place, key: str, facts: Facts, count: int
) -> Iterator[Finding]:
    """Yields the first group whose responses are in several records, one each."""
    yield Finding(
        {"records": count, "key": key},
        severity="info" if facts.given else "warning",
        words={
            "go_on": "1 record belongs" if count == 1 else f"{count:,} records belong",
            "label": label,
            "first": first.name,
            "given": "; the given advantages are used as they are" if facts.given else "",
        },
    )


def find_lone_rows(prompts: Mapping[tuple[str, bytes], int], facts: Facts) -> Iterator[Finding]:
    """Yields that all groups have one response, though half of them share their prompt."""
    rows = sum(prompts.values())
    shared = sum(many for many in prompts.values() if many > 1)
    if 2 * shared < rows:
        return
    several = len({step for step, _ in prompts}) > 1
    by = f"{facts.step_key},{facts.prompt_key}" if several else facts.prompt_key
    right = facts.given and not facts.raw
    yield Finding(
        {"groups": rows, "rows": shared, "key": facts.prompt_key},
        kind="prompts",
        severity="info" if right else "warning",
        words={
            "by": by,
            "given": "; the given advantages are used as they are" if right else "",
        },
    )


@rule("no-scores", "input")
def find_missing_scores(records: Kinds) -> Iterator[Placed]:
    """Yields that nothing in the input has rewards or advantages."""
    if records.end is not None and True not in records.spans:
        yield Finding({}), records.end.place


@rule("missing-column", "input")
def find_missing_columns(name: str, records: Kinds, keys: Mapping[str, str]) -> Iterator[Placed]:
    """Yields that records lack a column that others have.

    An error where no loss is defined: without rewards, or with the KL of some records alone.
    Records on policy may lack old log-probs, and others may have been sampled by the trainer.
    """
    if len(records.spans) > 1:
        lack, key = records.spans[False], keys.get(name, name)
        evidence = {"column": name, "records": lack.total, "of": records.count}
        optional = name in ("log_probs_old", "log_probs_rollout")
        severity: Severity = "warning" if optional else "error"
        yield Finding(evidence, severity=severity, words={"name": key}), lack.place


@rule("reference", "input")
def find_equal_references(records: Counter[str], steps: int) -> Iterator[Finding]:
    """Yields a reference that is the policy to the last bit in three steps, or after an update.

    Old log-probs that are the engine's differ before the first update too.
    """
    moved = records["moved"] if records["trained"] else 0
    if records["differing"] or not (moved or steps >= _STEPS):
        return
    proof = f"even after an update ({moved:,} records)" if moved else f"in {steps} steps or more"
    evidence = {"records": records["equal"], "moved": moved}
    yield Finding(evidence, kind="equal", words={"proof": proof})


def find_moved_references(records: Kinds) -> Iterator[Placed]:
    """Yields that the reference is the policy from a record to the end, and was not before.

    Over three steps: a reference may be synchronised at the last of them.
    """
    end, others = records.end, records.spans.get(False)
    if end is None or others is None or not end.kind or others.total < _STEPS:
        return
    steps = end.last_step - end.place.step + 1
    if steps >= _STEPS or (end.last_step < 0 and end.total >= _MANY_RECORDS):
        yield Finding({"records": end.total, "before": end.first}, kind="from"), end.place


_KINDS: tuple[tuple[str, str, Callable[[Kinds], Iterator[Placed]]], ...] = (
    ("reference", "references", find_moved_references),
    ("no-scores", "rewards", find_missing_scores),
    ("dead-group", "dead", find_dead_ends),
    ("half-precision", "decimals", find_rounded_records),
    ("advantages", "formulas", find_changed_formulas),
    ("advantages", "orders", find_shuffled_rewards),
)
"""Codes, kinds of ``Facts``, and what is found in them."""
