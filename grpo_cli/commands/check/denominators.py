"""Whether responses and groups with zero gradient count in the denominator of a record's loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np
import orjson

from grpo_cli.commands.check.answer import Denominator
from grpo_cli.commands.check.record_view import View
from grpo_cli.commands.check.rules.rewards import are_dead
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.errors import GrpoError
from grpo_cli.records import parse
from grpo_cli.variants.trainer import choose, completed

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
