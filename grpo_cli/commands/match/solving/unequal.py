"""An ε of its own on either side: J is a sum of what each side gives.

Of PPO's clip, tokens with A > 0 know ε_high alone and those with A < 0 know ε_low alone; of a
weight's window, tokens above 1 and below. So J(ε_low, ε_high) follows from J along either axis, and
all pairs of round values are tried for the price of their sum. That tells something only where the
number has the digits for it, and where tokens are clipped on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.match.candidate import Candidate
from grpo_cli.commands.match.fit import Factor
from grpo_cli.commands.match.solving.brackets import Family, families
from grpo_cli.commands.match.solving.epsilon import Values
from grpo_cli.commands.match.space.conventions import Space
from grpo_cli.commands.match.typed import Typed
from grpo_cli.errors import GrpoError

_ROUND = np.array([round(0.01 * step, 2) for step in range(1, 51)])
_BITS = 2.0 * float(np.log2(len(_ROUND)))
_USUAL = 19
"""Where 0.2 stands among them: what one side has while the other is gone over."""
_MOST = 24
"""Conventions that are gone over, the plainest."""
_EXACT = 1e-5
"""Half a unit of the last digit, relatively, beyond which a pair can always be found."""
_WINDOW = 0.2
_SAME = 1e-12


def pairs(
    made: Space, j: F64, factors: Sequence[Factor], target: Typed, values: Values
) -> list[Candidate]:
    """Plain conventions that give the number with two round ε, the likeliest first.

    Args:
        made: the conventions.
        j: [C] what each gives.
        factors: what it may be multiplied by.
        target: the number.
        values: evaluates plans.
    """
    if target.rtol > _EXACT:
        return []
    candidates: list[Candidate] = []
    expected = 0.0
    for family in sorted(families(made, j), key=lambda one: one.bits)[:_MOST]:
        for found, near in _of_family(family, factors, target, values):
            expected += near
            candidates += found
            for one in found:
                one.chance = expected
    return sorted(candidates, key=lambda one: (one.chance, one.bits))


def _of_family(
    family: Family, factors: Sequence[Factor], target: Typed, values: Values
) -> Iterator[tuple[list[Candidate], float]]:
    """Of each factor: what fits, and how many pairs would by chance."""
    try:
        plans = [family.plan(low, _ROUND[_USUAL]) for low in _ROUND]
        plans += [family.plan(_ROUND[_USUAL], high) for high in _ROUND]
    except GrpoError:
        return
    low, high = np.split(values(plans), 2)
    j = low[:, None] + high[None, :] - low[_USUAL]
    tried = _first_of_each(low)[:, None] & _first_of_each(high)[None, :]
    tried &= np.isfinite(j) & ~np.eye(len(_ROUND), dtype=bool)  # equal ones are solved for anyway
    for factor in factors:
        off = np.abs(factor.times * j - target.value)
        fits = tried & (off <= target.half + 1e-9 * abs(target.value))
        near = int(np.count_nonzero(tried & (off <= _WINDOW * abs(target.value))))
        found = [
            Candidate(
                family.plan(_ROUND[a], _ROUND[b]),
                factor,
                family.bits + factor.bits + _BITS,
                abs(target.value),
            )
            for a, b in np.argwhere(fits).tolist()
        ]
        yield found, near * min(target.half / (_WINDOW * abs(target.value)), 1.0)


def _first_of_each(values: F64) -> np.ndarray:
    """[n] whether no value before is the same: where nothing is clipped any more, only one."""
    before = np.abs(np.diff(values, prepend=np.nan)) <= _SAME * np.abs(values)
    return ~before
