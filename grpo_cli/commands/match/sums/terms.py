"""Sums over the tokens of each response, for one objective after the other."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.match.space.options import Key, advantage_key, correction_key, key
from grpo_cli.commands.match.sums.edges import edges
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import BatchStatistics, Evaluator
from grpo_cli.hyperparameters import Value
from grpo_cli.objective.arithmetic.groups import Groups, Remembered
from grpo_cli.objective.choice import Bound
from grpo_cli.objective.inputs import Inputs, missing, take_penalty
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.results import (
    Correction,
    Kl,
    PerToken,
    Ratio,
    Surrogate,
    Weights,
    of_tokens,
    times,
)
from grpo_cli.objective.statistics import moments
from grpo_cli.variants.plan import Plan


class Terms:
    """The terms of objectives on a chunk; what two of them share is worked out once."""

    def __init__(self, chunk: Chunk, groups: type[Groups] = Remembered) -> None:
        self._chunk = chunk
        self.batch = chunk.batch
        self._groups = groups(chunk.batch.groups, chunk.batch.group_count)
        self.inputs = self.fresh()
        self.left_out: set[Key] = set()
        self._policies: dict[object, F64] = {}
        self._ratios: dict[object, Ratio] = {}
        self._tops: dict[int, float] = {}
        self._kls: dict[object, F64] = {}
        self._kl_weights: dict[object, F64 | None] = {}
        self._unweighed: tuple[object, F64] | None = None
        self._far_old: float | None = None
        self._scored: dict[object, Inputs] = {}
        self._reached: dict[object, F64] = {}
        self._advantage_of: tuple[object, F64 | PerToken] | None = None

    def fresh(self) -> Inputs:
        """The columns, as the records have them."""
        inputs = Inputs(self.batch)
        inputs["groups"] = self._groups
        return inputs

    def objective(self, plan: Plan) -> Objective:
        """A plan's objective for these records."""
        return self._chunk.objective(plan)

    def weight(self, objective: Objective, stage: str) -> Weights:
        """The weights of an aggregation."""
        found: Weights = self.inputs.call(getattr(objective, stage), "aggregate")
        return found

    def scored(self, objective: Objective) -> Inputs:
        """The columns, less a KL in the reward where the objective has one."""
        if not objective.kl_in_reward:
            return self.inputs
        same = objective.advantage.choice.given, self._acting_penalty(objective)
        if same not in self._scored:
            self._scored[same] = self.fresh()
            take_penalty(self._scored[same], objective)
        return self._scored[same]

    def _acting_penalty(self, objective: Objective) -> object:
        old, reference = self.inputs.get("log_probs_old"), self.inputs.get("log_probs_ref")
        if old is None or reference is None:
            return key(objective.kl)
        if self._far_old is None:
            self._far_old = float(np.abs(old - reference).max(initial=0.0))
        return _unclamped(objective.kl, self._far_old), objective.kl.values.get("beta")

    def set_ratio(self, inputs: Inputs, objective: Objective) -> None:
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
            if self.batch.ratios is not None and bound.choice.given:
                ratio = ratio._replace(ratio=self.batch.ratios)
            self._ratios[key(bound)] = ratio
        return self._ratios[key(bound)]

    def acting(self, inputs: Inputs, objective: Objective) -> object:
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

    def drops(self, evaluator: Evaluator) -> bool:
        """Whether a correction takes tokens of these records out of a denominator, or of the KL."""
        objective = self.objective(evaluator.plan)
        if objective.correction.choice.absent:
            return False
        inputs = self.scored(objective)
        self.set_ratio(inputs, objective)
        self._set_advantage(inputs, objective, evaluator.measured)
        return _leaves_out(inputs.call(objective.correction, "correction"), of_kl=True)

    def policy(self, objective: Objective, measured: BatchStatistics | None) -> F64:
        """[R] Σ c·s, to the bit as ``grpo eval`` has it."""
        inputs = self.scored(objective)
        self.set_ratio(inputs, objective)
        same = advantage_key(objective), self.acting(inputs, objective)
        if same not in self._policies:
            self._policies[same] = self._policy(inputs, objective, measured)
        return self._policies[same]

    def _policy(
        self, inputs: Inputs, objective: Objective, measured: BatchStatistics | None
    ) -> F64:
        self._set_advantage(inputs, objective, measured)
        return self.policy_sums(inputs, objective)

    def _set_advantage(
        self, inputs: Inputs, objective: Objective, measured: BatchStatistics | None
    ) -> None:
        given = self._given(inputs, objective, measured)
        inputs["advantage"] = of_tokens(given, self.batch.responses)
        inputs["response_advantage"] = None if isinstance(given, PerToken) else given

    def _given(
        self, inputs: Inputs, objective: Objective, measured: BatchStatistics | None
    ) -> F64 | PerToken:
        """The advantages; policy terms that follow each other often have the same."""
        same = advantage_key(objective), id(measured)
        if self._advantage_of is None or self._advantage_of[0] != same:
            whole = None if measured is None else measured.single(self.batch)
            inputs["moments"] = moments(self.batch, objective, whole)
            self._advantage_of = same, inputs.call(objective.advantage, "advantage")
        return self._advantage_of[1]

    def reached(self, objective: Objective, measured: BatchStatistics | None) -> F64:
        """How far the ratios go, by the sign of the advantage."""
        inputs = self.scored(objective)
        self.set_ratio(inputs, objective)
        ratio: F64 = inputs.get("ratio")
        same = advantage_key(objective), id(measured), id(ratio)
        if same not in self._reached:
            given = self._given(inputs, objective, measured)
            self._reached[same] = edges(ratio, of_tokens(given, self.batch.responses))
        return self._reached[same]

    def policy_sums(self, inputs: Inputs, objective: Objective) -> F64:
        """[R] Σ c·s with the advantage that stands in the columns."""
        values, empty = self.policy_values(inputs, objective)
        sums = self.batch.responses.sum(values)
        return sums if empty is None else np.where(self.batch.responses.lengths > 0, sums, empty)

    def policy_values(self, inputs: Inputs, objective: Objective) -> tuple[F64, F64 | None]:
        """[N] c·s with that advantage, and [R] what a response without tokens has, if anything."""
        # The correction first: where it cannot be, nothing was worked out in vain.
        correction: Correction | None = inputs.call(objective.correction, "correction")
        if _leaves_out(correction, of_kl=not _weighs_kl(objective)):
            self.left_out.add(correction_key(objective))
        surrogate: Surrogate = inputs.call(objective.surrogate, "surrogate")
        values = surrogate.value if correction is None else correction.weight * surrogate.value
        return values, surrogate.empty

    def kl(self, objective: Objective) -> F64:
        """[R] Σ k."""
        self.set_ratio(self.inputs, objective)
        weight = self._kl_weight(objective) if _weighs_kl(objective) else None
        weighed = None if weight is None else (key(objective.correction), advantage_key(objective))
        same = self._acting_kl(objective), id(self.inputs.get("ratio")), weighed
        if same not in self._kls:
            values = self._kl_values(objective)
            self._kls[same] = self.batch.responses.sum(
                values if weight is None else weight * values
            )
        return self._kls[same]

    def _kl_values(self, objective: Objective) -> F64:
        """[N] k; what a ratio weighs is kept for the next ratio."""
        bound = objective.kl
        weighed = bound.values.get("kl_weight") == "ratio" and "/" not in bound.name
        if not weighed or self.inputs.get("log_ratio_ref") is None:
            found: Kl | None = self.inputs.call(bound, "kl")
            if found is None:  # left out here, and estimated where the search began
                raise missing("log_ratio_ref", bound, "kl")
            return found.value
        bare = replace(bound, values={**bound.values, "kl_weight": "none"})
        wanted = _unclamped(bare, self._farthest)
        if self._unweighed is None or self._unweighed[0] != wanted:
            plain: Kl = self.inputs.call(bare, "kl")
            self._unweighed = wanted, plain.value
        return times(self.inputs.get("ratio"), self._unweighed[1])

    def _kl_weight(self, objective: Objective) -> F64 | None:
        """[N] what a correction multiplies the KL by; a mask may depend on the advantages."""
        wanted = key(objective.correction), advantage_key(objective)
        if wanted not in self._kl_weights:
            self._set_advantage(self.inputs, objective, None)
            correction: Correction | None = self.inputs.call(objective.correction, "correction")
            self._kl_weights[wanted] = None if correction is None else correction.kl_weight
        return self._kl_weights[wanted]

    def _acting_kl(self, objective: Objective) -> object:
        """What a KL is on this chunk: its clamps, where no token reaches them, do nothing."""
        if self.inputs.get("log_ratio_ref") is None:
            return key(objective.kl)
        return _unclamped(objective.kl, self._farthest)

    @cached_property
    def _farthest(self) -> float:
        """The greatest log ratio to the reference."""
        return float(np.abs(self.inputs.get("log_ratio_ref")).max(initial=0.0))

    def entropy(self, objective: Objective) -> F64:
        """[R] Σ H."""
        assert objective.entropy is not None
        values: F64 = self.inputs.call(objective.entropy, "entropy")
        sums: F64 = self.batch.responses.sum(values)
        return sums


def _weighs_kl(objective: Objective) -> bool:
    """Whether a search weighs the KL as the correction does."""
    return objective.correction.name.startswith("ms-swift/")


def _leaves_out(correction: Correction | None, *, of_kl: bool) -> bool:
    if correction is None:
        return False
    kept, weight = correction.kept, correction.kl_weight
    left_out = kept is not None and not kept.all()
    return left_out or (of_kl and weight is not None and not (weight == 1.0).all())


def _unclamped(bound: Bound, farthest: float) -> object:
    """A KL but for β, without the clamps that no log ratio so far at most reaches."""
    reached = {"kl_input_clamp": farthest, "kl_output_clamp": np.exp(farthest) * farthest}
    values = {
        name: None if name in reached and _beyond(value, reached[name]) else value
        for name, value in bound.values.items()
        if name != "beta"
    }
    return bound.name, tuple(values.items())


_BOUNDS = ("delta", "dual_clip")


def _beyond(bound: Value, top: float) -> bool:
    return isinstance(bound, float) and bound >= top
