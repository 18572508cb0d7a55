"""A small made-up batch on which conventions differ.

Two conventions that give one number here are the same convention under two names.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from grpo_cli.batch import F64, I64, Batch, Segments, cut_turns
from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import HyperparameterError
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.pipeline import evaluate

_TAIL = 2.0
"""The largest |log ratio|, nats, where no bound of an objective is beyond it."""
_SIZES = ([3, 5], [2, 4])
"""Responses of the groups of each record."""


@cache
def probe(*, plain: bool = False, tail: float = _TAIL, probable: bool = False) -> Batch:
    """The batch.

    Args:
        plain: whether responses have one length, and the rewards of groups one spread.
        tail: the largest |log ratio|, nats; every seventh token has it on either side.
        probable: whether tokens are so probable that what bounds the change of a probability
            (DPPO) acts; their log ratios end where a probability would be 1.
    """
    flat = [size for record in _SIZES for size in record]
    count = sum(flat)
    random = np.random.default_rng(20240115)
    lengths = np.array([1 + (5 * at) % 9 for at in range(count)], dtype=np.int64)
    if plain:
        lengths = np.full(count, 4, dtype=np.int64)
    responses = Segments(lengths)
    old = -random.gamma(2.0, 0.6, responses.total) - 2.0 * tail - 2.0
    new = old + _steps(random, responses.total, tail, 1)
    ref = new + _steps(random, responses.total, tail, 3)
    engine = old + _steps(random, responses.total, tail, 5)
    if probable:
        up = 2.0 * tail + 2.0
        old, new, ref, engine = (np.minimum(one + up, -0.01) for one in (old, new, ref, engine))
    groups = np.repeat(np.arange(len(flat)), flat)
    pairs = np.arange(count) - np.repeat(np.cumsum(flat) - flat, flat)  # two are one trajectory
    _, trajectories = np.unique(groups * count + pairs // 2, return_inverse=True)
    turn_ids = responses.positions // 2
    turns = cut_turns(responses, turn_ids, None).count
    rewards = _rewards(groups, plain=plain)
    return Batch(
        responses=responses,
        records=Segments(np.array([sum(record) for record in _SIZES], dtype=np.int64)),
        groups=groups,
        group_count=len(flat),
        log_probs_new=new,
        log_probs_old=old,
        log_probs_ref=ref,
        log_probs_rollout=engine,
        entropies=random.gamma(2.0, 0.5, responses.total),
        rewards=rewards,
        advantages=rewards - 0.3,
        turn_ids=turn_ids,
        turn_rewards=np.arange(turns) * 7 % 5 / 5.0,
        state_ids=(np.arange(turns) * 5 % 3).astype(np.float64),
        trajectories=trajectories,
        trajectory_count=int(trajectories.max()) + 1,
    )


def _steps(random: np.random.Generator, count: int, tail: float, offset: int) -> F64:
    steps: F64 = np.clip(random.normal(0.1, 0.35, count), -1.0, 1.0)
    steps[offset::7] = tail
    steps[offset + 1 :: 7] = -tail
    return steps


def _rewards(groups: I64, *, plain: bool) -> F64:
    place = np.arange(len(groups))
    binary = (place % 3 == 0).astype(np.float64)
    return binary if plain else (binary + 0.21 * (place % 4)) * (1.0 + groups)


def value(objective: Objective, batch: Batch) -> float | None:
    """J on a batch; None where the objective needs something that it has not."""
    try:
        made = evaluate(batch, objective)
    except (InputError, HyperparameterError):
        return None
    if objective.batch == "record":
        return float(made.record_objective.mean())
    terms = [(term, float((term.coefficient * term.weighted()).sum())) for term in made.active]
    counted = made.counted_before
    return sum(part / (float(counted[term.name][-1]) or 1.0) for term, part in terms)


_FLOAT32 = 1e-7
"""Relative difference that float32 (or an eps of 1e-8 in a count) makes."""


def same(left: float | None, right: float | None, rtol: float = _FLOAT32) -> bool:
    """Whether two values are one."""
    if left is None or right is None:
        return False
    return abs(left - right) <= rtol * max(abs(left), abs(right), 0.5)


class Valued:
    """``value`` of one objective, each computed once.

    Attributes:
        tails: |log ratios| just outside the bounds on the ratio that the probe does not reach.
    """

    def __init__(self, objective: Objective) -> None:
        self.value = cache(lambda **given: value(objective, probe(**given)))
        numbers = [x for x in objective.surrogate.values.values() if isinstance(x, int | float)]
        bounds = [one for x in numbers for one in (max(x, 1.0), 1.0 + x, 1.0 - x) if one > 0.0]
        ends = {round(abs(math.log(one)) + _OUTSIDE, 6) for one in bounds}
        self.tails = {one for one in ends if _TAIL < one <= _TAILS[-1]}


_OUTSIDE = 0.05
"""Nats."""


def alike(left: Valued, right: Valued, times: float = 1.0, rtol: float = _FLOAT32) -> bool:
    """Whether two objectives, the left one multiplied, are one on any data.

    On three probes, and with ratios outside of every bound that either has: two formulas
    of the same pieces are one where all of the pieces are.
    """
    given: list[dict[str, Any]] = [{}, {"plain": True}, {"probable": True}]
    given += [{"tail": tail} for tail in sorted(left.tails | right.tails)]
    for each in given:
        mine, theirs = left.value(**each), right.value(**each)
        if not same(None if mine is None else times * mine, theirs, rtol):
            return False
    return True


_TAILS = (2.0, 11.0, 25.0)
"""Beyond usual dual clips; and beyond the clamps at 10 and at 20 nats."""
