"""Runs the six stages over a batch and puts their values and slopes together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, Batch, Segments
from grpo_cli.errors import InputError
from grpo_cli.objective import statistics
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.choice import Bound
from grpo_cli.objective.inputs import Inputs, refuse_misnamed, take_penalty
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.results import (
    Correction,
    Kl,
    PerToken,
    Ratio,
    Surrogate,
    Weights,
    of_tokens,
)
from grpo_cli.objective.statistics import Whole
from grpo_cli.objective.terms import ENTROPY, KL, POLICY, Term


def evaluate(batch: Batch, objective: Objective, whole: Whole | None = None) -> Breakdown:
    """Evaluates an objective: J = Σₜ wₜ·cₜ·sₜ − β·Σₜ w′ₜ·kₜ and ∂J/∂(log π_θ) per token.

    Args:
        batch: the records, as flat arrays.
        objective: a bound choice per stage.
        whole: what a first pass found of the batches that the records belong to: statistics for
            an advantage that asks for some, and denominators. None where ``batch`` is all of one
            batch, or each record is one; weights are then those of each record alone.

    Raises:
        InputError: where the records lack what a stage needs, or a result is not finite.
        HyperparameterError: where a value cannot be used with these groups.
    """
    refuse_misnamed(batch, objective)
    inputs = Inputs(batch)
    inputs["moments"] = statistics.moments(batch, objective, whole)
    with np.errstate(over="ignore", invalid="ignore"):
        breakdown = _stages(batch, objective, inputs)
        breakdown.denominators = None if whole is None else whole.denominators()
        check_finite(breakdown)
    return breakdown


def counts(
    batch: Batch, objective: Objective, whole: Whole | None = None, *, lengths_say_it: bool
) -> dict[str, F64]:
    """Term → [M] what the denominators of its weights count in each record.

    Args:
        batch: the records.
        objective: a bound choice per stage.
        whole: as in ``evaluate``.
        lengths_say_it: whether the lengths of responses are enough; if not, the records are
            evaluated, since a correction may take tokens out of the denominators.
    """
    if lengths_say_it and objective.correction.choice.absent:
        inputs = Inputs(batch)
        policy: Weights = inputs.call(objective.aggregate, "aggregate")
        found = {
            POLICY: policy,
            KL: _weights(objective.kl_aggregate, inputs, policy),
            ENTROPY: _weights(objective.entropy_aggregate, inputs, policy),
        }
    else:
        made = evaluate(batch, objective, whole)
        found = {term.name: term.weights for term in made.terms} | {**made.absent}
    return {
        name: batch.records.sum(weights.counts)
        for name, weights in found.items()
        if weights.counts is not None
    }


def _stages(batch: Batch, objective: Objective, inputs: Inputs) -> Breakdown:
    take_penalty(inputs, objective)
    given: F64 | PerToken = inputs.call(objective.advantage, "advantage")
    response_advantage = None if isinstance(given, PerToken) else given
    inputs["advantage"] = of_tokens(given, batch.responses)
    inputs["response_advantage"] = response_advantage
    ratio = _ratio(batch, objective, inputs)
    surrogate: Surrogate = inputs.call(objective.surrogate, "surrogate")
    correction: Correction | None = inputs.call(objective.correction, "correction")
    kept = None if correction is None else correction.kept
    if correction is not None and correction.unmasked is not None and not correction.unmasked.all():
        seen = ratio, surrogate
        ratio, surrogate = _without_rejected(batch, objective, inputs, correction.unmasked, seen)
    kl = _kl(objective, inputs, correction)
    if kept is not None:
        inputs.count_only(kept)
    weights: Weights = inputs.call(objective.aggregate, "aggregate")
    weight = None if correction is None else correction.weight
    terms = [_policy_term(batch, weights, surrogate, weight, ratio)]
    if correction is not None and kept is not None and correction.policy_only:
        kept = None
        inputs.count_only(None)
        weights = inputs.call(objective.aggregate, "aggregate")
    absent: dict[str, Weights] = {}
    own = _weights(objective.kl_aggregate, inputs, weights)
    terms += _kl_terms(batch, objective, own, kl, ratio)
    if kl is None and objective.has_kl and not objective.kl_in_reward:
        absent[KL] = own
    if correction is not None and correction.bonus_kept is not None:
        kept = correction.bonus_kept  # an aggregation of its own counts these alone
        inputs.count_only(kept)
    terms += _entropy_terms(batch, objective, inputs, weights, kept)
    if objective.entropy is not None and objective.entropy_coef == 0.0:
        absent[ENTROPY] = _weights(objective.entropy_aggregate, inputs, weights)
    return Breakdown(
        batch=batch,
        objective=objective,
        advantage=inputs.get("advantage"),
        response_advantage=response_advantage,
        log_ratio=ratio.log_ratio,
        ratio=ratio.ratio,
        surrogate=surrogate.value,
        clip=surrogate.clip,
        correction=weight,
        kept=None if correction is None else correction.kept,
        terms=tuple(terms),
        absent=absent,
    )


def _ratio(batch: Batch, objective: Objective, inputs: Inputs) -> Ratio:
    ratio: Ratio = inputs.call(objective.ratio, "ratio")
    if batch.ratios is not None and objective.ratio.choice.given:
        ratio = ratio._replace(ratio=batch.ratios)  # as given, not through a logarithm
    inputs["log_ratio"], inputs["ratio"] = ratio.log_ratio, ratio.ratio
    return ratio


def estimates_kl(kl: Bound, inputs: Inputs) -> bool:
    """Whether a KL in the loss is estimated: with β 0 none is where there is no reference."""
    if kl.choice.in_reward:
        return False
    return bool(kl.values.get("beta")) or inputs.get("log_ratio_ref") is not None


def _kl(objective: Objective, inputs: Inputs, correction: Correction | None) -> Kl | None:
    if not estimates_kl(objective.kl, inputs):
        return None
    kl: Kl | None = inputs.call(objective.kl, "kl")
    if kl is None or correction is None:
        return kl
    weight = correction.kept if objective.kl.choice.unweighted else correction.kl_weight
    if weight is None:
        return kl
    by_ratio = None if kl.grad_log_ratio is None else weight * kl.grad_log_ratio
    return Kl(weight * kl.value, weight * kl.grad_log_prob, by_ratio)


def _weights(own: Bound | None, inputs: Inputs, shared: Weights) -> Weights:
    if own is None:
        return shared
    weights: Weights = inputs.call(own, "aggregate")
    return weights


def _policy_term(
    batch: Batch, weights: Weights, surrogate: Surrogate, correction: F64 | None, ratio: Ratio
) -> Term:
    def corrected(values: F64) -> F64:
        return values if correction is None else correction * values

    slope: F64 | None = None
    if surrogate.grad_log_ratio is not None:
        slope = weights.times_own(corrected(surrogate.grad_log_ratio))
        if surrogate.spread is not None:  # to tokens whose weights may differ
            numerator = np.repeat(weights.numerator, batch.responses.lengths)
            slope = surrogate.spread(numerator * slope) / numerator
        slope = ratio.pull(slope)
    if surrogate.grad_log_prob is not None:
        own = weights.times_own(corrected(surrogate.grad_log_prob))
        slope = own if slope is None else slope + own
    values = corrected(surrogate.value)
    sums = batch.responses.sum(weights.times_own(values))
    if surrogate.empty is not None:
        sums = np.where(batch.responses.lengths > 0, sums, surrogate.empty)
    return Term(POLICY, 1.0, weights, values, sums, slope)


def _kl_terms(
    batch: Batch, objective: Objective, weights: Weights, kl: Kl | None, ratio: Ratio
) -> Iterator[Term]:
    if kl is None:
        return
    slope = weights.times_own(kl.grad_log_prob)
    if kl.grad_log_ratio is not None:
        slope = slope + ratio.pull(weights.times_own(kl.grad_log_ratio))
    sums = batch.responses.sum(weights.times_own(kl.value))
    yield Term(KL, objective.kl_coefficient, weights, kl.value, sums, slope)


def _entropy_terms(
    batch: Batch, objective: Objective, inputs: Inputs, weights: Weights, kept: NDArray[Any] | None
) -> Iterator[Term]:
    if objective.entropy is None or objective.entropy_coef == 0.0:
        return
    entropies: F64 = inputs.call(objective.entropy, "entropy")
    if kept is not None:
        entropies = np.where(kept, entropies, 0.0)
    own = _weights(objective.entropy_aggregate, inputs, weights)
    sums = batch.responses.sum(own.times_own(entropies))
    coefficient = objective.entropy.by_record("entropy_coef")
    yield Term(ENTROPY, coefficient, own, entropies, sums, None)


_TOKENS = (
    *("log_probs_new", "log_probs_old", "log_probs_ref", "log_probs_rollout"),
    *("entropies", "values", "sum_pi_squared", "ratios", "token_advantages", "positions"),
    *("token_rewards", "weight_versions"),
)
"""The columns of a batch that have a number for each token."""


def _without_rejected(
    batch: Batch,
    objective: Objective,
    inputs: Inputs,
    kept: NDArray[np.bool_],
    seen: tuple[Ratio, Surrogate],
) -> tuple[Ratio, Surrogate]:
    """Means over a response and over the batch leave out what is rejected.

    Args:
        batch: the batch.
        objective: a bound choice per stage.
        inputs: what the stages made so far; the advantages are those of all tokens.
        kept: [N] the tokens that stay.
        seen: ratio and surrogate where nothing is rejected, which the rejected tokens keep.
    """
    ratio, surrogate = seen
    inner = Inputs(_only(batch, kept))
    inner["advantage"] = inputs.get("advantage")[kept]
    inner["response_advantage"] = inputs.get("response_advantage")
    own: Ratio = inner.call(objective.ratio, "ratio")
    inner["log_ratio"], inner["ratio"] = own.log_ratio, own.ratio
    found: Surrogate = inner.call(objective.surrogate, "surrogate")
    spread = found.spread

    def among(values: F64 | None) -> F64 | None:
        return None if values is None else _laid(values, np.zeros(len(kept)), kept)

    def pull(slope: F64) -> F64:
        return _laid(own.pull(slope[kept]), np.zeros(len(kept)), kept)

    def spread_kept(slope: F64) -> F64:
        assert spread is not None
        return _laid(spread(slope[kept]), np.zeros(len(kept)), kept)

    return (
        Ratio(
            _laid(own.log_ratio, ratio.log_ratio, kept), _laid(own.ratio, ratio.ratio, kept), pull
        ),
        Surrogate(
            _laid(found.value, surrogate.value, kept),
            _laid(found.clip, surrogate.clip, kept),
            among(found.grad_log_ratio),
            among(found.grad_log_prob),
            found.empty,
            None if spread is None else spread_kept,
        ),
    )


def _laid(values: NDArray[Any], among: NDArray[Any], kept: NDArray[np.bool_]) -> NDArray[Any]:
    """[N] the values of the kept tokens among those of all."""
    found = among.copy()
    found[kept] = values
    return found


def _only(batch: Batch, kept: NDArray[np.bool_]) -> Batch:
    """The batch with these tokens alone; responses may be left without any."""
    columns = {name: getattr(batch, name) for name in _TOKENS}
    changed: dict[str, Any] = {
        name: column[kept] for name, column in columns.items() if column is not None
    }
    if batch.positions is None:
        changed["positions"] = batch.responses.positions[kept]
    changed["turn_ids"] = batch.turns.index[kept]  # a token that is taken out ends no turn
    return replace(batch, responses=Segments(batch.responses.sum(kept.astype(np.int64))), **changed)


_FAR_FROM_OVERFLOW = 1e300


def check_finite(breakdown: Breakdown) -> None:
    """Raises where a term that has a part in J, or its gradient, is not finite.

    Raises:
        InputError: with the record, and the response and token where one is to blame.
    """
    responses = breakdown.batch.responses
    sums = [term.sums for term in breakdown.active]
    sums += [responses.sum(part.slope) for part in breakdown.gradient_parts]
    if all(np.isfinite(values).all() for values in sums):
        _check_sums(breakdown)
        return
    finite = np.isfinite(breakdown.surrogate)
    for part in breakdown.gradient_parts:
        finite &= np.isfinite(part.slope)
    for term in breakdown.active[1:]:
        finite &= np.isfinite(term.values)
    if finite.all():
        response = int(np.argmin(np.logical_and.reduce([np.isfinite(values) for values in sums])))
        record = int(breakdown.batch.records.index[response])
        local = response - int(breakdown.batch.records.starts[record])
        message = "the sum over the response's tokens overflows"
        raise InputError(message, path=f"response {local}", record=record)
    _raise_at(breakdown, int(np.argmin(finite)))


def _check_sums(breakdown: Breakdown) -> None:
    # What no record's objective exceeds: denominators that count are at least 1.
    bound = sum(
        float(np.abs(term.coefficient).max()) * float(np.abs(term.weighted()).sum())
        for term in breakdown.active
    )
    if bound < _FAR_FROM_OVERFLOW:  # seldom is there a need to look at each record
        return
    finite = np.isfinite(breakdown.record_objective)
    if not finite.all():
        message = "the sum over the record's responses overflows"
        raise InputError(message, record=int(np.argmin(finite)))


def _raise_at(breakdown: Breakdown, token: int) -> NoReturn:
    batch = breakdown.batch
    record, local, position = batch.place(token)
    kl = breakdown.kl
    raise InputError(
        f"the objective is not finite: log ratio {breakdown.log_ratio[token]:g}, "
        f"surrogate {breakdown.surrogate[token]:g}" + ("" if kl is None else f", kl {kl[token]:g}"),
        path=f"response {local}, token {position}",
        record=record,
    )
