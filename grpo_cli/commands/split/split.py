"""What cutting a batch into micro-batches and ranks does to the loss and to the update.

A trainer evaluates its loss on one micro-batch of n responses at a time and averages: over the
micro-batches that it accumulates, and over the ranks. Where the denominator counts what is in the
micro-batch, that is a mean of means, and not the value of the whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from grpo_cli.batch import F64, I64, Batch, Segments
from grpo_cli.commands.split.answer import SplitAggregate, SplitUp, UnservedAggregate
from grpo_cli.commands.split.microbatches import AGGREGATES, Cut, of_step, side_by_side
from grpo_cli.commands.split.responses import Responses
from grpo_cli.engine.chunk import located
from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import HyperparameterError
from grpo_cli.objective.accumulation import adds
from grpo_cli.objective.arithmetic.exact_sums import ExactSum
from grpo_cli.objective.inputs import Inputs
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.results import Weights
from grpo_cli.variants import STAGES
from grpo_cli.variants.plan import Plan, plan

_SAME = 1e-9
"""Relative difference below which two values or gradients are the same."""


def split(base: Plan, responses: Responses, cutting: Cut) -> SplitUp:
    """The answer: the losses and the updates per aggregation."""
    rows, skipped = _rows(base, responses, cutting)
    return SplitUp(
        variant=base.variant,
        signature=responses.objective.signature,
        splits=rows,
        skipped=skipped,
        responses=cutting.responses,
        micro_batch=cutting.micro_batch,
        micro_batches=len(cutting.sizes),
        accumulate=cutting.accumulate,
        ranks=cutting.ranks,
        steps=int(cutting.steps[-1]) + 1,
        cuts_nothing=cutting.cuts_nothing,
    )


def _rows(
    base: Plan, responses: Responses, cutting: Cut
) -> tuple[list[SplitAggregate], list[UnservedAggregate]]:
    """One row per aggregation, and those that the data cannot serve with the reason.

    The advantages are those of the whole batch, as trainers make them before they split it. The
    plan's own aggregation comes first.
    """
    rows: list[SplitAggregate] = []
    skipped: list[UnservedAggregate] = []
    for name, made in _plans(base, responses):
        try:
            rows.append(_row(name, made, responses, cutting, own=not rows))
        except (InputError, HyperparameterError) as error:
            reason = located(error, responses.alone.records[0])
            skipped.append(UnservedAggregate(name, str(reason)))
    return rows, skipped


def _plans(base: Plan, responses: Responses) -> Iterator[tuple[str, Plan]]:
    own = responses.objective.aggregate.name
    yield own, base
    if "aggregate" in base.swapped:
        return
    for name in STAGES["aggregate"].choices:
        if name != own:
            swapped = {**base.swapped, "aggregate": name}
            takes = plan(base.variant, stages=swapped, batch=base.batch).takes()
            flags = {flag: value for flag, value in base.flags.items() if flag in takes}
            yield name, plan(base.variant, stages=swapped, hyperparameters=flags, batch=base.batch)


@dataclass(frozen=True)
class Update:
    """J and what the slopes of each response, and its entropy, are multiplied by: [R] each."""

    value: float
    size: float
    policy: F64
    kl: F64
    entropy: F64


def _row(name: str, made: Plan, responses: Responses, cutting: Cut, *, own: bool) -> SplitAggregate:
    objective = responses.alone.objective(made)
    applied, whole = _updates(objective, responses, cutting)
    square, along = _dot(responses, whole, whole), _dot(responses, applied, whole)
    off = replace(applied, policy=applied.policy - whole.policy, kl=applied.kl - whole.kl)
    distance = math.sqrt(max(_dot(responses, off, off), 0.0) / square) if square else None
    norm = math.sqrt(_dot(responses, applied, applied) / square) if square else None
    rounding = _SAME * max(abs(whole.value), whole.size)
    same = abs(applied.value - whole.value) <= rounding and (distance or 0.0) <= _SAME
    by = None
    if same and not cutting.cuts_nothing:
        by = "formula" if _by_formula(objective, responses, cutting) else "data"
    return SplitAggregate(
        aggregate=name,
        own=own,
        reported=-applied.value + 0.0,
        global_=-whole.value + 0.0,
        invariant=None if cutting.cuts_nothing else same,
        invariant_by=by,
        factor=along / square if square else None,
        norm_factor=norm,
        gradient_difference=distance,
    )


def _updates(objective: Objective, responses: Responses, cutting: Cut) -> tuple[Update, Update]:
    """The update of the batch that is cut, and that of the whole batch."""
    cutting = side_by_side(objective, cutting)
    cut = of_step(objective, responses, cutting, cutting.accumulate, cutting.ranks)
    share = _share(cutting, whole=float(cutting.ranks) if adds(objective) else None)
    applied = _update(cut, responses, cutting.sizes, share)
    steps = np.bincount(cutting.steps, weights=cutting.sizes).astype(np.int64)
    undivided = of_step(objective, responses, cutting, 1, 1)
    share = np.full(len(steps), 1.0 / len(steps))
    return applied, _update(undivided, responses, steps, share)


def _by_formula(objective: Objective, responses: Responses, cutting: Cut) -> bool:
    """Whether no lengths could make a difference: responses weigh the same in both updates.

    What a denominator counts is a function of lengths and groups. Lengths that grow from response
    to response, from none at all, are other ones in each piece, whatever the pieces are.
    """
    grown = replace(responses, lengths=np.arange(responses.count))
    applied, whole = _updates(objective, grown, cutting)
    pairs = (
        (applied.policy, whole.policy),
        (applied.kl, whole.kl),
        (applied.entropy, whole.entropy),
    )
    return all(np.allclose(one, other, rtol=_SAME, atol=0.0) for one, other in pairs)


def _share(cutting: Cut, *, whole: float | None) -> F64:
    """[M] what each micro-batch's loss counts: 1 / micro-batches of its step, 1 / steps."""
    in_step = np.bincount(cutting.steps).astype(np.float64)
    over = in_step if whole is None else np.full(len(in_step), whole)
    share: F64 = 1.0 / over[cutting.steps] / len(in_step)
    return share


