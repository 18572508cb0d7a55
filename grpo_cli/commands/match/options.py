"""The distinct things to evaluate, each once, whichever rows and changes ask for it.

A row with its changes is four numbers: which advantage, which policy term, which KL and which
weights. So J of tens of thousands of conventions comes from some hundred vectors.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace

import numpy as np

from grpo_cli.engine import probe
from grpo_cli.engine.chunk import Chunk
from grpo_cli.errors import GrpoError
from grpo_cli.objective.choice import Bound
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.pipeline import evaluate
from grpo_cli.variants import STAGES
from grpo_cli.variants.plan import Plan

Key = Hashable
DIRECT = 1 << 24
"""Added to the number of a policy term that is evaluated with its advantages."""


def key(bound: Bound | None, without: str = "") -> Key:
    """What a bound choice is, but for one hyperparameter."""
    if bound is None:
        return None
    return bound.name, tuple((name, one) for name, one in bound.values.items() if name != without)


@dataclass
class Table:
    """Distinct options, each with a plan that has it.

    Attributes:
        places: key → its number.
        plans: a plan of each.
        stages: at which of the plan's stages it stands, where that may differ.
    """

    places: dict[Key, int] = field(default_factory=dict)
    plans: list[Plan] = field(default_factory=list)
    stages: list[str] = field(default_factory=list)

    def place(self, wanted: Key, plan: Plan, stage: str = "") -> int:
        """The option's number; a new one where it is new."""
        if wanted not in self.places:
            self.places[wanted] = len(self.plans)
            self.plans.append(plan)
            self.stages.append(stage)
        return self.places[wanted]


@dataclass
class Options:
    """All that is evaluated.

    Attributes:
        solve: whether β is solved for, so that it is left out of the KL's sums.
        advantages: an advantage per response, less a KL in the reward.
        policies: ratio, surrogate and correction, for A = 1 and for A = −1.
        pairs: the advantages and policies that are asked for together, numbered.
        directs: policy terms that are evaluated with their advantages.
        kls: KL estimates, with the ratio or correction that weighs them.
        weights: aggregations.
        entropies: entropy bonuses.
    """

    solve: bool
    advantages: Table = field(default_factory=Table)
    policies: Table = field(default_factory=Table)
    pairs: dict[tuple[int, int], int] = field(default_factory=dict)
    directs: Table = field(default_factory=Table)
    kls: Table = field(default_factory=Table)
    weights: Table = field(default_factory=Table)
    entropies: Table = field(default_factory=Table)

    def advantage(self, objective: Objective, plan: Plan) -> int:
        """The number of its advantage."""
        return self.advantages.place(advantage_key(objective), plan)

    def policy(self, objective: Objective, plan: Plan) -> int:
        """The number of its ratio, surrogate and correction."""
        return self.policies.place(_policy(objective), plan)

    def pair(self, advantage: int, policy: int) -> int:
        """The number of an advantage and a policy together."""
        return self.pairs.setdefault((advantage, policy), len(self.pairs))

    def direct(self, objective: Objective, plan: Plan) -> int:
        """The number of its policy term, advantage and all."""
        return self.directs.place((advantage_key(objective), _policy(objective)), plan)

    def kl(self, objective: Objective, plan: Plan) -> int:
        """The number of its KL in the loss; −1 where there is none."""
        bound = objective.kl
        if bound.choice.absent or bound.choice.in_reward:
            return -1
        weighted = "ratio" in bound.choice.columns and bound.values.get("kl_weight") != "none"
        ratio = key(objective.ratio) if weighted else None
        weighing = objective.correction.name.startswith("ms-swift/")
        correction = _correction(objective) if weighing else None
        wanted = (key(bound, "beta" if self.solve else ""), ratio, correction)
        return self.kls.place(wanted, plan, "weighted" if weighted else "")

    def weighs(self, kl: int) -> bool:
        """Whether a ratio weighs a KL."""
        return bool(self.kls.stages[kl])

    def weight(self, objective: Objective, stage: str, plan: Plan) -> int:
        """The number of the aggregation at a stage; −1 where that has none of its own."""
        bound: Bound | None = getattr(objective, stage)
        return -1 if bound is None else self.weights.place(key(bound), plan, stage)

    def entropy(self, objective: Objective, plan: Plan) -> int:
        """The number of its entropy bonus; −1 where that has no part in J."""
        bonus = objective.entropy if objective.entropy_coef else None
        return -1 if bonus is None else self.entropies.place(key(bonus), plan)


