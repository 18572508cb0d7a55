"""The eleven statistics by which verl's ``rollout_rs`` rejects tokens and responses."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, Segments
from grpo_cli.hyperparameters import HyperparameterError

_SAFE = 20.0  # verl's bound on a log ratio
_TINY = 1e-8  # what verl adds to a response's count of tokens


def rejected(
    difference: F64, responses: Segments, statistics: str, threshold: float | str | None
) -> NDArray[np.bool_]:
    """[N] the tokens that are outside of the bounds of any of the statistics.

    With d = log π/π_rollout of a token, bounded to ±20: k1 = −d, k2 = d²/2, k3 = e^d − 1 − d; of
    the token, or their sum, mean or maximum over the response. k1 has bounds on both sides, given
    as ratios, LOW_HIGH, or HIGH for 1/HIGH and HIGH; the others one, in nats.

    Args:
        difference: [N] d, nats.
        responses: cuts the tokens into responses.
        statistics: their names, joined by commas.
        threshold: one for all of them, or one for each joined by commas.

    Raises:
        HyperparameterError: where the thresholds do not fit the statistics.
    """
    safe = np.clip(difference, -_SAFE, _SAFE)
    outside = np.zeros(len(difference), np.bool_)
    for name, low, high in _bounds(statistics, threshold):
        value = _statistic(safe, responses, name)
        found = ~((value >= low) & (value <= high))
        outside |= found if name.startswith("token") else responses.spread(found)
    return outside


def _statistic(difference: F64, responses: Segments, name: str) -> F64:
    """[N] of a token, or [R] of a response."""
    kind = name[-2:]
    value = {"k1": -difference, "k2": 0.5 * difference**2}.get(kind)
    if value is None:
        value = np.exp(difference) - 1.0 - difference
    if name.startswith("token"):
        return value
    if name.startswith("seq_max"):
        return _greatest(value, responses)
    total = responses.sum(value)
    return total / (responses.lengths + _TINY) if name.startswith("seq_mean") else total


def _greatest(value: F64, responses: Segments) -> F64:
    """[R] the greatest value of each response; 0 for one without tokens."""
    found = np.zeros(responses.count)
    filled = responses.lengths > 0
    if responses.total:
        found[filled] = np.maximum.reduceat(value, responses.starts[filled])
    return found


def _bounds(statistics: str, threshold: float | str | None) -> Iterator[tuple[str, float, float]]:
    """Each statistic once, with its bounds."""
    names = list(dict.fromkeys(statistics.split(",")))
    given = [] if threshold is None else str(threshold).split(",")
    if len(given) not in (1, len(names)):
        raise HyperparameterError(
            "rollout_rs_threshold",
            f"expected 1 threshold, or {len(names)} as rollout_rs has; got {len(given)}",
        )
    for name, text in zip(names, given if len(given) > 1 else given * len(names), strict=True):
        yield name, *_interval(name, text)


def _interval(name: str, text: str) -> tuple[float, float]:
    low, _, high = text.rpartition("_")
    if name.endswith("k1"):
        least = float(low) if low else 1.0 / float(high)
        return math.log(least), math.log(float(high))
    if low:
        raise HyperparameterError(
            "rollout_rs_threshold", f"expected one upper bound for {name}, got {text}"
        )
    return -math.inf, float(high)
