"""The fields of rows that are turns or trajectories."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from grpo_cli.batch import F64, Segments
from grpo_cli.engine.rows.field import Field, Level
from grpo_cli.engine.rows.source import (
    Source,
    extreme,
    fraction,
    group_names,
    plain,
    rewards_of,
    same,
)
from grpo_cli.objective.terms import KL, Term


def _one_value(values: F64, segments: Segments) -> list[float | None]:
    """[S] the value that a segment's elements have in common; None where they have none."""
    least, most = (extreme(which, values, segments) for which in (np.minimum, np.maximum))
    return [
        one + 0.0 if one is not None and one == other else None
        for one, other in zip(least, most, strict=True)
    ]


def kl_by(level: Level, read: Callable[[Source, Term], list[Any]]) -> Callable[[Source], list[Any]]:
    """The KL of each row of a level; 0 where the objective has none, None where it is unknown."""

    def read_or_none(source: Source) -> list[Any]:
        term = source.breakdown.term(KL)
        if term is None:
            return [None if source.breakdown.kl_unknown else 0.0] * source.count(level)
        return read(source, term)

    return read_or_none


# ---- turns --------------------------------------------------------------------------------------


def _part_of(source: Source, term: Term) -> F64:
    """[N] w·value of a term."""
    spread = source.summary.responses.spread(source.breakdown.term_weight(term))
    return term.weights.times_own(spread) * term.values


def _turn_rewards(source: Source) -> list[Any]:
    """[turns] the reward of each turn, or the sum of its tokens' rewards."""
    batch = source.breakdown.batch
    if batch.turn_rewards is not None:
        return plain(batch.turn_rewards)
    if batch.token_rewards is not None:
        return plain(source.turns.sum(batch.token_rewards))
    return [None] * source.turns.count


def _turn_clips(*sides: int) -> Callable[[Source], list[float | None]]:
    def read(source: Source) -> list[float | None]:
        counts = source.turns.sum(np.isin(source.breakdown.clip, sides).astype(np.int64))
        return fraction(counts.tolist(), source.turns.lengths.tolist())

    return read


def _turn_ratio_means(source: Source) -> list[float | None]:
    with np.errstate(over="ignore"):
        sums = source.turns.sum(source.breakdown.ratio)
    return fraction(sums.tolist(), source.turns.lengths.tolist())


def _turn_gradients(source: Source) -> list[float]:
    with np.errstate(over="ignore"):
        squares = source.turns.sum(np.square(source.breakdown.gradient))
    return np.sqrt(squares).tolist()


TURN = (
    Field("turn", lambda source: source.turn_numbers.tolist(), kind="whole"),
    Field(
        "trajectory",
        lambda s: [*map(trajectory_names(s).__getitem__, s.turn_trajectories.tolist())],
        12,
        kind="any",
    ),
    Field("tokens", lambda source: source.turns.lengths.tolist(), 1, kind="whole"),
    Field("turn_reward", _turn_rewards),
    Field("advantage", lambda s: _one_value(s.breakdown.advantage, s.turns)),
    Field("weight", lambda s: _one_value(s.breakdown.token_weight, s.turns), 8),
    Field("policy", lambda s: plain(s.turns.sum(_part_of(s, s.breakdown.policy))), 7),
    Field("kl", kl_by("turn", lambda s, term: plain(s.turns.sum(_part_of(s, term)))), 4),
    Field("contribution", lambda source: plain(source.turns.sum(source.breakdown.contribution))),
    Field("clip_fraction", _turn_clips(-1, 1), 2),
    Field("clip_fraction_low", _turn_clips(-1), 11),
    Field("clip_fraction_high", _turn_clips(1), 10),
    Field("ratio_mean", _turn_ratio_means, 6),
    Field("ratio_min", lambda s: extreme(np.minimum, s.breakdown.ratio, s.turns), 9),
    Field("ratio_max", lambda s: extreme(np.maximum, s.breakdown.ratio, s.turns), 3),
    Field("gradient_norm", _turn_gradients),
)


# ---- trajectories -------------------------------------------------------------------------------


