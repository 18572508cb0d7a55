"""What an answer says besides findings: skipped rules, denominators, what mismatch is normal."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from importlib.resources import files
from typing import NamedTuple

import numpy as np
import orjson

from grpo_cli.commands.check.answer import Denominator, MismatchFound, NotChecked
from grpo_cli.commands.check.record_view import View
from grpo_cli.commands.check.rule import Topic, table, topics
from grpo_cli.commands.check.rules.rewards import are_dead
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.errors import GrpoError
from grpo_cli.objective.mismatch import Attribution
from grpo_cli.records import parse
from grpo_cli.variants.trainer import choose, completed

FEWER_THAN = "fewer than "
"""Begins what an input has too few of, in the place of a field."""


class SkippedRules(NamedTuple):
    """Rules that are skipped together, and why.

    Attributes:
        topic: what they look for, in words.
        fallback: the part that they still find; empty if they find nothing.
        missing: the fields that records lack; ``a|b`` is either.
    """

    topic: str
    fallback: str
    missing: tuple[str, ...]


def missing_needs(topic: Topic, view: View) -> tuple[str, ...]:
    """Returns the fields that rules of a topic need and that the records of a view lack."""
    return tuple(need for need in topic.needs if not any(map(view.has_field, need.split("|"))))


def count_skipped(view: View) -> Counter[SkippedRules]:
    """Counts the records of a view for which rules are skipped, by what they lack."""
    found: Counter[SkippedRules] = Counter()
    pairs = zip(view.packed.settings, view.values, strict=True)
    kinds = Counter(
        (frozenset(settings), frozenset([key for key, one in value.items() if one is not None]))
        for settings, value in pairs
    )
    for topic in topics():
        missing, count = missing_needs(topic, view), len(view.counts)
        if topic.needs_key:
            keys = topic.needs_key.split("|")
            bare = sum(many for (_, given), many in kinds.items() if given.isdisjoint(keys))
            found[SkippedRules(topic.topic, "", (*missing, topic.needs_key))] = bare
            count -= bare
        if missing:
            found[SkippedRules(topic.topic, "", missing)] = count
        if wanted := topic.full_coverage_needs:
            partly = SkippedRules(topic.topic, topic.fallback, (wanted,))
            setting, *keys = wanted.split("|")
            found[partly] = sum(
                many
                for (settings, given), many in kinds.items()
                if setting not in settings and given.isdisjoint(keys)
            )
    return +found


def count_short(
    skipped: Counter[SkippedRules], found: Iterable[str], records: int, tokens: int
) -> Counter[SkippedRules]:
    """Counts the records of an input of too few tokens for rules that lack nothing else.

    Not where a rule of the topic found something: it needs fewer tokens than the others.
    """
    lacking = {one.topic for one in skipped if not one.fallback and skipped[one] == records}
    lacking |= {rule.topic.topic for rule in table() if rule.code in {*found}}
    return Counter(
        {
            SkippedRules(topic.topic, "", (f"{FEWER_THAN}{topic.least_tokens} tokens",)): records
            for topic in topics()
            if 0 < tokens < topic.least_tokens and topic.topic not in lacking
        }
    )


def not_checked(counts: Mapping[SkippedRules, int]) -> tuple[NotChecked, ...]:
    """Returns the skipped rules as the answer has them, in the order of the topics."""
    order = [topic.topic for topic in topics()]
    codes = {name: [rule.code for rule in table() if rule.topic.topic == name] for name in order}
    return tuple(
        NotChecked(
            about=skipped.topic,
            codes=tuple(dict.fromkeys(codes[skipped.topic])),
            missing=tuple(tuple(need.split("|")) for need in skipped.missing),
            partly=skipped.fallback or None,
            records=counts[skipped],
        )
        for skipped in sorted(counts, key=lambda item: (order.index(item.topic), item.missing))
    )


EMPTY, DEAD, RECORDS = "empty_responses", "dead_groups", "records"
LossCount = tuple[str, str]
"""The ``framework`` of records as JSON, and what is counted: ``EMPTY``, ``DEAD`` or ``RECORDS``."""


def count_zero_gradient(view: View) -> Counter[LossCount]:
    """Counts empty responses and dead groups of records that name a framework, by framework."""
    empty = view.records.sum((view.lengths == 0).astype(np.int64))
    groups = np.bincount(view.records.index[view.first_members], are_dead(view), len(view.counts))
    found: Counter[LossCount] = Counter()
    for record in np.flatnonzero((empty > 0) | (groups > 0)).tolist():
        named = view.values[record].get("framework")
        if isinstance(named, dict):
            key = orjson.dumps(named, default=str, option=orjson.OPT_SORT_KEYS).decode()
            found[key, EMPTY] += int(empty[record])
            found[key, DEAD] += int(groups[record])
            found[key, RECORDS] += 1
    return found


def denominators(counts: Mapping[LossCount, int]) -> tuple[Denominator, ...]:
    """Returns the counts of each loss whose denominator is known."""
    losses: dict[Denominator, Counter[str]] = {}
    for (named, kind), count in sorted(counts.items()):
        loss = _denominator(named)
        if loss is not None:
            losses.setdefault(loss, Counter())[kind] += count
    return tuple(
        replace(
            loss, empty_responses=number[EMPTY], dead_groups=number[DEAD], records=number[RECORDS]
        )
        for loss, number in losses.items()
    )


_ROWS = [[-1.0, -2.0], [-1.0], [-1.0], [-1.0, -1.0], [-1.0]]
_EXAMPLE = {
    **dict.fromkeys(("log_probs_new", "log_probs_old", "log_probs_ref"), _ROWS),
    **dict.fromkeys(("log_probs_rollout",), _ROWS),
    "entropies": [[1.0] * len(row) for row in _ROWS],
    "mask": [[1, 1], [0], [1], [1, 1], [1]],
    "rewards": [1.0, 0.0, 0.5, 1.0, 1.0],
    "group_ids": [0, 0, 0, 1, 1],
    "hyperparameters": {
        "max_completion_length": 4,
        "response_length": 4,
        "num_items_in_batch": 6,
        "loss_denominator": 6,
    },
}
_EMPTY_RESPONSE, _DEAD_RESPONSES = 1, slice(3, 5)
"""The response without tokens that count, and the responses of the group with equal rewards."""


@lru_cache(maxsize=256)
def _denominator(named: str) -> Denominator | None:
    """Evaluates the loss of a ``framework`` on a record with an empty response and a dead group."""
    try:
        chosen = choose(orjson.loads(named))
        plan = completed(chosen, advantages_given=False, stages={}, hyperparameters={})
        policy = Chunk.of([parse(_EXAMPLE)]).run(Evaluator(plan).evaluate).policy
    except GrpoError:
        return None
    aggregate = chosen.stages.get("aggregate")
    name = chosen.row if aggregate is None else f"{chosen.row} --aggregate {aggregate}"
    counts = policy.weights.counts
    return Denominator(
        variant=name,
        denominator=policy.weights.of,
        empty_responses=0,
        empty_responses_count=counts is not None and bool(counts[_EMPTY_RESPONSE] > 0),
        dead_groups=0,
        dead_groups_count=counts is not None and bool((counts[_DEAD_RESPONSES] > 0).any()),
        records=0,
    )


_UNITS = {"rms": "nats RMS", "mean_abs": "nats mean |·|", "kl": "nats of KL"}


class Floor(NamedTuple):
    """How far log-probs of equal weights differ in a setting in which nothing is wrong.

    Attributes:
        setting: what differs between the two sides.
        measure: ``rms``, ``mean_abs`` or ``kl``, in nats per token.
        low, high: the range that was found.
        models: the models, engines and versions.
        source: the page that says so, or the script that measures it.
    """

    setting: str
    measure: str
    low: float
    high: float
    models: str
    source: str

    def describe(self, *, normal: bool) -> str:
        """Says what the setting gives, for a mismatch that is normal or too large."""
        low, high = f"{self.low:.3g}", f"{self.high:.3g}"
        span = low if low == high else f"{low} to {high}"
        size = f"{span} {_UNITS[self.measure]}"
        if normal:
            return f"normal: no more than the {size} that {self.setting} causes ({self.models})"
        return f"too large: {self.setting} causes only {size} ({self.models})"


@cache
def floors() -> tuple[Floor, ...]:
    """The atlas, the mildest setting first."""
    text = files(__package__).joinpath("floors.json").read_text(encoding="utf-8")
    return tuple(Floor(**row) for row in json.loads(text))


def judge(found: Attribution | None) -> MismatchFound | None:
    """The mismatch, and the mildest setting that is known to differ as much."""
    if found is None:
        return None
    reaching = [one for one in floors() if getattr(found, one.measure) <= one.high]
    floor = reaching[0] if reaching else floors()[-1]
    return MismatchFound(
        **vars(found),
        named=None if found.first is None else found.first.name,
        normal=bool(reaching),
        setting=floor.setting,
        floor=floor.describe(normal=bool(reaching)),
        source=floor.source,
    )
