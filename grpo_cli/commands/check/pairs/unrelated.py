"""Columns that are not of the same tokens, or not of related policies."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.commands.check.finding import Finding, Rule
from grpo_cli.commands.check.pair import Pair

_LEAST, _LEAST_ALONE = 24, 12
_RELATED = 0.8
_LITTLE = 0.3
_SIGMAS = 4.5
_CHANCE = math.log(1e-6)
_MOVES = 0.001
_SURE, _LEVEL = 0.2, 0.25


def _look(pair: Pair) -> Iterator[Finding]:
    """The probabilities of the two columns do not go together.

    Of one policy at two temperatures, a factor of two apart, the probabilities of the tokens taken
    correlate by more than 0.8, whatever the noise; of other tokens by 0. They are between 0 and 1,
    so that no single token decides. Reported where the correlation is below 0.3, that of
    the log-probs too, and below 0.8 by
    4.5 standard errors (Fisher's z, one in 300,000) over a sample; or where that many responses
    alone are below 0.3 that chance makes so many once in a million (Chernoff). A model that is
    sure of nothing (the probabilities spread by less than 0.2, as in tests with random weights)
    can be moved anywhere by one large step, which also moves the mean: then the means must agree.
    """
    if pair.to_reference or pair.equal.all():
        return
    one, other = np.exp(pair.first), np.exp(pair.second)
    told = _tells(pair, one, other)
    whole = _correlations(pair.samples, one, other)
    logs = _correlations(pair.samples, pair.first, pair.second)
    found = told & _apart(pair.samples, whole) & (logs < _LITTLE)
    rows = pair.view.responses
    each = _correlations(rows, one, other)
    low = (rows.lengths >= _LEAST_ALONE) & (each < _LITTLE)
    low &= _correlations(rows, pair.first, pair.second) < _LITTLE
    for sample in np.flatnonzero(found).tolist():
        n, rows_of = int(pair.samples.lengths[sample]), int(pair.rows.lengths[sample])
        yield _finding(pair, float(whole[sample]), n, {"record": pair.record(sample)}, rows_of)
    every = pair.rows.sum(low.astype(np.int64))
    for sample in np.flatnonzero(told & ~found & (every > 0)).tolist():
        start = int(pair.rows.starts[sample])
        part = slice(start, start + int(pair.rows.lengths[sample]))
        if not _by_chance(rows.lengths[part], int(every[sample])):
            row = start + int(np.argmax(low[part]))
            n = int(rows.lengths[row])
            yield _finding(pair, float(each[row]), n, pair.view.at(row), int(every[sample]))


def _tells(pair: Pair, one: F64, other: F64) -> NDArray[np.bool_]:
    """[S] whether the policies are sure of some tokens, or else their means agree."""
    spreads = [pair.moments(values)[2] for values in (one, other)]
    _, mean, spread = pair.moments(pair.log_ratio)
    found: NDArray[np.bool_] = np.maximum(*spreads) > _SURE
    return found | (np.abs(mean) < _LEVEL * spread)


def _by_chance(lengths: I64, rows: int) -> bool:
    """Whether so many responses of related columns may correlate by less: once in a million."""
    sizes = lengths[lengths >= _LEAST_ALONE]
    away = (np.arctanh(_RELATED) - np.arctanh(_LITTLE)) * np.sqrt(sizes - 3.0)
    expected = float(np.logaddexp.reduce(math.log(0.5) - 0.5 * away * away))  # its logarithm
    return rows * (1.0 + expected - math.log(rows)) >= _CHANCE


def _correlations(segments: Segments, one: F64, other: F64) -> F64:
    """[S] Pearson's; 1 where a column does not vary."""
    a = one - segments.spread(segments.mean(one))
    b = other - segments.spread(segments.mean(other))
    aa, bb, ab = segments.sum(a * a), segments.sum(b * b), segments.sum(a * b)
    enough = (aa > _MOVES * _MOVES * segments.lengths) & (bb > 0.0)
    found: F64 = np.where(enough, ab / np.sqrt(np.where(enough, aa * bb, 1.0)), 1.0)
    return found


def _apart(segments: Segments, found: F64) -> NDArray[Any]:
    z = np.arctanh(np.clip(found, -0.999, 0.999))
    away = (np.arctanh(_RELATED) - z) * np.sqrt(np.maximum(segments.lengths - 3, 0))
    return (segments.lengths >= _LEAST) & (found < _LITTLE) & (away > _SIGMAS)


def _finding(
    pair: Pair, correlation: float, tokens: int, place: dict[str, int], rows: int
) -> Finding:
    one, other = pair.keys
    many = "these tokens" if "response" not in place else f"this response ({rows} such in all)"
    return Finding(
        "error",
        f"{one} and {other} are unrelated: of {many} the probabilities correlate by "
        f"{correlation:.2f} over {tokens:,} tokens; they are not of the same tokens",
        "log-probs of other rows (a column that was not reordered with the batch), of an untrained "
        "head, or of other weights: compute both for the same rows",
        {"columns": list(pair.names), "correlation": correlation, "tokens": tokens, "rows": rows},
        **place,
    )


RULES = (
    Rule(
        "unrelated",
        ("error",),
        "Two columns of log-probs do not correlate: they are of other tokens or another model.",
        30,
        _look,
        pairs=True,
        about="other tokens and fillers",
        needs=("log_probs_old|log_probs_rollout",),
    ),
)
