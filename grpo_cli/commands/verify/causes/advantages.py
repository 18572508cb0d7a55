"""Advantages computed by another formula, changed on the way to the loss, or exchanged."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.commands.verify.causes.case import Case
from grpo_cli.commands.verify.causes.cause import Cause, catalogued, is_typed, parametric
from grpo_cli.commands.verify.causes.statistics import may_be_clipped
from grpo_cli.commands.verify.compare import to_half
from grpo_cli.commands.verify.expected import Flags
from grpo_cli.objective.advantage.turns import once_per_trajectory
from grpo_cli.objective.arithmetic.turns import TurnOrder
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.choice import Bound, Choice
from grpo_cli.objective.inputs import Inputs

Change = Callable[[F64, F64], F64]
"""[R] advantages and [R] lengths → [R] advantages."""


def _std(a: F64, ddof: int) -> float:
    return float(a.std(ddof=ddof)) if a.size > ddof else math.nan


def _whitened(a: F64, ddof: int) -> F64:
    return (a - a.mean()) / (_std(a, ddof) + 1e-8)


def _whitened_by_token(a: F64, lengths: F64, ddof: int) -> F64:
    tokens = np.repeat(a, lengths.astype(np.int64))
    if not len(tokens):
        raise ValueError("there are no tokens")
    return (a - tokens.mean()) / (_std(tokens, ddof) + 1e-8)


CHANGES: Mapping[str, Change] = {
    "advantage-sign": lambda a, _: -a,
    "advantage-one-sided.absolute": lambda a, _: np.abs(a),
    "advantage-one-sided.positive": lambda a, _: np.maximum(a, 0.0),
    "advantage-one-sided.negative": lambda a, _: np.minimum(a, 0.0),
    "advantage-one-sided.sign": lambda a, _: np.sign(a),
    "advantage-order.before": lambda a, _: np.roll(a, 1),
    "advantage-order.after": lambda a, _: np.roll(a, -1),
    "advantage-order.reverse": lambda a, _: a[::-1].copy(),
    "advantage-broadcast": lambda a, _: np.full_like(a, a[0]) if a.size else a,
    "advantage-twice.median": lambda a, _: a - np.median(a),
    "advantage-twice.mean": lambda a, _: a - a.mean(),
    "advantage-twice.ddof1": lambda a, _: _whitened(a, 1),
    "advantage-twice.ddof0": lambda a, _: _whitened(a, 0),
    "advantage-twice.tokens1": lambda a, n: _whitened_by_token(a, n, 1),
    "advantage-twice.tokens0": lambda a, n: _whitened_by_token(a, n, 0),
    "advantage-twice.std": lambda a, _: a / (_std(a, 1) + 1e-8),
    "advantage-length.mean": lambda a, n: a * n / max(float(n.mean()), 1.0),
    "advantage-length.times": lambda a, n: a * n,
    "advantage-length.over": lambda a, n: a / np.maximum(n, 1),
    "advantage-dropped": lambda a, _: np.ones_like(a),
    "advantage-rounded.bfloat16": lambda a, _: to_half(a, "bfloat16"),
    "advantage-rounded.float16": lambda a, _: to_half(a, "float16"),
}
"""In the order in which they are tried; the simplest first."""
_OF_RECORD = ("advantage-order", "advantage-broadcast", "advantage-twice", "advantage-length.mean")
"""Those that depend on the record's other responses."""


def changed(case: Case) -> Iterator[Cause]:
    """Yields each change without a number to solve for; the sign where A differs in a response."""
    if case.batch.token_advantages is not None:
        yield catalogued(
            "advantage-sign", lambda case: case.with_advantages(-case.breakdown.advantage)
        )
    if case.breakdown.response_advantage is not None and case.other_advantages:
        for key, change in CHANGES.items():
            made = partial(_with_change, change=change)
            yield catalogued(key, made, by_record=not key.startswith(_OF_RECORD))


def _cause(mistake: str, words: str, change: Change, *, sure: bool) -> Cause:
    return Cause(mistake, words, partial(_with_change, change=change), equal=not sure)


