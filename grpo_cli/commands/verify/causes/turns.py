"""Turns of agents: counted, grouped or rewarded otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.verify.causes.case import Case
from grpo_cli.commands.verify.causes.cause import Cause, catalogued
from grpo_cli.objective.advantage.turns import once_per_trajectory
from grpo_cli.objective.arithmetic.turns import TurnOrder
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.choice import Bound, Choice
from grpo_cli.objective.inputs import Inputs

# ---- statistics ----------------------------------------------------------------------------------


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


# ---- credit --------------------------------------------------------------------------------------


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


def _edge(order: TurnOrder, *, last: bool) -> NDArray[np.bool_]:
    """[turns] whether a turn is the last, or the first, of its trajectory."""
    found: NDArray[np.bool_] = order.number == 0
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
