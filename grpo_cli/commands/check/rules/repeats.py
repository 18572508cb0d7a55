"""What only several records show: repeated responses, torn groups, a reference that moves along."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64
from grpo_cli.commands.check.facts import COPY_CHANCE, STEPS, WHOLE, Facts, Keys
from grpo_cli.commands.check.kinds import Kinds
from grpo_cli.commands.check.record_view import View
from grpo_cli.commands.check.rule import Finding, Placed, rule
from grpo_cli.commands.check.rules.formulas import (
    find_changed_formulas,
    find_scattered_advantages,
    find_shuffled_rewards,
)
from grpo_cli.commands.check.rules.rewards import describe_uneven, find_replaced_rewards
from grpo_cli.commands.check.rules.values import find_wrong_entropies
from grpo_cli.commands.check.tokens import LOG_PROBS, Place
from grpo_cli.terminal.numbers import record_name

_SECOND_CHANCE = math.log(1e-2)


@rule("duplicate")
def find_repeated_beginnings(view: View) -> Iterator[Finding]:
    """Finds responses of a group that are others by their ids, or begin with the whole of another.

    Sampling gives such a beginning with the probability of its log-probs, here below 1e-6; below
    1e-2 in a group that has one such response already. Copies to the last bit are found over all of
    the input.
    """
    ids, chance = view.counted_ids, view.chances
    if ids is None or chance is None or not len(ids):
        return
    found: dict[int, list[tuple[int, int]]] = {}
    starts, ends = view.responses.starts, view.responses.starts + view.lengths
    tokens = "token ids" if "token_ids" in view.names else "tokens"
    for group in _groups_with_equal_beginnings(view, ids, chance).tolist():
        mine = view.members(group).tolist()
        words = {row: ids[starts[row] : ends[row]].tobytes() for row in mine if view.lengths[row]}
        order = sorted(words, key=words.__getitem__)
        alike = [
            (one, other)
            for one, other in pairwise(order)
            if chance[one] < _SECOND_CHANCE and words[other].startswith(words[one])
        ]
        if not any(chance[one] < COPY_CHANCE for one, _ in alike):
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


_BEGINNING, _FACTOR = 8, 0x1E3779B97F4A7C15
"""Ids of a beginning, and what they are multiplied by to compare them as one number."""


def _groups_with_equal_beginnings(view: View, ids: I64, chance: F64) -> I64:
    """Returns the groups in which two responses begin with 8 equal ids, or one is shorter."""
    long = np.flatnonzero(view.lengths >= _BEGINNING)
    begun = ids[view.responses.starts[long][:, None] + np.arange(_BEGINNING)]
    keys = np.stack([begun @ np.cumprod(np.full(_BEGINNING, _FACTOR)), view.groups[long]])
    order = np.lexsort(keys)
    equal = (np.diff(keys[:, order]) == 0).all(axis=0)
    short = (view.lengths > 0) & (view.lengths < _BEGINNING) & (chance < _SECOND_CHANCE)
    found = np.union1d(view.groups[short], view.groups[long[order[1:][equal]]])
    return found[view.sizes[found] > 1]


_SAME, _OTHER = 0.02, 0.1
_FAR_PAIRS, _FAR_SHARE, _PROVEN_PAIRS, _PROVEN_SHARE = 8, 0.25, 3, 0.9


@rule("shifted")
def find_shifted_ids(view: View) -> Iterator[Finding]:
    """Finds token ids that are one token early or late, by the first log-probs of responses.

    A log-prob depends on the prompt and the tokens up to its own. So responses to one prompt that
    begin with the same id have equal first log-probs (within 0.02 nats). Reported where a quarter
    of their pairs (neighbours, if sorted by log-prob), at least 8, differ by 0.1 nats, and the next
    tokens say where the ids belong: if they are early, pairs with equal first ids and log-probs
    have equal second ones too, whatever their second id is; if they are late, only pairs whose
    second ids are equal have equal first log-probs. Each in 9 of 10 pairs, at least 3. Log-probs of
    no model have neither.
    """
    ids, start = view.counted_ids, view.responses.starts
    rows = np.flatnonzero(view.lengths > 1)
    column = next((name for name in LOG_PROBS[1::-1] if name in view.columns), None)
    if ids is None or column is None:
        return
    rows = rows[view.positions[start[rows] + 1] == 1]
    first, second = start[rows], start[rows] + 1
    values, groups = view.columns[column], view.groups[rows]

    def compare(*keys: NDArray[Any]) -> tuple[NDArray[np.bool_], F64, F64]:
        order = np.lexsort((values[first], *keys, ids[first], groups))
        pairs = np.stack([order[:-1], order[1:]])
        alike = (groups[pairs[0]] == groups[pairs[1]]) & np.equal(*ids[first[pairs]])
        one, other = pairs[:, alike]
        sizes = (np.abs(values[at[one]] - values[at[other]]) for at in (first, second))
        return ids[second[one]] == ids[second[other]], *sizes

    equal, difference, next_difference = compare()
    far = int((difference > _OTHER).sum())
    if far < max(_FAR_PAIRS, _FAR_SHARE * len(difference)):
        return
    early = next_difference[(difference < _SAME) & ~equal] < _SAME
    equal, by_second, _ = compare(ids[second])
    late, others = by_second[equal] < _SAME, by_second[~equal] > _OTHER
    proofs = {"left": (early,), "right": (late, others)}
    for side, tests in proofs.items():
        if all(len(one) >= _PROVEN_PAIRS and one.mean() >= _PROVEN_SHARE for one in tests):
            words = {"side": side, "other": "left" if side == "right" else "right"}
            words |= {"ids": view.key("token_ids" if "token_ids" in view.names else "tokens")}
            words |= {"column": view.key(column)}
            evidence = {"pairs": len(difference), "differing": far}
            yield Finding(evidence, **view.at(int(rows[0])), kind="ids", words=words)


_MEMORY = 100_000
"""Rows remembered, so that memory stays flat on files of any size."""

Located = tuple[str, Finding, Place]
"""A rule's code, what it found, and where."""
_MANY_RECORDS = 10


