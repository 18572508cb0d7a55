"""What all conventions need of the data, added up chunk by chunk: sums that merge.

J = Σᵢ wᵢ·(Pᵢ − β·Kᵢ), with P and K sums over the tokens of response i and w its weight. A policy
term that is |A| times what it is for A = ±1 needs one look at the tokens, whatever the advantage.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.match.features import Features
from grpo_cli.commands.match.space.options import DIRECT, Key, Options
from grpo_cli.commands.match.sums.distinct import distinct
from grpo_cli.commands.match.sums.vectors import Measured, Vectors
from grpo_cli.engine.chunk import Chunk
from grpo_cli.variants.plan import Plan


@dataclass
class Sums:
    """Over the input, for W aggregations, before the denominators that count.

    Attributes:
        policy: [pairs, W] Σ w·P; nan where it cannot be evaluated.
        size: [pairs, W] the magnitude that it is made of.
        direct: [D, W] the same of direct terms.
        kl: [K, W].
        entropy: [E, W].
        counted: [W] what the denominators count.
        records: how many.
        left_out: the corrections that took tokens out of a denominator, or of the KL.
        features: which of the probe's features the records have.
    """

    policy: F64
    size: F64
    direct: F64
    kl: F64
    entropy: F64
    counted: F64
    records: int = 0
    left_out: set[Key] = field(default_factory=set)
    features: Features = field(default_factory=Features)

    @classmethod
    def zero(cls, options: Options) -> Sums:
        """Of no record."""
        weights = len(options.weights.plans)
        policies = len(options.pairs), weights
        return cls(
            np.zeros(policies),
            np.zeros(policies),
            np.zeros((len(options.directs.plans), weights)),
            np.zeros((len(options.kls.plans), weights)),
            np.zeros((len(options.entropies.plans), weights)),
            np.zeros(weights),
        )

    def merge(self, other: Sums) -> None:
        """Adds other records."""
        for name in ("policy", "size", "direct", "kl", "entropy", "counted"):
            total: F64 = getattr(self, name)
            if total.flags.writeable:  # what came from another process is not
                total += getattr(other, name)
            else:
                setattr(self, name, total + getattr(other, name))
        self.records += other.records
        self.left_out |= other.left_out
        self.features.merge(other.features)


def add(sums: Sums, options: Options, chunk: Chunk, measured: Measured) -> None:
    """Adds a chunk's records."""
    with np.errstate(all="ignore"):
        work = Vectors(options, chunk, measured)
        classes, member, divisors, counted = work.weights()
        sums.counted += counted
        _add_policies(sums, options, work, classes, member, divisors)
        for into, found in (
            (sums.direct, work.directs(classes)),
            (sums.kl, _by_class(work.kls(), classes)),
            (sums.entropy, _by_class(work.entropies(), classes)),
        ):
            into += found[:, member] / divisors
        sums.features.add(chunk.batch)
    sums.records += chunk.batch.records.count
    sums.left_out |= work.left_out


def _by_class(rows: Iterable[F64], classes: F64) -> F64:
    """[n, C] Σ w·row of rows [R] by the weights [C, R]."""
    return np.array([classes @ row for row in rows]).reshape(-1, len(classes))


def _add_policies(
    sums: Sums,
    options: Options,
    work: Vectors,
    classes: F64,
    member: NDArray[np.int64],
    divisors: F64,
) -> None:
    which, advantages = distinct(work.advantages())
    gaining, losing = advantages > 0.0, advantages < 0.0
    for chosen, policies in options.asked_together:
        own, back = np.unique(which[chosen], return_inverse=True)
        sides = (np.asarray(side[own].any(axis=0)) for side in (gaining, losing))
        places, gain, loss = work.sides(policies, *sides)
        signed = advantages[own]
        gains = _products(np.maximum(signed, 0.0), gain, classes)
        np.maximum(np.negative(signed, out=signed), 0.0, out=signed)
        losses = _products(signed, loss, classes)
        numbers = [options.pairs[a, s] for a in chosen for s in policies]
        every = np.ix_(member, back, places)
        sums.policy[numbers] += _by_pair((gains + losses)[every], divisors)
        sums.size[numbers] += _by_pair((np.abs(gains) + np.abs(losses))[every], divisors)


def _by_pair(values: F64, divisors: F64) -> F64:
    """[A·S, W] of [W, A, S]."""
    found: F64 = values.reshape(len(divisors), -1).T / divisors
    return found


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


@dataclass
class FirstPass:
    """The statistics of the whole input that some options need."""

    plans: dict[int, Plan] = field(default_factory=dict)

    @classmethod
    def of(cls, options: Options) -> FirstPass:
        """The options whose advantage measures the input."""
        plans = dict(enumerate(options.advantages.plans))
        plans |= {DIRECT + at: plan for at, plan in enumerate(options.directs.plans)}
        wanted = {at: plan for at, plan in plans.items() if plan.batch == "input"}
        return cls({at: plan for at, plan in wanted.items() if plan.wants_moments})