def trajectory_names(source: Source) -> list[Any]:
    """What the user calls each trajectory, or its number in its record."""
    names: list[Any] = []
    for record, count in zip(
        source.records, source.trajectories.records.lengths.tolist(), strict=True
    ):
        names += [*range(count)] if record.trajectory_labels is None else record.trajectory_labels
    return names


def _of_last(read: Callable[[Source], list[Any]]) -> Callable[[Source], list[Any]]:
    """The value of each trajectory's last response."""

    def of_trajectories(source: Source) -> list[Any]:
        values, trajectories = read(source), source.trajectories
        lasts = np.cumsum(trajectories.responses.lengths) - 1
        return [values[at] for at in trajectories.order[lasts].tolist()]

    return of_trajectories


def _total(read: Callable[[Source], Any]) -> Callable[[Source], list[Any]]:
    """The exact sum of a number of each of the trajectory's responses."""
    return lambda source: source.trajectories.sum(np.asarray(read(source), dtype=np.float64))


def _count(read: Callable[[Source], Any]) -> Callable[[Source], list[int]]:
    return lambda source: [*map(int, source.trajectories.sum(read(source).astype(np.float64)))]


def _lengths(source: Source) -> Any:
    return source.summary.responses.lengths


def _part(*reads: Callable[[Source], Any]) -> Callable[[Source], list[float | None]]:
    """The sum of some numbers of each response over the trajectory's tokens."""

    def read(source: Source) -> list[float | None]:
        parts = source.trajectories.sum(np.sum([one(source) for one in reads], axis=0) + 0.0)
        return fraction(parts, _count(_lengths)(source))

    return read


def _extreme_ratio(which: np.ufunc) -> Callable[[Source], list[float | None]]:
    def read(source: Source) -> list[float | None]:
        found = extreme(which, source.breakdown.ratio, source.summary.responses)
        order, responses = source.trajectories.order.tolist(), source.trajectories.responses
        ordered = [found[at] for at in order]
        known = np.array([one is not None for one in ordered])
        values = np.array([one for one in ordered if one is not None], dtype=np.float64)
        return extreme(which, values, Segments(responses.sum(known.astype(np.int64))))

    return read


def _common_advantage(source: Source) -> list[float | None]:
    """The advantage that all the tokens of a trajectory have; None where they differ."""
    found = _one_value(source.breakdown.advantage, source.summary.responses)
    each = [
        {one for at in members if (one := found[at]) is not None or source.response_lengths[at]}
        for members in source.trajectories.members
    ]
    return [one.pop() if len(one) == 1 else None for one in each]


TRAJECTORY = (
    Field("trajectory", trajectory_names, kind="any"),
    Field("group", _of_last(group_names), 5, same, kind="any"),
    Field("reward", _of_last(rewards_of), kind="any"),
    Field("advantage", _common_advantage),
    Field("response_count", lambda s: s.trajectories.responses.lengths.tolist(), 12, kind="whole"),
    Field("turn_count", _count(lambda source: source.turn_responses.lengths), 1, kind="whole"),
    Field("tokens", _count(_lengths), 2, kind="whole"),
    Field("policy", _total(lambda s: s.breakdown.weight * s.breakdown.policy.sums), 7),
    Field(
        "kl",
        kl_by(
            "trajectory", lambda s, kl: s.trajectories.sum(s.breakdown.term_weight(kl) * kl.sums)
        ),
        4,
    ),
    Field("contribution", _total(lambda source: source.breakdown.response_contribution)),
    Field(
        "clip_fraction", _part(lambda s: s.summary.clipped_low, lambda s: s.summary.clipped_high), 3
    ),
    Field("clip_fraction_low", _part(lambda source: source.summary.clipped_low), 11),
    Field("clip_fraction_high", _part(lambda source: source.summary.clipped_high), 10),
    Field("ratio_mean", _part(lambda source: source.summary.ratio_sums), 6),
    Field("ratio_min", _extreme_ratio(np.minimum), 9),
    Field("ratio_max", _extreme_ratio(np.maximum), 8),
    Field(
        "gradient_norm",
        lambda s: np.sqrt(
            s.trajectories.sum(np.square(s.summary.response_gradient_norms))
        ).tolist(),
    ),
)
