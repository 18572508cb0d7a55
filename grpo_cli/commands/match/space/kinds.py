"""How the policy term of a plan can be evaluated."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.match.space.changes import Change, changed
from grpo_cli.engine import probe
from grpo_cli.engine.chunk import Chunk
from grpo_cli.errors import GrpoError
from grpo_cli.objective.choice import Bound
from grpo_cli.objective.inputs import Inputs
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.pipeline import evaluate
from grpo_cli.variants import STAGES
from grpo_cli.variants.plan import Plan

Key = Hashable


def key(bound: Bound | None, without: str = "") -> Key:
    """Identifies a bound choice, all but one hyperparameter."""
    if bound is None or not without:
        return None if bound is None else bound.key
    return bound.name, tuple((name, one) for name, one in bound.values.items() if name != without)


def advantage_key(objective: Objective) -> Key:
    """Identifies its advantages: the choice, and a KL in the reward."""
    return key(objective.advantage), key(objective.kl) if objective.kl_in_reward else None


def policy_key(objective: Objective) -> tuple[Key, Key, Key]:
    """Identifies its policy term without the advantages: ratio, surrogate, correction."""
    return key(objective.ratio), key(objective.surrogate), correction_key(objective)


def correction_key(objective: Objective) -> Key:
    """Identifies its correction; None for none, and for one whose switches are all off."""
    bound = objective.correction
    off = all(value is None or value == 1.0 for value in bound.values.values())
    none = bound.choice.absent or (off and bound.name == "trl/masks")
    return None if none else key(bound)


@dataclass(frozen=True)
class Kind:
    """How a policy term is evaluated.

    Attributes:
        per_response: whether a response has one advantage.
        by_sign: whether s(|A|·sign A) = |A|·s(sign A).
        all_tokens: whether the weights are those of all tokens.
        no_correction: whether no correction acts.
    """

    per_response: bool
    by_sign: bool
    all_tokens: bool
    no_correction: bool


class Kinds:
    """The kinds of plans on a record, each worked out once.

    Attributes:
        record: the record, alone in its chunk, that everything is tried on.
        columns: its columns.
    """

    def __init__(self, record: Chunk) -> None:
        self.record = record
        self.columns = Inputs(record.batch)
        self._per_response: dict[Key, bool] = {}
        self._by_sign: dict[Key, bool] = {}
        self._objectives: dict[Key, Objective] = {}

    def of(self, row: Plan, *changes: Change) -> Kind:
        """The kind of a row's policy term, with changes.

        Raises:
            GrpoError: where the record lacks what it needs.
        """
        objective = self.objective(row, *changes)
        none, name = correction_key(objective) is None, objective.correction.name
        may_drop = "m2po" in name or name.startswith(("trl/", "ms-swift/"))
        wanted = advantage_key(objective)
        if wanted not in self._per_response:
            made = evaluate(self.record.batch, objective)
            self._per_response[wanted] = made.response_advantage is not None
        by_sign = self._scales(objective, by_token=False)
        return Kind(self._per_response[wanted], by_sign, none or not may_drop, none)

    def objective(self, row: Plan, *changes: Change) -> Objective:
        """A row's objective for the record, with changes.

        Raises:
            GrpoError: where a hyperparameter is nowhere given.
        """
        wanted = row.key, *[change.key for change in changes]
        if wanted not in self._objectives:
            self._objectives[wanted] = self.record.objective(changed(row, *changes))
        return self._objectives[wanted]

    def by_token(self, row: Plan, *changes: Change) -> bool:
        """Whether tokens have their own A, and s(|A|·sign A) = |A|·s(sign A) at each of them."""
        objective, kind = self.objective(row, *changes), self.of(row, *changes)
        if kind.per_response or not kind.by_sign or not kind.all_tokens:
            return False
        read = {*objective.surrogate.choice.columns, *objective.correction.choice.columns}
        if "response_advantage" in read or "advantage" in objective.correction.choice.columns:
            return False
        return self._scales(objective, by_token=True)

    def _scales(self, objective: Objective, *, by_token: bool) -> bool:
        wanted = objective.surrogate.name, by_token
        if wanted not in self._by_sign:
            self._by_sign[wanted] = scales_with_advantage(objective, by_token=by_token)
        return self._by_sign[wanted]


def scales_with_advantage(objective: Objective, *, by_token: bool) -> bool:
    """Whether s(ρ, A) is |A| times its value where all A are 1, or all are −1, on the probe.

    BAPO's is not: what it clips depends on the signs of the other responses. GMPO's is not where
    tokens have an advantage each: its ratio is the mean of all tokens', each clipped by its sign.

    Args:
        objective: the surrogate, the ratio and the correction.
        by_token: whether each token has an advantage, or else each response.
    """
    given = Bound("given", STAGES["advantage"].choices["given"], {})
    objective = replace(objective, advantage=given)
    batch = probe.probe()
    numbers = np.arange(batch.responses.total if by_token else batch.responses.count)
    losing = numbers * 5 % 7 < 3 if by_token else numbers % 2 > 0
    signs, sizes = np.where(losing, -1.0, 1.0), 0.3 + numbers % (11 if by_token else len(numbers))

    def values(advantages: F64) -> F64:
        if by_token:
            return evaluate(replace(batch, token_advantages=advantages), objective).surrogate
        return evaluate(replace(batch, advantages=advantages), objective).policy.sums

    try:
        of_sign = np.where(signs > 0, values(np.ones(len(signs))), values(-np.ones(len(signs))))
        return bool(np.allclose(values(signs * sizes), of_sign * sizes, rtol=1e-9, atol=1e-12))
    except GrpoError:
        return False