def _with_change(case: Case, change: Change) -> Breakdown:
    a = case.breakdown.response_advantage
    if a is None:
        raise ValueError("advantages differ within a response")
    with np.errstate(invalid="ignore", divide="ignore"):
        return case.with_advantages(change(a, case.batch.responses.lengths.astype(np.float64)))


# ---- changed by a number, or exchanged: solved for from the gradient ----------------------------


def solved_changes(case: Case) -> Iterator[Cause]:
    """Yields changes with a number to be found first: a bound, an offset, another order."""
    found, a = case.effective_advantages, case.breakdown.response_advantage
    if found is None or a is None:
        return
    moving = case.batch.responses.sum(np.abs(case.policy_gradient)) > case.quiet
    known = np.isfinite(found) & (moving | (found == 0.0))
    yield from _bounded(a, found, known)
    if np.count_nonzero(known) < 3:
        return
    by = float(np.median((found - a)[known]))
    if by:
        words = f"advantages shifted by a constant: A {'+' if by > 0 else '−'} {abs(by):.6g}"
        yield _cause("advantage-offset", words, lambda a, _: a + by, sure=is_typed(by))
    for key, of in _EXCHANGED.items():
        yield catalogued(key, partial(_exchanged, of=of))


_EXCHANGED: Mapping[str, Callable[[Case], I64]] = {
    "advantage-order.group": lambda case: case.batch.groups,
    "advantage-order.batch": lambda case: 0 * case.batch.groups,
}
"""Key of the catalogue, and [R] the sets within which advantages have another order."""


def _exchanged(case: Case, of: Callable[[Case], I64]) -> Breakdown:
    """The record with its advantages in the order that the gradient says, set by set.

    Responses without a gradient, which are clipped, have what the others leave.
    """
    found, a, sets = case.effective_advantages, case.breakdown.response_advantage, of(case)
    if found is None or a is None:
        raise ValueError("no advantage per response gives the gradient")
    found, made = np.where(may_be_clipped(case, found), np.nan, found), np.empty_like(a)
    for rows in (np.flatnonzero(sets == label) for label in np.unique(sets)):
        left = a[rows].tolist()
        for row in sorted(rows.tolist(), key=lambda row: bool(np.isnan(found[row]))):
            off = np.nan_to_num(np.abs(np.array(left) - found[row]))
            made[row] = left.pop(int(np.argmin(off)))
    return case.with_advantages(made)


def _bounded(a: F64, found: F64, known: Flags) -> Iterator[Cause]:
    short = known & (np.abs(a) > float(np.abs(found[known]).max(initial=0.0)) * 1.001)
    if not short.any():
        return
    bound = float(np.median(np.abs(found[short])))
    if np.count_nonzero(short) > 1 or is_typed(bound):
        words = f"advantages clipped to ±{bound:.4g}"
        sure = is_typed(bound)
        yield _cause("advantage-clipped", words, lambda a, _: np.clip(a, -bound, bound), sure=sure)


# ---- discounted by position; the factor is solved for -------------------------------------------

_PLACES: Mapping[str, Callable[[Segments], I64]] = {
    "start": lambda responses: responses.spread(responses.lengths) - 1 - responses.positions,
    "end": lambda responses: responses.positions,
}
"""Towards which edge of each response advantages shrink → [N] the exponent of γ."""


def discounted(case: Case) -> Iterator[Cause]:
    """Yields A·γ^k, k the tokens after or before a token."""
    wanted, ours = case.expected_policy_gradient, case.policy_gradient
    if case.breakdown.response_advantage is None or wanted is None:
        return
    if (np.minimum(np.abs(wanted), np.abs(ours))[wanted * ours < 0.0] > case.quiet).any():
        return  # γ^k turns no sign
    for edge in _PLACES:
        words = f"advantages discounted towards the {edge} of each response: A times {{}} per "
        for start in (0.97, 0.5):
            family = partial(_discounted, edge=edge)
            yield from parametric(case, "advantage-discounted", words + "position", family, start)


def _discounted(case: Case, number: float, edge: str) -> Breakdown:
    return case.with_advantages(
        case.breakdown.advantage * number ** _PLACES[edge](case.batch.responses)
    )


