"""All conventions that are tried, as flat arrays: what each is made of, and what it costs.

A row with its changes is four numbers: which advantage, which policy term, which KL and which
weights. So J of tens of thousands of conventions comes from some hundred vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache, partial, reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.match.space import changes as tried
from grpo_cli.commands.match.space.changes import NO_CHANGE, Change, changed, checked
from grpo_cli.commands.match.space.options import (
    ALONE,
    Key,
    Options,
    Sample,
    Stages,
    advantage_key,
    correction_key,
    keeps_tokens,
    key,
    policy_key,
)
from grpo_cli.engine.chunk import Chunk
from grpo_cli.errors import GrpoError, InputError
from grpo_cli.hyperparameters import Value
from grpo_cli.objective.inputs import missing
from grpo_cli.objective.pipeline import estimates_kl
from grpo_cli.variants.plan import Plan
from grpo_cli.variants.registry import bind

Index = NDArray[np.int32] | NDArray[np.int16]

_NONE, _CANNOT = -1, -2
"""In the place of an option's number: it has none, or it cannot be evaluated."""
_EPSILON = ("epsilon_high", "epsilon_low")
_MOST_CHANGES = 2
_USUAL, _COSTLY = 1.0, 9.0
"""Bits up to which ε, with the changes of its ratio and surrogate, is searched: PLAIN, WIDE."""


class Depth(IntEnum):
    """How much is searched.

    QUICK leaves out what needs all tokens again for each convention: other ratios and surrogates
    than a row's own, statistics of the whole input, advantages of tokens. PLAIN has all of that,
    and the usual ε. WIDE searches other ε as well.
    """

    QUICK = 0
    PLAIN = 1
    WIDE = 2


def known(base: Plan, chunk: Chunk) -> set[str]:
    """The hyperparameters that flags or the first records give, so that they are not searched.

    ε is "epsilon", below or above.
    """
    given = base.flags.keys() | chunk.settings.keys()
    return given | ({"epsilon"} if given & {*_EPSILON} else set())


class Axis:
    """Changes of one kind, of which a convention has one.

    Attributes:
        changes: the changes.
        counts, bits: [n] those of each.
    """

    def __init__(self, changes: Sequence[Change]) -> None:
        self.changes = changes
        self.counts = np.array([one.count for one in changes], np.int8)
        self.bits = np.array([one.bits for one in changes])

    def __len__(self) -> int:
        return len(self.changes)


class Axes(NamedTuple):
    """The changes of a grid, kind by kind."""

    advantages: Axis
    pairs: Axis
    kls: Axis
    weights: Axis

    def combined(self) -> tuple[Index, tuple[NDArray[np.int64], ...], F64]:
        """[n] flat places of the combinations of changes, their places by axis, their bits."""
        count = reduce(np.add.outer, [axis.counts for axis in self])
        at = np.flatnonzero(count <= _MOST_CHANGES)
        places = np.unravel_index(at, count.shape)
        bits = np.where(count.ravel()[at] > 1, 1.0, 0.0)
        for axis, place in zip(self, places, strict=True):
            bits += axis.bits[place]
        return at.astype(np.int32), places, bits


@dataclass(frozen=True)
class Grid:
    """A row and its changes, axis by axis; each combination of changes is a convention.

    Attributes:
        plan: the row.
        own_bits, bound_bits: what the row costs, and what a change in it costs in addition.
        axes: advantage, policy, KL and aggregation changes.
        policy, kl, weight: [A, P], [K, P], [W] the numbers of their options, −2 for one that is not
            tried.
        kl_weight, entropy, entropy_weight: the row's own; −1 for none.
        beta: [K] the row's own β.
    """

    plan: Plan
    own_bits: float
    bound_bits: float
    axes: Axes
    policy: Index
    kl: Index
    weight: Index
    kl_weight: int
    entropy: int
    entropy_weight: int
    beta: F64

    def columns(
        self, number: int, at: Index, places: tuple[NDArray[np.int64], ...], bits: F64
    ) -> dict[str, NDArray[np.generic]]:
        """Its conventions, as columns of ``Space``.

        Args:
            number: the grid's.
            at, places, bits: the combinations of its axes.
        """
        a, p, k, w = places
        fits = (self.policy[a, p] >= 0) & (self.kl[k, p] > _CANNOT) & (self.weight[w] >= 0)
        a, p, k, w = (place[fits] for place in places)
        return {
            "grid": np.full(len(a), number, np.int16),
            "at": at[fits],
            "policy": self.policy[a, p],
            "kl": self.kl[k, p].astype(np.int16),
            "weight": self.weight[w].astype(np.int16),
            "beta": self.beta[k],
            "bits": bits[fits] + self.own_bits + self.bound_bits * (at[fits] > 0),
        }


