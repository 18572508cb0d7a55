"""The totals that ``grpo eval`` gives of plans, and how far their ratios go."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.match.question import Data, Pass
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.engine.references import References
from grpo_cli.engine.totals import Totals
from grpo_cli.errors import GrpoError, InputError
from grpo_cli.objective.objective import Objective

LOW, HIGH = "epsilon_low", "epsilon_high"


@dataclass
class Exact(Totals):
    """Totals, how far the ratios go on either side, and which records have a reference.

    Attributes:
        reached: [2, 2] the least and the greatest ρ of tokens with A > 0, and of those with A < 0.
    """

    reached: F64 = field(default_factory=lambda: np.array([[math.inf, -math.inf]] * 2))
    references: References = field(default_factory=References)

    def merge(self, other: Totals) -> None:
        """Adds the totals of other records.

        Raises:
            InputError: where only some of the records have a reference that the plan needs.
        """
        super().merge(other)
        if isinstance(other, Exact):
            self.references.merge(other.references)
            self.references.check()
            self.reach(other.reached)

    def reach(self, other: F64) -> None:
        """Adds what the ratios of other records reach."""
        (low, high), (other_low, other_high) = self.reached.T, other.T
        self.reached = np.stack([np.minimum(low, other_low), np.maximum(high, other_high)], axis=1)

    @property
    def objective(self) -> float:
        """J."""
        return sum(self.parts().values())


def edges(ratio: F64, advantage: F64) -> F64:
    """[2, 2] the least and the greatest ρ of tokens with A > 0, and of those with A < 0."""
    found = np.empty((2, 2))
    for side, chosen in zip(found, (advantage > 0, advantage < 0), strict=True):
        side[0] = ratio.min(where=chosen, initial=np.inf)
        side[1] = ratio.max(where=chosen, initial=-np.inf)
    return found


def unbound(objective: Objective, reached: F64) -> dict[str, float]:
    """ε → the value from which on any gives the same number, if the objective's own is above it.

    PPO's clip holds ρ from above where A > 0, and from below where A < 0; a weight's window (CISPO)
    both on either side. Where δ or the dual clip acts, ε_high may matter to it and is left out.
    """
    window, values = objective.surrogate.choice.window, objective.surrogate.values
    if window is None:
        return {}
    (bottom, top), (bottom_of_losses, top_of_losses) = reached.tolist()
    if window == "weight":
        bottom, top = min(bottom, bottom_of_losses), max(top, top_of_losses)
        bottom_of_losses = bottom
    found = {LOW: 1.0 - bottom_of_losses, HIGH: top - 1.0}
    caps = [cap for name in ("delta", "dual_clip") if isinstance(cap := values.get(name), float)]
    if any(cap <= max(top, top_of_losses) for cap in caps):
        del found[HIGH]
    return {
        name: max(edge, 0.0)
        for name, edge in found.items()
        if isinstance(own := values.get(name), float) and own >= edge
    }


def exactly(evaluators: Sequence[Evaluator], data: Data) -> list[Exact | None]:
    """The totals that ``grpo eval`` gives, to the bit; None where it gives an error."""
    return data.fold(partial(ExactTotals, evaluators)).found if evaluators else []


class ExactTotals(Pass):
    """The totals of plans.

    Attributes:
        found: the totals of each plan; None where it cannot be evaluated.
    """

    settings = (*Pass.settings, "_evaluators")

    def __init__(self, evaluators: Sequence[Evaluator]) -> None:
        self._evaluators = evaluators
        self.found: list[Exact | None] = [Exact(one.plan.batch) for one in evaluators]

    def add(self, chunk: Chunk, found: None) -> None:
        """Adds a chunk's records to the totals of each plan."""
        del found
        for at, (evaluator, totals) in enumerate(zip(self._evaluators, self.found, strict=True)):
            if totals is None:
                continue
            try:
                totals.references.add(chunk, evaluator.plan, evaluator.objective(chunk))
                totals.references.check()
                with np.errstate(all="ignore"):
                    made = evaluator.evaluate(chunk)
                    totals.add(made)
                    totals.reach(edges(made.ratio, made.advantage))
                    del made  # before the next plan's columns are made
            except GrpoError:
                self.found[at] = None

    def merge(self, later: ExactTotals) -> None:
        """Adds the totals of other records."""
        for at, (totals, part) in enumerate(zip(self.found, later.found, strict=True)):
            self.found[at] = None
            if totals is not None and part is not None:
                with suppress(InputError):
                    totals.merge(part)
                    self.found[at] = totals
