"""The conventions as flat arrays: which options each is made of, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.match import space
from grpo_cli.commands.match.options import DIRECT, Nature, Natures, Options, key
from grpo_cli.commands.match.space import OWN, Change
from grpo_cli.engine.chunk import Chunk
from grpo_cli.errors import GrpoError
from grpo_cli.variants.plan import Plan

Index = NDArray[np.int32]
_MOST_CHANGES = 2
_DEAREST = 9.0
"""Bits beyond which ε is not searched beside other changes."""


@dataclass(frozen=True)
class Known:
    """What the flags or the records say, so that it is not searched."""

    epsilon: bool
    beta: bool
    length: bool

    @classmethod
    def of(cls, base: Plan, chunk: Chunk) -> Known:
        """Told from the flags and the first records."""
        given = {*base.flags, *chunk.settings}
        epsilon = bool(given & {"epsilon_low", "epsilon_high"})
        return cls(epsilon, "beta" in given, "max_completion_length" in given)


@dataclass(frozen=True)
class Part:
    """A row and its changes, axis by axis; every combination of few changes is a convention.

    Attributes:
        plan: the row.
        axes: advantage, policy, KL and aggregation changes; the numbers of their options are in
            ``policy`` [A, P], ``kl`` [K, P], ``weight`` [W], −2 for what cannot be evaluated.
            A policy's number from ``DIRECT`` on is that of a direct one.
        kl_weight, entropy, entropy_weight: the row's own; −1 for none.
        beta: [K] the row's own β.
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
    only_own_weight: bool = False


@dataclass
class Space:
    """All conventions.

    Attributes:
        options: what is evaluated.
        parts: where they come from.
        part, at: [C] which part, and which combination of it (flat over its four axes).
        policy, kl, weight, kl_weight, entropy, entropy_weight: [C] numbers of options.
        beta: [C] the row's own β.
        bits: [C] what each costs.
        reasons: what could not be tried, and why.
        same: a row's name → those of the rows that are the same on these records.
    """

    options: Options
    parts: list[Part] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    same: dict[str, list[str]] = field(default_factory=dict)
    part: Index = field(default_factory=lambda: np.zeros(0, np.int32))
    at: Index = field(default_factory=lambda: np.zeros(0, np.int32))
    columns: dict[str, Index] = field(default_factory=dict)
    beta: F64 = field(default_factory=lambda: np.zeros(0))
    bits: F64 = field(default_factory=lambda: np.zeros(0))

    def changes(self, convention: int) -> list[Change]:
        """What a convention changes in its row."""
        part = self.parts[self.part[convention]]
        shape = tuple(len(axis) for axis in part.axes)
        places = np.unravel_index(int(self.at[convention]), shape)
        return [axis[int(place)] for axis, place in zip(part.axes, places, strict=True)]

    def plan(self, convention: int, *more: Change) -> Plan:
        """A convention's plan, checked."""
        row = self.parts[self.part[convention]].plan
        return space.checked(space.changed(row, *self.changes(convention), *more))


def build(base: Plan, chunk: Chunk, betas: Sequence[float], *, wide: bool) -> Space:
    """The space for records like these; ``wide`` searches ε, and β in the reward, as well."""
    known = Known.of(base, chunk)
    builder = _Builder(base, chunk, known, betas, wide=wide)
    made = Space(builder.options, reasons=builder.reasons)
    for row in space.rows(base):
        if builder.is_new(row):
            made.parts += builder.parts(row)
    made.same = builder.same
    _flatten(made)
    return made


