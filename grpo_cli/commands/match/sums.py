"""What all conventions need of the data, added up chunk by chunk: sums that merge.

J = Σᵢ wᵢ·(Pᵢ − β·Kᵢ), with P and K sums over the tokens of response i and w its weight. A policy
term that is |A| times what it is for A = ±1 needs one look at the tokens, whatever the advantage.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from grpo_cli.batch import F64, I64
from grpo_cli.commands.match.options import DIRECT, Options, advantage_key, key
from grpo_cli.engine.chunk import Chunk
from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import HyperparameterError, Value
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.inputs import Inputs, take_penalty
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.results import Correction, Kl, PerToken, Ratio, Surrogate, Weights
from grpo_cli.objective.statistics import ExactMoments, moments
from grpo_cli.variants.plan import Plan

Measured = Mapping[int, ExactMoments]


@dataclass
class Sums:
    """Over the input, for W aggregations, before the denominators that count.

    Attributes:
        policy: [pairs, W] Σ w·P; nan where it cannot be evaluated.
        size: [pairs, W] the magnitude that it is made of.
        direct: [D, W] the same of direct terms.
        kl: [K, W].
        entropy: [E, W].
        counted: [W] what the denominators count.
        records: how many.
    """

    policy: F64
    size: F64
    direct: F64
    kl: F64
    entropy: F64
    counted: F64
    records: int = 0

    @classmethod
    def zero(cls, options: Options) -> Sums:
        """Of no record."""
        weights = len(options.weights.plans)
        policies = len(options.pairs), weights
        return cls(
            np.zeros(policies),
            np.zeros(policies),
            np.zeros((len(options.directs.plans), weights)),
            np.zeros((len(options.kls.plans), weights)),
            np.zeros((len(options.entropies.plans), weights)),
            np.zeros(weights),
        )

    def merge(self, other: Sums) -> None:
        """Adds other records."""
        for name in ("policy", "size", "direct", "kl", "entropy", "counted"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.records += other.records


def add(sums: Sums, options: Options, chunk: Chunk, measured: Measured) -> None:
    """Adds a chunk's records."""
    with np.errstate(all="ignore"):
        work = OnChunk(options, chunk, measured)
        classes, member, divisors = work.weights(sums)
        advantages = work.advantages()
        _add_policies(sums, options, advantages, work, classes, member, divisors)
        for into, rows in (
            (sums.direct, work.directs()),
            (sums.kl, work.kls()),
            (sums.entropy, work.entropies()),
        ):
            into += ((rows @ classes.T)[:, member] / divisors) if len(rows) else 0.0
    sums.records += chunk.batch.records.count


def _add_policies(
    sums: Sums,
    options: Options,
    advantages: F64,
    work: OnChunk,
    classes: F64,
    member: np.ndarray,
    divisors: F64,
) -> None:
    above, below = np.maximum(advantages, 0.0), np.maximum(-advantages, 0.0)
    wanted: dict[int, list[tuple[int, int]]] = {}
    for (a, s), number in options.pairs.items():
        wanted.setdefault(s, []).append((a, number))
    for s, (gain, loss) in work.sides(set(wanted)):
        chosen, numbers = np.array(wanted[s]).T
        gains = _product(above[chosen], gain, classes)[:, member] / divisors
        losses = _product(below[chosen], loss, classes)[:, member] / divisors
        sums.policy[numbers] += gains + losses
        sums.size[numbers] += np.abs(gains) + np.abs(losses)


def _product(advantages: F64, values: F64, classes: F64) -> F64:
    """[A, C] Σ |A|·s·w; nan where a term that counts is not finite."""
    broken = ~np.isfinite(values)
    if not broken.any():
        return advantages @ (classes * values).T
    product = advantages @ (classes * np.where(broken, 0.0, values)).T
    product[(advantages[:, broken] > 0).any(axis=1)] = np.nan
    return product


