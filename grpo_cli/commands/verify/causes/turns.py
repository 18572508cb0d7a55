"""Turns of agents: counted, grouped, rewarded or trained otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import I64, Batch, Segments
from grpo_cli.commands.verify.causes.case import Case, Cause, catalogued
from grpo_cli.commands.verify.causes.inputs import MASKS
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.choice import Bound, Choice
from grpo_cli.objective.pipeline import evaluate
from grpo_cli.objective.results import Correction, Weights
from grpo_cli.records import assemble


class Order:
    """The turns of a record, trajectory after trajectory.

    Attributes:
        turns: the tokens that count, cut into turns.
        owner: [turns] the number of each turn's trajectory.
        first, last: [turns] whether a turn is the first, or the last, of its trajectory.
    """

    def __init__(self, batch: Batch) -> None:
        self.turns = batch.turns
        rows = batch.responses.index[self.turns.starts]
        self.owner = rows if batch.trajectories is None else batch.trajectories[rows]
        order = np.argsort(self.owner, kind="stable")
        self._order, border = order, np.diff(self.owner[order]) != 0
        self.first, self.last = np.zeros((2, self.turns.count), dtype=np.bool_)
        self.first[order] = np.append(True, border)
        self.last[order] = np.append(border, True)

    @property
    def several(self) -> bool:
        """Whether some trajectory has several turns."""
        return bool(self.turns.count) and not self.first.all()

    def neighbour(self, values: NDArray[Any], by: int) -> NDArray[Any]:
        """Returns [turns] each turn's value taken from the turn before (−1) or after (1)."""
        moved = values.copy()
        moved[self._order] = values[np.roll(self._order, -by)]
        return np.where(self.first if by < 0 else self.last, values, moved)

    def of_last(self, values: NDArray[Any]) -> NDArray[Any]:
        """Returns [turns] the value of the last turn of each turn's trajectory."""
        found = np.zeros(int(self.owner.max()) + 1, dtype=values.dtype)
        found[self.owner[self.last]] = values[self.last]
        return found[self.owner]


def trajectories(case: Case) -> Iterator[Cause]:
    """Yields statistics over turns, over trajectories, or over the turns of each trajectory."""
    own = case.batch.trajectories
    if own is None or case.batch.trajectory_count == case.batch.responses.count:
        return
    if case.objective.advantage.choice.given:
        return
    yield catalogued(
        "turn-counted.turns",
        lambda case: case.with_columns(trajectories=None, trajectory_count=0),
    )
    yield catalogued("turn-counted.trajectories", _counted_once)
    groups = {"groups": own, "group_count": case.batch.trajectory_count}
    yield catalogued("turn-groups.own", lambda case: case.with_columns(**groups))


def _counted_once(case: Case) -> Breakdown:
    """Gives the turns of each trajectory the advantage that it has where it is one response."""
    batch = case.batch
    assert batch.trajectories is not None
    if batch.rewards is None or np.ptp(batch.rewards[_firsts(batch)], axis=0).max() == 0.0:
        raise ValueError("nothing to compare")
    one = evaluate(_taken(batch, _firsts(batch)), case.objective).response_advantage
    if one is None:
        raise ValueError("advantages by token")
    return case.with_advantages(one[batch.trajectories])


def _firsts(batch: Batch) -> I64:
    """[trajectories] the last response of each, which has the outcome."""
    assert batch.trajectories is not None
    found = np.zeros(batch.trajectory_count, dtype=np.int64)
    found[batch.trajectories] = np.arange(batch.responses.count)
    return found


def _taken(batch: Batch, rows: I64) -> Batch:
    """Returns some of the responses of a record, each a trajectory."""
    tokens = np.isin(batch.responses.index, rows)
    chosen = np.unique(rows)
    if not np.array_equal(chosen, rows):
        raise ValueError("trajectories are interleaved")
    made: dict[str, Any] = {}
    for name in (field.name for field in fields(batch)):
        value = getattr(batch, name)
        if isinstance(value, np.ndarray) and len(value) == batch.responses.count:
            made[name] = value[rows]
        elif isinstance(value, np.ndarray) and len(value) == batch.responses.total:
            made[name] = value[tokens]
    made |= {"trajectories": None, "trajectory_count": 0, "turn_rewards": None}
    counts = np.array([len(rows)])
    return replace(
        batch, responses=Segments(batch.responses.lengths[rows]), records=Segments(counts), **made
    )


