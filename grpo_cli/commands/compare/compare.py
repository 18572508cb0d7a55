"""Several variants on the same data, and how their gradients lie to each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from grpo_cli.batch import F64
from grpo_cli.commands.compare.shares import Shares
from grpo_cli.engine import Reader
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.engine.totals import Totals
from grpo_cli.errors import InputError
from grpo_cli.objective.arithmetic.exact_sums import ExactSum
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.statistics import ExactMoments
from grpo_cli.objective.terms import POLICY
from grpo_cli.variants.plan import Plan

NUMBERS = (
    *("objective", "loss", "policy", "kl", "clip_fraction", "clip_fraction_low"),
    *("clip_fraction_high", "ratio_mean", "gradient_norm"),
)
"""The totals that a row of the comparison has."""


class Side:
    """One variant's sums over the data."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.plan = evaluator.plan
        self.evaluator = evaluator
        self.totals = Totals(self.plan.batch)
        self.shares = Shares()
        self.dots: dict[tuple[str, str], ExactSum] = {}
        self.parts: dict[str, F64] = {}

    def add(self, chunk: Chunk) -> None:
        """Evaluates a chunk and adds it up; ``parts`` are then those of its gradient.

        Raises:
            InputError: where the records lack what the plan needs.
        """
        breakdown = chunk.run(self.evaluator.evaluate)
        self.totals.add(breakdown)
        self.parts = _gradient(breakdown, self.plan.batch)
        self.shares.add(breakdown, self.parts)

    def meet(self, first: Side, chunk: Chunk) -> None:
        """Adds the dot products with the first variant's gradient, exactly over responses."""
        for name, own in self.parts.items():
            for other, gradient in first.parts.items():
                sums = chunk.batch.responses.sum(own * gradient)
                self.dots.setdefault((name, other), ExactSum()).add(sums)

    def scale(self, part: str) -> float:
        """What a part of the gradient is still to be multiplied by."""
        return 1.0 / self.totals.count(part)

    def cosine(self, first: Side) -> float | None:
        """The cosine of this gradient with the first one's; None where either is 0."""
        own, other = self._norm, first._norm
        if not own or not other:
            return None
        dot = math.fsum(
            total.value() * self.scale(name) * first.scale(other)
            for (name, other), total in self.dots.items()
        )
        return max(-1.0, min(1.0, dot / own / other))

    @property
    def _norm(self) -> float:
        norm = self.totals.row()["gradient_norm"]
        return float(norm) if isinstance(norm, float) else 0.0

    def row(self, first: Side) -> dict[str, Any]:
        """The variant's line of the comparison."""
        total = self.totals.row()
        return {
            "variant": self.plan.variant,
            "signature": self.totals.signature(),
            **{name: total[name] for name in NUMBERS},
            "cosine": self.cosine(first),
            **self.shares.read(self.scale),
            "denominator": total["denominator"],
            "denominator_of": total["denominator_of"],
        }


def _gradient(breakdown: Breakdown, batch: str) -> dict[str, F64]:
    """[N] the gradient without the denominators that count, in parts where those differ."""
    if batch == "record":
        return {POLICY: breakdown.gradient}
    responses = breakdown.batch.responses
    return {part.name: part.without_count(responses) for part in breakdown.gradient_parts}


class Comparison:
    """Runs every plan on every piece of the data, in one pass and flat memory.

    A plan that needs statistics of the whole input costs a pass before it. Plans that the data
    cannot serve are set aside with the reason.

    Args:
        plans: the variants; cosines are with the first that can be served.
        source: the data.
    """

    def __init__(self, plans: Sequence[Plan], source: Reader) -> None:
        self._source = source
        self.skipped: dict[str, InputError] = {}
        self._order = [plan.variant for plan in plans]
        self.sides = [Side(evaluator) for evaluator in self._measured(plans)]
        while not self._pass():
            self.sides = [Side(side.evaluator) for side in self.sides]

    def _measured(self, plans: Sequence[Plan]) -> list[Evaluator]:
        """The plans with the statistics of the whole input, for those that need some."""
        evaluators = {plan.variant: Evaluator(plan) for plan in plans}
        moments = {name: ExactMoments() for name, one in evaluators.items() if one.wants_first_pass}
        for chunk in self._source if moments else ():
            for name in [*moments]:
                try:
                    moments[name].merge(chunk.run(evaluators[name].measure))
                except InputError as reason:
                    self.skipped[name] = reason
                    del moments[name], evaluators[name]
        for name, measured in moments.items():
            evaluators[name] = replace(evaluators[name], measured=measured)
        return [*evaluators.values()]

    def _pass(self) -> bool:
        """Whether a pass went through without losing the variant that the others meet."""
        for chunk in self._source:
            if not self.sides:
                return True
            first = self.sides[0]
            for side in list(self.sides):
                try:
                    side.add(chunk)
                except InputError as reason:
                    self.sides.remove(side)
                    self.skipped[side.plan.variant] = reason
                    if side is first:
                        return False
                    continue
                side.meet(first, chunk)
        return True

    def rows(self) -> list[dict[str, Any]]:
        """One line per variant that the data serves, in the order asked for."""
        return [side.row(self.sides[0]) for side in self.sides]

    def reasons(self) -> list[dict[str, str]]:
        """The variants that the data cannot serve, in the order asked for."""
        return [
            {"variant": name, "reason": str(self.skipped[name])}
            for name in self._order
            if name in self.skipped
        ]

    def document(self) -> dict[str, Any]:
        """Everything as ``--json`` prints it."""
        return {"variants": self.rows(), "skipped": self.reasons(), **self.counts}

    @property
    def counts(self) -> dict[str, int]:
        """Records, groups, responses and tokens of the data."""
        names = ("records", "groups", "responses", "tokens")
        totals = self.sides[0].totals if self.sides else Totals("input")
        return {name: getattr(totals, name) for name in names}
