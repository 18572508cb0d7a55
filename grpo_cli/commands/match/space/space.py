"""All conventions that are tried, as flat arrays: what each is made of, and what it costs.

A row with its changes is four numbers: which advantage, which policy term, which KL and which
weights. So J of tens of thousands of conventions comes from some hundred vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.match.space import changes as tried
from grpo_cli.commands.match.space.changes import NO_CHANGE, Change, changed, checked
from grpo_cli.commands.match.space.kinds import (
    Key,
    Kind,
    Kinds,
    advantage_key,
    correction_key,
    key,
    policy_key,
)
from grpo_cli.engine.chunk import Chunk
from grpo_cli.errors import GrpoError, InputError
from grpo_cli.objective.pipeline import estimates_kl
from grpo_cli.variants.plan import Plan

Index = NDArray[np.int32] | NDArray[np.int16]

DIRECT = 1 << 24
"""Added to the number of a policy term that is evaluated with its advantages."""
MOST_CHANGES = 2
_NONE, _CANNOT = -1, -2
"""In the place of an option's number: it has none, or it cannot be evaluated."""
_COSTLY = 9.0
"""Bits from which ε is not searched together with other changes."""


class Depth(IntEnum):
    """How much is searched.

    QUICK leaves out what needs all tokens again for each convention: other ratios and surrogates
    than a row's own, statistics of the whole input, advantages of tokens. PLAIN has all of that.
    WIDE searches ε, and β in the reward, as well.
    """

    QUICK = 0
    PLAIN = 1
    WIDE = 2


@dataclass(frozen=True)
class Known:
    """Which hyperparameters the flags or the records give, so that they are not searched."""

    epsilon: bool
    beta: bool
    length: bool

    @classmethod
    def of(cls, base: Plan, chunk: Chunk) -> Known:
        """Looks at the flags and the first records."""
        given = {*base.flags, *chunk.settings}
        epsilon = bool(given & {"epsilon_low", "epsilon_high"})
        return cls(epsilon, "beta" in given, "max_completion_length" in given)


# ---- what is evaluated ---------------------------------------------------------------------------


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
        directs: policy terms that are evaluated with their advantages; "by token" where the term
            for A = 1 and the one for A = −1 are enough.
        kls: KL estimates, with the ratio or correction that weighs them.
        weights: aggregations, with their stages.
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

    @cached_property
    def combined(self) -> list[tuple[list[int], list[int]]]:
        """Advantages, and the policies that are combined with exactly these."""
        wanted: dict[int, list[int]] = {}
        for advantage, policy in self.pairs:
            wanted.setdefault(policy, []).append(advantage)
        found: dict[tuple[int, ...], list[int]] = {}
        for policy, advantages in wanted.items():
            found.setdefault(tuple(sorted(advantages)), []).append(policy)
        ratios = [repr(key[0]) for key in self.policies.numbers]  # type: ignore[index]
        return [
            (list(advantages), sorted(policies, key=ratios.__getitem__))
            for advantages, policies in found.items()
        ]

    @cached_property
    def directs_by_policy(self) -> list[int]:
        """The numbers of the direct policy terms; those that differ in advantages alone adjoin."""
        policies = [repr(key[1]) for key in self.directs.numbers]  # type: ignore[index]
        return sorted(range(len(policies)), key=policies.__getitem__)

    @cached_property
    def _advantages(self) -> list[int]:
        return [advantage for advantage, _ in self.pairs]

    def advantage_of(self, policy: int) -> int:
        """The number under which the statistics are that a policy's advantages need."""
        return policy if policy >= DIRECT else self._advantages[policy]


# ---- conventions ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Grid:
    """A row and its changes, axis by axis; each combination of few changes is a convention.

    Attributes:
        plan: the row.
        axes: advantage, policy, KL and aggregation changes.
        policy, kl, weight: [A, P], [K, P], [W] the numbers of their options, −2 for one that cannot
            be evaluated; the number of a direct policy begins at ``DIRECT``.
        kl_weight, entropy, entropy_weight: the row's own; −1 for none.
        beta: [K] the row's own β.
        only_own_weight: whether no other aggregation is tried.
    """

    plan: Plan
    axes: tuple[Sequence[Change], ...]
    policy: Index
    kl: Index
    weight: Index
    kl_weight: int
    entropy: int
    entropy_weight: int
    beta: F64
    only_own_weight: bool

    def columns(self, number: int) -> dict[str, NDArray[np.generic]]:
        """Its conventions, as columns of ``Space``.

        Args:
            number: the grid's.
        """
        shape = tuple(len(axis) for axis in self.axes)
        count = _outer([np.array([one.count for one in axis], np.int8) for axis in self.axes])
        at = np.flatnonzero(count <= MOST_CHANGES)
        a, p, k, w = np.unravel_index(at, shape)
        fits = (self.policy[a, p] >= 0) & (self.kl[k, p] > _CANNOT) & (self.weight[w] >= 0)
        if self.only_own_weight:
            fits &= w == 0
        at, a, p, k, w = at[fits], a[fits], p[fits], k[fits], w[fits]
        of_a, of_p, of_k, of_w = (np.array([one.bits for one in axis]) for axis in self.axes)
        bits = of_a[a] + of_p[p] + of_k[k] + of_w[w]
        bits += np.where(count.ravel()[at] == MOST_CHANGES, 1.0, 0.0)
        return {
            "grid": np.full(len(at), number, np.int16),
            "at": at.astype(np.int32),
            "policy": self.policy[a, p],
            "kl": self.kl[k, p].astype(np.int16),
            "weight": self.weight[w].astype(np.int16),
            "beta": self.beta[k],
            "bits": bits,
        }


