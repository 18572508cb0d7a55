"""The parts of the space: each row with the numbers of its options and of its changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from grpo_cli.commands.match.space import changes as space
from grpo_cli.commands.match.space.changes import OWN, Change
from grpo_cli.commands.match.space.conventions import Index, Part
from grpo_cli.commands.match.space.known import Depth, Known
from grpo_cli.commands.match.space.natures import Nature, Natures
from grpo_cli.commands.match.space.numbers import Numbers, making
from grpo_cli.commands.match.space.options import Options, key
from grpo_cli.errors import GrpoError
from grpo_cli.variants.plan import Plan

MOST_CHANGES = 2


_DEAREST = 9.0
"""Bits beyond which ε is not searched beside other changes."""


class Builder:
    """Numbers the options of one row after the other."""

    def __init__(
        self, base: Plan, natures: Natures, known: Known, betas: Sequence[float], depth: Depth
    ) -> None:
        self._known = known
        self._depth = depth
        self._wide = depth is Depth.WIDE
        self.options = Options(solve=not known.beta and not betas)
        self.numbers = Numbers(natures, self.options)
        lengths = () if known.length else space.LENGTHS
        rewards, given = natures.alone.batch.rewards is not None, natures.alone.advantages_given
        self._advantages = [OWN, *space.advantages(base, rewards=rewards, given=given)]
        pairs = [OWN, *space.pairs(base)]
        self._pairs = [OWN] if depth is Depth.QUICK else pairs
        self._kls = [*space.kls(base)]
        self._aggregates = [OWN, *space.aggregates(base, lengths)]
        self._betas = [Change({}, {"beta": beta}) for beta in betas]
        self._lengths = lengths
        self._rows: dict[object, list[str]] = {}
        self.same: dict[str, list[str]] = {}

    def is_new(self, row: Plan) -> bool:
        """Whether no row before it is the same convention on these records."""
        try:
            objective = self.numbers.natures.objective(row)
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
            objective = self.numbers.natures.objective(row)
            nature = self.numbers.natures.of(row)
        except GrpoError as error:
            self.numbers.reasons.setdefault(row.variant, str(error))
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
                yield from self._part(
                    bare, self.numbers.natures.of(bare), self._advantages, pairs, others
                )
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
            for epsilon, bits in space.EPSILONS.items() if taken else ():
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
        objective = self.numbers.natures.objective(row)
        kl = np.array([self.numbers.kls(row, one, pairs) for one in kls], np.int32)
        yield Part(
            plan=row,
            axes=(advantages, pairs, kls, weights),
            policy=self._policies(row, nature, advantages, pairs),
            kl=kl,
            weight=np.array([self.numbers.weight(row, one) for one in weights], np.int32),
            kl_weight=self.options.weight(objective, "kl_aggregate", making(row)),
            entropy=self.options.entropy(objective, making(row)),
            entropy_weight=self.options.weight(objective, "entropy_aggregate", making(row)),
            beta=np.array([self.numbers.beta(row, one) for one in kls]),
            only_own_weight=not nature.shared,
        )

    def _policies(
        self, row: Plan, nature: Nature, advantages: Sequence[Change], pairs: Sequence[Change]
    ) -> Index:
        """[A, P] numbers of pairs, or of direct policies; −2 for what is not tried."""
        found = np.full((len(advantages), len(pairs)), -2, np.int32)
        columns = [self.numbers.pair(row, one) for one in pairs]
        for a, advantage in enumerate(advantages):
            number = self.numbers.advantage(row, advantage, quick=self._depth is Depth.QUICK)
            for p, pair in enumerate(pairs):
                if advantage.count + pair.count > MOST_CHANGES:
                    continue
                if number >= 0 and columns[p] >= 0 and nature.shared:
                    found[a, p] = self.options.pair(number, columns[p])
                elif -2 not in (number, columns[p]) and self._worth(nature, advantage, pair):
                    found[a, p] = self.numbers.direct(row, advantage, pair)
        return found

    def _worth(self, nature: Nature, advantage: Change, pair: Change) -> bool:
        """Whether a policy term is evaluated that has to be for itself alone: few are."""
        count, bits = advantage.count + pair.count, advantage.bits + pair.bits
        if self._depth is Depth.QUICK:
            return False
        if not nature.shared:
            return count == 0
        return count <= 1 and bits <= _DEAREST if self._wide else bits == 0.0