# ---- credit --------------------------------------------------------------------------------------


def credit(case: Case) -> Iterator[Cause]:
    """Yields advantages of other turns, and turns that are not trained."""
    if not case.batch.responses.total:
        return
    order = Order(case.batch)
    if not order.several:
        return
    for key, change in _CREDIT.items():
        if key != "turn-reward-first" or case.batch.turn_rewards is not None:
            yield catalogued(key, change)


def _displaced(case: Case, by: int) -> Breakdown:
    order = Order(case.batch)
    own = case.breakdown.advantage[order.turns.starts]
    if not np.array_equal(order.turns.spread(own), case.breakdown.advantage):
        raise ValueError("advantages differ within turns")
    return case.with_advantages(order.turns.spread(order.neighbour(own, by)))


def _last_mask(case: Case, *, right: bool) -> Breakdown:
    """Gives each turn its advantage only where the last turn of its trajectory has tokens."""
    order = Order(case.batch)
    length = order.turns.spread(order.of_last(order.turns.lengths))
    at = order.turns.positions
    at = order.turns.spread(order.turns.lengths) - 1 - at if right else at
    return case.with_advantages(np.where(at < length, case.breakdown.advantage, 0.0))


def _silent(case: Case, key: str) -> Breakdown:
    order = Order(case.batch)
    learns = order.turns.spread(getattr(order, key))
    return case.with_advantages(np.where(learns, case.breakdown.advantage, 0.0))


def _only(case: Case, key: str) -> Breakdown:
    order = Order(case.batch)
    mask = np.zeros(case.written.total, dtype=np.bool_)
    mask[np.flatnonzero(case.mask)] = order.turns.spread(getattr(order, key))
    return case.with_record(mask=mask.tobytes())


def _first_reward(case: Case) -> Breakdown:
    order, rewards = Order(case.batch), case.batch.turn_rewards
    assert rewards is not None
    sums = np.bincount(order.owner, rewards)[order.owner]
    return case.with_columns(turn_rewards=np.where(order.first, sums, 0.0))


_CREDIT: Mapping[str, Callable[[Case], Breakdown]] = {
    "turn-displaced.before": partial(_displaced, by=-1),
    "turn-displaced.after": partial(_displaced, by=1),
    "turn-displaced.right": partial(_last_mask, right=True),
    "turn-displaced.left": partial(_last_mask, right=False),
    "turn-silent.last": partial(_silent, key="last"),
    "turn-silent.first": partial(_silent, key="first"),
    "turns-missing.last": partial(_only, key="last"),
    "turns-missing.first": partial(_only, key="first"),
    "turn-reward-first": _first_reward,
}
"""What is done to the advantages, the mask or the rewards of turns."""


# ---- tools ---------------------------------------------------------------------------------------


def tools(case: Case) -> Iterator[Cause]:
    """Yields the KL of masked tokens between those that count, which a tool wrote."""
    known = case.objective.correction.choice.absent and case.objective.kl_aggregate is None
    if case.is_masked and case.objective.beta and known:
        yield catalogued("tool-tokens-penalised", _penalised)


def _penalised(case: Case) -> Breakdown:
    filled = MASKS["masked-count.between"](case)
    if np.array_equal(filled, case.mask):
        raise ValueError("no tool wrote anything")
    batch = assemble([replace(case.record, mask=filled.tobytes())])
    policy = case.mask[filled].astype(np.float64)
    own = case.breakdown.weight
    return case.evaluated(
        batch,
        correction=Bound("policy", Choice(lambda: Correction(policy)), {}),
        aggregate=Bound("its own", Choice(lambda: Weights(own, None, 1.0, "its own")), {}),
    )
