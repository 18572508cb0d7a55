"""One space asked about several numbers: which conventions give them all."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.match.answer import OtherNumber, Requirement
from grpo_cli.commands.match.fit import (
    ACCUMULATED,
    GRID,
    GRID_BITS,
    WINDOW,
    Chance,
    Factor,
    Scan,
    evaluate_space,
    hits,
    rough_bits,
    scan,
)
from grpo_cli.commands.match.question import FLOAT32, Question
from grpo_cli.commands.match.space.changes import LENGTH, Change, changed
from grpo_cli.commands.match.space.space import Index, Space
from grpo_cli.commands.match.sums import Sums
from grpo_cli.engine import probe
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.totals import Totals
from grpo_cli.errors import InputError
from grpo_cli.objective.objective import Objective
from grpo_cli.variants import VARIANTS
from grpo_cli.variants.plan import Plan

MOST = 30
NEAREST = 5
RARE = 0.01
"""Hits by chance below which a convention is named: well below 1."""
MANY = 0.05
"""Hits by chance from which on a hit says nothing; of 95 made-up numbers of one to three digits
none was hit below it, and 9 below 0.3."""
_NAMES = 12
"""Changed conventions of one value that are compared on the probe; unmodified rows all are."""
_CANDIDATES = 200
ALIKE = 2.0
"""Conventions within so many bits are equally simple: of these the nearest is named first."""
_PLAIN = 8.0
"""Bits of the nearest, at most."""
_TOGETHER = 1 << 16
"""Hits at a time, so that intermediate arrays take little memory."""
REFERENCE = "log_probs_ref"
_MIXED = "only some records have it, so conventions with a KL to the reference were not tried"
_BITS = 7
"""Of a factor's number, and of a β's, in a hit's key."""


@dataclass(eq=False)
class Candidate:
    """A convention and its number on the data.

    Attributes:
        plan: evaluates it.
        factor: what its loss (or objective) is multiplied by.
        bits: what it costs; of its cheapest name.
        size: the magnitude that its number is made of.
        chance: conventions of no more bits that hit such a number by chance.
        rows: the variants that are this convention.
        also: rows that are with hyperparameters or a factor, and the names of each row.
        value: its number; exact once it was evaluated.
        difference: ``value`` less the target.
        totals: its totals, once it was evaluated.
        number: its place in the space, of one that only comes near; ``needs``: what would make it
            give the number.
    """

    plan: Plan
    factor: Factor
    bits: float = 0.0
    size: float = 0.0
    chance: float = math.nan
    rows: list[str] = field(default_factory=list)
    also: list[tuple[Plan, Factor, Sequence[str]]] = field(default_factory=list)
    value: float = math.nan
    difference: float = math.nan
    totals: Totals | None = None
    number: int = -1
    needs: Requirement | None = None

    @property
    def times(self) -> float:
        """The factor's value."""
        return self.factor.times

    def as_row(self, row: str) -> Candidate:
        """The same by another of its rows, with the eps of that one's std."""
        return replace(self, plan=replace(self.plan, variant=row, row=VARIANTS[row]))


class Probes:
    """What conventions give on probes, each computed once."""

    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk
        self._known: dict[object, probe.Valued] = {}

    def valued(self, plan: Plan, *, fixed_eps: bool = False) -> probe.Valued:
        """A convention; with a fixed eps in its std, so that any other is the same."""
        objective = self.chunk.objective(plan)
        objective = without_eps(objective) if fixed_eps else objective
        key = tuple((stage, bound.key) for stage, bound in objective.stages.items())
        return self._known.setdefault(key, probe.Valued(objective))