class OnChunk:
    """The vectors over a chunk's responses."""

    def __init__(self, options: Options, chunk: Chunk, measured: Measured) -> None:
        self._options = options
        self._chunk = chunk
        self._batch = chunk.batch
        self._measured = measured
        self._groups = _Remembered(chunk.batch.groups, chunk.batch.group_count)
        self._inputs = self._fresh()
        self._policies: dict[object, F64] = {}
        self._ratios: dict[object, Ratio] = {}
        self._tops: dict[int, float] = {}
        self._kls: dict[object, F64] = {}
        self._far: float | None = None

    def _fresh(self) -> Inputs:
        inputs = Inputs(self._batch)
        inputs["groups"] = self._groups
        return inputs

    def objective(self, plan: Plan) -> Objective:
        """A plan's objective for these records."""
        given = self._chunk.advantages_given
        return plan.objective(self._chunk.settings, advantages_given=given)

    def _rows(self, plans: list[Plan], made: Callable[[int, Objective], F64]) -> F64:
        """[n, R]; a row of nan where the records cannot serve the plan."""
        rows = np.empty((len(plans), self._batch.responses.count))
        for at, plan in enumerate(plans):
            try:
                rows[at] = made(at, self.objective(plan))
            except (InputError, HyperparameterError):
                rows[at] = np.nan
        return rows

    # ---- weights ------------------------------------------------------------------------------

    def weights(self, sums: Sums) -> tuple[F64, F64, F64]:
        """[C, R] distinct weights, [W] which of them each aggregation has, [W] its divisor."""
        known: dict[bytes, int] = {}
        rows: list[F64] = []
        member, divisors = [], []
        for at, plan in enumerate(self._options.weights.plans):
            found = self.weight(self.objective(plan), self._options.weights.stages[at])
            numerator, divisor = self._spread(found)
            sums.counted[at] += 0.0 if found.counts is None else float(found.counts.sum())
            bits = numerator.tobytes()
            if bits not in known:
                known[bits] = len(rows)
                rows.append(numerator)
            member.append(known[bits])
            divisors.append(divisor)
        return np.array(rows), np.array(member), np.array(divisors)

    def weight(self, objective: Objective, stage: str) -> Weights:
        """The weights of an aggregation."""
        found: Weights = self._inputs.call(getattr(objective, stage), "aggregate")
        return found

    def _spread(self, weights: Weights) -> tuple[F64, float]:
        """[R] the numerators and the divisor; each record's own count where that is its batch."""
        numerator = np.asarray(weights.numerator, dtype=np.float64)
        if self._options.weights.plans[0].batch != "record":
            return numerator, float(weights.divisor)
        records = self._batch.records
        if weights.counts is not None:
            counts = np.maximum(records.sum(weights.counts), 1)
            numerator = numerator / np.repeat(counts, records.lengths)
        return numerator, float(weights.divisor)

    # ---- advantages ---------------------------------------------------------------------------

    def advantages(self) -> F64:
        """[A, R]."""
        return self._rows(self._options.advantages.plans, self._advantage)

    def _advantage(self, at: int, objective: Objective) -> F64:
        inputs = self._scored(objective)
        measured = self._measured.get(at)
        inputs["moments"] = moments(self._batch, objective, measured)
        found = inputs.call(objective.advantage, "advantage")
        assert not isinstance(found, PerToken)
        return np.asarray(found, dtype=np.float64)

    def _scored(self, objective: Objective) -> Inputs:
        if not objective.kl_in_reward:
            return self._inputs
        inputs = self._fresh()
        take_penalty(inputs, objective)
        return inputs

    # ---- terms --------------------------------------------------------------------------------

    def _ratio(self, inputs: Inputs, objective: Objective) -> None:
        """Sets the ratio of the objective's level, worked out once."""
        wanted = key(objective.ratio)
        if wanted not in self._ratios:
            self._ratios[wanted] = self._free_ratio(inputs, objective)
        ratio = self._ratios[wanted]
        inputs["log_ratio"], inputs["ratio"] = ratio.log_ratio, ratio.ratio

    def _free_ratio(self, inputs: Inputs, objective: Objective) -> Ratio:
        """The ratio; that without a clamp, if no log ratio reaches it."""
        clamp = objective.ratio.values.get("log_ratio_clamp")
        bound = objective.ratio
        if isinstance(clamp, float):
            farthest = np.abs(inputs.get("token_log_ratio")).max(initial=0.0)
            if farthest <= clamp and bound.name in ("token", "sequence", "product"):
                bound = replace(bound, values={**bound.values, "log_ratio_clamp": None})
        if key(bound) not in self._ratios:
            ratio: Ratio = inputs.call(bound, "ratio")
            if self._batch.ratios is not None and bound.choice.given:
                ratio = ratio._replace(ratio=self._batch.ratios)
            self._ratios[key(bound)] = ratio
        return self._ratios[key(bound)]

    def sides(self, wanted: Collection[int]) -> Iterator[tuple[int, tuple[F64, F64]]]:
        """(number, ([R] Σ c·s for A = 1, [R] for A = −1)) of the policy terms that are wanted."""
        objectives = {at: self.objective(self._options.policies.plans[at]) for at in wanted}
        order = sorted(wanted, key=lambda at: repr(key(objectives[at].ratio)))
        count, total = self._batch.responses.count, self._batch.responses.total
        signed = {sign: (np.full(total, sign), np.full(count, sign)) for sign in (1.0, -1.0)}
        known: dict[object, tuple[F64, F64]] = {}
        for at in order:
            objective = objectives[at]
            try:
                self._ratio(self._inputs, objective)
                same = self._acting(self._inputs, objective)
                if same not in known:
                    gain, loss = (self._side(objective, *signed[sign]) for sign in (1.0, -1.0))
                    known[same] = gain, loss
                yield at, known[same]
            except (InputError, HyperparameterError):
                yield at, (np.full(count, np.nan), np.full(count, np.nan))

    def _acting(self, inputs: Inputs, objective: Objective) -> object:
        """What a policy term is on this chunk: bounds that no ratio reaches do nothing."""
        ratio: F64 = inputs.get("ratio")
        number = id(ratio)
        if number not in self._tops:
            self._tops[number] = float(ratio.max(initial=0.0))
        values = {
            name: None if name in _BOUNDS and _beyond(value, self._tops[number]) else value
            for name, value in objective.surrogate.values.items()
        }
        return number, objective.surrogate.name, tuple(values.items()), self._correction(objective)

    def _correction(self, objective: Objective) -> object:
        bound = objective.correction
        return None if bound.choice.absent else key(bound)

    def _side(self, objective: Objective, advantage: F64, per_response: F64) -> F64:
        inputs = self._inputs
        inputs["advantage"], inputs["response_advantage"] = advantage, per_response
        return self._policy_sums(inputs, objective)

    def _policy_sums(self, inputs: Inputs, objective: Objective) -> F64:
        surrogate: Surrogate = inputs.call(objective.surrogate, "surrogate")
        correction: Correction | None = inputs.call(objective.correction, "correction")
        values = surrogate.value if correction is None else correction.weight * surrogate.value
        sums = self._batch.responses.sum(values)
        if surrogate.empty is not None:
            sums = np.where(self._batch.responses.lengths > 0, sums, surrogate.empty)
        return sums

    def directs(self) -> F64:
        """[D, R] Σ c·s with their own advantages."""
        return self._rows(self._options.directs.plans, self._direct)

    def _direct(self, at: int, objective: Objective) -> F64:
        return self.policy(objective, self._measured.get(DIRECT + at))

    def policy(self, objective: Objective, measured: ExactMoments | None) -> F64:
        """[R] Σ c·s, to the bit as ``grpo eval`` has it."""
        inputs = self._scored(objective)
        self._ratio(inputs, objective)
        same = advantage_key(objective), self._acting(inputs, objective)
        if same not in self._policies:
            self._policies[same] = self._policy(inputs, objective, measured)
        return self._policies[same]

    def _policy(self, inputs: Inputs, objective: Objective, measured: ExactMoments | None) -> F64:
        inputs["moments"] = moments(self._batch, objective, measured)
        given = inputs.call(objective.advantage, "advantage")
        per_token = isinstance(given, PerToken)
        spread = given.values if per_token else self._batch.responses.spread(given)
        inputs["advantage"], inputs["response_advantage"] = spread, None if per_token else given
        return self._policy_sums(inputs, objective)

    def kls(self) -> F64:
        """[K, R] Σ k, or β·Σ k."""
        return self._rows(self._options.kls.plans, self._kl)

    def _kl(self, at: int, objective: Objective) -> F64:
        del at
        if not self._options.solve and not objective.beta:
            return np.zeros(self._batch.responses.count)
        sums = self.kl(objective)
        return sums if self._options.solve else objective.beta * sums

    def kl(self, objective: Objective) -> F64:
        """[R] Σ k."""
        self._ratio(self._inputs, objective)
        weighing = objective.correction.name.startswith("ms-swift/")
        correction = key(objective.correction) if weighing else None
        same = self._acting_kl(objective), id(self._inputs.get("ratio")), correction
        if same not in self._kls:
            self._kls[same] = self._kl_sums(objective, weighing=weighing)
        return self._kls[same]

    def _kl_sums(self, objective: Objective, *, weighing: bool) -> F64:
        found: Kl = self._inputs.call(objective.kl, "kl")
        values = found.value
        if weighing:
            correction: Correction | None = self._inputs.call(objective.correction, "correction")
            if correction is not None and correction.kl_weight is not None:
                values = correction.kl_weight * values
        sums: F64 = self._batch.responses.sum(values)
        return sums

    def _acting_kl(self, objective: Objective) -> object:
        """What a KL is on this chunk: its clamps, where no token reaches them, do nothing."""
        farthest = self._inputs.get("log_ratio_ref")
        if farthest is None:
            return key(objective.kl)
        if self._far is None:
            self._far = float(np.abs(farthest).max(initial=0.0))
        reached = {"kl_input_clamp": self._far, "kl_output_clamp": np.exp(self._far) * self._far}
        values = {
            name: None if name in reached and _beyond(value, reached[name]) else value
            for name, value in objective.kl.values.items()
            if name != "beta"
        }
        return objective.kl.name, tuple(values.items())

    def entropies(self) -> F64:
        """[E, R] coefficient · Σ H."""

        def bonus(at: int, objective: Objective) -> F64:
            del at
            return objective.entropy_coef * self.entropy(objective)

        return self._rows(self._options.entropies.plans, bonus)

    def entropy(self, objective: Objective) -> F64:
        """[R] Σ H."""
        assert objective.entropy is not None
        values: F64 = self._inputs.call(objective.entropy, "entropy")
        sums: F64 = self._batch.responses.sum(values)
        return sums


