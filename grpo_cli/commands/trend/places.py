"""Whether most of what is wrong at a step is at one position of the responses, or at one token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Batch
from grpo_cli.commands.check.record_view import name_token
from grpo_cli.commands.trend.causes import Cause
from grpo_cli.commands.trend.measure import k3
from grpo_cli.commands.trend.metrics import METRICS
from grpo_cli.commands.trend.step import WARNING, Finding
from grpo_cli.engine import Reader
from grpo_cli.engine.chunk import Chunk
from grpo_cli.errors import InputError

_NAMES = {"kl": "the KL", "ratio": "Σ |log ratio|", "mismatch": "the mismatch"}
"""What is largest at a place of this kind (``Metric.worst``)."""
_MOST, _LEAST_TOKENS = 0.5, 8
"""The share beyond which one position has most of it, and the tokens a response has at least, on
average: of short ones every position has much."""
_FIX = (
    "look at these tokens: whether a template, a special token or a mask put them there, and which "
    "column changed at them"
)


class Shares(NamedTuple):
    """What a step has of something, by position and by token; both as shares of all.

    Attributes:
        texts: id → text, of records that have both.
    """

    positions: dict[int, float]
    tokens: dict[Any, float]
    texts: dict[Any, str]


def at_one_place(found: Sequence[Finding], now: Reader, before: Reader) -> Cause | None:
    """The position or the token that has most of what changed at a step, and had not before.

    Args:
        found: the findings of an event, the first that is likely the cause first.
        now, before: the records of the step at which it began, and of the one before.
    """
    columns = (METRICS.get(one.metric) for one in found if one.severity == WARNING)
    kind = next((one.worst for one in columns if one is not None and one.worst in _NAMES), None)
    if kind is None or (shares := _shares(now, kind)) is None:
        return None
    position, token = (max(each, key=each.__getitem__, default=None) for each in shares[:2])
    own = shares.positions.get(position, 0.0) if position is not None else 0.0
    same = shares.tokens.get(token, 0.0)
    if max(own, same) <= _MOST or (usual := _shares(before, kind)) is None:
        return None
    places = []
    if own > _MOST and usual.positions.get(position or 0, 0.0) <= _MOST:
        places.append(f"at position {position} of the responses")
    if same > _MOST and usual.tokens.get(token, 0.0) <= _MOST:
        named = (token, shares.texts.get(token)) if isinstance(token, int) else (None, token)
        places.append(f"at {name_token(*named)}")
    if not places:
        return None
    return Cause(f"{max(own, same):.0%} of {_NAMES[kind]} is {' and '.join(places)}", _FIX)


def _shares(reader: Reader, kind: str) -> Shares | None:
    """The shares of a step; None where they cannot be known, or a single token has most."""
    positions, tokens, largest, counts = Counter[int](), Counter[Any](), 0.0, np.zeros(2)
    texts: dict[Any, str] = {}
    try:
        for chunk in reader.chunks():
            sizes = _sizes(chunk.batch, kind)
            if sizes is None or not len(sizes):
                continue
            owners, inside = _indices(chunk.batch)
            largest = max(largest, float(sizes.max()))
            counts += len(sizes), chunk.batch.responses.count
            _add(positions, inside, sizes)
            if (words := _words(chunk, owners, inside)) is not None:
                _add(tokens, words, sizes)
                for one in chunk.records:
                    if one.token_ids and one.tokens:
                        both = chain(*one.token_ids), chain(*one.tokens)
                        texts.update(zip(*both, strict=False))
    except InputError:
        return None
    total = sum(positions.values())
    if not largest or largest > _MOST * total or counts[0] < _LEAST_TOKENS * counts[1]:
        return None
    shares = [{one: n / total for one, n in each.items()} for each in (positions, tokens)]
    return Shares(shares[0], shares[1], texts)


def _sizes(batch: Batch, kind: str) -> F64 | None:
    """How large it is at each token; None where records lack what it is made of."""
    new, old = batch.log_probs_new, batch.log_probs_old
    if kind == "mismatch":
        first, second = new if old is None else old, batch.log_probs_rollout
    else:
        first, second = new, batch.log_probs_ref if kind == "kl" else old
    if first is None or second is None:
        return None
    return k3(second - first) if kind == "kl" else np.abs(first - second)


def _indices(batch: Batch) -> tuple[I64, I64]:
    """The response of each token, and its index there as written."""
    owners = batch.responses.spread(np.arange(batch.responses.count))
    if batch.positions is not None:
        return owners, batch.positions
    return owners, np.arange(len(owners)) - batch.responses.spread(batch.responses.starts)


def _words(chunk: Chunk, owners: I64, inside: I64) -> NDArray[Any] | None:
    """The id of each token, or else its text; None where records have neither."""
    rows = [row for one in chunk.records for row in one.token_ids or one.tokens or ()]
    if len(rows) != chunk.batch.responses.count:
        return None
    return np.array([rows[at][n] for at, n in zip(owners.tolist(), inside.tolist(), strict=True)])


def _add(known: Counter[Any], keys: NDArray[Any], sizes: F64) -> None:
    found, places = np.unique(keys, return_inverse=True)
    sums = np.bincount(places, sizes)
    for key, size in zip(found.tolist(), sums.tolist(), strict=True):
        known[key] += size
