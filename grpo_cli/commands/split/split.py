"""What cutting a batch into micro-batches and ranks does to the loss and to the update.

A trainer evaluates its loss on one micro-batch of n responses at a time and averages: over the
micro-batches that it accumulates, and over the ranks. Where the denominator counts what is in the
micro-batch, that is a mean of means, and not the value of the whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from grpo_cli.batch import F64, I64, Batch, Segments
from grpo_cli.commands.split.microbatches import Cut
from grpo_cli.engine.chunk import Chunk, located
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import HYPERPARAMETERS, HyperparameterError, Value
from grpo_cli.objective.choice import Bound
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.pipeline import evaluate
from grpo_cli.variants import STAGES
from grpo_cli.variants.plan import Plan, plan

_SAME = 1e-9
"""Relative difference below which two values or gradients are the same."""


Row = dict[str, Any]


def split(base: Plan, chunk: Chunk, cutting: Cut) -> tuple[list[Row], list[Row]]:
    """One row per aggregation, and those that the data cannot serve with the reason.

    The advantages are those of the whole batch, as trainers make them before they split it. The
    plan's own aggregation comes first.
    """
    rows: list[Row] = []
    skipped: list[Row] = []
    for name, made in _plans(base, chunk):
        try:
            rows.append(_row(name, made, chunk, cutting))
        except InputError as reason:
            skipped.append({"aggregate": name, "reason": str(reason)})
    return rows, skipped


def _plans(base: Plan, chunk: Chunk) -> Iterator[tuple[str, Plan]]:
    own = Evaluator(base).objective(chunk).aggregate.name
    yield own, base
    if "aggregate" in base.swapped:
        return
    for name in STAGES["aggregate"].choices:
        if name != own:
            swapped = {**base.swapped, "aggregate": name}
            takes = plan(base.variant, stages=swapped, batch=base.batch).takes()
            flags = {flag: value for flag, value in base.flags.items() if flag in takes}
            yield name, plan(base.variant, stages=swapped, hyperparameters=flags, batch=base.batch)


def _row(name: str, made: Plan, chunk: Chunk, cutting: Cut) -> Row:
    evaluator = Evaluator(made)
    if evaluator.wants_first_pass:
        evaluator = replace(evaluator, measured=chunk.run(evaluator.measure))
    advantage = chunk.run(evaluator.evaluate).advantage
    objective = _given(evaluator.objective(chunk))
    try:
        reported, applied = _split_update(chunk.batch, advantage, objective, cutting)
        whole = evaluate(*_whole(chunk.batch, advantage, objective, cutting))
    except (InputError, HyperparameterError) as error:
        raise located(error, chunk.records[0]) from None
    steps = whole.batch.records.count
    value = math.fsum(whole.record_objective.tolist()) / steps
    gradient: F64 = whole.gradient / steps
    square = _dot(gradient, gradient)
    off = applied - gradient
    distance = math.sqrt(_dot(off, off) / square) if square else None
    rounding = _SAME * max(abs(value), float(np.abs(whole.contribution).sum()) / steps)
    return {
        "aggregate": name,
        "reported": -reported + 0.0,
        "global": -value + 0.0,
        "invariant": abs(reported - value) <= rounding and (distance or 0.0) <= _SAME,
        "factor": _dot(applied, gradient) / square if square else None,
        "gradient_difference": distance,
    }


def _dot(left: F64, right: F64) -> float:
    return math.fsum((left * right).tolist())


def _split_update(
    batch: Batch, advantage: F64, objective: Objective, cutting: Cut
) -> tuple[float, F64]:
    """Mean over the micro-batches of J and of its gradient, step by step."""
    parts = _recut(batch, advantage, cutting.sizes)
    scaled = _of_step(objective, batch, cutting, cutting.accumulate, cutting.ranks)
    breakdown = evaluate(parts, scaled)
    share = _micro_batch_share(cutting, adds=_adds(objective))
    values = breakdown.record_objective * share
    return math.fsum(values.tolist()), breakdown.gradient * _spread(parts, share)


def _whole(
    batch: Batch, advantage: F64, objective: Objective, cutting: Cut
) -> tuple[Batch, Objective]:
    """Each optimiser step as one record, and the objective with denominators that span it."""
    counts = np.bincount(cutting.steps, weights=cutting.sizes).astype(np.int64)
    return _recut(batch, advantage, counts), _of_step(objective, batch, cutting, 1, 1)


def _micro_batch_share(cutting: Cut, *, adds: bool) -> F64:
    """[M] what each micro-batch's loss counts: 1 / micro-batches of its step, 1 / steps."""
    steps = cutting.steps
    in_step = np.bincount(steps)
    whole = np.full(len(in_step), float(cutting.ranks)) if adds else in_step
    share: F64 = 1.0 / whole[steps] / len(in_step)
    return share


def _spread(parts: Batch, share: F64) -> F64:
    per_response = np.repeat(share, parts.records.lengths)
    return np.repeat(per_response, parts.responses.lengths)


def _recut(batch: Batch, advantage: F64, sizes: I64) -> Batch:
    """The batch with other records: a group that a cut goes through becomes several."""
    records = Segments(sizes)
    keys = records.index * (batch.group_count + 1) + batch.groups
    found, groups = np.unique(keys, return_inverse=True)
    return replace(
        batch,
        records=records,
        groups=groups.astype(np.int64),
        group_count=len(found),
        advantages=None,
        token_advantages=advantage,
    )


def _given(objective: Objective) -> Objective:
    choice = STAGES["advantage"].choices["given"]
    given = replace(objective.advantage, name="given", choice=choice, values={})
    return replace(objective, advantage=given, batch="record")


def _of_step(
    objective: Objective, batch: Batch, cutting: Cut, accumulate: int, ranks: int
) -> Objective:
    """The objective whose denominators are told how the step is split, those of every term.

    An aggregation that counts something of the whole optimiser step has its trainer add the
    micro-batches up instead of averaging them (``_adds``). Counts that are nowhere given are those
    of the data.
    """
    scaled = {
        name: replace(
            bound,
            values={**bound.values, **dict(_counts(bound, batch, cutting, accumulate, ranks))},
        )
        for name in AGGREGATES
        if (bound := getattr(objective, name)) is not None
    }
    return replace(objective, **scaled)


AGGREGATES = ("aggregate", "kl_aggregate", "entropy_aggregate")


def _adds(objective: Objective) -> bool:
    """Whether the trainer adds the micro-batches up: the denominator counts the whole step."""
    return any(HYPERPARAMETERS[name].counts for name in objective.aggregate.values)


def _counts(
    bound: Bound, batch: Batch, cutting: Cut, accumulate: int, ranks: int
) -> Iterator[tuple[str, Value]]:
    of_step = {"microbatches": accumulate, "ranks": ranks}
    of_data = {"tokens": batch.responses.total, "responses": batch.responses.count}
    values = bound.values
    for name, value in values.items():
        counted = HYPERPARAMETERS[name].counts
        if counted in of_step:
            yield name, of_step[counted]
        elif counted == "generation" and value is not None:
            before = float(values.get("gradient_accumulation_steps") or 1)
            yield name, max(1, round(float(value) / before * accumulate))
        elif counted in of_data and value is None:
            if cutting.steps.any():
                raise InputError("missing; the input is more than one step", path=name, record=0)
            yield name, of_data[counted]
