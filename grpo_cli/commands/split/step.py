"""Denominators that count something of the whole optimiser step, told how the step is cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from grpo_cli.commands.split.microbatches import Cut
from grpo_cli.commands.split.responses import Responses
from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import HYPERPARAMETERS, Value
from grpo_cli.objective.choice import Bound
from grpo_cli.objective.objective import Objective

AGGREGATES = ("aggregate", "kl_aggregate", "entropy_aggregate")


def of_step(
    objective: Objective, responses: Responses, cutting: Cut, accumulate: int, ranks: int
) -> Objective:
    """The objective whose denominators are told how the step is split, those of every term.

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


def adds(objective: Objective) -> bool:
    """Whether the trainer adds the micro-batches up: the denominator counts the whole step."""
    return any(HYPERPARAMETERS[name].counts for name in objective.aggregate.values)


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
        elif counted == "generation" and value is not None:
            before = float(values.get("gradient_accumulation_steps") or 1)
            yield name, max(1, round(float(value) / before * accumulate))
        elif counted in of_data and value is None:
            if cutting.steps.any():
                raise InputError("missing; the input is more than one step", path=name, record=0)
            yield name, of_data[counted]