class InputMemory:
    """The facts of all records so far; of digests, labels and prompts the oldest are forgotten."""

    def __init__(self) -> None:
        self._facts = Facts()
        self._rows: OrderedDict[int, tuple[Place, int | None]] = OrderedDict()
        self._labels: OrderedDict[tuple[str, object], Place] = OrderedDict()
        self._prompts: OrderedDict[tuple[str, bytes], int] = OrderedDict()
        self._torn: tuple[object, Place, Place, Keys] | None = None
        self._torn_count = 0
        self._lone: tuple[Place, Keys] | None = None

    def add(self, later: Facts) -> Iterator[Located]:
        """Adds records that follow those before, and yields the copies among them."""
        self._facts.merge(later)
        for place, count, whole, rows in later.digests:
            for finding in self._find_copies(place, count, whole, rows):
                yield "duplicate", finding, place
        for label, place, keys in later.labels:
            first = self._labels.get(label)
            if first is None:
                _remember(self._labels, label, place)
            else:
                self._torn_count += 1
                self._torn = self._torn or (label[1], first, place, keys)
        for prompt, place, keys in later.prompts:
            _remember(self._prompts, prompt, self._prompts.get(prompt, 0) + 1)
            if self._prompts[prompt] > 1 and self._lone is None:
                self._lone = place, keys

    def _find_copies(
        self, place: Place, count: int, whole: int | None, rows: Iterable[tuple[int, int]]
    ) -> Iterator[Finding]:
        if whole is not None:
            if (known := self._rows.get(whole)) is not None:
                evidence = {"responses": count, "of": count, "first": _name(known[0])}
                yield Finding(evidence, kind="record")
                return
            _remember(self._rows, whole, (place, None))
        copies = []
        for row, digest in rows:
            if (known := self._rows.get(digest)) is None:
                _remember(self._rows, digest, (place, row))
            else:
                copies.append((row, f"{_name(known[0])}, response {known[1]}"))
        if copies:
            row, origin = copies[0]
            evidence = {"responses": len(copies), "of": count}
            yield Finding(evidence | {"first": origin}, response=row, kind="copies")

    def finish(self, *, uneven_found: bool) -> Iterator[Located]:
        """Yields what only the whole input shows."""
        facts = self._facts
        if self._torn is not None:
            yield "torn-group", self._describe_torn(*self._torn), self._torn[2]
        if facts.referred is not None:
            for finding in find_equal_references(facts.counts["references"], len(facts.steps)):
                yield "reference", finding, facts.referred
        for code, name, find in _KINDS:
            for finding, place in find(facts.kinds[name]):
                yield code, finding, place
        for finding, place in find_replaced_rewards(
            facts.kinds["sources"], facts.kinds["formulas"]
        ):
            yield "reward-source", finding, place
        scattered = find_scattered_advantages(facts.kinds["orders"], facts.counts["advantages"])
        yield from (("advantages", finding, place) for finding, place in scattered)
        sizes = facts.kinds["sizes"].spans
        if self._lone is not None and not sizes and True in facts.kinds["rewards"].spans:
            for finding in find_lone_rows(self._prompts, self._lone[1]):
                yield "torn-group", finding, self._lone[0]
        for finding, place in find_likely_copies(facts.kinds["copies"], facts.counts["copies"]):
            yield "duplicate", finding, place
        for entropies in facts.entropies.values():
            for finding in find_wrong_entropies(entropies):
                yield "entropies", finding, entropies.place
        if len(sizes) > 1 and not uneven_found:
            counts = Counter({size: span.total for size, span in sizes.items()})
            rarest = min(counts, key=counts.__getitem__)
            yield "uneven-groups", describe_uneven(counts), sizes[rarest].place

    def _describe_torn(self, label: object, first: Place, _: Place, keys: Keys) -> Finding:
        """Returns the finding of a group whose responses are in several records, one each."""
        count = self._torn_count
        return Finding(
            {"records": count, "key": keys.join(step for step, _ in self._labels)},
            severity="info" if keys.grouped else "warning",
            words={
                "go_on": "1 record belongs" if count == 1 else f"{count:,} records belong",
                "label": label,
                "first": _name(first),
                "given": _GIVEN * keys.grouped,
            },
        )


