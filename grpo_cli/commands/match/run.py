"""One space asked about several numbers: what survives them all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.match import dropping
from grpo_cli.commands.match.candidate import Candidate, Families
from grpo_cli.commands.match.chance import Chance
from grpo_cli.commands.match.fit import Factor, Hits, Values, grid_bits, hits, rough_bits
from grpo_cli.commands.match.question import Question
from grpo_cli.commands.match.space.changes import Change
from grpo_cli.commands.match.space.conventions import Index, Space
from grpo_cli.commands.match.space.options import DIRECT
from grpo_cli.commands.match.sums.exact import Exactly, Likely
from grpo_cli.commands.match.sums.passes import add_up, measure
from grpo_cli.commands.match.sums.scan import Scan, every, scan
from grpo_cli.commands.match.sums.vectors import Measured
from grpo_cli.commands.match.typed import Typed
from grpo_cli.errors import InputError

MOST = 30
_NAMES = 6
_ASKED = 400
NEAREST = 5
_PLAIN = 8.0
_TOGETHER = 1 << 16
"""Hits at a time: what is made on the way takes little memory."""


class Run:
    """One space asked about several numbers: what survives them all.

    Attributes:
        space: what is asked about.
        factors: what a loss may have been multiplied by.
        measured: the statistics of each number's records.
        likely: the exact totals on them of what is likely, by what the plan is.
        has: the probe's features that the records of any number have.
        every: [C] what each convention gives there.
    """

    every: F64

    def __init__(self, space: Space, factors: Sequence[Factor], batch: str) -> None:
        self.space = space
        self.factors = factors
        self._batch = batch
        self._keys: NDArray[np.int64] | None = None
        self._chances: list[Chance] = []
        self._advantages = [advantage for advantage, _ in space.options.pairs]
        self.measured: list[Measured] = []
        self.likely: list[Likely] = []
        self.has: set[str] = set()

    def ask(self, question: Question, likely: Exactly) -> None:
        """Keeps what gives this number too; what is likely gets its exact totals on the way."""
        measured = measure(self.space.options, question.data)
        self.measured.append(measured)
        sums, totals = add_up(self.space.options, measured, question.data, likely)
        self.likely.append({one.words: totals[at] for at, one in enumerate(likely.evaluators)})
        if not sums.records:
            raise InputError("no record can be read")
        self.has |= sums.features.names
        sign = -1.0 if question.target.name == "loss" else 1.0
        policy, kl = every(self.space, sums, self._batch, sign)
        dropping.evaluate(self.space, sums, question, measured, (policy, kl))
        self._scan = scan(self.space, sums, self._batch, policy, kl)
        kl *= self.space.beta
        policy -= kl
        self.every = policy
        self._question = question
        self._first = question.first
        found = hits(self._scan.values, self.factors, question.target)
        self._chances.append(Chance(self._scan.values, self.factors, question.target))
        keys = _expanded(found, self._scan)
        self._keys = keys if self._keys is None else np.intersect1d(self._keys, keys)

    @property
    def tried(self) -> int:
        """Conventions that could be evaluated."""
        return self._scan.tried

    def chance(self, bits: float, room: float) -> float:
        """Conventions of so many bits or fewer that hit all the numbers by chance.

        Args:
            bits: those of the dearest.
            room: how far off the last number they may be, where its digits allow less.
        """
        *before, last = self._chances
        result = last.below(bits, room)
        for one in before:
            result *= min(one.below(bits) / max(one.tried, 1.0), 1.0)
        return result

    def matches(self) -> Iterator[Candidate]:
        """The likeliest first; those that are one convention once."""
        assert self._keys is not None
        keys = _split(self._keys)
        value = np.empty(int(self._scan.order.max(initial=0)) + 1, np.int32)
        value[self._scan.order] = np.repeat(
            np.arange(len(self._scan.values.bits), dtype=np.int32), np.diff(self._scan.starts)
        )
        value = value[keys[0]]
        group = _numbered((value.astype(np.int64) << 2 * _BITS) + self._below_convention())
        bits = self._costs(value, keys)
        share = -bits
        weight = np.bincount(group, weights=np.power(2.0, share, out=share))
        del share
        place = np.empty(len(weight), np.int32)
        place[np.argsort(-weight, kind="stable")] = np.arange(len(weight), dtype=np.int32)
        order = np.lexsort((bits, place[group]))  # what is equal stays as it was tried
        yield from self._listed(order, group, keys, bits, value)

    def _below_convention(self) -> NDArray[np.int64]:
        assert self._keys is not None
        return self._keys & ((1 << 2 * _BITS) - 1)

    def _costs(self, value: Index, keys: Sequence[Index]) -> F64:
        """Their bits."""
        of_factor, of_beta = np.array([one.bits for one in self.factors]), grid_bits()
        bits = np.empty(len(value))
        for start in range(0, len(value), _TOGETHER):
            part = slice(start, start + _TOGETHER)
            convention, factor, beta = (one[part] for one in keys)
            off, size = self._off(value[part], factor, beta)
            own = self.space.bits[convention] + of_factor[factor] + of_beta[beta]
            bits[part] = own + rough_bits(off, self._question.target.half, size)
        return bits

    def _off(self, value: Index, factor: Index, beta: Index) -> tuple[F64, F64]:
        """How far off the last number they are, and of what magnitude they are made."""
        own, target = self._scan.values, self._question.target
        times = np.array([one.times for one in self.factors])[factor]
        used = np.where(beta == 0, own.beta[value], _betas()[beta])
        off = np.abs(times * (own.policy[value] - used * own.kl[value]) - target.value)
        return off, np.abs(times) * own.size[value]

    def _listed(  # type: ignore[no-untyped-def]
        self, order, group, keys, bits, value
    ) -> Iterator[Candidate]:
        families = Families(self._first, self.space.same)
        names: dict[int, int] = {}
        listed = 0
        for at in order[: _ASKED * _NAMES].tolist():
            names[int(group[at])] = names.get(int(group[at]), 0) + 1
            if names[int(group[at])] > (_NAMES if listed < MOST // 3 else 1):
                continue
            one = self._candidate(*(int(part[at]) for part in keys))
            off, size = self._off(*(part[at : at + 1] for part in (value, *keys[1:])))
            one.bits, one.size = float(bits[at]), float(size[0])
            if families.add(one):
                one.chance = self.chance(one.bits, float(off[0]))
                listed += 1
                yield one
            if listed >= MOST:
                return

    def _candidate(self, convention: int, factor: int, beta: int = 0) -> Candidate:
        more = [Change({}, {"beta": float(_betas()[beta])})] if beta else []
        plan = self.space.plan(convention, *more)
        number = int(self.space.columns["policy"][convention])
        measured = number if number >= DIRECT else self._advantages[number]
        return Candidate(plan, self.factors[factor], measured=measured)

    def released(self) -> dict[str, int]:
        """The rows as they stand and the convention of each, nearest to the number first."""
        bare = np.flatnonzero((self.space.at == 0) & np.isfinite(self.every))
        off = np.abs(self.every[bare] - self._question.target.value)
        found: dict[str, int] = {}
        for convention in bare[np.argsort(off, kind="stable")].tolist():
            row = self.space.parts[self.space.part[convention]].plan.variant
            found.setdefault(row, convention)
        return found

    def as_released(self, convention: int, names: Iterable[str]) -> Candidate:
        """A row as it stands, under its names."""
        one = self._candidate(convention, 0)
        one.rows = list(names)
        return one

    def nearest(self) -> list[Candidate]:
        """The plain conventions that come nearest, and what would make them fit."""
        values, target = self._scan.values, self._question.target
        own = values.policy - values.beta * values.kl
        off = np.where(values.bits <= _PLAIN, np.abs(own - target.value), np.inf)
        found: list[Candidate] = []
        families = Families(self._first, self.space.same)
        for at in np.argsort(off, kind="stable")[: 4 * NEAREST].tolist():
            if not np.isfinite(off[at]) or len(found) == NEAREST:
                break
            one = self._candidate(self._scan.names(at)[0], 0)
            one.bits, one.chance = float(values.bits[at]), float("nan")
            one.needs = _needs(values, at, float(own[at]), target)
            if families.add(one):
                found.append(one)
        return found


def _needs(values: Values, at: int, own: float, target: Typed) -> dict[str, float]:
    """What would have to be true: a factor, or another β."""
    needs = {"factor": target.value / own} if own else {}
    if values.kl[at]:
        needs["beta"] = float((values.policy[at] - target.value) / values.kl[at])
    return needs


def _numbered(values: NDArray[np.int64]) -> Index:
    """The place of each value among the distinct ones, in order.

    As ``np.unique`` has it, in half the memory: there may be millions.
    """
    order = np.argsort(values)
    values = values[order]
    place = np.zeros(len(values), np.int32)
    np.cumsum(values[1:] != values[:-1], out=place[1:])
    numbers = np.empty(len(values), np.int32)
    numbers[order] = place
    return numbers


def _expanded(found: Hits, scanned: Scan) -> NDArray[np.int64]:
    """Every convention, factor and β that fits, as one sorted number each."""
    starts, ends = scanned.starts[found.convention], scanned.starts[found.convention + 1]
    counts = ends - starts
    place = np.searchsorted(_betas()[1:], found.beta) + 1
    beta = np.where(np.isnan(found.beta), 0, place)
    at = np.repeat((starts - (np.cumsum(counts) - counts)).astype(np.int32), counts)
    at += np.arange(len(at), dtype=np.int32)
    keys = scanned.order[at].astype(np.int64)
    del at  # there may be millions
    keys <<= 2 * _BITS
    keys += np.repeat(((found.factor << _BITS) + beta).astype(np.int32), counts)
    keys.sort()
    return keys


_BITS = 7
"""Of a factor's number, and of a β's."""


def _split(keys: NDArray[np.int64]) -> tuple[Index, ...]:
    mask = (1 << _BITS) - 1
    factor, beta = (keys >> _BITS) & mask, keys & mask
    convention = (keys >> 2 * _BITS).astype(np.int32)
    return convention, factor.astype(np.int16), beta.astype(np.int16)


def _betas() -> NDArray[np.float64]:
    """What a β's number stands for; 0 for the row's own."""
    from grpo_cli.commands.match.space.changes import BETAS

    return np.array([np.nan, *sorted(BETAS)])
