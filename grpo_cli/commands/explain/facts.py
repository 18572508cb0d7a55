"""The sums over the input that decide why a loss is what it is."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from grpo_cli.batch import F64, Batch
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.totals import Totals
from grpo_cli.objective.arithmetic.exact_sums import ExactSum
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.inputs import Inputs
from grpo_cli.objective.kl import NO_REFERENCE
from grpo_cli.objective.terms import ENTROPY, KL, POLICY
from grpo_cli.terminal.numbers import record_name

_CENTRED = 1e-5
"""Σ A of a group relative to Σ|A|, below which it is 0 but for float32."""
_ROUNDING = 1e-6
"""A sum below this part of the magnitudes in it is 0 but for float32."""


@dataclass(frozen=True)
class Extreme:
    """The token with the largest part of J, and where it is."""

    size: float
    place: str
    ratio: float
    advantage: float


@dataclass
class DeadGroups:
    """Groups whose advantages are all 0, counted by what their rewards are.

    Attributes:
        alone: groups of a single response, whose advantage is computed.
        differ: groups whose rewards differ.
        equal: groups of several responses whose rewards are all equal.
        given: whether some of the advantages are the records' own.
        computed: the choices that computed the others.
    """

    alone: int = 0
    differ: int = 0
    equal: int = 0
    given: bool = False
    computed: set[str] = field(default_factory=set)

    def add(self, breakdown: Breakdown) -> None:
        """Adds the records of a breakdown."""
        dead, batch = breakdown.dead, breakdown.batch
        if not dead.any():
            return
        rewards, advantage = batch.summed_rewards, breakdown.objective.advantage
        sizes = np.bincount(batch.groups, minlength=batch.group_count)[dead]
        if rewards is not None:
            ranges = _groups(batch).ranges(rewards)[dead]
            self.differ += int(np.count_nonzero(ranges))
            self.equal += int(np.count_nonzero((ranges == 0.0) & (sizes > 1)))
        if advantage.choice.given:
            self.given = True
            return
        self.computed.add(advantage.name)
        self.alone += int(np.count_nonzero(sizes == 1))


@dataclass
class Facts:
    """What decides why a loss is what it is, exact whatever the input was cut into.

    Attributes:
        totals: the batch's sums.
        above, below: Σ w·c·s of the responses with A > 0 and with A < 0, before the denominator
            that counts.
        size: Σ|w·c·s|, likewise.
        centred: whether every group's advantages add up to 0.
        lengths: the least and greatest length; empty without responses.
        responses, without_tokens: how many have A > 0 and A < 0; of these, those whose mask is 0.
        dead: the groups whose advantages are all 0.
        cancelled: groups whose reward functions differ between responses while their sum does not.
        reference_equal: whether the policy is the reference at every token.
        no_reference: whether a KL was left out, since no record has a reference.
        overridden_beta: the β of a record in whose place a flag gives another; None for none.
        plain_clip: whether the surrogate is PPO's clip, without dual clip or δ.
        by_record: the losses, mean rewards and KL penalties of records with rewards, in parts.
        largest: the largest single token.
    """

    totals: Totals
    above: ExactSum = field(default_factory=ExactSum)
    below: ExactSum = field(default_factory=ExactSum)
    size: ExactSum = field(default_factory=ExactSum)
    centred: bool = True
    lengths: tuple[int, ...] = ()
    responses: Counter[str] = field(default_factory=Counter)
    without_tokens: Counter[str] = field(default_factory=Counter)
    dead: DeadGroups = field(default_factory=DeadGroups)
    cancelled: int = 0
    reference_equal: bool | None = None
    no_reference: bool = False
    betas: set[float] = field(default_factory=set)
    overridden_beta: float | None = None
    plain_clip: bool = True
    by_record: list[tuple[F64, F64, F64]] = field(default_factory=list)
    largest: Extreme | None = None
    contributions: ExactSum = field(default_factory=ExactSum)

    def add(self, chunk: Chunk, breakdown: Breakdown) -> None:
        """Adds the records of a chunk."""
        self.totals.add(breakdown)
        batch = breakdown.batch
        self._add_policy(breakdown)
        self.centred &= _centred(breakdown)
        self.dead.add(breakdown)
        self.cancelled += _cancelled(batch)
        self.betas.update(np.unique(breakdown.beta).tolist())
        self.no_reference |= breakdown.objective.kl.name == NO_REFERENCE.name
        bound = breakdown.objective.surrogate
        bounds = (bound.values.get("delta"), bound.values.get("dual_clip"))
        self.plain_clip &= bound.choice.window == "product" and bounds == (None, None)
        if (rewards := Inputs(batch).get("rewards")) is not None:
            penalties = breakdown.beta * breakdown.record_value(KL)
            means = batch.records.mean(rewards)
            self.by_record.append((-breakdown.record_objective, means, penalties))
        if batch.responses.count:
            lengths = batch.responses.lengths
            ends = [*self.lengths, int(lengths.min()), int(lengths.max())]
            self.lengths = min(ends), max(ends)
            if (advantage := breakdown.response_advantage) is not None:
                for sign, some in ((">", advantage > 0), ("<", advantage < 0)):
                    self.responses[sign] += int(some.sum())
                    self.without_tokens[sign] += int((some & (lengths == 0)).sum())
        new, ref = batch.log_probs_new, batch.log_probs_ref
        if new is not None and ref is not None and len(new):
            equal = bool(np.array_equal(ref, new))
            self.reference_equal = equal and self.reference_equal is not False
        if batch.responses.total:
            size = np.abs(breakdown.contribution)
            self.contributions.add(size)
            token = int(size.argmax())
            if self.largest is None or size[token] > self.largest.size:
                self.largest = Extreme(
                    float(size[token]),
                    place(chunk, breakdown, token),
                    float(breakdown.ratio[token]),
                    float(breakdown.advantage[token]),
                )

    def _add_policy(self, breakdown: Breakdown) -> None:
        """By the sign of A: tokens, and responses without any where these have a term."""
        term, lengths = breakdown.policy, breakdown.batch.responses.lengths
        of_record = breakdown.objective.batch == "record"
        factor = breakdown.term_weight(term) if of_record else term.weights.factor()
        parts = [term.weights.times_own(np.repeat(factor, lengths)) * term.values]
        advantages = [breakdown.advantage]
        if breakdown.response_advantage is not None:
            empty = lengths == 0
            parts.append(factor[empty] * term.sums[empty])
            advantages.append(breakdown.response_advantage[empty])
        for part, advantage in zip(parts, advantages, strict=True):
            self.above.add(part[advantage > 0])
            self.below.add(part[advantage < 0])
            self.size.add(np.abs(part))

    @property
    def parts(self) -> dict[str, float]:
        """The parts of J, which add up to it."""
        count = self.totals.count(POLICY)
        found = {
            "positive_advantages": self.above.value() / count,
            "negative_advantages": self.below.value() / count,
            "kl_penalty": self.totals.part(KL) + 0.0,
        }
        if self.totals.sums(ENTROPY):
            found["entropy_bonus"] = self.totals.part(ENTROPY) + 0.0
        return found

    @property
    def policy_counts(self) -> bool:
        """Whether the policy term is more than rounding."""
        return abs(self.above.value() + self.below.value()) > _ROUNDING * self.size.value()

    @property
    def scale(self) -> float:
        """The size of the terms, to which a J of 0 is small."""
        others = sum(abs(self.totals.part(term)) for term in (KL, ENTROPY))
        return self.size.value() / self.totals.count(POLICY) + others


def place(chunk: Chunk, breakdown: Breakdown, token: int) -> str:
    """A token's place in words: record, response and position."""
    number, local, position = breakdown.batch.place(token)
    record = chunk.records[number]
    named = record_name(record.name, record.line)
    return f"{named}, response {local}, position {position}"


def _centred(breakdown: Breakdown) -> bool:
    values, batch = breakdown.response_advantage, breakdown.batch
    if values is None:
        return False
    sums, sizes = (
        np.bincount(batch.groups, one, batch.group_count) for one in (values, np.abs(values))
    )
    return bool((np.abs(sums) <= _CENTRED * sizes).all())


def _cancelled(batch: Batch) -> int:
    """Groups in which the reward functions move against each other and their sum stays."""
    whole_rewards = batch.summed_rewards
    if batch.rewards is None or whole_rewards is None or batch.rewards.ndim == 1:
        return 0
    if np.isnan(batch.rewards).any():  # what is summed differs from response to response
        return 0
    groups = _groups(batch)
    whole = groups.ranges(whole_rewards)
    single = np.max([groups.ranges(column) for column in batch.rewards.T], axis=0)
    return int(np.count_nonzero((whole <= 1e-9 * single) & (single > 0)))


def _groups(batch: Batch) -> Groups:
    return Groups(batch.groups, batch.group_count)
