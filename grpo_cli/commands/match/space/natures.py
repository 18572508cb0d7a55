"""How the policy term of a plan can be evaluated."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.match.space.changes import Change, changed
from grpo_cli.commands.match.space.options import Key, advantage_key, correction_key, drops
from grpo_cli.engine import probe
from grpo_cli.engine.chunk import Chunk
from grpo_cli.errors import GrpoError
from grpo_cli.objective.choice import Bound
from grpo_cli.objective.inputs import Inputs
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.pipeline import evaluate
from grpo_cli.variants import STAGES
from grpo_cli.variants.plan import Plan


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
    """The natures of plans on a record, each kind looked at once.

    Args:
        alone: the record that everything is tried on; ``columns`` are its own.
    """

    def __init__(self, alone: Chunk) -> None:
        self.alone = alone
        self.columns = Inputs(alone.batch)
        self._signs: dict[Key, bool] = {}
        self._tokens: dict[Key, bool] = {}
        self._by_token: dict[Key, bool] = {}
        self._objectives: dict[Key, Objective] = {}

    def of(self, row: Plan, *changes: Change) -> Nature:
        """The nature of a row's policy term, with changes.

        Raises:
            GrpoError: where the record cannot serve it.
        """
        objective = self.objective(row, *changes)
        idle = correction_key(objective) is None
        per_response, by_sign = self._per_response(objective), self._by_sign(objective)
        return Nature(per_response, by_sign, idle or not drops(objective.correction.name), idle)

    def objective(self, row: Plan, *changes: Change) -> Objective:
        """A row's objective for the record, with changes.

        Raises:
            GrpoError: where a hyperparameter is nowhere given.
        """
        wanted = row.key, *[change.key for change in changes]
        if wanted not in self._objectives:
            self._objectives[wanted] = self.alone.objective(changed(row, *changes))
        return self._objectives[wanted]

    def aggregate(self, row: Plan, change: Change) -> Bound:
        """The aggregation of a row's objective, with a change.

        Raises:
            GrpoError: where a hyperparameter is nowhere given.
        """
        return changed(row, change).aggregate(self.alone.settings)

    def by_token(self, row: Plan, *changes: Change) -> bool:
        """Whether tokens have their own A, and s(|A|·sign A) = |A|·s(sign A) at each of them."""
        objective, nature = self.objective(row, *changes), self.of(row, *changes)
        if nature.per_response or not nature.by_sign or not nature.shared:
            return False
        read = {*objective.surrogate.choice.columns, *objective.correction.choice.columns}
        if "response_advantage" in read or "advantage" in objective.correction.choice.columns:
            return False
        wanted = objective.surrogate.name
        if wanted not in self._by_token:
            self._by_token[wanted] = homogeneous_by_token(objective)
        return self._by_token[wanted]

    def _per_response(self, objective: Objective) -> bool:
        wanted = advantage_key(objective)
        if wanted not in self._tokens:
            made = evaluate(self.alone.batch, objective)
            self._tokens[wanted] = made.response_advantage is not None
        return self._tokens[wanted]

    def _by_sign(self, objective: Objective) -> bool:
        wanted = objective.surrogate.name
        if wanted not in self._signs:
            self._signs[wanted] = homogeneous(objective)
        return self._signs[wanted]


def homogeneous(objective: Objective) -> bool:
    """Whether s(ρ, A) is |A| times what it is where all A are 1, or all are −1, on the probe.

    BAPO's is not: what it clips depends on the signs of the other responses.
    """
    objective = replace(objective, advantage=_GIVEN)
    batch = probe.probe()
    numbers = np.arange(batch.responses.count)
    signs, sizes = np.where(numbers % 2 == 0, 1.0, -1.0), 0.3 + numbers

    def sums(advantages: F64) -> F64:
        return evaluate(replace(batch, advantages=advantages), objective).policy.sums

    try:
        sides = np.where(signs > 0, sums(np.ones(len(signs))), sums(-np.ones(len(signs))))
        return bool(np.allclose(sums(signs * sizes), sides * sizes, rtol=1e-9, atol=1e-12))
    except GrpoError:
        return False


def homogeneous_by_token(objective: Objective) -> bool:
    """The same of tokens that have an advantage each, on the probe.

    GMPO's is not: its ratio is the mean of all tokens', each clipped by its own sign.
    """
    objective = replace(objective, advantage=_GIVEN)
    batch = probe.probe()
    numbers = np.arange(batch.responses.total)
    signs, sizes = np.where(numbers * 5 % 7 < 3, -1.0, 1.0), 0.3 + numbers % 11

    def values(advantages: F64) -> F64:
        return evaluate(replace(batch, token_advantages=advantages), objective).surrogate

    try:
        each = np.where(signs > 0, values(np.ones(len(signs))), values(-np.ones(len(signs))))
        return bool(np.allclose(values(signs * sizes), each * sizes, rtol=1e-9, atol=1e-12))
    except GrpoError:
        return False


_GIVEN = Bound("given", STAGES["advantage"].choices["given"], {})
