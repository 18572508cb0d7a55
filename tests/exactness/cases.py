"""Small ragged batches at random, as the product reads them and as lists of mpmath numbers."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache

import numpy as np
from mpmath import mpf
from vectors.oracle.batch import Batch as Case
from vectors.oracle.batch import Response, Token

from grpo_cli.batch import Batch, Segments


@cache
def random_batch(seed: int, *, records: int = 1) -> Batch:
    """Everything present: several groups of unequal sizes, out of order, a lone response, a group
    of equal rewards, an empty response, ratios on both sides of every clip, responses of several
    turns, trajectories of several responses.

    It is made once for all tests that ask for it, so nothing may write into it.
    """
    rng = np.random.default_rng(seed)
    groups, rewards, lengths, counts = [], [], [], []
    first = 0
    for _ in range(records):
        # Not only pairs: in a pair, two rewards of opposite sign cancel to 1e-8 (gdpo).
        sizes = [int(rng.integers(3, 5)), int(rng.integers(2, 4)), 1]
        index = np.repeat(np.arange(len(sizes)), sizes)
        scores = rng.integers(0, 97, size=(len(index), 2)) / 32.0  # sums are exact
        if rng.random() < 0.3:
            scores[index == 1] = scores[index == 1][0]  # a dead group
        size = rng.integers(1, 4, size=len(index))
        if rng.random() < 0.5:
            size[rng.integers(len(size))] = 0
        order = rng.permutation(len(index))
        groups += (index[order] + first).tolist()
        rewards += scores[order].tolist()
        lengths += size[order].tolist()
        counts.append(len(index))
        first += len(sizes)
    tokens = sum(lengths)
    old = -rng.exponential(1.0, tokens) - 1e-3
    turn_ids, turn_rewards, trajectories = _agents(groups, lengths, seed)
    batch = Batch(
        responses=Segments(np.array(lengths)),
        records=Segments(np.array(counts)),
        groups=np.array(groups),
        group_count=first,
        log_probs_new=np.minimum(old + rng.normal(0.0, 0.5, tokens), -1e-4),
        log_probs_old=old,
        log_probs_ref=np.minimum(old + rng.normal(0.0, 0.3, tokens), -1e-4),
        log_probs_rollout=np.minimum(old + rng.normal(0.0, 0.3, tokens), -1e-4),
        entropies=rng.exponential(1.0, tokens),
        rewards=np.array(rewards),
        values=rng.normal(0.5, 0.4, tokens),
        sum_pi_squared=rng.uniform(0.1, 0.9, tokens),
        reward_baselines=rng.integers(0, 97, size=len(rewards)) / 32.0,
        reward_names=("a", "b"),
        turn_ids=turn_ids,
        turn_rewards=turn_rewards,
        state_ids=np.random.default_rng([seed, 2]).integers(0, 3, len(turn_rewards)) + 0.0,
        trajectories=trajectories,
        trajectory_count=len(set(trajectories.tolist())),
    )
    columns = [getattr(batch, field.name) for field in fields(batch)]
    for column in (column for column in columns if isinstance(column, np.ndarray)):
        column.flags.writeable = False
    return batch


def _agents(
    groups: list[int], lengths: list[int], seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[N] turns and [turns] their rewards, and [R] trajectories of one or two responses each."""
    rng = np.random.default_rng([seed, 1])
    turns = [np.cumsum(rng.random(length) < 0.5) for length in lengths]
    count = sum(len(set(row.tolist())) for row in turns)
    open_ones: dict[int, int] = {}
    numbers: list[int] = []
    for group in groups:
        if group in open_ones and rng.random() < 0.5:
            numbers.append(open_ones.pop(group))
        else:
            open_ones[group] = max(numbers, default=-1) + 1
            numbers.append(open_ones[group])
    rewards = rng.integers(0, 9, count) / 8.0
    return np.concatenate(turns).astype(np.int64), rewards, np.array(numbers)


def plain(batch: Batch) -> Case:
    """The batch as lists; doubles are taken over exactly."""
    starts = batch.responses.starts.tolist()
    spans = zip(starts, batch.responses.lengths.tolist(), strict=True)
    owners = batch.responses.index[batch.turns.starts].tolist()
    turns = [*zip(owners, batch.turns.lengths.tolist(), batch.turn_rewards.tolist(), strict=True)]
    return [
        Response(
            [_token(batch, t, t - start) for t in range(start, start + length)],
            [mpf(float(x)) for x in np.atleast_1d(batch.rewards[i])],
            None,
            int(batch.groups[i]),
            int(batch.trajectories[i]),
            [(size, mpf(reward)) for owner, size, reward in turns if owner == i],
            [
                int(state)
                for owner, state in zip(owners, batch.state_ids, strict=True)
                if owner == i
            ],
        )
        for i, (start, length) in enumerate(spans)
    ]


def _token(batch: Batch, t: int, position: int) -> Token:
    names = ("new", "old", "ref", "rollout")
    logs = {name: mpf(float(getattr(batch, f"log_probs_{name}")[t])) for name in names}
    return Token(position, **logs, entropy=mpf(0), frozen=logs["new"])


def moved(case: Case, direction: list[float], step: mpf) -> Case:
    """The case with log π_θ moved along a direction, and what is frozen left where it was."""
    along = iter(direction)
    return [
        replace(
            response,
            tokens=[replace(t, new=t.new + step * mpf(next(along))) for t in response.tokens],
        )
        for response in case
    ]
