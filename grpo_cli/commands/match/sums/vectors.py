"""The vectors over a chunk's responses that all conventions are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.match.space.options import DIRECT, Options
from grpo_cli.commands.match.sums.groups import Rounded
from grpo_cli.commands.match.sums.terms import Terms
from grpo_cli.engine.chunk import Chunk
from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import HyperparameterError
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.results import PerToken, Weights
from grpo_cli.objective.statistics import ExactMoments, moments
from grpo_cli.variants.plan import Plan

Flags = NDArray[np.bool_]
Measured = Mapping[int, ExactMoments]


class Vectors(Terms):
    """Those of all options."""

    def __init__(self, options: Options, chunk: Chunk, measured: Measured) -> None:
        super().__init__(chunk, Rounded)
        self._options = options
        self._measured = measured

    def _rows(self, plans: list[Plan], made: Callable[[int, Objective], F64]) -> F64:
        """[n, R]; a row of nan where the records cannot serve the plan."""
        rows = np.empty((len(plans), self.batch.responses.count))
        for at, plan in enumerate(plans):
            try:
                rows[at] = made(at, self.objective(plan))
            except (InputError, HyperparameterError):
                rows[at] = np.nan
        return rows

    def weights(self) -> tuple[F64, F64, F64, F64]:
        """[C, R] distinct weights; [W] which of them, divisor and count of each aggregation."""
        known: dict[bytes, int] = {}
        rows: list[F64] = []
        member, divisors, counted = [], [], []
        for at, plan in enumerate(self._options.weights.plans):
            found = self.weight(self.objective(plan), self._options.weights.stages[at])
            numerator, divisor = self._spread(found)
            counted.append(0.0 if found.counts is None else float(found.counts.sum()))
            bits = numerator.tobytes()
            if bits not in known:
                known[bits] = len(rows)
                rows.append(numerator)
            member.append(known[bits])
            divisors.append(divisor)
        return np.array(rows), np.array(member), np.array(divisors), np.array(counted)

    def _spread(self, weights: Weights) -> tuple[F64, float]:
        """[R] the numerators and the divisor; each record's own count where that is its batch."""
        numerator = np.asarray(weights.numerator, dtype=np.float64)
        if self._options.weights.plans[0].batch != "record":
            return numerator, float(weights.divisor)
        records = self.batch.records
        if weights.counts is not None:
            counts = np.maximum(records.sum(weights.counts), 1)
            numerator = numerator / np.repeat(counts, records.lengths)
        return numerator, float(weights.divisor)

    def advantages(self) -> F64:
        """[A, R]."""
        return self._rows(self._options.advantages.plans, self._advantage)

    def _advantage(self, at: int, objective: Objective) -> F64:
        inputs = self.scored(objective)
        measured = self._measured.get(at)
        inputs["moments"] = moments(self.batch, objective, measured)
        found = inputs.call(objective.advantage, "advantage")
        assert not isinstance(found, PerToken)
        return np.asarray(found, dtype=np.float64)

    def sides(self, wanted: Sequence[int], gaining: Flags, losing: Flags) -> tuple[F64, F64]:
        """[S, R] Σ c·s for A = 1, and for A = −1, of policy terms; rows of nan where it fails.

        Args:
            wanted: the numbers of the terms.
            gaining: [R] the responses of which the first is wanted.
            losing: [R] those of which the second is. Where no response is both, one look at the
                tokens has both.
        """
        both = bool((gaining & losing).any())
        signs = [np.where(losing & ~gaining, -1.0, 1.0)]
        signs += [np.full(len(losing), -1.0)] if both else []
        signed = [(self.batch.responses.spread(one), one) for one in signs]
        found = np.empty((len(signs), len(wanted), len(losing)))
        known: dict[object, int] = {}
        for row, at in enumerate(wanted):
            objective = self.objective(self._options.policies.plans[at])
            try:
                self.set_ratio(self.inputs, objective)
                like = known.setdefault(self.acting(self.inputs, objective), row)
                for side, one in zip(found, signed, strict=True):
                    side[row] = side[like] if like != row else self._side(objective, *one)
            except (InputError, HyperparameterError):
                found[:, row] = np.nan
        return found[0], found[-1]

    def _side(self, objective: Objective, advantage: F64, per_response: F64) -> F64:
        inputs = self.inputs
        inputs["advantage"], inputs["response_advantage"] = advantage, per_response
        return self.policy_sums(inputs, objective)

    def directs(self) -> F64:
        """[D, R] Σ c·s with their own advantages."""
        return self._rows(self._options.directs.plans, self._direct)

    def _direct(self, at: int, objective: Objective) -> F64:
        return self.policy(objective, self._measured.get(DIRECT + at))

    def kls(self) -> F64:
        """[K, R] Σ k, or β·Σ k."""
        return self._rows(self._options.kls.plans, self._kl)

    def _kl(self, at: int, objective: Objective) -> F64:
        del at
        if not self._options.solve and not objective.beta:
            return np.zeros(self.batch.responses.count)
        sums = self.kl(objective)
        return sums if self._options.solve else objective.beta * sums

    def entropies(self) -> F64:
        """[E, R] coefficient · Σ H."""

        def bonus(at: int, objective: Objective) -> F64:
            del at
            return objective.entropy_coef * self.entropy(objective)

        return self._rows(self._options.entropies.plans, bonus)