def advantage_key(objective: Objective) -> Key:
    """What makes its advantages: the choice, and a KL in the reward."""
    return key(objective.advantage), key(objective.kl) if objective.kl_in_reward else None


def _policy(objective: Objective) -> Key:
    return key(objective.ratio), key(objective.surrogate), _correction(objective)


def _correction(objective: Objective) -> Key:
    """The correction; None for none, and for one whose switches are all off."""
    bound = objective.correction
    off = all(value is None or value == 1.0 for value in bound.values.values())
    idle = bound.choice.absent or (off and bound.name == "trl/masks")
    return None if idle else key(bound)


def drops(correction: str) -> bool:
    """Whether a correction may leave tokens out of the denominators too."""
    return "m2po" in correction or correction.startswith(("trl/", "ms-swift/"))


@dataclass(frozen=True)
class Nature:
    """How a policy term is evaluated.

    Attributes:
        per_response: whether a response has one advantage.
        by_sign: whether s(|A|·sign A) = |A|·s(sign A).
        shared: whether the weights are those of all tokens.
        idle: whether nothing corrects.
    """

    per_response: bool
    by_sign: bool
    shared: bool
    idle: bool


class Natures:
    """The natures of plans on a record, each kind looked at once."""

    def __init__(self, alone: Chunk) -> None:
        self._alone = alone
        self._signs: dict[Key, bool] = {}
        self._tokens: dict[Key, bool] = {}

    def of(self, plan: Plan) -> Nature:
        """The nature of a plan's policy term.

        Raises:
            GrpoError: where the record cannot serve it.
        """
        objective = self.objective(plan)
        idle = _correction(objective) is None
        per_response, by_sign = self._per_response(objective), self._by_sign(objective)
        return Nature(per_response, by_sign, idle or not drops(objective.correction.name), idle)

    def objective(self, plan: Plan) -> Objective:
        """A plan's objective for the record.

        Raises:
            GrpoError: where a hyperparameter is nowhere given.
        """
        given = self._alone.advantages_given
        return plan.objective(self._alone.settings, advantages_given=given)

    def _per_response(self, objective: Objective) -> bool:
        wanted = advantage_key(objective)
        if wanted not in self._tokens:
            made = evaluate(self._alone.batch, objective)
            self._tokens[wanted] = made.response_advantage is not None
        return self._tokens[wanted]

    def _by_sign(self, objective: Objective) -> bool:
        wanted = objective.surrogate.name
        if wanted not in self._signs:
            self._signs[wanted] = homogeneous(objective)
        return self._signs[wanted]


def homogeneous(objective: Objective) -> bool:
    """Whether s(ρ, |A|·sign A) = |A|·s(ρ, sign A) on the probe."""
    given = Bound("given", STAGES["advantage"].choices["given"], {})
    objective = replace(objective, advantage=given)
    batch = probe.probe()
    signs = np.where(np.arange(batch.responses.count) % 2 == 0, 1.0, -1.0)
    sizes = 0.3 + np.arange(batch.responses.count)
    try:
        single = evaluate(replace(batch, advantages=signs), objective).policy.sums
        more = evaluate(replace(batch, advantages=signs * sizes), objective).policy.sums
    except GrpoError:
        return False
    return bool(np.allclose(more, single * sizes, rtol=1e-9, atol=1e-12))