class Space:
    """All conventions.

    Attributes:
        options: what is evaluated.
        grids: where the conventions come from.
        reasons: what could not be tried, and why.
        same: a row's name → the names of all rows that are the same on these records.
        place: a row's name → its place among names of one convention.
        own: [3, grids] the aggregation of the KL, the entropy bonus and its aggregation of rows.
        grid, at: [C] which grid, and which combination of it (flat over its four axes).
        policy, kl, weight: [C] numbers of options.
        beta: [C] the row's own β.
        bits: [C] what each costs.
    """

    grid: Index
    at: Index
    policy: Index
    kl: Index
    weight: Index
    beta: F64
    bits: F64

    def __init__(self, builder: Builder, grids: Sequence[Grid], names: Sequence[str]) -> None:
        self.options, self.grids = builder.options, grids
        self.reasons, self.same = builder.reasons, builder.same
        self.place = {name: at for at, name in enumerate(names)}
        own = [(one.kl_weight, one.entropy, one.entropy_weight) for one in grids]
        self.own: Index = np.array(own, np.int16).T
        every = dict.fromkeys(one.axes for one in grids)
        combined = {axes: axes.combined() for axes in every}
        columns = [grid.columns(at, *combined[grid.axes]) for at, grid in enumerate(grids)]
        self._columns = [*columns[0]]
        for name in self._columns:
            setattr(self, name, np.concatenate([one.pop(name) for one in columns]))

    def narrowed(self, chosen: NDArray[np.int64]) -> Space:
        """Some of the conventions, without the policy terms that only others have."""
        found = copy(self)
        for name in self._columns:
            setattr(found, name, getattr(self, name)[chosen])
        summed = found.policy != ALONE
        used, found.policy[summed] = np.unique(found.policy[summed], return_inverse=True)
        pairs = [*self.options.pairs]
        numbers = {pairs[pair]: number for number, pair in enumerate(used.tolist())}
        found.options = replace(self.options, pairs=numbers)
        return found

    def plan(self, convention: int, *more: Change) -> Plan:
        """A convention's plan, checked."""
        grid = self.grids[self.grid[convention]]
        shape = tuple(len(axis) for axis in grid.axes)
        places = np.unravel_index(int(self.at[convention]), shape)
        changes = [axis.changes[place] for axis, place in zip(grid.axes, places, strict=True)]
        return checked(changed(grid.plan, *changes, *more))


