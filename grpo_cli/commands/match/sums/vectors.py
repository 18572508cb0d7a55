"""The vectors over a chunk's responses that all conventions are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.match.space.options import DIRECT, Options, advantage_key
from grpo_cli.commands.match.sums.distinct import distinct
from grpo_cli.commands.match.sums.groups import Rounded
from grpo_cli.commands.match.sums.terms import Terms
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import BatchStatistics
from grpo_cli.errors import InputError, UsageError
from grpo_cli.hyperparameters import HyperparameterError
from grpo_cli.objective.inputs import Inputs
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.results import PerToken, Weights, of_tokens
from grpo_cli.objective.statistics import moments
from grpo_cli.variants.plan import Plan

Flags = NDArray[np.bool_]
Measured = Mapping[int, BatchStatistics]
Same = tuple[object, object]


class Sides(NamedTuple):
    """Policy terms for A = 1 and for A = −1, those that are one on the chunk once.

    Attributes:
        places: [S] which of them each term is.
        gain, loss: [n, R].
    """

    places: NDArray[np.int64]
    gain: F64
    loss: F64


class Signs(NamedTuple):
    """Advantages of ±1: [R] of responses, [N] of tokens."""

    responses: F64
    tokens: F64


class Vectors(Terms):
    """Those of all options."""

    def __init__(self, options: Options, chunk: Chunk, measured: Measured) -> None:
        super().__init__(chunk, Rounded)
        self._options = options
        self._measured = measured
        self._signs: dict[bytes, Signs] = {}
        self._seen: dict[object, F64] = {}
        self._of_tokens: dict[object, F64] = {}
        self._signed: tuple[object, F64, F64] | None = None

    def _rows(self, plans: list[Plan], made: Callable[[int, Objective], F64]) -> Iterator[F64]:
        """[R] of each plan; nan where the records cannot serve it."""
        for at, plan in enumerate(plans):
            try:
                yield made(at, self.objective(plan))
            except (InputError, HyperparameterError):
                yield np.full(self.batch.responses.count, np.nan)

    def weights(self) -> tuple[F64, NDArray[np.int64], F64, F64]:
        """[C, R] distinct weights; [W] which of them, divisor and count of each aggregation."""
        rows: list[F64] = []
        divisors, counted = [], []
        for at, plan in enumerate(self._options.weights.plans):
            found = self.weight(self.objective(plan), self._options.weights.stages[at])
            numerator, divisor = self._spread(found)
            counted.append(0.0 if found.counts is None else float(found.counts.sum()))
            rows.append(numerator)
            divisors.append(divisor)
        member, classes = distinct(rows)
        return classes, member, np.array(divisors), np.array(counted)

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

    def advantages(self) -> Iterator[F64]:
        """[R] each."""
        return self._rows(self._options.advantages.plans, self._advantage)

    def _advantage(self, at: int, objective: Objective) -> F64:
        inputs = self.scored(objective)
        measured = self._measured.get(at)
        whole = None if measured is None else measured.single(self.batch)
        inputs["moments"] = moments(self.batch, objective, whole)
        found = inputs.call(objective.advantage, "advantage")
        if isinstance(found, PerToken):
            raise UsageError(
                "match: some records give advantages by token, the first one does not; match those "
                "alone (--where), or put one by token first"
            )
        return np.asarray(found, dtype=np.float64)

    def sides(self, wanted: Sequence[int], gaining: Flags, losing: Flags) -> Sides:
        """Σ c·s of policy terms for A = 1, and for A = −1.

        Args:
            wanted: the numbers of the terms.
            gaining: [R] the responses of which the first is wanted.
            losing: [R] those of which the second is. Where no response is both, one look at the
                tokens has both.
        """
        if (gaining & losing).any():
            signs = [np.ones(len(losing)), np.full(len(losing), -1.0)]
        else:
            signs = [np.where(losing, -1.0, 1.0)]
        known = [self._known_signs(one) for one in signs]
        places, rows = distinct([self._looks(at, known) for at in wanted])
        return Sides(places, rows[:, 0], rows[:, -1])

    def _known_signs(self, signs: F64) -> Signs:
        """The signs, and those of the tokens; made once."""
        wanted = signs.tobytes()
        if wanted not in self._signs:
            self._signs[wanted] = Signs(signs, self.batch.responses.spread(signs))
        return self._signs[wanted]

    def _looks(self, at: int, signs: Sequence[Signs]) -> F64:
        """[1 or 2, R] a policy term with these advantages, worked out once; nan where it fails."""
        objective = self.objective(self._options.policies.plans[at])
        try:
            self.set_ratio(self.inputs, objective)
            acting = self.acting(self.inputs, objective)
            return np.array([self._look(objective, acting, one) for one in signs])
        except (InputError, HyperparameterError):
            return np.full((len(signs), self.batch.responses.count), np.nan)

    def _look(self, objective: Objective, acting: object, signs: Signs) -> F64:
        wanted = acting, id(signs)
        if wanted not in self._seen:
            inputs = self.inputs
            inputs["advantage"], inputs["response_advantage"] = signs.tokens, signs.responses
            self._seen[wanted] = self.policy_sums(inputs, objective)
        return self._seen[wanted]

    def directs(self, classes: F64) -> F64:
        """[D, C] Σ w·c·s with their own advantages, by the weights [C, R]."""
        plans = self._options.directs.plans
        found = np.full((len(plans), len(classes)), np.nan)
        known: dict[object, F64] = {}
        for at in self._options.by_policy:
            objective = self.objective(plans[at])
            with suppress(InputError, HyperparameterError):
                inputs = self.scored(objective)
                self.set_ratio(inputs, objective)
                same = advantage_key(objective), self.acting(inputs, objective)
                if same not in known:
                    known[same] = classes @ self._direct(at, inputs, objective, same)
                found[at] = known[same]
        return found

    def _direct(self, at: int, inputs: Inputs, objective: Objective, same: Same) -> F64:
        measured = self._measured.get(DIRECT + at)
        if not self._options.is_by_token(at):
            return self._policy(inputs, objective, measured)
        advantage, acting = same
        if advantage not in self._of_tokens:
            given = self._given(inputs, objective, measured)
            # They are by token in the first record, not in each.
            self._of_tokens[advantage] = of_tokens(given, self.batch.responses)
        sums: F64 = self.batch.responses.sum(
            self._by_token(self._of_tokens[advantage], objective, acting)
        )
        return sums

    def _by_token(self, advantages: F64, objective: Objective, acting: object) -> F64:
        """[N] c·s, from what it is for A = 1 and for A = −1; those of the last policy are kept."""
        if self._signed is None or self._signed[0] != acting:
            self.set_ratio(self.inputs, objective)
            ones = np.ones(len(advantages))
            self._signed = acting, self._tokens(objective, ones), -self._tokens(objective, -ones)
        _, gain, loss = self._signed
        values = np.where(advantages > 0.0, gain, loss)
        values *= advantages
        return values

    def _tokens(self, objective: Objective, advantages: F64) -> F64:
        self.inputs["advantage"], self.inputs["response_advantage"] = advantages, None
        return self.policy_values(self.inputs, objective)[0]

    def kls(self) -> list[F64]:
        """[R] Σ k, or β·Σ k, of each."""
        order, plans = self._options.by_estimator, self._options.kls.plans
        rows = dict(zip(order, self._rows([plans[at] for at in order], self._kl), strict=True))
        return [rows[at] for at in range(len(order))]

    def _kl(self, at: int, objective: Objective) -> F64:
        del at
        if not self._options.solve and not objective.beta:
            return np.zeros(self.batch.responses.count)
        sums = self.kl(objective)
        return sums if self._options.solve else objective.beta * sums

    def entropies(self) -> Iterator[F64]:
        """[R] coefficient · Σ H of each."""

        def bonus(at: int, objective: Objective) -> F64:
            del at
            return objective.entropy_coef * self.entropy(objective)

        return self._rows(self._options.entropies.plans, bonus)