_GIVEN = "; the given advantages are used as they are"


def _name(place: Place) -> str:
    return record_name(place.name, place.line, place.source)


def _remember(memory: OrderedDict[Any, Any], key: object, value: object) -> None:
    """Stores a value, and forgets the oldest where there are too many."""
    memory[key] = value
    if len(memory) > _MEMORY:
        memory.popitem(last=False)


_TIMES = 3.0


@rule("duplicate", "input")
def find_likely_copies(levels: Kinds, expected: Counter[int]) -> Iterator[Placed]:
    """Yields copies that are likely one by one, where all of them come by chance once in a million.

    By Chernoff's bound of a Poisson number, over the levels at which there are three times as many
    as sampling gives.
    """
    chances = {level: max(expected[level] / WHOLE, 1e-9) for level in levels.spans}
    odd = [level for level, by in chances.items() if levels.spans[level].total > _TIMES * by]
    spans = [levels.spans[level] for level in sorted(odd) if level]
    total, by = sum(levels.spans[one].total for one in odd), sum(chances[one] for one in odd)
    if not spans or total - by - total * math.log(total / by) > COPY_CHANCE:
        return
    responses, first = sum(one.total for one in spans), spans[0]  # of the least likely
    left = levels.count - total
    words = {"rest": f"; {left:,} more are so likely that they may be chance" if left else ""}
    yield (
        Finding({"responses": responses, "expected": by, "left": left}, kind="likely", words=words),
        first.place,
    )


@rule("torn-group", "input")
def find_lone_rows(prompts: Mapping[tuple[str, bytes], int], keys: Keys) -> Iterator[Finding]:
    """Yields that all groups have one response, though half of them share their prompt."""
    rows = sum(prompts.values())
    shared = sum(many for many in prompts.values() if many > 1)
    if 2 * shared >= rows:
        yield Finding(
            {"groups": rows, "rows": shared, "key": keys.group},
            kind="prompts",
            severity="info" if keys.grouped else "warning",
            words={
                "by": keys.join(step for step, _ in prompts),
                "given": _GIVEN * keys.grouped,
            },
        )


@rule("no-scores", "input")
def find_missing_scores(records: Kinds) -> Iterator[Placed]:
    """Yields that nothing in the input has rewards or advantages."""
    if records.end is not None and True not in records.spans:
        yield Finding({}), records.end.place


@rule("reference", "input")
def find_equal_references(records: Counter[str], steps: int) -> Iterator[Finding]:
    """Yields a reference that is the policy to the last bit in three steps, or after an update.

    Old log-probs that are the engine's differ before the first update too.
    """
    moved = records["moved"] if records["trained"] else 0
    if records["differing"] or not (moved or steps >= STEPS):
        return
    proof = f"even after an update ({moved:,} records)" if moved else f"in {steps} steps or more"
    evidence = {"records": records["equal"], "moved": moved}
    yield Finding(evidence, kind="equal", words={"proof": proof})


def find_moved_references(records: Kinds) -> Iterator[Placed]:
    """Yields that the reference is the policy from a record to the end, and was not before.

    Over three steps: a reference may be synchronised at the last of them.
    """
    end, others = records.end, records.spans.get(False)
    if end is None or others is None or not end.kind or others.total < STEPS:
        return
    steps = end.last_step - end.place.step + 1
    if steps >= STEPS or (end.last_step < 0 and end.total >= _MANY_RECORDS):
        yield Finding({"records": end.total, "before": end.first}, kind="from"), end.place


_KINDS: tuple[tuple[str, str, Callable[[Kinds], Iterator[Placed]]], ...] = (
    ("reference", "references", find_moved_references),
    ("no-scores", "rewards", find_missing_scores),
    ("advantages", "formulas", find_changed_formulas),
    ("advantages", "orders", find_shuffled_rewards),
)
"""Codes, kinds of ``Facts``, and what is found in them."""