class _Builder:
    """Numbers the options of one row after the other."""

    def __init__(
        self, base: Plan, chunk: Chunk, known: Known, betas: Sequence[float], *, wide: bool
    ) -> None:
        self._natures = Natures(chunk.first)
        self._known = known
        self._wide = wide
        self.options = Options(solve=not known.beta and not betas)
        self.reasons: dict[str, str] = {}
        lengths = () if known.length else space.LENGTHS
        rewards = chunk.batch.rewards is not None
        self._advantages = [
            OWN,
            *space.advantages(base, rewards=rewards, given=chunk.advantages_given),
        ]
        self._pairs = [OWN, *space.pairs(base)]
        self._kls = [*space.kls(base)]
        self._aggregates = [OWN, *space.aggregates(base, lengths)]
        self._betas = [Change({}, {"beta": beta}) for beta in betas]
        self._lengths = lengths
        self._rows: dict[object, list[str]] = {}
        self.same: dict[str, list[str]] = {}

    def is_new(self, row: Plan) -> bool:
        """Whether no row before it is the same convention on these records."""
        try:
            objective = self._natures.objective(row)
        except GrpoError:
            return True
        wanted = tuple((name, key(bound)) for name, bound in objective.stages.items())
        names = self._rows.setdefault(wanted, [])
        names.append(row.variant)
        self.same[row.variant] = names
        return len(names) == 1

    def parts(self, row: Plan) -> Iterator[Part]:
        """A row with its own KL, then with others; that matters where its KL is in the reward."""
        try:
            objective = self._natures.objective(row)
            nature = self._natures.of(row)
        except GrpoError as error:
            self.reasons.setdefault(row.variant, str(error))
            return
        own = [OWN, *self._betas] if row.takes() & {"beta"} else [OWN]
        corrected = not objective.correction.choice.absent and not nature.idle
        few = [one for one in self._pairs if one.count <= 1 and one.bits <= 4.0]
        pairs = [*self._with_epsilons(row, few if corrected else self._pairs)]
        if objective.kl_in_reward:
            scored = [*self._scored(nature)]
            yield from self._part(row, nature, scored, pairs, own)
            others = [one for kl in self._kls for one in self._with_betas(kl)]
            if others:
                bare = space.changed(row, others[0])
                yield from self._part(bare, self._natures.of(bare), self._advantages, pairs, others)
        else:
            others = [one for kl in self._kls for one in self._with_betas(kl)]
            yield from self._part(row, nature, self._advantages, pairs, [*own, *others])

    def _with_betas(self, kl: Change) -> Iterator[Change]:
        yield kl
        if kl.stages.get("kl") != "none":
            yield from (kl.and_(beta) for beta in self._betas)

    def _with_epsilons(self, row: Plan, pairs: Sequence[Change]) -> Iterator[Change]:
        yield from pairs
        if self._known.epsilon or not self._wide:
            return
        for pair in pairs:
            taken = space.changed(row, pair).takes() & {"epsilon_low", "epsilon_high"}
            for epsilon in space.EPSILONS if taken else ():
                bits = 1.0 if epsilon == 0.2 else 4.0
                if pair.bits + bits <= _DEAREST:
                    yield pair.and_(Change({}, dict.fromkeys(sorted(taken), epsilon), 0, bits))

    def _scored(self, nature: Nature) -> Iterator[Change]:
        """Advantages where the KL is in the reward: each with a few β, where none is known."""
        yield from self._advantages
        if self._known.beta or not self._wide:
            return
        few = self._advantages[:4] if nature.per_response else [OWN]
        for beta, bits in space.BETAS.items():
            if bits <= 3.0 or beta in (0.002, 0.003, 0.03, 0.15, 0.2):
                yield from (one.and_(Change({}, {"beta": beta}, 0, bits)) for one in few)

    def _part(
        self,
        row: Plan,
        nature: Nature,
        advantages: Sequence[Change],
        pairs: Sequence[Change],
        kls: Sequence[Change],
    ) -> Iterator[Part]:
        weights = [*self._aggregates]
        if self._lengths and "max_completion_length" in row.takes():
            flags = [{"max_completion_length": one} for one in self._lengths]
            weights += [Change({}, {**one}, 0, 3.0) for one in flags]
        objective = self._natures.objective(row)
        kl = np.array([self._kl_row(row, one, pairs) for one in kls], np.int32)
        yield Part(
            plan=row,
            axes=(advantages, pairs, kls, weights),
            policy=self._policies(row, nature, advantages, pairs),
            kl=kl,
            weight=np.array([self._weight(row, one) for one in weights], np.int32),
            kl_weight=self.options.weight(objective, "kl_aggregate", row),
            entropy=self.options.entropy(objective, row),
            entropy_weight=self.options.weight(objective, "entropy_aggregate", row),
            beta=np.array([self._beta(row, one) for one in kls]),
            only_own_weight=not nature.shared,
        )

    def _policies(
        self, row: Plan, nature: Nature, advantages: Sequence[Change], pairs: Sequence[Change]
    ) -> Index:
        """[A, P] numbers of pairs, or of direct policies; −2 for what is not tried."""
        found = np.full((len(advantages), len(pairs)), -2, np.int32)
        columns = [self._pair(row, one) for one in pairs]
        for a, advantage in enumerate(advantages):
            number = self._advantage(row, advantage)
            for p, pair in enumerate(pairs):
                if advantage.count + pair.count > _MOST_CHANGES:
                    continue
                if number >= 0 and columns[p] >= 0 and nature.shared:
                    found[a, p] = self.options.pair(number, columns[p])
                elif -2 not in (number, columns[p]) and self._worth(nature, advantage, pair):
                    found[a, p] = self._direct(row, advantage, pair)
        return found

    def _worth(self, nature: Nature, advantage: Change, pair: Change) -> bool:
        """Whether a policy term is evaluated that has to be for itself alone: few are."""
        count, bits = advantage.count + pair.count, advantage.bits + pair.bits
        if not nature.shared:
            return count == 0
        return count <= 1 and bits <= _DEAREST if self._wide else bits == 0.0

    def _advantage(self, row: Plan, one: Change) -> int:
        plan = space.changed(row, one)

        def number() -> int:
            objective = self._natures.objective(plan)
            per_response = self._natures.of(plan).per_response
            return self.options.advantage(objective, plan) if per_response else -1

        return self._tried(number, one)

    def _pair(self, row: Plan, one: Change) -> int:
        plan = space.changed(row, one)

        def number() -> int:
            kind = self._natures.of(plan)
            objective = self._natures.objective(plan)
            return self.options.policy(objective, plan) if kind.by_sign and kind.shared else -1

        return self._tried(number, one)

    def _direct(self, row: Plan, advantage: Change, pair: Change) -> int:
        plan = space.changed(row, advantage, pair)

        def number() -> int:
            return DIRECT + self.options.direct(self._natures.objective(plan), plan)

        return self._tried(number, pair)

    def _kl_row(self, row: Plan, kl: Change, pairs: Sequence[Change]) -> list[int]:
        """[P] the KL's number beside each policy term; a ratio may weigh it."""
        first = self._kl(row, kl, OWN)
        if first < 0 or not self.options.weighs(first):
            return [first] * len(pairs)
        known: dict[str | None, int] = {None: first}
        for pair in pairs:
            ratio = pair.stages.get("ratio")
            if ratio not in known:
                known[ratio] = self._kl(row, kl, Change({"ratio": ratio} if ratio else {}))
        return [known[pair.stages.get("ratio")] for pair in pairs]

    def _kl(self, row: Plan, kl: Change, pair: Change) -> int:
        plan = space.changed(row, kl, pair)
        return self._tried(lambda: self.options.kl(self._natures.objective(plan), plan), kl)

    def _beta(self, row: Plan, kl: Change) -> float:
        plan = space.changed(row, kl)
        try:
            return self._natures.objective(plan).beta
        except GrpoError:
            return 0.0

    def _weight(self, row: Plan, one: Change) -> int:
        plan = space.changed(row, one)
        return self._tried(
            lambda: self.options.weight(self._natures.objective(plan), "aggregate", plan), one
        )

    def _tried(self, number, one: Change) -> int:  # type: ignore[no-untyped-def]
        try:
            return int(number())
        except GrpoError as error:
            name = " ".join(one.stages.values()) or "the variant's own"
            self.reasons.setdefault(name, str(error))
            return -2