def _outer(counts: Sequence[NDArray[np.int8]]) -> NDArray[np.int8]:
    a, p, k, w = counts
    total: NDArray[np.int8] = (
        a[:, None, None, None] + p[None, :, None, None] + k[None, None, :, None] + w
    )
    return total


class Space:
    """All conventions.

    Attributes:
        options: what is evaluated.
        grids: where the conventions come from.
        reasons: what could not be tried, and why.
        same: a row's name → the names of all rows that are the same on these records.
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

    def __init__(
        self,
        options: Options,
        grids: Sequence[Grid],
        reasons: dict[str, str],
        same: dict[str, list[str]],
    ) -> None:
        self.options, self.grids, self.reasons, self.same = options, grids, reasons, same
        types: dict[str, np.dtype[np.generic]] = {}
        columns: dict[str, bytearray] = {}  # which grow in place: there may be a million
        for number, grid in enumerate(grids):
            for name, piece in grid.columns(number).items():
                types[name] = piece.dtype
                columns.setdefault(name, bytearray()).extend(piece.tobytes())
        for name, column in columns.items():
            setattr(self, name, np.frombuffer(column, types[name]))

    def own(self, chosen: slice) -> dict[str, Index]:
        """[n] each: entropy bonus, and aggregations, that conventions have of their row."""
        grids = self.grid[chosen]
        return {
            name: np.array([getattr(one, name) for one in self.grids], np.int16)[grids]
            for name in ("kl_weight", "entropy", "entropy_weight")
        }

    def plan(self, convention: int, *more: Change) -> Plan:
        """A convention's plan, checked."""
        grid = self.grids[self.grid[convention]]
        shape = tuple(len(axis) for axis in grid.axes)
        places = np.unravel_index(int(self.at[convention]), shape)
        changes = [axis[int(place)] for axis, place in zip(grid.axes, places, strict=True)]
        return checked(changed(grid.plan, *changes, *more))


def build(base: Plan, kinds: Kinds, betas: Sequence[float], depth: Depth) -> Space:
    """The conventions that are tried on records like that of ``kinds``.

    Raises:
        InputError: where no convention can be tried.
    """
    builder = Builder(base, kinds, betas, depth)
    grids = [grid for row in tried.rows(base) if builder.is_new(row) for grid in builder.grids(row)]
    if not grids:
        raise InputError(next(iter(builder.reasons.values()), "no convention can be tried"))
    return Space(builder.options, grids, builder.reasons, builder.same)


