"""verl's rollout correction: weights by π/π_rollout, and rejection by how far the two are apart."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64, Segments
from grpo_cli.frameworks.verl.rejection import rejected
from grpo_cli.hyperparameters import Value
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Correction

_SAFE = 20.0  # verl's bound on a log ratio before it is exponentiated
_TINY = 1e-8  # what verl adds to a count, and the least mean that it divides by


def decoupled(
    log_probs_old: F64,
    log_probs_rollout: F64,
    responses: Segments,
    records: Segments,
    *,
    rollout_is: str | None,
    rollout_is_threshold: float | str,
    rollout_is_batch_normalize: str,
    rollout_rs: str | None,
    rollout_rs_threshold: float | str | None,
) -> Correction:
    """Weighs with w = π_old/π_rollout and rejects; what is rejected leaves every denominator.

    w is the token's ratio or the product over the response, bounded: min(w, HIGH), or with
    LOW_HIGH 0 outside of the two. ``rollout_is_batch_normalize`` divides by the mean of w over the
    tokens (level token) or the responses of a record, which stands for verl's batch. A token is
    kept where every statistic of ``rollout_rs`` is within its bounds.

    verl rejects before it takes advantages, over what is kept; here the advantage stage sees every
    token. That matters where the advantage is whitened over tokens or weighed by lengths.

    Args:
        log_probs_old, log_probs_rollout: [N] nats.
        responses, records: cut the tokens into responses, and the responses into records.
        rollout_is, rollout_is_threshold, rollout_is_batch_normalize: of the weights; None: w = 1.
        rollout_rs, rollout_rs_threshold: of the rejection; None: none.

    References:
        verl 0.9.1, trainer/ppo/rollout_corr_helper.py; Li et al., When Speed Kills Stability, 2025.
    """
    difference = log_probs_old - log_probs_rollout
    weight = _weight(difference, responses, rollout_is, rollout_is_threshold)
    if rollout_is is not None and rollout_is_batch_normalize == "true":
        weight = weight / _means(weight, responses, records, rollout_is)
    if rollout_rs is None:
        return Correction(weight)
    kept = ~rejected(difference, responses, rollout_rs, rollout_rs_threshold)
    return Correction(np.where(kept, weight, 0.0), kept.astype(np.float64), kept, masks=True)


def decoupled_geometric(
    log_probs_old: F64,
    log_probs_rollout: F64,
    responses: Segments,
    records: Segments,
    *,
    rollout_is: str | None,
    rollout_is_threshold: float | str,
    rollout_is_batch_normalize: str,
    rollout_rs: str | None,
    rollout_rs_threshold: float | str | None,
) -> Correction:
    """``verl/decoupled`` with the geometric mean of each response's weights, as verl's geo_mean.

    With w = π_old/π_rollout, bounded as there, c = exp(Σ log(w + 1e-10) / (|o| + 1e-8)) over the
    tokens that are kept.
    """
    found = decoupled(
        log_probs_old,
        log_probs_rollout,
        responses,
        records,
        rollout_is=rollout_is,
        rollout_is_threshold=rollout_is_threshold,
        rollout_is_batch_normalize=rollout_is_batch_normalize,
        rollout_rs=rollout_rs,
        rollout_rs_threshold=rollout_rs_threshold,
    )
    if rollout_is is None:
        return found
    kept = np.ones(responses.total) if found.kept is None else found.kept.astype(np.float64)
    logs = responses.sum(np.log(found.weight + 1e-10) * kept)
    mean = np.exp(logs / (responses.sum(kept) + _TINY))
    return found._replace(weight=responses.spread(mean) * kept)


def bypass(
    log_probs_new: F64,
    log_probs_rollout: F64,
    responses: Segments,
    records: Segments,
    *,
    rollout_is: str | None,
    rollout_is_threshold: float | str,
    rollout_is_batch_normalize: str,
    rollout_rs: str | None,
    rollout_rs_threshold: float | str | None,
) -> Correction:
    """``verl/decoupled`` of π_θ/π_rollout, which changes with every update, for bypass mode.

    No gradient flows through it, and what is rejected leaves the denominator of the policy term
    alone: KL and entropy keep every token. verl's batch is the micro-batch here, ours the record.
    """
    found = decoupled(
        log_probs_new,
        log_probs_rollout,
        responses,
        records,
        rollout_is=rollout_is,
        rollout_is_threshold=rollout_is_threshold,
        rollout_is_batch_normalize=rollout_is_batch_normalize,
        rollout_rs=rollout_rs,
        rollout_rs_threshold=rollout_rs_threshold,
    )
    return Correction(found.weight, None, found.kept, policy_only=True)


def bypass_rejection(
    log_probs_new: F64,
    log_probs_rollout: F64,
    responses: Segments,
    records: Segments,
    *,
    rollout_rs: str | None,
    rollout_rs_threshold: float | str | None,
) -> Correction:
    """``verl/bypass`` without weights: with PPO's clip the ratio to the engine is enough."""
    return bypass(
        log_probs_new,
        log_probs_rollout,
        responses,
        records,
        rollout_is=None,
        rollout_is_threshold=1.0,
        rollout_is_batch_normalize="false",
        rollout_rs=rollout_rs,
        rollout_rs_threshold=rollout_rs_threshold,
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


_WEIGHTS: dict[str, Value] = {
    "rollout_is": "sequence",
    "rollout_is_threshold": 2.0,
    "rollout_is_batch_normalize": "false",
}
_REJECTION: dict[str, Value] = {"rollout_rs": None, "rollout_rs_threshold": None}
_CONSTANT = "the weights and the rejection are constants, though π_θ makes them"

CHOICES = {
    "verl/decoupled": Choice(decoupled, {**_WEIGHTS, **_REJECTION}),
    "verl/decoupled-geometric": Choice(decoupled_geometric, {**_WEIGHTS, **_REJECTION}),
    "verl/bypass": Choice(bypass, {**_WEIGHTS, **_REJECTION}, stops_gradient=_CONSTANT),
    "verl/bypass-rejection": Choice(bypass_rejection, _REJECTION, stops_gradient=_CONSTANT),
}
