"""Whether what teaches nothing counts in the denominator of the loss that a record names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import orjson

from grpo_cli.commands.check.record_view import View
from grpo_cli.commands.check.rules.rewards import are_dead
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.errors import GrpoError
from grpo_cli.records import parse
from grpo_cli.variants.trainer import choose, completed

EMPTY, DEAD, RECORDS = "empty_responses", "dead_groups", "records"
Named = tuple[str, str]
"""The ``framework`` of records as JSON, and what is counted of them."""


class Counted(NamedTuple):
    """A loss: its row and aggregation, what it divides by, and what counts there."""

    variant: str
    denominator: str
    empty: bool
    dead: bool


def tally(view: View) -> Counter[Named]:
    """How many responses without tokens and dead groups the records have, by what they name."""
    empty = view.records.sum((view.responses.lengths == 0).astype(np.int64))
    groups = np.bincount(view.records.index[view.first_members], are_dead(view), len(view.counts))
    found: Counter[Named] = Counter()
    for record in np.flatnonzero((empty > 0) | (groups > 0)).tolist():
        named = view.values[record].get("framework")
        if isinstance(named, dict):
            key = orjson.dumps(named, default=str, option=orjson.OPT_SORT_KEYS).decode()
            found[key, EMPTY] += int(empty[record])
            found[key, DEAD] += int(groups[record])
            found[key, RECORDS] += 1
    return found


def as_json(counts: Mapping[Named, int]) -> Iterator[dict[str, Any]]:
    """What is told of each loss that records name, of those whose denominator is known."""
    losses: dict[Counted, Counter[str]] = {}
    for (named, what), count in sorted(counts.items()):
        loss = _loss(named)
        if loss is not None:
            losses.setdefault(loss, Counter())[what] += count
    for loss, number in losses.items():
        yield {
            "variant": loss.variant,
            "denominator": loss.denominator,
            EMPTY: number[EMPTY],
            "empty_responses_count": loss.empty,
            DEAD: number[DEAD],
            "dead_groups_count": loss.dead,
            RECORDS: number[RECORDS],
        }


_ROWS = [[-1.0, -2.0], [-1.0], [-1.0], [-1.0, -1.0], [-1.0]]
_TRIED = {
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
_WITHOUT, _DEAD = 1, slice(3, 5)
"""The response that the mask takes, and those of the group with equal rewards."""


@lru_cache(maxsize=256)
def _loss(named: str) -> Counted | None:
    """The loss of a ``framework``, as it weighs a record that has one of each."""
    try:
        chosen = choose(orjson.loads(named))
        plan = completed(chosen, advantages_given=False, stages={}, hyperparameters={})
        policy = Chunk.of([parse(_TRIED)]).run(Evaluator(plan).evaluate).policy
    except GrpoError:
        return None
    own = chosen.stages.get("aggregate")
    name = chosen.variant if own is None else f"{chosen.variant} --aggregate {own}"
    counts, of = policy.weights.counts, policy.weights.of
    if counts is None:
        return Counted(name, of, empty=False, dead=False)
    return Counted(name, of, bool(counts[_WITHOUT] > 0), bool((counts[_DEAD] > 0).any()))
