"""What conventions are made of: distinct advantages, policy terms, KLs and weights, numbered."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from functools import cache

from grpo_cli.commands.match.question import Question, by_response
from grpo_cli.commands.match.space.changes import Change, changed
from grpo_cli.objective.choice import Bound
from grpo_cli.objective.inputs import Inputs
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.pipeline import evaluate
from grpo_cli.variants import STAGES
from grpo_cli.variants.plan import Plan, own_values
from grpo_cli.variants.trainer import frameworks_of

Key = Hashable

POLICY = ("ratio", "surrogate", "correction")
"""The stages of a policy term."""
_MASKS = ("trl/masks", "ms-swift/off-policy-mask")
"""Corrections that keep all tokens as they are where their switches are off."""
ALONE = 1 << 24
"""In the place of a policy term's number: its rows are evaluated one by one."""


# ---- what identifies an option -------------------------------------------------------------------


def key(bound: Bound | None, without: str = "") -> Key:
    """Identifies a bound choice, all but one hyperparameter."""
    if bound is None or not without:
        return None if bound is None else bound.key
    return bound.name, tuple((name, one) for name, one in bound.values.items() if name != without)


def advantage_key(objective: Objective) -> Key:
    """Identifies its advantages: the choice, and a KL in the reward."""
    return key(objective.advantage), key(objective.kl) if objective.kl_in_reward else None


def correction_key(bound: Bound) -> Key:
    """Identifies a correction; None for none, and for one whose switches are all off."""
    off = all(value is None or value == 1.0 for value in bound.values.values())
    none = bound.choice.absent or (off and bound.name in _MASKS)
    return None if none else key(bound)


def policy_key(ratio: Bound, surrogate: Bound, correction: Bound) -> Key:
    """Identifies a policy term."""
    return key(ratio), key(surrogate), correction_key(correction)


def keeps_tokens(correction: Bound) -> bool:
    """Whether a correction leaves all tokens in the denominators."""
    may_drop = "m2po" in correction.name or correction.name.startswith(("trl/", "ms-swift/"))
    return correction_key(correction) is None or not may_drop


# ---- options -------------------------------------------------------------------------------------


@dataclass
class Table:
    """Distinct options, numbered.

    Attributes:
        numbers: key → number.
        plans: a plan that has each.
        details: what else is known of each.
    """

    numbers: dict[Key, int] = field(default_factory=dict)
    plans: list[Plan] = field(default_factory=list)
    details: list[str] = field(default_factory=list)

    def number(self, wanted: Key, row: Plan, *changes: Change, detail: str = "") -> int:
        """The option's number; the row with the changes is its plan if it is new."""
        if wanted not in self.numbers:
            self.numbers[wanted] = len(self.plans)
            self.plans.append(changed(row, *changes))
            self.details.append(detail)
        return self.numbers[wanted]


@dataclass
class Options:
    """The distinct things that are evaluated, whichever rows and changes ask for them.

    Attributes:
        solve: whether β is solved for, so that it is left out of the KL's sums.
        advantages: an advantage per response, less a KL in the reward.
        policies: ratio, surrogate and correction, for A = 1 and for A = −1.
        pairs: (advantage, policy) → number, of those that conventions combine.
        kls: KL estimates, with the ratio or correction that weighs them.
        weights: aggregations, with their stages.
        entropies: entropy bonuses.
    """

    solve: bool
    advantages: Table = field(default_factory=Table)
    policies: Table = field(default_factory=Table)
    pairs: dict[tuple[int, int], int] = field(default_factory=dict)
    kls: Table = field(default_factory=Table)
    weights: Table = field(default_factory=Table)
    entropies: Table = field(default_factory=Table)

    def blocks(self, start: int) -> list[tuple[list[int], list[int]]]:
        """Advantages, and the policies that are combined with exactly these, from a pair on."""
        wanted: dict[int, list[int]] = {}
        for advantage, policy in [*self.pairs][start:]:
            wanted.setdefault(policy, []).append(advantage)
        found: dict[tuple[int, ...], list[int]] = {}
        for policy, advantages in wanted.items():
            found.setdefault(tuple(sorted(advantages)), []).append(policy)
        ratios = [repr(key[0]) for key in self.policies.numbers]  # type: ignore[index]
        for policies in found.values():
            policies.sort(key=ratios.__getitem__)
        return [([*together], policies) for together, policies in found.items()]