class Builder:
    """Makes the grids of one row after the other, and numbers the options that they need.

    Attributes:
        options: what is evaluated; a deeper search needs more of them.
        reasons, same: as those of ``Space``.

    Args:
        base: the plan that is searched around.
        sample: a record; the conventions are tried on records like it.
        betas: values of β to try.
        groups: whether any data has several groups.
    """

    def __init__(self, base: Plan, sample: Sample, betas: Sequence[float], *, groups: bool) -> None:
        given = known(base, sample.record)
        self._sample, self._given, self._asked = sample, given, base.variant
        self.options = Options(solve="beta" not in given and not betas)
        self.reasons: dict[str, str] = {}
        self.same: dict[str, list[str]] = {}
        # Rows share the changes and the axes that are made for them.
        self._axis, self._own = cache(Axis), cache(_own_values)
        self._epsilons = cache(_epsilons)
        constants = dict.fromkeys((sample.width, *tried.LENGTHS))
        lengths: Sequence[Any] = [] if tried.LENGTH in given else [*constants]
        if tried.LENGTH in base.flags.keys() - base.takes():  # for the other rows and changes
            lengths = [base.flags[tried.LENGTH]]
        rewards = sample.record.batch.rewards is not None
        self._advantages = cache(partial(tried.advantages, base, rewards=rewards, groups=groups))
        lacking = missing("advantages", bind("advantage", "given"), "advantage")
        fixed = sample.record.advantages_given or "advantage" in base.swapped or not rewards
        self._lacking = "" if fixed else str(lacking)
        self._pairs = [NO_CHANGE, *tried.pairs(base)]
        self._betas = [Change({}, {"beta": beta}) for beta in betas]
        self._kls: list[Change] = []
        for kl in tried.kls(base):
            with_betas = [] if kl.stages.get("kl") == "none" else self._betas
            self._kls += [kl, *(kl.and_(beta) for beta in with_betas)]
        self._aggregates = [NO_CHANGE, *tried.aggregates(base, lengths)]
        self._lengths = [Change({}, {tried.LENGTH: one}, 0, 3.0) for one in lengths]
        self._rows = [*self._distinct(tried.rows(base, sample.frameworks, sample.recorded))]

    def _distinct(self, rows: Iterable[Plan]) -> Iterator[Stages]:
        """The rows that can be tried; of those that are the same on these records, the first."""
        known: dict[Key, list[str]] = {}
        for row in rows:
            try:
                stages = Stages(self._sample, row)
                bounds = stages.objective.stages
                names = known.setdefault(tuple([(name, key(bounds[name])) for name in bounds]), [])
                names.append(row.variant)
                self.same[row.variant] = names
                if len(names) > 1:
                    continue
                self._sample.per_response(advantage_key(stages.objective), row)
            except GrpoError as error:
                self.reasons.setdefault(row.variant, str(error))
                continue
            if any(bound.choice.reads_turns for bound in bounds.values()):
                reason = "it depends on turns or trajectories, which match does not try"
                self.reasons.setdefault(row.variant, reason)
            else:
                yield stages

    def space(self, depth: Depth) -> Space:
        """The conventions of a search.

        Raises:
            InputError: where no convention can be tried.
        """
        self._depth = depth
        grids = [grid for stages in self._rows for grid in self._grids(stages)]
        if not grids:
            raise InputError(next(iter(self.reasons.values()), "no convention can be tried"))
        of = self._sample
        place = partial(tried.familiarity, frameworks=of.frameworks, recorded=of.recorded)
        return Space(self, grids, sorted(self.same, key=place))

    def _grids(self, stages: Stages) -> Iterator[Grid]:
        """A row with its own KL and with others; two grids where its KL is in the reward."""
        row, objective = stages.row, stages.objective
        own = [NO_CHANGE, *self._betas] if "beta" in stages.takes else [NO_CHANGE]
        earlier = "@" in row.variant and row.variant != self._asked
        pairs = self._pairs[:1] if earlier or self._depth is Depth.QUICK else self._pairs
        if correction_key(objective.correction) is not None:
            pairs = [one for one in pairs if one.count <= 1 and one.bits <= 4.0]
        pairs = [*pairs, *self._with_own(stages), *self._with_epsilons(stages, pairs)]
        if earlier:  # without a change of a stage
            yield self._grid(stages, [NO_CHANGE], pairs, own, [NO_CHANGE])
            return
        aggregates = self._aggregates
        advantages = self._advantages(*objective.advantage.key)
        if not objective.kl_in_reward:
            yield self._grid(stages, advantages, pairs, [*own, *self._kls], aggregates)
            return
        yield self._grid(stages, advantages, pairs, own, aggregates)
        if self._kls:
            other = Stages(self._sample, changed(row, self._kls[0]))
            yield self._grid(other, advantages, pairs, self._kls, aggregates)

    def _with_own(self, stages: Stages) -> Sequence[Change]:
        """The row with its surrogate's own values, where the records put others in their place."""
        if not self._sample.record.settings:
            return []
        replaced = stages.row.replaced(stages.objective.parts)
        return self._own(tuple([(name, value) for name, (value, _) in replaced.items()]))

    def _with_epsilons(self, stages: Stages, pairs: Sequence[Change]) -> Iterator[Change]:
        """The policy changes with each ε that is searched."""
        if self._depth is Depth.QUICK or "epsilon" in self._given:
            return
        most = _COSTLY if self._depth is Depth.WIDE else _USUAL
        for pair in pairs:
            if "surrogate" in pair.stages:
                takes: Container[str] = stages.bound("surrogate", pair).choice.hyperparameters
            else:
                takes = stages.takes
            taken = tuple([name for name in _EPSILON if name in takes])
            if taken:
                long = stages.bound("ratio", pair).name.startswith("sequence")
                yield from self._epsilons(pair, taken, most, of_sequences=long)

    def _grid(self, stages: Stages, *changes: Sequence[Change]) -> Grid:
        """A row's grid of advantage, policy and KL changes, and of aggregations."""
        row, objective, options = stages.row, stages.objective, self.options
        *others, weights = changes
        if tried.LENGTH in stages.takes:
            weights = [*weights, *self._lengths]
        elif objective.aggregate.name == "token-sum" and "aggregate" not in row.swapped:
            divided = Change({"aggregate": "token-sum-norm"})
            weights = [*weights, *(divided.and_(one) for one in self._lengths)]
        axes = Axes(*[self._axis(tuple(one)) for one in (*others, weights)])
        _, pairs, kls = others
        all_tokens = keeps_tokens(objective.correction)
        policy = self._policies(stages, axes, all_tokens=all_tokens)
        kl = np.array([self._kls_of(stages, one, pairs) for one in kls], np.int32)
        weight = self._numbers(axes.weights.changes, partial(self._weight, stages))
        if not all_tokens:  # only the row's own
            weight = np.where(np.arange(len(weight)) > 0, _CANNOT, weight)
        entropy = objective.entropy if objective.entropy_coef else None
        return Grid(
            plan=row,
            own_bits=tried.strangeness(row.variant, self._sample.frameworks, self._sample.recorded),
            bound_bits=tried.bound_bits(objective.surrogate.values),
            axes=axes,
            policy=policy,
            kl=kl,
            weight=weight,
            kl_weight=self._weight(stages, NO_CHANGE, "kl_aggregate"),
            entropy=_NONE if entropy is None else options.entropies.number(key(entropy), row),
            entropy_weight=self._weight(stages, NO_CHANGE, "entropy_aggregate"),
            beta=np.array([_beta(stages, one) for one in kls]),
        )

    def _policies(self, stages: Stages, axes: Axes, *, all_tokens: bool) -> Index:
        """[A, P] numbers of pairs; −2 for what is not tried."""
        advantages, pairs = axes.advantages, axes.pairs
        policies = self._numbers(pairs.changes, partial(self._policy, stages))
        numbers = self._numbers(advantages.changes, partial(self._advantage, stages))
        if self._lacking:
            self.reasons.setdefault("given", self._lacking)
        count = np.add.outer(advantages.counts, pairs.counts)
        can = (count <= _MOST_CHANGES) & (numbers > _CANNOT)[:, None] & (policies > _CANNOT)
        by_sign = can & (numbers >= 0)[:, None] & (policies >= 0) & all_tokens
        found = np.full(count.shape, _CANNOT, np.int32)
        rows, columns = np.nonzero(by_sign)
        known = self.options.pairs
        found[by_sign] = [
            known.setdefault(pair, len(known))
            for pair in zip(numbers[rows].tolist(), policies[columns].tolist(), strict=True)
        ]
        if can[0, 0] and not by_sign[0, 0] and self._depth is not Depth.QUICK:
            found[0, 0] = ALONE  # the row without a change
        return found

    # ---- numbers of options ----------------------------------------------------------------------

    def _numbers(self, changes: Sequence[Change], number: Callable[[Change], int]) -> Index:
        """[n] the number of each change's option; −2, and a reason, where it has none."""
        found = []
        for one in changes:
            try:
                found.append(number(one))
            except GrpoError as error:
                name = " ".join(one.stages.values()) or "the variant's own"
                self.reasons.setdefault(name, str(error))
                found.append(_CANNOT)
        return np.array(found, np.int32)

    def _advantage(self, stages: Stages, one: Change) -> int:
        """The advantage's number; −1 where tokens have their own."""
        wanted, row = stages.advantage_key(one), stages.row
        quick = self._depth is Depth.QUICK and row.batch == "input"
        if quick and changed(row, one).wants_moments:
            return _NONE
        if not self._sample.per_response(wanted, row, one):
            return _NONE
        return self.options.advantages.number(wanted, row, one)

    def _policy(self, stages: Stages, one: Change) -> int:
        """The number of the policy term by sign; −1 where A enters in another way."""
        _, surrogate, correction = bound = stages.policy(one)
        if not (surrogate.choice.scales and keeps_tokens(correction)):
            return _NONE
        return self.options.policies.number(policy_key(*bound), stages.row, one)

    def _kls_of(self, stages: Stages, kl: Change, pairs: Sequence[Change]) -> list[int]:
        """[P] the KL's number with each policy term, whose ratio may weigh it."""
        (first,) = self._numbers([kl], partial(self._kl, stages, NO_CHANGE))
        if first < 0 or not self.options.kls.details[first]:
            return [first] * len(pairs)
        known: dict[str | None, int] = {None: first}
        for pair in pairs:
            ratio = pair.stages.get("ratio")
            if ratio is not None and ratio not in known:
                weighing = Change({"ratio": ratio})
                (known[ratio],) = self._numbers([kl], partial(self._kl, stages, weighing))
        return [known[pair.stages.get("ratio")] for pair in pairs]

    def _kl(self, stages: Stages, weighing: Change, kl: Change) -> int:
        """The number of a KL in the loss; −1 where there is none."""
        bound = stages.bound("kl", kl)
        if bound.choice.absent or not estimates_kl(bound, self._sample.columns):
            return _NONE
        weighted = "ratio" in bound.choice.columns and bound.values.get("kl_weight") != "none"
        ratio = key(stages.bound("ratio", weighing)) if weighted else None
        wanted = key(bound, "beta" if self.options.solve else ""), ratio
        detail = "weighted" if weighted else ""
        return self.options.kls.number(wanted, stages.row, kl, weighing, detail=detail)

    def _weight(self, stages: Stages, one: Change, stage: str = "aggregate") -> int:
        """The number of an aggregation of all terms, or of one alone; −1 where there is none."""
        if getattr(stages.objective, stage) is None:
            return _NONE
        wanted = key(stages.bound(stage, one))
        return self.options.weights.number(wanted, stages.row, one, detail=stage)


def _beta(stages: Stages, kl: Change) -> float:
    """The β that a row has with a KL."""
    with suppress(GrpoError):
        bound = stages.bound("kl", kl)
        return 0.0 if bound.choice.in_reward else float(bound.values.get("beta") or 0.0)
    return 0.0


def _own_values(values: Sequence[tuple[str, Value]]) -> Sequence[Change]:
    return [Change({}, dict(values), 1, 1.0)] if values else []


def _epsilons(
    pair: Change, taken: Sequence[str], most: float, *, of_sequences: bool
) -> Sequence[Change]:
    """A policy change with each ε that is searched; some are usual for a sequence's ratio alone."""
    found: dict[Key, Change] = {}
    further = tried.OF_SEQUENCES if of_sequences else {}
    for (low, high), bits in (*tried.EPSILONS.items(), *further.items()):
        both = {"epsilon_low": low, "epsilon_high": high}
        flags = {name: both[name] for name in taken}
        if pair.bits + bits <= most:
            found.setdefault((*flags.values(),), pair.and_(Change({}, flags, 0, bits)))
    return [*found.values()]
