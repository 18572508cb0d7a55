"""The distinct things to evaluate, each once, whichever rows and changes ask for it.

A row with its changes is four numbers: which advantage, which policy term, which KL and which
weights. So J of tens of thousands of conventions comes from some hundred vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property

from grpo_cli.objective.choice import Bound
from grpo_cli.objective.objective import Objective
from grpo_cli.variants.plan import Plan

Key = Hashable
Making = Callable[[], Plan]
"""Makes a plan that has an option: of a hundred asked for, one is new."""


DIRECT = 1 << 24
"""Added to the number of a policy term that is evaluated with its advantages."""


def key(bound: Bound | None, without: str = "") -> Key:
    """What a bound choice is, but for one hyperparameter."""
    if bound is None or not without:
        return None if bound is None else bound.key
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

    def place(self, wanted: Key, plan: Making, stage: str = "") -> int:
        """The option's number; a new one, with the plan made, where it is new."""
        if wanted not in self.places:
            self.places[wanted] = len(self.plans)
            self.plans.append(plan())
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

    def advantage(self, objective: Objective, plan: Making) -> int:
        """The number of its advantage."""
        return self.advantages.place(advantage_key(objective), plan)

    def policy(self, objective: Objective, plan: Making) -> int:
        """The number of its ratio, surrogate and correction."""
        return self.policies.place(policy_key(objective), plan)

    def pair(self, advantage: int, policy: int) -> int:
        """The number of an advantage and a policy together."""
        return self.pairs.setdefault((advantage, policy), len(self.pairs))

    @cached_property
    def asked_together(self) -> list[tuple[list[int], list[int]]]:
        """Advantages, and the policies asked for with just these, those of one ratio together."""
        wanted: dict[int, list[int]] = {}
        for advantage, policy in self.pairs:
            wanted.setdefault(policy, []).append(advantage)
        together: dict[tuple[int, ...], list[int]] = {}
        for policy, advantages in wanted.items():
            together.setdefault(tuple(sorted(advantages)), []).append(policy)
        ratios = [repr(key[0]) for key in self.policies.places]  # type: ignore[index]
        return [
            (list(advantages), sorted(policies, key=ratios.__getitem__))
            for advantages, policies in together.items()
        ]

    def direct(self, wanted: Key, plan: Making, *, by_token: bool) -> int:
        """The number of a policy term, advantage and all."""
        return self.directs.place(wanted, plan, "by token" if by_token else "")

    @cached_property
    def by_policy(self) -> list[int]:
        """The numbers of all policy terms with their advantages, those of one ratio together."""
        policies = [repr(key[1]) for key in self.directs.places]  # type: ignore[index]
        return sorted(range(len(policies)), key=policies.__getitem__)

    @cached_property
    def by_estimator(self) -> list[int]:
        """The numbers of all KLs, those of one estimator together."""
        estimators = [repr(key[0]) for key in self.kls.places]  # type: ignore[index]
        return sorted(range(len(estimators)), key=estimators.__getitem__)

    def is_by_token(self, direct: int) -> bool:
        """Whether a look at the tokens for A = 1, and one for A = -1, are enough for it."""
        return bool(self.directs.stages[direct])

    def kl(self, objective: Objective, plan: Making) -> int:
        """The number of its KL in the loss; −1 where there is none."""
        bound = objective.kl
        if bound.choice.absent or bound.choice.in_reward:
            return -1
        weighted = "ratio" in bound.choice.columns and bound.values.get("kl_weight") != "none"
        ratio = key(objective.ratio) if weighted else None
        weighing = objective.correction.name.startswith("ms-swift/")
        correction = (correction_key(objective), advantage_key(objective)) if weighing else None
        wanted = (key(bound, "beta" if self.solve else ""), ratio, correction)
        return self.kls.place(wanted, plan, "weighted" if weighted else "")

    def weighs(self, kl: int) -> bool:
        """Whether a ratio weighs a KL."""
        return bool(self.kls.stages[kl])

    def aggregate(self, bound: Bound, plan: Making) -> int:
        """The number of an aggregation of all tokens."""
        return self.weights.place(key(bound), plan, "aggregate")

    def weight(self, objective: Objective, stage: str, plan: Making) -> int:
        """The number of what a term has for itself at a stage; −1 where that is nothing."""
        bound: Bound | None = getattr(objective, stage)
        return -1 if bound is None else self.weights.place(key(bound), plan, stage)

    def entropy(self, objective: Objective, plan: Making) -> int:
        """The number of its entropy bonus; −1 where that has no part in J."""
        bonus = objective.entropy if objective.entropy_coef else None
        return -1 if bonus is None else self.entropies.place(key(bonus), plan)


def advantage_key(objective: Objective) -> Key:
    """What makes its advantages: the choice, and a KL in the reward."""
    return key(objective.advantage), key(objective.kl) if objective.kl_in_reward else None


def policy_key(objective: Objective) -> Key:
    """What makes its policy term, but for the advantages."""
    return key(objective.ratio), key(objective.surrogate), correction_key(objective)


def correction_key(objective: Objective) -> Key:
    """The correction; None for none, and for one whose switches are all off."""
    bound = objective.correction
    off = all(value is None or value == 1.0 for value in bound.values.values())
    idle = bound.choice.absent or (off and bound.name == "trl/masks")
    return None if idle else key(bound)


def drops(correction: str) -> bool:
    """Whether a correction may leave tokens out of the denominators too."""
    return "m2po" in correction or correction.startswith(("trl/", "ms-swift/"))
