"""verl's rollout correction: weights by π/π_rollout, and rejection by how far the two differ."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, Segments
from grpo_cli.hyperparameters import HyperparameterError
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import Composed, Usual, call, choice, holding, reading
from grpo_cli.objective.correction import chain, greatest
from grpo_cli.objective.results import Correction

_SAFE = 20.0  # verl's bound on a log ratio


_TINY = 1e-8  # what verl adds to a count, and the least mean that it divides by


def rejected(
    difference: F64, responses: Segments, statistics: str, threshold: float | str | None
) -> NDArray[np.bool_]:
    """[N] the tokens that are outside of the bounds of any of the statistics.

    With d = log π/π_rollout of a token, bounded to ±20: k1 = −d, k2 = d²/2, k3 = e^d − 1 − d; of
    the token, or their sum, mean or maximum over the response. k1 has bounds on both sides, given
    as ratios, LOW_HIGH, or HIGH for 1/HIGH and HIGH; the others one, in nats.

    Args:
        difference: [N] d, nats.
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
        return greatest(value, responses)
    total = responses.sum(value)
    return total / (responses.lengths + _TINY) if name.startswith("seq_mean") else total


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


def weigh(
    log_probs_old: F64,
    log_probs_rollout: F64,
    responses: Segments,
    records: Segments,
    *,
    rollout_is: str | None,
    rollout_is_threshold: float | str,
    rollout_is_batch_normalize: str,
) -> Correction:
    """Weighs with the bounded π_old/π_rollout, where asked for over its mean."""
    difference = log_probs_old - log_probs_rollout
    weight = _weight(difference, responses, rollout_is, rollout_is_threshold)
    if rollout_is is not None and rollout_is_batch_normalize == "true":
        weight = weight / _means(weight, responses, records, rollout_is)
    return Correction(weight)


def reject(
    log_probs_old: F64,
    log_probs_rollout: F64,
    responses: Segments,
    *,
    rollout_rs: str | None,
    rollout_rs_threshold: float | str | None,
) -> Correction | None:
    """Takes what is rejected out of every term and denominator, as if it were masked."""
    if rollout_rs is None:
        return None
    difference = log_probs_old - log_probs_rollout
    kept = ~rejected(difference, responses, rollout_rs, rollout_rs_threshold)
    weight = kept.astype(np.float64)
    return Correction(weight, weight, kept, unmasked=kept)


DECOUPLED = chain(
    """Weights tokens by w = π_old/π_rollout and rejects some, which leave every denominator.

    w is the token's ratio or the product over the response. It is capped at HIGH, or set to 0
    outside LOW_HIGH. ``rollout_is_batch_normalize`` divides by the mean of w over the tokens
    (level token) or responses of a record, which is treated as verl's batch. A token is kept if
    every statistic of ``rollout_rs`` is within its bounds.

    verl computes advantages after the rejection; here the advantage stage sees every token. This
    changes advantages that are whitened over tokens or weighted by length.

    Args:
        rollout_is, rollout_is_threshold, rollout_is_batch_normalize: of the weights; None: w = 1.
        rollout_rs, rollout_rs_threshold: of the rejection; None: none.

    References:
        verl 0.9.1, trainer/ppo/rollout_corr_helper.py; Li et al., When Speed Kills Stability, 2025.
    """,
    weigh,
    reject,
)


def _geometric(columns: Mapping[str, Any], values: Mapping[str, Any]) -> Correction:
    found: Correction = call(DECOUPLED, columns, values)
    if values["rollout_is"] is None:
        return found
    responses = columns["responses"]
    kept = np.ones(responses.total) if found.kept is None else found.kept.astype(np.float64)
    logs = responses.sum(np.log(found.weight + 1e-10) * kept)
    mean = np.exp(logs / (responses.sum(kept) + _TINY))
    return found._replace(weight=responses.spread(mean) * kept)


_OF_ENGINE = reading(DECOUPLED, "", log_probs_old="log_probs_new")


def _bypassing(columns: Mapping[str, Any], values: Mapping[str, Any]) -> Correction:
    """The corrections of π_θ against the engine, on the policy term's denominator alone."""
    found: Correction = call(_OF_ENGINE, columns, values)
    return Correction(found.weight, None, found.kept, policy_only=True)


_REJECTION: Usual = {"rollout_rs": None, "rollout_rs_threshold": None}
_USUAL: Usual = {
    "rollout_is": "sequence",
    "rollout_is_threshold": 2.0,
    "rollout_is_batch_normalize": "false",
    **_REJECTION,
}
_CONSTANT = "weights and rejection depend on π_θ but have no gradient"

choice("correction", "verl/decoupled", **_USUAL)(DECOUPLED)
GEOMETRIC = Composed(
    DECOUPLED.parameters,
    _geometric,
    """``verl/decoupled`` with the geometric mean of each response's weights, as verl's geo_mean.

    c = exp(Σ log(w + 1e-10) / (|o| + 1e-8)) over the kept tokens, where w is
    π_old/π_rollout, bounded as in ``verl/decoupled``.
    """,
)
choice("correction", "verl/decoupled-geometric", **_USUAL)(GEOMETRIC)
BYPASS = Composed(
    _OF_ENGINE.parameters,
    _bypassing,
    """``verl/decoupled`` for bypass mode, with π_θ/π_rollout, which changes with every update.

    It has no gradient. Rejected tokens leave only the denominator of the policy term; KL and
    entropy count every token. A record is treated as verl's micro-batch.
    """,
)
choice("correction", "verl/bypass", stops_gradient=_CONSTANT, **_USUAL)(BYPASS)
choice("correction", "verl/bypass-rejection", stops_gradient=_CONSTANT, **_REJECTION)(
    holding(
        BYPASS,
        "``verl/bypass`` without weights: PPO's ratio is already against the engine.",
        rollout_is=None,
        rollout_is_threshold=2.0,
        rollout_is_batch_normalize="false",
    )
)


def _weight(difference: F64, responses: Segments, level: str | None, threshold: float | str) -> F64:
    """[N] the bounded weight."""
    if level is None:
        return np.ones(len(difference))
    if level == "sequence":
        difference = responses.spread(responses.sum(difference))
    weight = np.exp(np.clip(difference, -_SAFE, _SAFE))
    low, _, high = str(threshold).rpartition("_")
    if not low:
        return np.minimum(weight, float(high))
    return np.where((weight >= float(low)) & (weight <= float(high)), weight, 0.0)


def _means(weight: F64, responses: Segments, records: Segments, level: str) -> F64:
    """[N] the mean weight of the record; 1 where that is 0."""
    if level == "token":
        tokens = Groups(responses.spread(records.index), records.count)
        means = tokens.sum(weight) / (tokens.sizes + _TINY)
    else:
        each = responses.sum(weight) / (responses.lengths + _TINY)
        means = Groups(records.index, records.count).sum(each) / np.maximum(
            records.sum((responses.lengths > 0) * 1.0), _TINY
        )
    return responses.spread(records.spread(np.where(means > _TINY, means, 1.0)))