def _flatten(made: Space) -> None:
    """The conventions of all parts side by side."""
    pieces = [_combined(number, part) for number, part in enumerate(made.parts)]
    if not pieces:
        return
    names = pieces[0].keys()
    merged = {name: np.concatenate([piece[name] for piece in pieces]) for name in names}
    made.part, made.at = merged.pop("part"), merged.pop("at")
    made.beta, made.bits = merged.pop("beta"), merged.pop("bits")
    made.columns = merged


def _combined(number: int, part: Part) -> dict[str, NDArray[np.int32]]:
    shape = tuple(len(axis) for axis in part.axes)
    counts = [np.array([one.count for one in axis], np.int8) for axis in part.axes]
    bits = [np.array([one.bits for one in axis]) for axis in part.axes]
    total = _outer(counts)
    at = np.flatnonzero(total <= _MOST_CHANGES)
    a, p, k, w = np.unravel_index(at, shape)
    policy, kl, weight = part.policy[a, p], part.kl[k, p], part.weight[w]
    fits = (policy >= 0) & (kl > -2) & (weight >= 0)
    if part.only_own_weight:
        fits &= w == 0
    at, a, p, k, w = at[fits], a[fits], p[fits], k[fits], w[fits]
    policy, kl, weight = policy[fits], kl[fits], weight[fits]
    cost = bits[0][a] + bits[1][p] + bits[2][k] + bits[3][w]
    cost += np.where(total.ravel()[at] == _MOST_CHANGES, 1.0, 0.0)

    def same(value: int) -> NDArray[np.int32]:
        return np.full(len(at), value, np.int32)

    return {
        "part": same(number),
        "at": at.astype(np.int32),
        "policy": policy,
        "kl": kl,
        "weight": weight,
        "kl_weight": weight if part.kl_weight < 0 else same(part.kl_weight),
        "entropy": same(part.entropy),
        "entropy_weight": weight if part.entropy_weight < 0 else same(part.entropy_weight),
        "beta": part.beta[k],
        "bits": cost,
    }


def _outer(counts: Sequence[NDArray[np.int8]]) -> NDArray[np.int8]:
    a, p, k, w = counts
    total: NDArray[np.int8] = (
        a[:, None, None, None] + p[None, :, None, None] + k[None, None, :, None] + w
    )
    return total
