"""How a trainer makes one optimiser step's loss of the losses of its micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from grpo_cli.hyperparameters import HYPERPARAMETERS
from grpo_cli.objective.arithmetic.exact_sums import added
from grpo_cli.objective.choice import Bound
from grpo_cli.objective.objective import Objective

Rule = Literal["sum", "mean", "whole step", "by tokens", "by responses"]
"""What becomes of micro-batch losses Lₘ of M micro-batches on each of P ranks.

``sum``: (1/P)·Σ Lₘ, ranks being averaged by data-parallel training. ``mean``: (1/P)·Σ Lₘ/M.
``by tokens``, ``by responses``: Σ wₘLₘ / Σ wₘ over all ranks, w being what the micro-batch holds.
``whole step``: the denominators span the step, over all ranks: its loss is that of one batch.
"""


def adds(objective: Objective) -> bool:
    """Whether the trainer adds the micro-batches up: the denominator counts the whole step."""
    return any(HYPERPARAMETERS[name].counts for name in objective.aggregate.values)


def rule_of(aggregate: Bound, by_framework: Rule | None) -> Rule | None:
    """Returns the rule for micro-batches that an aggregation was evaluated on; None if unknown.

    A denominator that counts the step has hyperparameters that say so: losses are added up.
    If the count is not given, the micro-batch's own tokens or responses took its place, and all
    micro-batches together have the count. One divided by gradient_accumulation_steps was averaged.

    Args:
        aggregate: the aggregation of a term, with the values that the micro-batches gave it.
        by_framework: what the trainer does with losses that count nothing of the step.
    """
    counted = {HYPERPARAMETERS[name].counts: value for name, value in aggregate.values.items()}
    several_ranks = (counted.get("ranks") or 1) != 1
    of_step = [counted[unit] for unit in ("tokens", "responses") if unit in counted]
    if None in of_step:
        scaled = several_ranks or counted.get("generation") is not None
        return None if scaled else "whole step"
    if of_step:
        return "whole step" if by_framework == "whole step" and not several_ranks else "sum"
    if several_ranks and counted.get("tokens at a time", 0) is None:
        return None  # the ranks' tokens are missing
    if "microbatches" in counted:
        return "mean" if counted["microbatches"] == 1 else "sum"
    return by_framework


def accumulated(rule: Rule, ranks: Sequence[Sequence[tuple[float, float]]]) -> float:
    """What micro-batches come to by any rule but ``whole step``.

    Args:
        rule: the rule.
        ranks: of each rank its micro-batches: the value of each, and w, how much it holds.
    """
    if rule in ("by tokens", "by responses"):
        held = [one for rank in ranks for one in rank]
        total = sum(size for _, size in held)
        return added([size * value for value, size in held]) / max(total, 1)
    sums = [added([value for value, _ in rank]) for rank in ranks]
    if rule == "mean":
        sums = [one / len(rank) for one, rank in zip(sums, ranks, strict=True)]
    return added(sums) / len(ranks)
