"""What cutting a batch into micro-batches and ranks does to the loss and to the update.

A trainer evaluates its loss on one micro-batch of n responses at a time and, as a rule, averages:
over the micro-batches that it accumulates, and over the ranks. If the denominator counts what is in
the micro-batch, that is a mean of means, and not the value of the whole batch. A framework's own
aggregation is added up as its trainer does it (``Framework.accumulation``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from grpo_cli.batch import F64, I64, Batch, Segments
from grpo_cli.commands.split.answer import SplitAggregate, SplitUp, UnservedAggregate
from grpo_cli.commands.split.responses import AGGREGATES, Cut, Responses, of_step, side_by_side
from grpo_cli.engine.batches import rules_of
from grpo_cli.engine.chunk import located
from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import HyperparameterError
from grpo_cli.objective.accumulation import Rule, adds
from grpo_cli.objective.arithmetic.exact_sums import ExactSum
from grpo_cli.objective.inputs import Inputs
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.results import Weights
from grpo_cli.variants import STAGES, framework_of
from grpo_cli.variants.plan import Plan, plan

_SAME = 1e-9
"""Relative difference below which two values or gradients are the same."""


def split(base: Plan, responses: Responses, cutting: Cut) -> SplitUp:
    """The answer: the losses and the updates per aggregation."""
    rows, skipped = _rows(base, responses, cutting)
    return SplitUp(
        variant=base.variant,
        signature=responses.objective.signature,
        splits=tuple(rows),
        skipped=tuple(skipped),
        responses=cutting.responses,
        micro_batch=cutting.micro_batch,
        micro_batches=len(cutting.sizes),
        accumulate=cutting.accumulate,
        ranks=cutting.ranks,
        steps=int(cutting.steps[-1]) + 1,
        cuts_nothing=cutting.cuts_nothing,
    )


_OF_TURNS = "counts turns or trajectories, which split does not support"


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
        if STAGES["aggregate"].choices[name].reads_turns:
            skipped.append(UnservedAggregate(name, f"{name} {_OF_TURNS}"))
            continue
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


@dataclass(frozen=True)
class Pieces:
    """What is evaluated as a batch of its own, and what that counts.

    Attributes:
        sizes: [M] the responses of each piece.
        share: [M] what each piece's loss is multiplied by in the mean over the optimiser steps.
    """

    sizes: I64
    share: F64


Accumulation = Mapping[str, Rule]
"""The name of an aggregation (one of ``AGGREGATES``) → how micro-batches are added up."""


def _row(name: str, made: Plan, responses: Responses, cutting: Cut, *, own: bool) -> SplitAggregate:
    objective = responses.alone.objective(made)
    applied, whole, accumulation = _updates(objective, responses, cutting, own=own)
    square, along = _dot(responses, whole, whole), _dot(responses, applied, whole)
    off = replace(applied, policy=applied.policy - whole.policy, kl=applied.kl - whole.kl)
    distance = math.sqrt(max(_dot(responses, off, off), 0.0) / square) if square else None
    norm = math.sqrt(_dot(responses, applied, applied) / square) if square else None
    rounding = _SAME * max(abs(whole.value), whole.size)
    same = abs(applied.value - whole.value) <= rounding and (distance or 0.0) <= _SAME
    by = None
    if same and not cutting.cuts_nothing:
        by = "formula" if _by_formula(objective, responses, cutting, own=own) else "data"
    return SplitAggregate(
        aggregate=name,
        own=own,
        accumulation=accumulation["aggregate"],
        reported=-applied.value + 0.0,
        global_=-whole.value + 0.0,
        invariant=None if cutting.cuts_nothing else same,
        invariant_by=by,
        factor=along / square if square else None,
        norm_factor=norm,
        gradient_difference=distance,
    )


def _updates(
    objective: Objective, responses: Responses, cutting: Cut, *, own: bool
) -> tuple[Update, Update, Accumulation]:
    """The update of the batch that is cut, that of the whole batch, and how the cut is added up."""
    cutting = side_by_side(objective, cutting)
    cut = of_step(objective, responses, cutting, cutting.accumulate, cutting.ranks)
    accumulation = _accumulation(cut, own=own)
    pieces = {name: _pieces(rule, responses, cutting) for name, rule in accumulation.items()}
    undivided = of_step(objective, responses, cutting, 1, 1)
    whole = dict.fromkeys(AGGREGATES, _pieces("whole step", responses, cutting))
    return _update(cut, responses, pieces), _update(undivided, responses, whole), accumulation


def _accumulation(cut: Objective, *, own: bool) -> Accumulation:
    """How micro-batches are added up, per aggregation.

    Args:
        cut: the objective whose denominators count the step.
        own: whether its aggregation is the variant's, whose framework has a rule; another one is
            added up if it counts the step, else averaged.
    """
    usual: Rule = "sum" if adds(cut) else "mean"
    if not own or framework_of(cut.name) is None:
        return dict.fromkeys(AGGREGATES, usual)
    rules = (rule or usual for _, rule in rules_of(cut))
    return dict(zip(AGGREGATES, rules, strict=True))


def _pieces(rule: Rule, responses: Responses, cutting: Cut) -> Pieces:
    """The micro-batches, or the whole steps, and what the rule has each count."""
    micro_batches = cutting.sizes
    in_step = np.bincount(cutting.steps)
    count = len(in_step)
    if rule == "whole step":
        sizes = np.bincount(cutting.steps, weights=micro_batches).astype(np.int64)
        return Pieces(sizes, np.full(count, 1.0 / count))
    if rule in ("sum", "mean"):
        divisor = np.full(count, cutting.ranks) if rule == "sum" else in_step
        return Pieces(micro_batches, 1.0 / divisor[cutting.steps] / count)
    held = micro_batches.astype(np.float64)
    if rule == "by tokens":
        held = Segments(micro_batches).sum(responses.lengths.astype(np.float64))
    of_step = np.maximum(np.bincount(cutting.steps, weights=held), 1.0)
    return Pieces(micro_batches, held / of_step[cutting.steps] / count)


def _by_formula(objective: Objective, responses: Responses, cutting: Cut, *, own: bool) -> bool:
    """Whether no lengths could make a difference: responses weigh the same in both updates.

    What a denominator counts is a function of lengths and groups. Lengths that grow from response
    to response, from none at all, are other ones in each piece, whatever the pieces are.
    """
    grown = replace(responses, lengths=np.arange(responses.count))
    applied, whole, _ = _updates(objective, grown, cutting, own=own)
    pairs = (
        (applied.policy, whole.policy),
        (applied.kl, whole.kl),
        (applied.entropy, whole.entropy),
    )
    return all(np.allclose(one, other, rtol=_SAME, atol=0.0) for one, other in pairs)


def _update(objective: Objective, responses: Responses, pieces: Mapping[str, Pieces]) -> Update:
    """J and its gradient, each piece a batch of its own.

    Args:
        objective: whose weights of responses are taken.
        responses: the responses of all steps.
        pieces: for each of ``AGGREGATES``.
    """
    weights = {name: _weights(objective, name, responses, pieces[name].sizes) for name in pieces}
    spread = {name: np.repeat(part.share, part.sizes) for name, part in pieces.items()}
    policy = weights["aggregate"] * spread["aggregate"]
    kl = -objective.beta * weights["kl_aggregate"] * spread["kl_aggregate"]
    entropy = objective.entropy_coef * weights["entropy_aggregate"] * spread["entropy_aggregate"]
    sums = responses.sums
    parts = policy * sums["policy"] + kl * sums["kl"] + entropy * sums["entropy"]
    return Update(_sum(parts), float(np.abs(parts).sum()), policy, kl, entropy)


def _weights(objective: Objective, stage: str, responses: Responses, sizes: I64) -> F64:
    """[R] the weight of each response in its piece."""
    inputs, records = Inputs(_recut(responses, sizes)), Segments(sizes)
    bound = getattr(objective, stage) or objective.aggregate
    if bound.choice.reads_turns:
        raise InputError(f"{bound.name} {_OF_TURNS}")
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
