"""What all conventions need of the data, added up chunk by chunk.

J = Σᵢ wᵢ·(Pᵢ − β·Kᵢ), with P and K sums over the tokens of response i and w its weight. A policy
term that is |A| times what it is for A = ±1 needs one look at the tokens, whatever the advantage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.match.question import Data
from grpo_cli.commands.match.space.options import Key, Options, correction_key, key
from grpo_cli.engine.chunk import Chunk
from grpo_cli.errors import InputError, UsageError
from grpo_cli.hyperparameters import HyperparameterError
from grpo_cli.objective.inputs import Inputs, missing, take_penalty
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.results import Correction, Kl, PerToken, Ratio, Surrogate
from grpo_cli.objective.statistics import moments
from grpo_cli.variants.plan import Plan

Flags = NDArray[np.bool_]
Blocks = Sequence[tuple[Sequence[int], Sequence[int]]]
"""Advantages, and the policy terms that are combined with these."""
_NUMBERS = 1 << 21
"""Sums of responses that are in memory at a time."""


class Sums:
    """Over the input, for W aggregations, before the denominators that count.

    Attributes:
        policy: [pairs, W] Σ w·P; nan where it cannot be evaluated.
        size: [pairs, W] the magnitude that it is made of.
        kl: [K, W].
        entropy: [E, W].
        counted: [W] what the denominators count.
        records: how many.
        left_out: the corrections that took tokens out of a denominator, or of the KL.
        references: whether records have a reference; both where only some have.
    """

    def __init__(self, options: Options, data: Data) -> None:
        self._options, self.data = options, data
        self.policy, self.size, self.kl, self.entropy = np.zeros((4, 0, 0))
        self.left_out: set[Key] = set()
        self.references: set[bool] = set()

    def update(self) -> None:
        """Adds up the pairs, KLs and entropies that the options gained; all for new weights."""
        options = self._options
        self.counted = np.zeros(len(options.weights.plans))
        if self.policy.shape[1] < len(self.counted):
            self.policy, self.size, self.kl, self.entropy = np.zeros((4, 0, len(self.counted)))
        known = len(self.policy), len(self.kl), len(self.entropy)
        self.policy, self.size = (
            _extended(rows, len(options.pairs)) for rows in (self.policy, self.size)
        )
        self.kl = _extended(self.kl, len(options.kls.plans))
        self.entropy = _extended(self.entropy, len(options.entropies.plans))
        self.records, blocks = 0, options.blocks(known[0])
        for chunk in self.data.chunks:
            self._add(chunk, blocks, *known[1:])

    def counts(self, batch: str) -> F64:
        """[W] what J is divided by beyond the divisors."""
        if batch == "record":
            return np.full(len(self.counted), float(max(self.records, 1)))
        return np.where(self.counted == 0.0, 1.0, self.counted)

    def _add(self, chunk: Chunk, blocks: Blocks, kls: int, entropies: int) -> None:
        """Adds a chunk's records to the sums of these pairs, and from these rows on."""
        with np.errstate(all="ignore"):
            terms = Terms(self._options, chunk, self.data)
            classes, member, divisors, counted = terms.weights(range(len(self.counted)))
            self.counted += counted
            self._add_policies(terms, blocks, classes, member, divisors)
            for into, rows in (
                (self.kl[kls:], _by_class(terms.kls(kls), classes)),
                (self.entropy[entropies:], _by_class(terms.entropies(entropies), classes)),
            ):
                into += rows[:, member] / divisors
        self.references.add(chunk.has_reference)
        self.records += chunk.batch.records.count
        self.left_out |= terms.left_out

    def _add_policies(
        self, terms: Terms, blocks: Blocks, classes: F64, member: NDArray[np.int64], divisors: F64
    ) -> None:
        which, advantages = distinct(terms.advantages(self._options.advantages.plans))
        gaining, losing = advantages > 0.0, advantages < 0.0
        most = max(_NUMBERS // max(terms.batch.responses.count, 1), 8)
        parts = (
            (chosen, policies[at : at + most])
            for chosen, policies in blocks
            for at in range(0, len(policies), most)
        )
        for chosen, policies in parts:
            own, back = np.unique(which[chosen], return_inverse=True)
            needed = (np.asarray(side[own].any(axis=0)) for side in (gaining, losing))
            places, sides = terms.sides(policies, *needed)
            gains = _products(np.maximum(advantages[own], 0.0), sides[:, 0], classes)
            losses = _products(np.maximum(-advantages[own], 0.0), sides[:, -1], classes)
            numbers = [self._options.pairs[a, s] for a in chosen for s in policies]
            every = np.ix_(member, back, places)
            for into, found in (
                (self.policy, gains + losses),
                (self.size, np.abs(gains) + np.abs(losses)),
            ):
                into[numbers] += found[every].reshape(len(divisors), -1).T / divisors


def _extended(rows: F64, count: int) -> F64:
    """[count, W] the rows, and zeros."""
    return np.concatenate([rows, np.zeros((count - len(rows), rows.shape[1]))])


def _by_class(rows: Iterable[F64], classes: F64) -> F64:
    """[n, C] Σ w·row of rows [R] by the weights [C, R]."""
    return np.array([classes @ row for row in rows]).reshape(-1, len(classes))


def _products(advantages: F64, values: F64, classes: F64) -> F64:
    """[C, A, S] Σ |A|·s·w of [A, R], [S, R], [C, R]; nan where a term that counts is not finite."""
    broken = ~np.isfinite(values)
    wrong = np.flatnonzero(broken.any(axis=1))
    finite = np.where(broken, 0.0, values) if len(wrong) else values
    if len(finite) < len(advantages):  # the weights multiply whatever is less
        products = np.stack([advantages @ (finite * weights).T for weights in classes])
    else:
        products = np.stack([(advantages * weights) @ finite.T for weights in classes])
    for s in wrong:
        products[:, (advantages[:, broken[s]] > 0).any(axis=1), s] = np.nan
    return products


# ---- on a chunk ----------------------------------------------------------------------------------

_MANY = 1 << 18
"""Tokens from which on memory matters more than ratios that are computed again."""


_CLAMPED = ("token", "sequence", "product")
"""Ratios whose ``log_ratio_clamp`` does nothing where no token's log ratio exceeds it."""


class Terms:
    """The terms of all options on a chunk; what two of them share is computed once.

    Attributes:
        chunk: the records, with one objective for all.
        left_out: the corrections that took tokens out of a denominator, or of the KL.
    """

    def __init__(self, options: Options, chunk: Chunk, data: Data) -> None:
        self._options = options
        self._counted = chunk
        self.chunk = replace(chunk, varied={})  # records differ in counts, which weights read
        self._data = data
        self.batch = chunk.batch
        self.left_out: set[Key] = set()
        self._inputs = Inputs(chunk.batch)
        self._penalised: dict[Key, Inputs] = {}
        self._ratios: dict[Key, Ratio] = {}
        self._kls: dict[Key, F64] = {}

    def weights(self, numbers: Sequence[int]) -> tuple[F64, NDArray[np.int64], F64, F64]:
        """[C, R] distinct weights; [W] which of them, divisor and count of each aggregation."""
        rows, divisors, counted = [], [], []
        table, records = self._options.weights, self.batch.records
        for plan, stage in ((table.plans[one], table.details[one]) for one in numbers):
            bound = getattr(self._counted.objective(plan), stage)
            found = self._inputs.call(bound, "aggregate")
            numerator = np.asarray(found.numerator, dtype=np.float64)
            if plan.batch == "record" and found.counts is not None:
                counts = np.maximum(records.sum(found.counts), 1)
                numerator = numerator / np.repeat(counts, records.lengths)
            divisor = found.divisor
            if np.ndim(divisor):  # records differ in it
                numerator, divisor = numerator / divisor, 1.0
            rows.append(numerator)
            divisors.append(float(divisor))
            counted.append(0.0 if found.counts is None else float(found.counts.sum()))
        member, classes = distinct(rows)
        return classes, member, np.array(divisors), np.array(counted)

    def advantages(self, plans: Sequence[Plan]) -> Iterator[F64]:
        """[R] each plan's, by response."""

        def row(plan: Plan, objective: Objective) -> F64:
            found = self._advantage(plan, objective)
            if isinstance(found, PerToken):
                raise UsageError(
                    "match: some records give advantages per token, but the first record does "
                    "not; match these records alone (--where), or put one of them first"
                )
            return np.asarray(found, dtype=np.float64)

        return self._rows(plans, row)

    def sides(
        self, policies: Sequence[int], gaining: Flags, losing: Flags
    ) -> tuple[NDArray[np.int64], F64]:
        """[S] the row of each policy term, and [n, 1 or 2, R] Σ c·s for A = 1 and for A = −1.

        Equal terms share a row; it is nan where a term cannot be evaluated. Where no response is
        both [R] gaining and [R] losing, one sum has its sign: a correction may mask what loses.
        """
        count = self.batch.responses.count
        both = bool((gaining & losing).any())
        of_responses = [np.ones(count), -np.ones(count)] if both else [np.where(losing, -1.0, 1.0)]
        signs = [(one, self.batch.responses.spread(one)) for one in of_responses]

        def of_signs(at: int) -> F64:
            objective = self.chunk.objective(self._options.policies.plans[at])
            inputs, found = self._inputs, np.full((len(signs), count), np.nan)
            with suppress(InputError, HyperparameterError):
                self._set_ratio(inputs, objective)
                sums = []
                for inputs["response_advantage"], inputs["advantage"] in signs:
                    sums.append(self._policy_sums(inputs, objective))
                found[:] = sums
            return found

        return distinct(map(of_signs, policies))

    def policy_terms(self, objective: Objective, advantage: F64) -> F64:
        """[T] c·s with advantages [R]."""
        self._set_ratio(self._inputs, objective)
        self._inputs["response_advantage"] = advantage
        self._inputs["advantage"] = self.batch.responses.spread(advantage)
        return self._policy(self._inputs, objective)[0]

    def kls(self, start: int) -> Iterator[F64]:
        """[R] Σ k, or β·Σ k, of each from ``start`` on."""

        def row(_: Plan, objective: Objective) -> F64:
            beta = 1.0 if self._options.solve else objective.beta
            return beta * self._kl(objective) if beta else np.zeros(self.batch.responses.count)

        return self._rows(self._options.kls.plans[start:], row)

    def entropies(self, start: int) -> Iterator[F64]:
        """[R] coefficient · Σ H of each from ``start`` on."""

        def row(_: Plan, objective: Objective) -> F64:
            assert objective.entropy is not None
            values = self._inputs.call(objective.entropy, "entropy")
            bonus: F64 = objective.entropy_coef * self.batch.responses.sum(values)
            return bonus

        return self._rows(self._options.entropies.plans[start:], row)

    def _rows(
        self, plans: Sequence[Plan], compute: Callable[[Plan, Objective], F64]
    ) -> Iterator[F64]:
        """[R] of each plan; nan where the records lack what it needs."""
        for plan in plans:
            try:
                yield compute(plan, self.chunk.objective(plan))
            except (InputError, HyperparameterError):
                yield np.full(self.batch.responses.count, np.nan)

    # ---- stages ----------------------------------------------------------------------------------

    def _inputs_of(self, objective: Objective) -> Inputs:
        """The columns, less a KL in the reward where the objective has one."""
        if not objective.kl_in_reward:
            return self._inputs
        same = objective.advantage.choice.given, key(objective.kl)
        if same not in self._penalised:
            inputs = Inputs(self.batch)
            take_penalty(inputs, objective)
            self._penalised[same] = inputs
        return self._penalised[same]

    def _advantage(self, plan: Plan, objective: Objective) -> F64 | PerToken:
        inputs, statistics = self._inputs_of(objective), self._data.statistics(plan)
        whole = None if statistics is None else statistics.single(self.batch)
        inputs["moments"] = moments(self.batch, objective, whole)
        found: F64 | PerToken = inputs.call(objective.advantage, "advantage")
        return found

    def _set_ratio(self, inputs: Inputs, objective: Objective) -> None:
        bound = objective.ratio
        clamp = bound.values.get("log_ratio_clamp")
        if isinstance(clamp, float) and bound.name in _CLAMPED and self._farthest <= clamp:
            # The same ratio, but for its last bits: its conventions are one value.
            bound = replace(bound, values={**bound.values, "log_ratio_clamp": None})
        if key(bound) not in self._ratios:
            if self.batch.responses.total > _MANY:  # the last one alone: options adjoin by ratio
                self._ratios.clear()
            found: Ratio = inputs.call(bound, "ratio")
            if self.batch.ratios is not None and bound.choice.given:
                found = found._replace(ratio=self.batch.ratios)
            self._ratios[key(bound)] = found
        ratio = self._ratios[key(bound)]
        inputs["log_ratio"], inputs["ratio"] = ratio.log_ratio, ratio.ratio

    @cached_property
    def _farthest(self) -> float:
        """The greatest |log ratio| of a token."""
        return float(np.abs(self._inputs.get("token_log_ratio")).max(initial=0.0))

    def _policy_sums(self, inputs: Inputs, objective: Objective) -> F64:
        """[R] Σ c·s with the advantage that is set."""
        values, empty = self._policy(inputs, objective)
        sums = self.batch.responses.sum(values)
        return sums if empty is None else np.where(self.batch.responses.lengths > 0, sums, empty)

    def _policy(self, inputs: Inputs, objective: Objective) -> tuple[F64, F64 | None]:
        """[T] c·s with the advantage that is set, and s of responses without tokens."""
        # The correction first: where it fails, no surrogate was evaluated in vain.
        correction: Correction | None = inputs.call(objective.correction, "correction")
        if leaves_out(correction):
            self.left_out.add(correction_key(objective.correction))
        surrogate: Surrogate = inputs.call(objective.surrogate, "surrogate")
        values = surrogate.value if correction is None else correction.weight * surrogate.value
        return values, surrogate.empty

    def _kl(self, objective: Objective) -> F64:
        """[R] Σ k."""
        same = key(objective.kl, "beta"), key(objective.ratio)
        if same not in self._kls:
            self._set_ratio(self._inputs, objective)
            kl: Kl | None = self._inputs.call(objective.kl, "kl")
            if kl is None:  # left out here, though the first record has a reference
                raise missing("log_ratio_ref", objective.kl, "kl")
            self._kls[same] = self.batch.responses.sum(kl.value)
        return self._kls[same]


def leaves_out(correction: Correction | None) -> bool:
    """Whether a correction takes tokens out of a denominator, or of the KL."""
    if correction is None:
        return False
    kept, weight = correction.kept, correction.kl_weight
    left_out = kept is not None and not kept.all()
    return left_out or (weight is not None and not (weight == 1.0).all())


def distinct(rows: Iterable[F64]) -> tuple[NDArray[np.int64], F64]:
    """Which of the distinct arrays each is, and those, stacked."""
    kept: dict[bytes, F64] = {}
    numbers: dict[bytes, int] = {}
    places = []
    for row in rows:
        bits = row.tobytes()
        places.append(numbers.setdefault(bits, len(kept)))
        kept.setdefault(bits, row)
    return np.array(places, np.int64), np.array([*kept.values()])
