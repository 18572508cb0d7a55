"""Runs the six stages over a batch and puts their values and slopes together."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from grpo_cli.batch import F64, Batch
from grpo_cli.errors import InputError
from grpo_cli.objective.breakdown import Breakdown, Term
from grpo_cli.objective.choice import Bound
from grpo_cli.objective.inputs import Columns
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.results import Correction, Kl, PerToken, Ratio, Surrogate, Weights

_FAR_FROM_OVERFLOW = 1e300


def run(batch: Batch, objective: Objective, moments: object = None) -> Breakdown:
    """Evaluates an objective: J = Σₜ wₜ·cₜ·sₜ − β·Σₜ w′ₜ·kₜ and ∂J/∂(log π_θ) per token.

    Args:
        batch: the records, as flat arrays.
        objective: a bound choice per stage.
        moments: the statistics of the whole batch, where the advantage asks for them.

    Raises:
        InputError: where the records lack what a stage needs, or a result is not finite.
        HyperparameterError: where a value cannot be used with these groups.
    """
    columns = Columns(batch)
    columns["moments"] = moments
    with np.errstate(over="ignore", invalid="ignore"):
        breakdown = _stages(batch, objective, columns)
        _check_finite(breakdown)
    return breakdown


def prepare(columns: Columns, objective: Objective) -> None:
    """Takes the KL off the rewards where it belongs there; the first thing that happens."""
    if objective.kl_in_reward and _scores_reward(columns, objective):
        penalty: F64 = columns.call(objective.kl, "kl")
        columns["token_penalty"] = penalty
        if columns.get("rewards") is not None:
            columns["rewards"] = columns.get("rewards") - columns.get("responses").sum(penalty)


def _scores_reward(columns: Columns, objective: Objective) -> bool:
    """Whether a KL in the reward matters: given advantages have it already, and β may be 0."""
    if objective.advantage.name == "given":
        return False
    return objective.kl.values.get("beta") != 0.0 or columns.get("log_probs_ref") is not None


def _stages(batch: Batch, objective: Objective, columns: Columns) -> Breakdown:
    prepare(columns, objective)
    given: F64 | PerToken = columns.call(objective.advantage, "advantage")
    response_advantage = None if isinstance(given, PerToken) else given
    columns["advantage"] = _per_token(given, batch)
    columns["response_advantage"] = response_advantage
    ratio = _ratio(batch, objective, columns)
    surrogate: Surrogate = columns.call(objective.surrogate, "surrogate")
    correction: Correction | None = columns.call(objective.correction, "correction")
    if correction is not None and correction.kept is not None:
        columns["lengths"] = batch.responses.sum(correction.kept.astype(np.int64))
    kl = _kl(objective, columns, correction)
    weights: Weights = columns.call(objective.aggregate, "aggregate")
    weight = None if correction is None else correction.weight
    return Breakdown(
        batch=batch,
        objective=objective,
        advantage=columns.get("advantage"),
        response_advantage=response_advantage,
        log_ratio=ratio.log_ratio,
        ratio=ratio.ratio,
        surrogate=surrogate.value,
        clip=surrogate.clip,
        correction=weight,
        kl=None if kl is None else kl.value,
        policy=_policy_term(batch, weights, surrogate, weight, ratio),
        penalty=_kl_term(batch, _weights(objective.kl_aggregate, columns, weights), kl, ratio),
        bonus=_bonus_term(batch, objective, columns, weights),
    )


def _per_token(advantage: F64 | PerToken, batch: Batch) -> F64:
    if isinstance(advantage, PerToken):
        return advantage.values
    return np.repeat(advantage, batch.responses.lengths)


def _ratio(batch: Batch, objective: Objective, columns: Columns) -> Ratio:
    ratio: Ratio = columns.call(objective.ratio, "ratio")
    if batch.ratios is not None and objective.ratio.name == "token":
        ratio = ratio._replace(ratio=batch.ratios)  # as given, not through a logarithm
    columns["log_ratio"], columns["ratio"] = ratio.log_ratio, ratio.ratio
    return ratio


def _kl(objective: Objective, columns: Columns, correction: Correction | None) -> Kl | None:
    if objective.kl_in_reward:
        return None
    if objective.beta == 0.0 and columns.get("log_ratio_ref") is None:
        return None
    kl: Kl | None = columns.call(objective.kl, "kl")
    if kl is None or correction is None or correction.kl_weight is None:
        return kl
    by_ratio = None if kl.by_ratio is None else correction.kl_weight * kl.by_ratio
    return Kl(correction.kl_weight * kl.value, correction.kl_weight * kl.by_log_prob, by_ratio)


def _weights(own: Bound | None, columns: Columns, shared: Weights) -> Weights:
    if own is None:
        return shared
    weights: Weights = columns.call(own, "aggregate")
    return weights


def _policy_term(
    batch: Batch, weights: Weights, surrogate: Surrogate, correction: F64 | None, ratio: Ratio
) -> Term:
    def corrected(values: F64) -> F64:
        return values if correction is None else correction * values

    slope: Any = 0.0
    if surrogate.by_ratio is not None:
        slope = corrected(surrogate.by_ratio)
        if surrogate.spread is not None:  # to tokens whose weights may differ
            unit = np.repeat(weights.unit, batch.responses.lengths)
            slope = surrogate.spread(unit * slope) / unit
        slope = ratio.pull(slope)
    if surrogate.by_log_prob is not None:
        slope = slope + corrected(surrogate.by_log_prob)
    sums = batch.responses.sum(corrected(surrogate.value))
    if surrogate.empty is not None:
        sums = np.where(batch.responses.lengths > 0, sums, surrogate.empty)
    return Term(weights, sums, slope)


def _kl_term(batch: Batch, weights: Weights, kl: Kl | None, ratio: Ratio) -> Term | None:
    if kl is None:
        return None
    slope = kl.by_log_prob
    if kl.by_ratio is not None:
        slope = slope + ratio.pull(kl.by_ratio)
    return Term(weights, batch.responses.sum(kl.value), slope)


def _bonus_term(
    batch: Batch, objective: Objective, columns: Columns, weights: Weights
) -> Term | None:
    if objective.entropy is None or objective.entropy_coef == 0.0:
        return None
    entropies: F64 = columns.call(objective.entropy, "entropy")
    own = _weights(objective.entropy_aggregate, columns, weights)
    return Term(own, batch.responses.sum(entropies), np.zeros(batch.responses.total))


def _check_finite(breakdown: Breakdown) -> None:
    terms = [breakdown.policy]
    if breakdown.penalty is not None and breakdown.penalised:
        terms.append(breakdown.penalty)
    slopes = breakdown.batch.responses.sum(breakdown.unit_slope)
    if all(np.isfinite(term.sums).all() for term in terms) and np.isfinite(slopes).all():
        _check_sums(breakdown)
        return
    finite = np.isfinite(breakdown.surrogate) & np.isfinite(breakdown.unit_slope)
    if breakdown.kl is not None and breakdown.beta:
        finite &= np.isfinite(breakdown.kl)
    if finite.all():
        _raise_sum(breakdown, terms)
    _raise_at(breakdown, int(np.argmin(finite)))


def _check_sums(breakdown: Breakdown) -> None:
    if _bound(breakdown) < _FAR_FROM_OVERFLOW:  # seldom is there a need to look at each record
        return
    finite = np.isfinite(breakdown.record_objective)
    if not finite.all():
        message = "the sum over the record's responses overflows"
        raise InputError(message, record=int(np.argmin(finite)))


def _bound(breakdown: Breakdown) -> float:
    """What no record's objective exceeds: denominators that count are at least 1."""
    bound = float(np.abs(breakdown.policy.weighted).sum())
    if breakdown.penalty is not None and breakdown.penalised:
        bound += abs(breakdown.beta) * float(np.abs(breakdown.penalty.weighted).sum())
    if breakdown.bonus is not None:
        coefficient = abs(breakdown.objective.entropy_coef)
        bound += coefficient * float(np.abs(breakdown.bonus.weighted).sum())
    return bound


def _raise_sum(breakdown: Breakdown, terms: list[Term]) -> NoReturn:
    finite = np.isfinite(breakdown.batch.responses.sum(breakdown.unit_slope))
    for term in terms:
        finite &= np.isfinite(term.sums)
    response = int(np.argmin(finite))
    record = int(breakdown.batch.records.index[response])
    local = response - int(breakdown.batch.records.starts[record])
    message = "the sum over the response's tokens overflows"
    raise InputError(message, path=f"response {local}", record=record)


def _raise_at(breakdown: Breakdown, token: int) -> None:
    batch = breakdown.batch
    response = int(batch.responses.index[token])
    record = int(batch.records.index[response])
    position = token - int(batch.responses.starts[response])
    if batch.positions is not None:
        position = int(batch.positions[token])
    local = response - int(batch.records.starts[record])
    raise InputError(
        f"the objective is not finite: log ratio {breakdown.log_ratio[token]:g}, "
        f"surrogate {breakdown.surrogate[token]:g}"
        + ("" if breakdown.kl is None else f", kl {breakdown.kl[token]:g}"),
        path=f"response {local}, token {position}",
        record=record,
    )