class Families:
    """Separates conventions that are one under several names from those that differ.

    Two that give one number on all probes are one, whatever they give on the data and whatever the
    eps of their std.
    """

    def __init__(self, chunk: Chunk, space: Space) -> None:
        self._probes = Probes(chunk)
        self._same, self._place = space.same, space.place
        self._heads: list[tuple[Candidate, probe.Valued]] = []

    def add(self, one: Candidate) -> bool:
        """Adds a candidate to the convention that it is; returns whether it is a new one."""
        valued = self._probes.valued(one.plan, fixed_eps=True)
        head = next((head for head in self._heads if _is_one((one, valued), head)), None)
        if head is None:
            self._heads.append((one, valued))
        first = one if head is None else head[0]
        if not one.plan.swapped:
            self._name(first, one)
        return head is None

    def _name(self, first: Candidate, one: Candidate) -> None:
        """Adds a row that is this convention, as published or with hyperparameters or a factor."""
        names = self._names(one.plan)
        if one.plan.flags or one.times != first.times:
            if one.times == first.times and not first.rows and self._is_plainer(one, first):
                if not first.plan.swapped:
                    first.also.append((first.plan, first.factor, self._names(first.plan)))
                first.plan = one.plan
            else:
                first.also.append((one.plan, one.factor, names))
            return
        before = first.rows[:1]
        first.rows = sorted({*first.rows, *names}, key=self._place.__getitem__)
        head = first.rows[0]
        if [head] != before:  # its command has to evaluate the row that it is called by
            first.plan = Plan(head, VARIANTS[head], one.plan.swapped, {}, one.plan.batch)

    def _names(self, plan: Plan) -> Sequence[str]:
        return self._same.get(plan.variant, [plan.variant])

    def _is_plainer(self, one: Candidate, other: Candidate) -> bool:
        """Whether somebody would rather say it so: about as likely, and in fewer words."""

        def words(plan: Plan) -> tuple[bool, bool, int, int]:
            no_kl = plan.flags.get("beta") == 0.0
            of_kl = no_kl and bool(_KL.search(plan.variant))
            return bool(plan.swapped), of_kl, len(plan.flags) - no_kl, self._place[plan.variant]

        return one.bits <= other.bits + ALIKE and words(one.plan) < words(other.plan)


_KL = re.compile(r"\bkl|\bk\d")
"""In the name of a row."""


def _is_one(*both: tuple[Candidate, probe.Valued]) -> bool:
    """Whether two conventions give one number on any data."""
    (one, mine), (other, theirs) = both
    same = mine is theirs and one.times == other.times  # also where no probe has what it needs
    return same or probe.alike(mine, theirs, one.times / other.times)


def without_eps(objective: Objective) -> Objective:
    """The objective with a fixed eps in its std."""
    bound = objective.advantage
    if "std_eps" not in bound.values:
        return objective
    return replace(objective, advantage=replace(bound, values={**bound.values, "std_eps": 1e-8}))


Unmodified = tuple[int, Candidate | None, Candidate | None]
"""How many rows have all that they need in the data; the one that comes nearest to the number
without a change, a factor or the other sign; and the one that the records name, if any."""