class Builder:
    """Makes the grids of one row after the other, and numbers the options that they need."""

    def __init__(self, base: Plan, kinds: Kinds, betas: Sequence[float], depth: Depth) -> None:
        self._kinds = kinds
        self._known = known = Known.of(base, kinds.record)
        self._depth = depth
        self._wide = depth is Depth.WIDE
        self.options = Options(solve=not known.beta and not betas)
        self.reasons: dict[str, str] = {}
        self.same: dict[str, list[str]] = {}
        self._rows: dict[Key, list[str]] = {}
        lengths = () if known.length else tried.LENGTHS
        rewards, given = kinds.record.batch.rewards is not None, kinds.record.advantages_given
        self._advantages = [NO_CHANGE, *tried.advantages(base, rewards=rewards, given=given)]
        quick = depth is Depth.QUICK
        self._pairs = [NO_CHANGE] if quick else [NO_CHANGE, *tried.pairs(base)]
        self._betas = [Change({}, {"beta": beta}) for beta in betas]
        self._kls = [one for kl in tried.kls(base) for one in self._with_betas(kl)]
        self._aggregates = [NO_CHANGE, *tried.aggregates(base, lengths)]
        self._lengths = [Change({}, {"max_completion_length": one}, 0, 3.0) for one in lengths]

    def is_new(self, row: Plan) -> bool:
        """Whether no earlier row is the same convention on these records."""
        try:
            objective = self._kinds.objective(row)
        except GrpoError:
            return True
        wanted = tuple((name, key(bound)) for name, bound in objective.stages.items())
        names = self._rows.setdefault(wanted, [])
        names.append(row.variant)
        self.same[row.variant] = names
        return len(names) == 1

    def grids(self, row: Plan) -> Iterator[Grid]:
        """A row with its own KL and with others; two grids where its KL is in the reward."""
        try:
            objective, kind = self._kinds.objective(row), self._kinds.of(row)
        except GrpoError as error:
            self.reasons.setdefault(row.variant, str(error))
            return
        own = [NO_CHANGE, *self._betas] if row.takes() & {"beta"} else [NO_CHANGE]
        pairs = self._pairs
        if not (objective.correction.choice.absent or kind.no_correction):
            pairs = [one for one in pairs if one.count <= 1 and one.bits <= 4.0]
        pairs = [*self._with_epsilons(row, pairs)]
        if not objective.kl_in_reward:
            yield self._grid(row, kind, (self._advantages, pairs, [*own, *self._kls]))
            return
        yield self._grid(row, kind, ([*self._penalised(kind)], pairs, own))
        if self._kls:
            row = changed(row, self._kls[0])
            yield self._grid(row, self._kinds.of(row), (self._advantages, pairs, self._kls))

    def _with_betas(self, kl: Change) -> Iterator[Change]:
        yield kl
        if kl.stages.get("kl") != "none":
            yield from (kl.and_(beta) for beta in self._betas)

    def _with_epsilons(self, row: Plan, pairs: Sequence[Change]) -> Iterator[Change]:
        yield from pairs
        if self._known.epsilon or not self._wide:
            return
        for pair in pairs:
            taken = changed(row, pair).takes() & {"epsilon_low", "epsilon_high"}
            for epsilon, bits in tried.EPSILONS.items() if taken else ():
                if pair.bits + bits <= _COSTLY:
                    yield pair.and_(Change({}, dict.fromkeys(sorted(taken), epsilon), 0, bits))

    def _penalised(self, kind: Kind) -> Iterator[Change]:
        """Advantages where the KL is in the reward: some with other β, if none is known."""
        yield from self._advantages
        if self._known.beta or not self._wide:
            return
        advantages = self._advantages[:4] if kind.per_response else [NO_CHANGE]
        for beta, bits in tried.BETAS.items():
            if bits <= 3.0 or beta in (0.002, 0.003, 0.03, 0.15, 0.2):
                yield from (one.and_(Change({}, {"beta": beta}, 0, bits)) for one in advantages)

    def _grid(
        self, row: Plan, kind: Kind, axes: tuple[list[Change], list[Change], list[Change]]
    ) -> Grid:
        advantages, pairs, kls = axes
        weights = self._aggregates
        if "max_completion_length" in row.takes():
            weights = [*weights, *self._lengths]
        objective, options = self._kinds.objective(row), self.options
        entropy = objective.entropy if objective.entropy_coef else None
        return Grid(
            plan=row,
            axes=(advantages, pairs, kls, weights),
            policy=self._policies(row, kind, advantages, pairs),
            kl=np.array([self._kls_of(row, one, pairs) for one in kls], np.int32),
            weight=np.array(self._numbers(weights, partial(self._weight, row)), np.int32),
            kl_weight=self._own_weight(row, "kl_aggregate"),
            entropy=_NONE if entropy is None else options.entropies.number(key(entropy), row),
            entropy_weight=self._own_weight(row, "entropy_aggregate"),
            beta=np.array([self._beta(row, one) for one in kls]),
            only_own_weight=not kind.all_tokens,
        )

    def _policies(
        self, row: Plan, kind: Kind, advantages: Sequence[Change], pairs: Sequence[Change]
    ) -> Index:
        """[A, P] numbers of pairs, or of direct policies; −2 for what is not tried."""
        found = np.full((len(advantages), len(pairs)), _CANNOT, np.int32)
        policies = self._numbers(pairs, partial(self._policy, row))
        for a, advantage in enumerate(advantages):
            (number,) = self._numbers([advantage], partial(self._advantage, row))
            for p, pair in enumerate(pairs):
                if advantage.count + pair.count > MOST_CHANGES:
                    continue
                if number >= 0 and policies[p] >= 0 and kind.all_tokens:
                    wanted = number, policies[p]
                    found[a, p] = self.options.pairs.setdefault(wanted, len(self.options.pairs))
                elif _CANNOT not in (number, policies[p]) and self._worth(kind, advantage, pair):
                    direct = partial(self._direct, row, advantage)
                    (found[a, p],) = self._numbers([pair], direct)
        return found

    def _worth(self, kind: Kind, advantage: Change, pair: Change) -> bool:
        """Whether a policy term is tried that has to be evaluated with its own advantages."""
        count, bits = advantage.count + pair.count, advantage.bits + pair.bits
        if self._depth is Depth.QUICK:
            return False
        if not kind.all_tokens:
            return count == 0
        return count <= 1 and bits <= _COSTLY if self._wide else bits == 0.0

    # ---- numbers of options ----------------------------------------------------------------------

    def _numbers(self, changes: Sequence[Change], number: Callable[[Change], int]) -> list[int]:
        """The number of each change's option; −2, and a reason, where it cannot be evaluated."""
        found = []
        for one in changes:
            try:
                found.append(number(one))
            except GrpoError as error:
                name = " ".join(one.stages.values()) or "the variant's own"
                self.reasons.setdefault(name, str(error))
                found.append(_CANNOT)
        return found

    def _advantage(self, row: Plan, one: Change) -> int:
        """The advantage's number; −1 where tokens have their own."""
        quick = self._depth is Depth.QUICK
        if quick and row.batch == "input" and changed(row, one).wants_moments:
            return _NONE
        objective = self._kinds.objective(row, one)
        if not self._kinds.of(row, one).per_response:
            return _NONE
        return self.options.advantages.number(advantage_key(objective), row, one)

    def _policy(self, row: Plan, one: Change) -> int:
        """The number of the policy term by sign; −1 where A enters in another way."""
        kind = self._kinds.of(row, one)
        if not (kind.by_sign and kind.all_tokens):
            return _NONE
        return self.options.policies.number(policy_key(self._kinds.objective(row, one)), row, one)

    def _direct(self, row: Plan, advantage: Change, pair: Change) -> int:
        """The number of a policy term with its advantages."""
        directs, objective = self.options.directs, self._kinds.objective
        wanted = advantage_key(objective(row, advantage)), policy_key(objective(row, pair))
        if wanted not in directs.numbers:
            by_token = self._kinds.by_token(row, advantage, pair)
            directs.number(wanted, row, advantage, pair, detail="by token" if by_token else "")
        return DIRECT + directs.numbers[wanted]

    def _kls_of(self, row: Plan, kl: Change, pairs: Sequence[Change]) -> list[int]:
        """[P] the KL's number with each policy term, whose ratio may weigh it."""
        (first,) = self._numbers([kl], partial(self._kl, row, []))
        if first < 0 or not self.options.kls.details[first]:
            return [first] * len(pairs)
        known: dict[str | None, int] = {None: first}
        for pair in pairs:
            ratio = pair.stages.get("ratio")
            if ratio is not None and ratio not in known:
                weighing = [Change({"ratio": ratio})]
                (known[ratio],) = self._numbers([kl], partial(self._kl, row, weighing))
        return [known[pair.stages.get("ratio")] for pair in pairs]

    def _kl(self, row: Plan, weighing: Sequence[Change], kl: Change) -> int:
        """The number of a KL in the loss; −1 where there is none."""
        objective = self._kinds.objective(row, kl, *weighing)
        bound = objective.kl
        estimated = estimates_kl(objective, self._kinds.columns)
        if not estimated or bound.choice.absent or bound.choice.in_reward:
            return _NONE
        weighted = "ratio" in bound.choice.columns and bound.values.get("kl_weight") != "none"
        ratio = key(objective.ratio) if weighted else None
        corrected = objective.correction.name.startswith("ms-swift/")
        correction = (correction_key(objective), advantage_key(objective)) if corrected else None
        wanted = key(bound, "beta" if self.options.solve else ""), ratio, correction
        detail = "weighted" if weighted else ""
        return self.options.kls.number(wanted, row, kl, *weighing, detail=detail)

    def _beta(self, row: Plan, kl: Change) -> float:
        """The β that a row has with a KL."""
        try:
            return self._kinds.objective(row, kl).beta
        except GrpoError:
            return 0.0

    def _weight(self, row: Plan, one: Change) -> int:
        """The number of an aggregation of all terms."""
        bound = changed(row, one).aggregate(self._kinds.record.settings)
        return self.options.weights.number(key(bound), row, one, detail="aggregate")

    def _own_weight(self, row: Plan, stage: str) -> int:
        """The number of an aggregation that a term has for itself; −1 where it has none."""
        bound = getattr(self._kinds.objective(row), stage)
        return (
            _NONE if bound is None else self.options.weights.number(key(bound), row, detail=stage)
        )