# ---- turns of agents that are counted or grouped otherwise --------------------------------------


def trajectories(case: Case) -> Iterator[Cause]:
    """Yields statistics over turns, over trajectories, or over the turns of each trajectory."""
    own, batch = case.objective.advantage, case.batch
    if own.choice.given or batch.trajectory_count in (0, batch.responses.count):
        return
    if "trajectories" in own.choice.columns:
        each = {"trajectories": None, "trajectory_count": 0}
        yield catalogued("turn-counted.turns", lambda case: case.with_columns(**each))
    else:
        once = Choice(once_per_trajectory(own.choice.function, ""))
        bound = Bound(own.name, once, own.values)
        yield catalogued(
            "turn-counted.trajectories", lambda case: case.evaluated(None, advantage=bound)
        )
    groups = {"groups": batch.trajectories, "group_count": batch.trajectory_count}
    yield catalogued("turn-groups.own", lambda case: case.with_columns(**groups))


# ---- turns that are credited otherwise ----------------------------------------------------------


def credit(case: Case) -> Iterator[Cause]:
    """Yields advantages of other turns, turns without one, and rewards on first turns."""
    if not case.batch.responses.total or not _order(case).number.any():
        return
    for key, change in _CREDIT.items():
        if key != "turn-reward-first" or case.batch.turn_rewards is not None:
            yield catalogued(key, change)


def _order(case: Case) -> TurnOrder:
    order: TurnOrder = Inputs(case.batch).get("turn_order")
    return order


def _edge(order: TurnOrder, *, last: bool) -> Flags:
    """[turns] whether a turn is the last, or the first, of its trajectory."""
    found: Flags = order.number == 0
    return order.following(np.ones(len(found))) == 0.0 if last else found


def _neighbour(case: Case, *, after: bool) -> Breakdown:
    order = _order(case)
    own = case.breakdown.advantage[order.turns.starts]
    if not np.array_equal(order.turns.spread(own), case.breakdown.advantage):
        raise ValueError("advantages differ within turns")
    last = _edge(order, last=True)
    moved = np.where(last, own, order.following(own))
    if not after:
        next_turn = order.following(np.arange(len(own), dtype=np.float64)).astype(np.int64)
        moved = own.copy()
        moved[next_turn[~last]] = own[~last]
    return case.with_advantages(order.turns.spread(moved))


def _last_mask(case: Case, *, right: bool) -> Breakdown:
    """Gives each turn its advantage only where the last turn of its trajectory has tokens."""
    order = _order(case)
    lengths, at = order.turns.lengths.astype(np.float64), order.turns.positions
    of_last = order.returns(np.where(_edge(order, last=True), lengths, 0.0), 1.0)
    at = order.turns.spread(order.turns.lengths) - 1 - at if right else at
    inside = at < order.turns.spread(of_last)
    return case.with_advantages(np.where(inside, case.breakdown.advantage, 0.0))


def _silent(case: Case, *, last: bool) -> Breakdown:
    """Gives the other turns than the last, or the first, an advantage of 0."""
    order = _order(case)
    learns = order.turns.spread(_edge(order, last=last))
    return case.with_advantages(np.where(learns, case.breakdown.advantage, 0.0))


def _first_reward(case: Case) -> Breakdown:
    order, rewards = _order(case), case.batch.turn_rewards
    assert rewards is not None
    sums: F64 = order.returns(rewards, 1.0)
    return case.with_columns(turn_rewards=np.where(_edge(order, last=False), sums, 0.0))


_CREDIT: Mapping[str, Callable[[Case], Breakdown]] = {
    "turn-displaced.before": partial(_neighbour, after=False),
    "turn-displaced.after": partial(_neighbour, after=True),
    "turn-displaced.right": partial(_last_mask, right=True),
    "turn-displaced.left": partial(_last_mask, right=False),
    "turn-silent.last": partial(_silent, last=True),
    "turn-silent.first": partial(_silent, last=False),
    "turn-reward-first": _first_reward,
}
"""What is done to the advantages or the rewards of turns; masks.py has those that are masked."""