class Run:
    """One space asked about several numbers, and what was found.

    Attributes:
        space: the conventions.
        factors: what a loss may have been multiplied by.
        sums: over the last number's records.
        scan: the values of all conventions on the last number's records.
        matches: the conventions that give the numbers, the likeliest first.
        nearest: where none does, the nearest plain ones, nearest first.
        unmodified: the rows themselves.
        others: what the first match has in the place of the other numbers, if it has not all.
        loss_alone: what gives the losses and not the other numbers, where nothing gives all.
        reasons: why some conventions were not tried.
        tried: conventions that were tried; ``fitting``: of these, under all their names, those that
            give the numbers.
    """

    scan: Scan
    matches: Sequence[Candidate] = ()
    nearest: Sequence[Candidate] = ()
    unmodified: Unmodified = (0, None, None)
    others: Sequence[OtherNumber] = ()
    loss_alone: Candidate | None = None
    reasons: dict[str, str]
    tried: int
    fitting: int = 0

    def __init__(self, space: Space, factors: Sequence[Factor], sums: Sums) -> None:
        self.space = space
        self.factors = factors
        self.sums = sums
        self._times = np.array([one.times for one in factors])
        self._others = 1.0

    def ask(self, question: Question) -> None:
        """Finds the conventions that give a number.

        Raises:
            InputError: where no record can be read.
        """
        self.scan = scan(self.space, self._evaluated(self.space, self.sums, question))
        self._target, self._first = question.target, question.first
        self._chance = Chance(self.scan.values, self.factors, question.target)
        self._keys = _keys(hits(self.scan.values, self.factors, question.target), self.scan)

    def narrow(self, question: Question) -> None:
        """Keeps, of the conventions that were found, those that give another number too."""
        if not len(self._keys):
            return
        convention, factor, beta = _split(self._keys)
        chosen, place = np.unique(self._keys >> 2 * _BITS, return_inverse=True)
        narrowed = self.space.narrowed(chosen)
        columns = self._evaluated(narrowed, Sums(narrowed.options, question.data), question)
        policy, kl, size = (column[place] for column in columns)
        times, target = self._times[factor], question.target
        used = np.where(beta == 0, self.space.beta[convention], GRID[beta - 1])
        room = target.half + target.noise * np.abs(times) * size
        fits = np.abs(times * (policy - used * kl) - target.value) <= room
        self._keys = self._keys[fits]
        largest = float(room[fits].max(initial=0.0))
        self._others *= largest / max(WINDOW * abs(target.value), largest, 1e-300)

    def _evaluated(self, space: Space, sums: Sums, question: Question) -> tuple[F64, F64, F64]:
        sums.update()
        if not sums.records:
            raise InputError("no record can be read")
        penalised = space.grids[0].plan.swapped.get("kl") != "none"
        if penalised and len(sums.references) > 1:
            space.reasons.setdefault(REFERENCE, _MIXED)
        return evaluate_space(space, sums, question)

    def chance(self, bits: float = 63.0, room: float = 0.0) -> float:
        """Conventions of so many bits or fewer that hit all the numbers by chance.

        Args:
            bits: at most.
            room: how far off the number they may be, where its digits allow less.
        """
        return self._others * self._chance.below(bits, room)

    @property
    def by_chance(self) -> bool:
        """Whether conventions as simple as the first hit a number of so many digits by chance."""
        return bool(self.matches) and not self.matches[0].chance < RARE

    @property
    def sure(self) -> bool:
        """Whether a convention gives the number, and chance does not."""
        return bool(self.matches) and not self.by_chance

    @property
    def reproduced(self) -> bool:
        """Whether anything gives the number that chance alone would hardly give."""
        return bool(self.matches) and self.matches[0].chance < MANY

    def close(self) -> None:
        """Counts what was tried and what fits, and drops the values of all conventions."""
        self.reasons, self.tried = self.space.reasons, self.scan.tried
        if len(self._keys):
            self.fitting = int(np.count_nonzero(np.diff(self._keys >> 2 * _BITS))) + 1
        del self.space, self.scan, self._keys

    # ---- what gives the numbers ------------------------------------------------------------------

    def candidates(self) -> Iterator[Candidate]:
        """The conventions that give all numbers, the likeliest first, each once."""
        order, group, bits, value = self._sorted(self._keys)
        families = Families(self._first, self.space)
        changed_row = self.space.at[_split(self._keys)[0]] > 0
        starts = np.flatnonzero(np.diff(group[order], prepend=-1))  # of groups, in their order
        place = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
        order = order[(place < _NAMES) | ~changed_row[order]][: _CANDIDATES * _NAMES]
        split = _split(self._keys[order])
        off, size = self._off(value[order], *split[1:])
        rough = rough_bits(off, self._target.half, size)
        names: Counter[int] = Counter()
        listed = 0
        for at, (own, convention, factor, beta) in enumerate(
            zip(group[order].tolist(), *(one.tolist() for one in split), strict=True)
        ):
            names[own] += 1
            most = _NAMES if listed < MOST // 3 else 1
            if names[own] > most and changed_row[order[at]]:
                continue
            one = self._candidate(convention, factor, beta)
            one.bits, one.size = float(bits[order[at]]), float(size[at])
            first = self._of_length(one)
            if families.add(first):
                room = FLOAT32 * one.size * (rough[at] > 0.0)
                first.chance = self.chance(one.bits - rough[at], room)
                listed += bool(changed_row[order[at]])
                if first is not one and not one.plan.swapped and LENGTH not in one.plan.flags:
                    rows = self.space.same[one.plan.variant]
                    first.also.append((one.plan, one.factor, rows))
                yield first
            if listed >= MOST:
                return

    def _sorted(self, keys: NDArray[np.int64]) -> tuple[Index, Index, F64, Index]:
        """Hits in the order of their groups' likelihood; each one's group, bits and value.

        A group has one value, factor and β. It is the likelier, the more and the cheaper
        conventions it has.
        """
        value = self.scan.value_of(keys >> 2 * _BITS)
        same = (value.astype(np.int64) << 2 * _BITS) + (keys & ((1 << 2 * _BITS) - 1))
        group = np.unique(same, return_inverse=True)[1].astype(np.int32)
        bits = np.empty(len(keys))
        of_factor, of_beta = np.array([one.bits for one in self.factors]), [0.0, *GRID_BITS]
        for start in range(0, len(keys), _TOGETHER):
            part = slice(start, start + _TOGETHER)
            convention, factor, beta = _split(keys[part])
            off, size = self._off(value[part], factor, beta)
            own = self.space.bits[convention] + of_factor[factor] + np.array(of_beta)[beta]
            bits[part] = own + rough_bits(off, self._target.half, size)
        weight = np.bincount(group, weights=np.power(2.0, -bits))
        place = np.empty(len(weight), np.int32)
        place[np.argsort(-weight, kind="stable")] = np.arange(len(weight), dtype=np.int32)
        # lexsort is stable: equal hits stay in the order in which they were tried.
        return np.lexsort((bits, place[group])).astype(np.int32), group, bits, value

    def _off(self, value: Index, factor: Index, beta: Index) -> tuple[F64, F64]:
        """How far off the last number they are, and of what magnitude they are made."""
        own, times = self.scan.values, self._times[factor]
        used = np.where(beta == 0, own.beta[value], GRID[beta - 1])
        off = np.abs(times * (own.policy[value] - used * own.kl[value]) - self._target.value)
        return off, np.abs(times) * own.size[value]

    def _candidate(self, convention: int, factor: int = 0, beta: int = 0) -> Candidate:
        more = [Change({}, {"beta": float(GRID[beta - 1])})] if beta else []
        return Candidate(self.space.plan(convention, *more), self.factors[factor])

    def _of_length(self, one: Candidate) -> Candidate:
        """The convention with another constant length in the place of a factor, if none is known.

        Each run sets its own length, but no trainer multiplies a loss by its micro-batches.
        """
        plan, times, settings = one.plan, abs(one.times), self._first.settings
        known = {*settings, *self.space.grids[0].plan.flags}
        length = plan.bound("aggregate", settings).values.get(LENGTH)
        if not isinstance(length, int | float) or LENGTH in known or plan.row.kl_aggregate:
            return one
        if ACCUMULATED not in one.factor.meaning or (length / times) % 1.0:
            return one
        plan = changed(plan, Change({}, {LENGTH: int(length / times)}))
        factor = next(each for each in self.factors if each.times == one.times / times)
        return replace(one, plan=plan, factor=factor)

    # ---- what comes near -------------------------------------------------------------------------

    def rows(self, recorded: str) -> Unmodified:
        """The rows without a change, and those named: the nearest, and the recorded one."""
        bare = np.flatnonzero((self.space.at == 0) & np.isfinite(self.scan.every))
        off = np.abs(self.scan.every[bare] - self._target.value)
        found: dict[str, int] = {}
        for convention in bare[np.argsort(off, kind="stable")].tolist():
            row = self.space.grids[self.space.grid[convention]].plan.variant
            found.setdefault(row, convention)
        names = {row: self.space.same.get(row, [row]) for row in found}
        own = [row for row in found if recorded in names[row]]
        nearest, named = (
            next((self._row(found[row], names[row]) for row in some), None) for some in (found, own)
        )
        if named is not None:
            named.rows = [*dict.fromkeys([recorded, *named.rows])]
        return sum(map(len, names.values())), nearest, named

    def _row(self, convention: int, names: Sequence[str]) -> Candidate:
        size = self.scan.values.size[self.scan.value_of(np.array([convention]))]
        return replace(self._candidate(convention), rows=[*names], size=float(size[0]))

    def near(self, families: Families) -> list[Candidate]:
        """The plain conventions that come nearest to the number, nearest first."""
        values = self.scan.values
        off = np.where(values.bits <= _PLAIN, np.abs(values.objective - self._target.value), np.inf)
        found: list[Candidate] = []
        for at in np.argsort(off, kind="stable")[: 4 * NEAREST].tolist():
            if not np.isfinite(off[at]) or len(found) == NEAREST:
                break
            number = int(self.scan.order[self.scan.starts[at]])
            one = self._candidate(number)
            one.bits, one.number = float(values.bits[at]), number
            if families.add(one):
                found.append(one)
        return found


