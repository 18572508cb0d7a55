"""Why does my loss rise while the reward rises? Read off the records in their order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.inputs import Inputs
from grpo_cli.objective.terms import KL

_FEWEST = 4
_SURE = 2.0
"""How many standard errors a trend must have to be one."""


class Reason(NamedTuple):
    """One reason: a word for programs, a sentence for people."""

    code: str
    text: str


@dataclass
class Steps:
    """Each record's own loss, mean reward and KL penalty, in their order."""

    losses: list[F64] = field(default_factory=list)
    rewards: list[F64] = field(default_factory=list)
    penalties: list[F64] = field(default_factory=list)

    def add(self, breakdown: Breakdown) -> None:
        """Adds the records of a breakdown; records without rewards tell nothing."""
        rewards: F64 | None = Inputs(breakdown.batch).get("rewards")
        if rewards is None:
            return
        records = breakdown.batch.records
        self.losses.append(-breakdown.record_objective)
        self.rewards.append(records.mean(rewards))
        self.penalties.append(breakdown.beta * breakdown.record_value(KL))


def rising(steps: Steps) -> Iterator[Reason]:
    """What makes the loss rise, where the reward rises with it."""
    if sum(map(len, steps.losses)) < _FEWEST:
        return
    losses, rewards, penalties = (
        np.concatenate(parts) for parts in (steps.losses, steps.rewards, steps.penalties)
    )
    if not (_trend(losses) > _SURE and _trend(rewards) > _SURE):
        return
    span = f"from {_ends(losses)} while the mean reward rises from {_ends(rewards)}"
    yield Reason(
        "rising",
        f"the loss rises {span} over {len(losses):,} records; {_share(losses, penalties)}. "
        "The loss is no measure of progress: advantages are centred in each group, whatever the "
        "reward is, so watch the reward, the KL and the clip fraction instead",
    )


def _share(losses: F64, penalties: F64) -> str:
    """How much of the rise the KL makes."""
    rise, of_kl = _slope(losses), _slope(penalties)
    if of_kl > 0.5 * rise:
        part = f"{min(of_kl / rise, 1.0):.0%}"
        return (
            f"{part} of that is the KL penalty, from {_ends(penalties)}: the policy learns, and so "
            "leaves the reference (a smaller β penalises that less)"
        )
    return (
        "that is the policy term, not the KL: it is near 0 at ratio 1 and moves with the lengths, "
        "the clip and how far the policy is from the one that sampled"
    )


def _trend(values: F64) -> float:
    """The slope over the records in standard errors; infinite for a straight line."""
    places = np.arange(len(values)) - (len(values) - 1) / 2.0
    spread = values - values.mean()
    size = math.sqrt(float(places @ places) * float(spread @ spread))
    if not size:
        return 0.0
    correlation = max(-1.0, min(1.0, float(places @ spread) / size))
    free = 1.0 - correlation * correlation
    slope = correlation * math.sqrt(len(values) - 2)
    return slope / math.sqrt(free) if free > 1e-12 else math.copysign(math.inf, correlation)


def _slope(values: F64) -> float:
    places = np.arange(len(values)) - (len(values) - 1) / 2.0
    return float(places @ values) / float(places @ places)


def _ends(values: F64) -> str:
    """About where it begins and ends: the means of the first and the last quarter."""
    few = max(len(values) // 4, 1)
    return f"{values[:few].mean():.4g} to {values[-few:].mean():.4g}"