def _update(objective: Objective, responses: Responses, sizes: I64, share: F64) -> Update:
    """The mean over the pieces of J and of its gradient, each piece a batch of its own."""
    inputs = Inputs(_recut(responses, sizes))
    records = Segments(sizes)
    weights = {name: _weights(objective, name, inputs, records) for name in AGGREGATES}
    spread = np.repeat(share, sizes)
    policy = weights["aggregate"] * spread
    kl = -objective.beta * weights["kl_aggregate"] * spread
    entropy = objective.entropy_coef * weights["entropy_aggregate"] * spread
    sums = responses.sums
    parts = policy * sums["policy"] + kl * sums["kl"] + entropy * sums["entropy"]
    return Update(_sum(parts), float(np.abs(parts).sum()), policy, kl, entropy)


def _weights(objective: Objective, stage: str, inputs: Inputs, records: Segments) -> F64:
    """[R] the weight of each response in its piece."""
    bound = getattr(objective, stage) or objective.aggregate
    found: Weights = inputs.call(bound, "aggregate")
    counts = np.ones(records.count)
    if found.counts is not None:
        counts = np.maximum(records.sum(found.counts), 1)
    return found.numerator / np.repeat(found.divisor * counts, records.lengths)


def _recut(responses: Responses, sizes: I64) -> Batch:
    """The responses in other records: a group that a cut goes through becomes several."""
    records = Segments(sizes)
    keys = records.index * (int(responses.groups.max(initial=0)) + 1) + responses.groups
    found, groups = np.unique(keys, return_inverse=True)
    lengths = Segments(responses.lengths)
    return Batch(lengths, records, groups.astype(np.int64), len(found))


def _dot(responses: Responses, left: Update, right: Update) -> float:
    sums = responses.sums
    crossed = (left.policy * right.kl + left.kl * right.policy) * sums["slope_kl"]
    squares = left.policy * right.policy * sums["slope_square"]
    return _sum(squares + crossed + left.kl * right.kl * sums["kl_square"])


def _sum(values: F64) -> float:
    """The exactly rounded sum, whatever the order: ``math.fsum`` takes several times as long."""
    total = ExactSum()
    total.add(values)
    return total.value()