def _keys(found: NDArray[np.int64], scanned: Scan) -> NDArray[np.int64]:
    """Every convention, factor and β that fits, as one sorted number each."""
    value, factor, beta = found
    starts, ends = scanned.starts[value], scanned.starts[value + 1]
    counts = ends - starts
    at = np.repeat((starts - (np.cumsum(counts) - counts)).astype(np.int32), counts)
    at += np.arange(len(at), dtype=np.int32)
    keys = scanned.order[at].astype(np.int64)
    del at  # there may be millions
    keys <<= 2 * _BITS
    keys += np.repeat(((factor << _BITS) + beta).astype(np.int32), counts)
    keys.sort()
    return keys


def _split(keys: NDArray[np.int64]) -> tuple[Index, ...]:
    """The convention, factor and β of each key."""
    mask = (1 << _BITS) - 1
    parts = keys >> 2 * _BITS, (keys >> _BITS) & mask, keys & mask
    return tuple(part.astype(np.int32) for part in parts)


_EQUAL = 1e-12
"""Of its size: how far two numbers are from each other that are one but for rounding."""


def entries(found: Sequence[Candidate]) -> list[int]:
    """The entry of each candidate: those of one number have one."""
    values: list[float] = []
    result = []
    for one in found:
        room = _EQUAL * max(abs(one.value), one.size)
        near = (at for at, value in enumerate(values) if abs(one.value - value) <= room)
        result.append(next(near, len(values)))
        if result[-1] == len(values):
            values.append(one.value)
    return result
