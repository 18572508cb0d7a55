"""How a step is cut into micro-batches and ranks, and what denominators make of the cut."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from grpo_cli.batch import I64
from grpo_cli.commands.split.responses import Responses
from grpo_cli.errors import InputError, UsageError
from grpo_cli.hyperparameters import HYPERPARAMETERS, Value
from grpo_cli.objective.choice import Bound
from grpo_cli.objective.objective import Objective


@dataclass(frozen=True)
class Cut:
    """How a batch is cut: responses in order, n to a micro-batch.

    Attributes:
        micro_batch: n, responses of a micro-batch.
        accumulate: micro-batches that one rank accumulates in one optimiser step.
        ranks: data-parallel ranks.
        responses: the responses that there are.
    """

    micro_batch: int
    accumulate: int
    ranks: int
    responses: int

    @property
    def sizes(self) -> I64:
        """[M] responses of each micro-batch; the last may be smaller."""
        starts = np.arange(0, self.responses, self.micro_batch)
        return np.minimum(self.responses - starts, self.micro_batch)

    @property
    def steps(self) -> I64:
        """[M] the optimiser step of each micro-batch."""
        return np.arange(len(self.sizes)) // (self.accumulate * self.ranks)

    @property
    def cuts_nothing(self) -> bool:
        """Whether each micro-batch is a whole optimiser step."""
        return len(self.sizes) == int(self.steps[-1]) + 1


def cut(responses: int, micro_batch: int, accumulate: int | None, ranks: int) -> Cut:
    """The cut; without ``accumulate`` all the responses are one optimiser step."""
    micro_batches = max(math.ceil(responses / micro_batch), 1)
    if ranks > micro_batches:
        raise UsageError(
            f"--ranks {ranks}: {responses} responses make {micro_batches} micro-batches of "
            f"{micro_batch}, fewer than the ranks"
        )
    return Cut(micro_batch, accumulate or math.ceil(micro_batches / ranks), ranks, responses)


AGGREGATES = ("aggregate", "kl_aggregate", "entropy_aggregate")


def of_step(
    objective: Objective, responses: Responses, cutting: Cut, accumulate: int, ranks: int
) -> Objective:
    """The objective whose denominators know how the step is split, those of every term.

    An aggregation that counts something of the whole optimiser step has its trainer add the
    micro-batches up instead of averaging them (``adds``). Counts that are nowhere given are those
    of the data.
    """
    scaled = {
        name: replace(
            bound,
            values={**bound.values, **dict(_counts(bound, responses, cutting, accumulate, ranks))},
        )
        for name in AGGREGATES
        if (bound := getattr(objective, name)) is not None
    }
    return replace(objective, **scaled)


def side_by_side(objective: Objective, cutting: Cut) -> Cut:
    """The cut as the denominators see it.

    One that counts the micro-batches of all ranks makes one micro-batch of them, of one rank.
    """
    counted = {HYPERPARAMETERS[name].counts for name in objective.aggregate.values}
    if "tokens at a time" not in counted:
        return cutting
    return replace(cutting, micro_batch=cutting.micro_batch * cutting.ranks, ranks=1)


def _counts(
    bound: Bound, responses: Responses, cutting: Cut, accumulate: int, ranks: int
) -> Iterator[tuple[str, Value]]:
    in_step = {"microbatches": accumulate, "ranks": ranks}
    of_data = {"tokens": int(responses.lengths.sum()), "responses": responses.count}
    values = bound.values
    for name, value in values.items():
        counted = HYPERPARAMETERS[name].counts
        if counted in in_step:
            yield name, in_step[counted]
        elif counted == "tokens at a time":
            yield name, None
        elif counted == "generation" and value is not None:
            before = float(values.get("gradient_accumulation_steps") or 1)
            yield name, max(1, round(float(value) / before * accumulate))
        elif counted in of_data and value is None:
            if cutting.steps.any():
                raise InputError("missing; the input has more than one step", path=name, record=0)
            yield name, of_data[counted]
