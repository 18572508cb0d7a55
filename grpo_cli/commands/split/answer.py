"""The answer of ``split``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grpo_cli.commands.answer import Answer


@dataclass(frozen=True)
class SplitAggregate(Answer):
    """The loss and the update of the batch under one aggregation, cut and whole.

    Attributes:
        aggregate: the aggregation.
        own: whether it is the variant's own.
        accumulation: how the trainer adds up the losses of micro-batches: "mean", "sum", "by
            tokens", "by responses" (means with such weights), or "whole step" if the denominator
            spans all micro-batches and ranks.
        reported: the loss of the step, added up so.
        global_: the loss of the whole batch.
        invariant: whether both are the same, and both updates; None if each micro-batch is a step.
        invariant_by: "formula" or, if only these responses make it so, "data".
        factor: the part of the cut batch's update along the whole batch's gradient.
        norm_factor: ‖update of the cut batch‖ / ‖gradient of the whole batch‖.
        gradient_difference: ‖difference of both‖ / ‖gradient of the whole batch‖.
    """

    aggregate: str
    own: bool
    accumulation: str
    reported: float
    global_: float
    invariant: bool | None
    invariant_by: str | None
    factor: float | None
    norm_factor: float | None
    gradient_difference: float | None


@dataclass(frozen=True)
class UnservedAggregate(Answer):
    """An aggregation that the data cannot serve, and why."""

    aggregate: str
    reason: str


@dataclass(frozen=True)
class SplitUp(Answer):
    """The answer of ``split``."""

    variant: str
    signature: str
    splits: Sequence[SplitAggregate]
    skipped: Sequence[UnservedAggregate]
    responses: int
    micro_batch: int
    micro_batches: int
    accumulate: int
    ranks: int
    steps: int
    cuts_nothing: bool