# ---- rows and changes on a record ----------------------------------------------------------------


class Sample:
    """The first record, on which rows are tried; what is found out about a choice is kept.

    Attributes:
        record: the record, alone in its chunk.
        recorded: the row that the records name; "" for none.
        width: the tokens that its responses are padded to, or those of the longest response.
        frameworks: those that computed it, by its word or by its names for fields.
        columns: its columns.
        bound: what changes put in the place of rows' stages.
    """

    def __init__(self, question: Question, recorded: str = "") -> None:
        first, record = question.first, question.first.alone(0)
        if question.data.chunks and question.data.chunks[0].batch.token_advantages is None:
            (record,) = by_response([record])
        self.record = record
        self.recorded = recorded
        (whole,) = record.records
        self.width = max([*whole.widths, *first.batch.responses.lengths.tolist()])
        keys = {*record.settings, *whole.names.values()}
        framework = recorded.partition("/")[0]
        self.frameworks = (framework,) if framework else frameworks_of(keys)
        self.columns = Inputs(record.batch)
        self.bound: dict[Key, Bound] = {}
        self._objectives: dict[Key, Objective] = {}
        self._per_response: dict[Key, bool] = {}

    def objective(self, row: Plan) -> Objective:
        """A row's objective for the record.

        Raises:
            GrpoError: where a hyperparameter is nowhere given.
        """
        if row.key not in self._objectives:
            self._objectives[row.key] = self.record.objective(row)
        return self._objectives[row.key]

    def per_response(self, wanted: Key, row: Plan, *changes: Change) -> bool:
        """Whether a response has one advantage in a row with changes; ``wanted`` is its key.

        Raises:
            GrpoError: where the record lacks what it needs.
        """
        if wanted not in self._per_response:
            objective = self.record.objective(changed(row, *changes))
            batch = self.record.batch
            if objective.kl_in_reward and batch.log_probs_ref is not None:
                # In a first step π_θ is π_ref: a penalty of 0, which leaves one advantage.
                batch = replace(batch, log_probs_ref=batch.log_probs_ref - 1.0)
            evaluated = evaluate(batch, objective)
            self._per_response[wanted] = evaluated.response_advantage is not None
        return self._per_response[wanted]


@cache
def _takes(stage: str, choice: str) -> tuple[str, ...]:
    """The hyperparameters of a choice, which thousands of changes ask for."""
    return STAGES[stage].choices[choice].hyperparameters


class Stages:
    """A row on a sample, and its stages with changes, each bound once.

    Attributes:
        row: the row.
        objective: its own, for the sample.
        takes: the hyperparameters that its own stages take.
    """

    def __init__(self, sample: Sample, row: Plan) -> None:
        self.row, self.objective, self.takes = row, sample.objective(row), row.takes()
        self._record, self._bound = sample.record, sample.bound
        self._values = {**own_values(row.variant), **sample.record.settings, **row.flags}
        self._flags = tuple(row.flags.items())

    def advantage_key(self, one: Change) -> Key:
        """Identifies its advantages with a change."""
        kl = self.bound("kl", one)
        return key(self.bound("advantage", one)), key(kl) if kl.choice.in_reward else None

    def policy(self, one: Change) -> tuple[Bound, ...]:
        """Its ratio, surrogate and correction with a change."""
        return tuple([self.bound(stage, one) for stage in POLICY])

    def bound(self, stage: str, one: Change) -> Bound:
        """A stage of the row with a change.

        Raises:
            GrpoError: where a hyperparameter is nowhere given.
        """
        own: Bound = getattr(self.objective, stage)
        name = one.stages.get(stage)
        if name is None and not one.flags:
            return own
        takes = own.choice.hyperparameters if name is None else _takes(stage, name)
        flags = tuple([each for each in one.flags.items() if each[0] in takes])
        if name is None and not flags:
            return own
        values = tuple([self._values.get(each, ...) for each in takes])
        wanted = stage, name or self.row.key, flags, self._flags, values
        if wanted not in self._bound:  # for no row that has these values
            settings, given = self._record.settings, self._record.advantages_given
            made = changed(self.row, one).bound(stage, settings, advantages_given=given)
            self._bound[wanted] = made
        return self._bound[wanted]
