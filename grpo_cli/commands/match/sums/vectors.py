"""The vectors over a chunk's responses that all conventions are made of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.match.space.options import DIRECT, Options, key
from grpo_cli.commands.match.sums.terms import Terms
from grpo_cli.engine.chunk import Chunk
from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import HyperparameterError
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.results import PerToken, Weights
from grpo_cli.objective.statistics import ExactMoments, moments
from grpo_cli.variants.plan import Plan

Measured = Mapping[int, ExactMoments]


class Vectors(Terms):
    """Those of all options."""

    def __init__(self, options: Options, chunk: Chunk, measured: Measured) -> None:
        super().__init__(chunk)
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

    def sides(self, wanted: Collection[int]) -> Iterator[tuple[int, tuple[F64, F64]]]:
        """(number, ([R] Σ c·s for A = 1, [R] for A = −1)) of the policy terms that are wanted."""
        objectives = {at: self.objective(self._options.policies.plans[at]) for at in wanted}
        order = sorted(wanted, key=lambda at: repr(key(objectives[at].ratio)))
        count, total = self.batch.responses.count, self.batch.responses.total
        signed = {sign: (np.full(total, sign), np.full(count, sign)) for sign in (1.0, -1.0)}
        known: dict[object, tuple[F64, F64]] = {}
        for at in order:
            objective = objectives[at]
            try:
                self.set_ratio(self.inputs, objective)
                same = self.acting(self.inputs, objective)
                if same not in known:
                    gain, loss = (self._side(objective, *signed[sign]) for sign in (1.0, -1.0))
                    known[same] = gain, loss
                yield at, known[same]
            except (InputError, HyperparameterError):
                yield at, (np.full(count, np.nan), np.full(count, np.nan))

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
