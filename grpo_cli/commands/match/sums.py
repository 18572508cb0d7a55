"""What all conventions need of the data, added up chunk by chunk.

J = Σᵢ wᵢ·(Pᵢ − β·Kᵢ), with P and K sums over the tokens of response i and w its weight. A policy
term that is |A| times what it is for A = ±1 needs one look at the tokens, whatever the advantage.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.match.question import Data
from grpo_cli.commands.match.space.options import Key, Options
from grpo_cli.commands.match.terms import Terms, distinct
from grpo_cli.engine.chunk import Chunk

_NUMBERS = 1 << 21
"""Sums of responses that are in memory at a time."""


class Sums:
    """Over the input, for W aggregations, before the denominators that count.

    Attributes:
        policy: [pairs, W] Σ w·P; nan where it cannot be evaluated.
        size: [pairs, W] the magnitude that it is made of.
        kl: [K, W].
        entropy: [E, W].
        counted: [W] what the denominators count.
        records: how many.
        left_out: the corrections that took tokens out of a denominator, or of the KL.
        references: whether records have a reference; both where only some have.
    """

    def __init__(self, options: Options, data: Data) -> None:
        self._options, self._data = options, data
        self.policy, self.size, self.kl, self.entropy = np.zeros((4, 0, 0))
        self.left_out: set[Key] = set()
        self.references: set[bool] = set()

    def update(self) -> None:
        """Adds up the pairs, KLs and entropies that the options gained; all for new weights."""
        options = self._options
        self.counted = np.zeros(len(options.weights.plans))
        if self.policy.shape[1] < len(self.counted):
            self.policy, self.size, self.kl, self.entropy = np.zeros((4, 0, len(self.counted)))
        known = len(self.policy), len(self.kl), len(self.entropy)
        self.policy, self.size = (
            _extended(rows, len(options.pairs)) for rows in (self.policy, self.size)
        )
        self.kl = _extended(self.kl, len(options.kls.plans))
        self.entropy = _extended(self.entropy, len(options.entropies.plans))
        self.records = 0
        for chunk in self._data.chunks:
            self._add(chunk, *known)

    def _add(self, chunk: Chunk, pairs: int, kls: int, entropies: int) -> None:
        """Adds a chunk's records to the sums from these rows on."""
        with np.errstate(all="ignore"):
            terms = Terms(self._options, chunk, self._data)
            classes, member, divisors, counted = terms.weights()
            self.counted += counted
            self._add_policies(terms, pairs, classes, member, divisors)
            for into, rows in (
                (self.kl[kls:], _by_class(terms.kls(kls), classes)),
                (self.entropy[entropies:], _by_class(terms.entropies(entropies), classes)),
            ):
                into += rows[:, member] / divisors
        self.references.add(chunk.has_reference)
        self.records += chunk.batch.records.count
        self.left_out |= terms.left_out

    def _add_policies(
        self, terms: Terms, pairs: int, classes: F64, member: NDArray[np.int64], divisors: F64
    ) -> None:
        which, advantages = distinct(terms.advantages())
        gaining, losing = advantages > 0.0, advantages < 0.0
        most = max(_NUMBERS // max(terms.batch.responses.count, 1), 8)
        for chosen, policies in self._options.blocks(most, pairs):
            own, back = np.unique(which[chosen], return_inverse=True)
            needed = (np.asarray(side[own].any(axis=0)) for side in (gaining, losing))
            places, sides = terms.sides(policies, *needed)
            gains = _products(np.maximum(advantages[own], 0.0), sides[:, 0], classes)
            losses = _products(np.maximum(-advantages[own], 0.0), sides[:, -1], classes)
            numbers = [self._options.pairs[a, s] for a in chosen for s in policies]
            every = np.ix_(member, back, places)
            for into, found in (
                (self.policy, gains + losses),
                (self.size, np.abs(gains) + np.abs(losses)),
            ):
                into[numbers] += found[every].reshape(len(divisors), -1).T / divisors


def _extended(rows: F64, count: int) -> F64:
    """[count, W] the rows, and zeros."""
    return np.concatenate([rows, np.zeros((count - len(rows), rows.shape[1]))])


def _by_class(rows: Iterable[F64], classes: F64) -> F64:
    """[n, C] Σ w·row of rows [R] by the weights [C, R]."""
    return np.array([classes @ row for row in rows]).reshape(-1, len(classes))


def _products(advantages: F64, values: F64, classes: F64) -> F64:
    """[C, A, S] Σ |A|·s·w of [A, R], [S, R], [C, R]; nan where a term that counts is not finite."""
    broken = ~np.isfinite(values)
    wrong = np.flatnonzero(broken.any(axis=1))
    finite = np.where(broken, 0.0, values) if len(wrong) else values
    if len(finite) < len(advantages):  # the weights multiply whatever is less
        products = np.stack([advantages @ (finite * weights).T for weights in classes])
    else:
        products = np.stack([(advantages * weights) @ finite.T for weights in classes])
    for s in wrong:
        products[:, (advantages[:, broken[s]] > 0).any(axis=1), s] = np.nan
    return products
