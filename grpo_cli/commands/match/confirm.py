"""What ``grpo eval`` gives of what was found, and whether that fits every number."""

from __future__ import annotations

import math
from collections.abc import Sequence

from grpo_cli.commands.match.candidate import Candidate
from grpo_cli.commands.match.fit import FLOAT32
from grpo_cli.commands.match.question import Question
from grpo_cli.commands.match.sums.edges import unbound
from grpo_cli.commands.match.sums.exact import Likely, exactly
from grpo_cli.commands.match.sums.vectors import Measured
from grpo_cli.commands.match.typed import Typed
from grpo_cli.engine.evaluator import Evaluator

FEW = 0.01
"""Hits by chance below which a convention is named: well below 1."""


def evaluated(
    question: Question,
    measured: Measured,
    likely: Likely,
    found: Sequence[Candidate],
    *,
    reaching: bool,
) -> list[Candidate]:
    """The candidates with their numbers on a question's records; without what cannot be."""
    evaluators = [Evaluator(one.plan, measured.get(one.measured)) for one in found]
    left = [one for one in evaluators if one.words not in likely]
    everything = bool(question.others)
    totals = iter(exactly(left, question.data, everything=everything, reaching=reaching))
    kept = []
    for one, evaluator in zip(found, evaluators, strict=True):
        known = evaluator.words in likely
        total = likely[evaluator.words] if known else next(totals)
        if total is None or not math.isfinite(sum(total.parts().values())):
            continue
        one.totals = total
        sign = -1.0 if question.target.name == "loss" else 1.0
        one.value = one.times * (sign * sum(total.parts().values())) + 0.0
        one.difference = one.value - question.target.value
        if total.reached is not None:
            one.unbound = unbound(question.first.objective(one.plan), total.reached)
        kept.append(one)
    return kept


def all_agree(one: Candidate, question: Question) -> bool:
    """Whether what was logged beside a number fits too."""
    return all(_agrees(one, other) for other in question.others)


def without_chance(found: Sequence[Candidate], target: Typed) -> list[Candidate]:
    """The candidates; beside a sure one none whose digits differ, as by chance float32 may do."""
    sure = bool(found) and found[0].chance < FEW
    near = [target.half + 1e-12 * max(abs(one.value), one.size) for one in found]
    return [
        one
        for one, room in zip(found, near, strict=True)
        if not (sure and one.chance > 1.0 and abs(one.difference) > room)
    ]


def _agrees(one: Candidate, other: Typed) -> bool:
    """Whether another logged number fits; a gradient may be scaled as the loss is, or not."""
    assert one.totals is not None
    value = one.totals.row().get(other.name)
    if not isinstance(value, int | float):
        return False
    room = other.half + 8 * FLOAT32 * abs(other.value)
    scales = (1.0, abs(one.times)) if other.name == "gradient_norm" else (1.0,)
    return any(abs(scale * value - other.value) <= room for scale in scales)
