"""The constant length L of a denominator, solved for as β is: the number is X/L."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.match.fit import FLOAT32, Factor
from grpo_cli.commands.match.question import LoggedNumber
from grpo_cli.commands.match.run import MANY, Candidate, Families, Run
from grpo_cli.commands.match.space.changes import LENGTH, LENGTHS, Change
from grpo_cli.commands.match.space.space import Index

_MOST = 1e6
"""The longest L."""
_UNUSUAL, _FLIPPED = 7.0, 2.0
"""Bits that L costs beyond those of a usual one, and of the other sign."""
_PLAIN = 12.0
"""Bits of a convention with a usual L, at most."""
_LISTED = 12
_ROUNDING = 1e-14


def with_length(run: Run, target: LoggedNumber, families: Families) -> Iterator[Candidate]:
    """Yields conventions that give the number with an integer L, the likeliest first.

    The chance of each is how many as plain come so near to the number with an integer; what chance
    may well give is left out.
    """
    some = _conventions(run)
    if not target.value or not len(some):
        return
    number, size = run.scan.every[some], _sizes(run, some)
    exact = np.abs(number * LENGTHS[0] / target.value)
    exact = np.where((exact >= 0.5) & (exact <= _MOST), exact, np.nan)
    length = np.maximum(np.round(exact), 1.0)
    off = np.abs(exact / length - 1.0)
    bits = run.space.bits[some] + _UNUSUAL + np.where(number * target.value < 0.0, _FLIPPED, 0.0)
    once = np.unique(np.round(np.log(exact), 9), return_index=True)[1]
    exactly = target.rtol + _ROUNDING + 0.0 * exact
    listed = 0
    for room in (exactly, exactly + FLOAT32 * size / np.abs(number)):
        share = np.nan_to_num(np.minimum(2.0 * room * exact, 1.0))[once]
        for at in sorted(np.flatnonzero(off <= room).tolist(), key=lambda at: float(bits[at])):
            chance = float(share[bits[once] <= bits[at]].sum())
            if chance >= MANY or listed == _LISTED:
                break
            plan = run.space.plan(int(some[at]), Change({}, {LENGTH: int(length[at])}))
            factor = Factor(float(np.sign(number[at] * target.value)))
            one = Candidate(plan, factor, float(bits[at]), chance=chance)
            one.size = float(size[at] * LENGTHS[0] / length[at])
            if families.add(one):
                listed += 1
                yield one
        if listed:
            return


def _conventions(run: Run) -> Index:
    """The plain conventions with one of the usual L in all of J, the plainest first."""
    space = run.space
    known = [dict(key[1]) for key in space.options.weights.numbers]  # type: ignore[index]
    counts = np.array([values.get(LENGTH) == LENGTHS[0] for values in known])
    some = np.flatnonzero(counts[space.weight] & (space.bits <= _PLAIN))
    alone = np.array([one.kl_weight < 0 and one.entropy < 0 for one in space.grids])
    number = run.scan.every[some]
    some = some[alone[space.grid[some]] & np.isfinite(number) & (number != 0.0)]
    return some[np.argsort(space.bits[some], kind="stable")].astype(np.int32)


def _sizes(run: Run, conventions: Index) -> F64:
    """[n] the magnitude that each convention's number is made of."""
    found: F64 = run.scan.values.size[run.scan.value_of(conventions)]
    return found
