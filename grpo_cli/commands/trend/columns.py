"""Which column of log-probs changed at a step: all pairs of them are compared.

Noise, other weights or another batch in one column add as much to the square of its distance from
each other column, and nothing to the distances between these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from grpo_cli.commands.trend.onsets import medians
from grpo_cli.commands.trend.step import Steps

_WITNESSES = (("old", "new", "rollout"), ("old", "new", "ref"), ("new", "old", "ref"))
"""A column that may have changed alone, and two others whose distance shows that they did not.

That the policy moves farther shows in log_probs_new alone until the next step, and then in the
distance of log_probs_old from the reference, but never in that from the engine.
"""
_FIX = {
    "old": "look at what computes log_probs_old: a forward pass of its own (dropout, precision, "
    "temperature), another batch's log-probs, or a stale copy of the weights",
    "new": "look at what computes log_probs_new (dropout, precision, temperature, an adapter): "
    "log_probs_old does not move with it",
}
_EXCHANGED = "look for code that stores one of them under the other's name"
_AROUND, _LEAST = 8, 4
"""The steps on either side that are compared, at most and at least."""
_GROWS, _EXCHANGE = 1.5, 4.0
"""The least factors of a mean squared distance: of a column that changed alone, and of exchanged
columns."""
_SAME, _STAYS = 2.0, 0.2
"""The most by which the gains of the column's distances differ, as a factor, and the most that the
distance of the others changed, as a share of the least gain."""


class ChangedColumn(NamedTuple):
    """What changed.

    Attributes:
        words: what it is.
        fix: what to look at.
        squares: pairs of columns → the mean squares of their differences before and after.
        is_exchange: whether two columns were exchanged.
    """

    words: str
    fix: str
    squares: Mapping[tuple[str, str], tuple[float, float]]
    is_exchange: bool = False


def changed_column(steps: Steps, at: int, *, single: bool) -> ChangedColumn | None:
    """The column that changed alone at a place of the steps, or those that were exchanged there.

    Args:
        steps: of records.
        at: the place.
        single: whether the next step is as before.
    """
    if at < _LEAST or (len(steps) < at + _LEAST and not single):
        return None
    until = at + 1 if single else at + _AROUND

    def sides(first: str, second: str) -> tuple[float, float]:
        values = steps.distance(first, second)
        before, after = values[max(at - _AROUND, 0) : at], values[at:until]
        return float(medians(before)), float(medians(after))

    def squares(*pairs: tuple[str, str]) -> Mapping[tuple[str, str], tuple[float, float]]:
        return {pair: sides(*pair) for pair in pairs}

    for name in ("new", "ref"):
        found = squares(("old", "rollout"), (name, "rollout"))
        if _exchanged(*found.values()):
            words = f"log_probs_old and log_probs_{name} were exchanged"
            return ChangedColumn(words, _EXCHANGED, found, is_exchange=True)
    for name, other, witness in _WITNESSES:
        if single and name == "new" and _has_moved(steps, at):
            continue
        found = squares((name, witness), (name, other), (other, witness))
        if _is_alone(*found.values()):
            return ChangedColumn(f"log_probs_{name} alone changed", _FIX[name], found)
    return None


def _has_moved(steps: Steps, at: int) -> bool:
    """Whether the policy is as far from the reference since as one step moved it."""
    later = steps.distance("old", "ref")[at : at + 2]
    return len(later) > 1 and bool(later[1] - later[0] > steps.distance("new", "old")[at] / 2)


def _is_alone(*sides: tuple[float, float]) -> bool:
    """Whether the first two distances gained the same, and the last nothing: before and after."""
    grew = all(after > _GROWS * before > 0.0 for before, after in sides[:2])
    *gains, stays = (after - before for before, after in sides)
    return grew and max(gains) < _SAME * min(gains) and abs(stays) < _STAYS * min(gains)


def _exchanged(*sides: tuple[float, float]) -> bool:
    """Whether a column is as far from the engine as the other was before: both before and after."""
    (near, far), (other, nearer) = sides
    grew = far > _EXCHANGE * near > 0.0 and other > _EXCHANGE * nearer
    return grew and near / _SAME < nearer < _SAME * near