_BOUNDS = ("delta", "dual_clip")


class _Remembered(Groups):
    """Groups that work out what they were asked before once."""

    def __init__(self, index: I64, count: int) -> None:
        super().__init__(index, count)
        self._known: dict[tuple[str, bytes], F64] = {}

    def offsets(self, values: F64) -> F64:
        """As ``Groups`` has it."""
        return self._once("offsets", values, super().offsets).copy()

    def sum(self, values: F64) -> F64:
        """As ``Groups`` has it."""
        return self._once("sum", values, super().sum).copy()

    def _once(self, name: str, values: F64, function: Callable[[F64], F64]) -> F64:
        wanted = name, values.tobytes()
        if wanted not in self._known:
            self._known[wanted] = function(values)
        return self._known[wanted]


def _beyond(bound: Value, top: float) -> bool:
    return isinstance(bound, float) and bound >= top


@dataclass
class FirstPass:
    """The statistics of the whole input that some options need."""

    plans: dict[int, Plan] = field(default_factory=dict)

    @classmethod
    def of(cls, options: Options) -> FirstPass:
        """The options whose advantage measures the input."""
        plans = dict(enumerate(options.advantages.plans))
        plans |= {DIRECT + at: plan for at, plan in enumerate(options.directs.plans)}
        wanted = {at: plan for at, plan in plans.items() if plan.batch == "input"}
        return cls({at: plan for at, plan in wanted.items() if plan.wants_moments})
