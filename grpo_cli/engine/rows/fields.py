"""The table of fields: what each number of a row is called, and how it is computed.

A new column of the tables is a line here. Order is the order in which they are printed. N tokens,
R responses, M records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.engine.rows.source import (
    LEVELS,
    SIZED,
    Field,
    Kind,
    Source,
    bounds,
    differences_of,
    extreme,
    fraction,
    group_names,
    plain,
    rewards_of,
    same,
    trajectory_names,
    whole,
)
from grpo_cli.engine.rows.source import Level as Level
from grpo_cli.errors import nearest
from grpo_cli.objective.terms import ENTROPY, KL, POLICY, Term
from grpo_cli.records.record import listed

Read = Callable[[Source], list[Any]]

_diagnostic = partial(Field, kind="diagnostic")


def _share(part: int, all_of_it: int) -> float | None:
    return part / all_of_it if all_of_it else None


TOTAL = (
    Field("objective", lambda total: total.objective + 0.0, 5),
    Field("loss", lambda total: -total.objective + 0.0),
    Field("policy", lambda total: total.value(POLICY) + 0.0, 7),
    Field("kl", lambda total: total.value(KL) + 0.0 if total.kl_known else None, 3, usual=0.0),
    _diagnostic("entropy", lambda t: t.value(ENTROPY) if t.sums(ENTROPY) else None, 15),
    Field("denominator", lambda total: total.denominator, 11),
    Field("denominator_of", lambda total: total.denominator_of, 18, kind="text"),
    Field("records", lambda total: total.records, kind="whole"),
    Field("groups", lambda total: total.groups, 9, kind="whole"),
    Field("responses", lambda total: total.responses, 4, kind="whole"),
    Field("tokens", lambda total: total.tokens, 2, kind="whole"),
    _diagnostic("clip_fraction", lambda t: _share(t.clipped_low + t.clipped_high, t.tokens), 1),
    _diagnostic("clip_fraction_low", lambda total: _share(total.clipped_low, total.tokens), 14),
    _diagnostic("clip_fraction_high", lambda total: _share(total.clipped_high, total.tokens), 13),
    _diagnostic("ratio_mean", lambda t: t.ratio.value() / t.tokens if t.tokens else None, 6),
    _diagnostic("ratio_min", lambda total: total.ratio_min if total.tokens else None, 12),
    _diagnostic("ratio_max", lambda total: total.ratio_max if total.tokens else None, 8),
    _diagnostic("gradient_norm", lambda total: total.gradient_norm),
    Field("dead_groups", lambda total: total.dead_groups, 10, kind="whole"),
    Field("empty_responses", lambda total: total.empty_responses, 17, kind="whole"),
    Field("on_policy_records", lambda total: total.on_policy, 16, kind="whole"),
)


def _terms(level: Level) -> tuple[Field, ...]:
    """The policy, the KL and the contribution of a response, turn or trajectory."""

    def parts(source: Source, term: Term) -> list[Any]:
        weight = source.breakdown.term_weight(term)
        if level != "turn":
            return source.sum(level, weight * term.sums)
        spread = source.batch.responses.spread(weight)
        return plain(source.turns.sum(term.weights.times_own(spread) * term.values))

    def contribution(source: Source) -> list[Any]:
        if level == "turn":
            return plain(source.turns.sum(source.breakdown.contribution))
        return source.sum(level, source.breakdown.response_contribution)

    return (
        Field("policy", lambda source: parts(source, source.breakdown.policy), 7),
        Field("kl", _kl(level, parts), 4, usual=0.0),
        Field("contribution", contribution),
    )


def _kl(level: Level, read: Callable[[Source, Term], list[Any]]) -> Read:
    """The KL of each row of a level; 0 where the objective has none, None where it is unknown."""

    def read_or_none(source: Source) -> list[Any]:
        term = source.breakdown.term(KL)
        if term is None:
            return [None if source.breakdown.kl_unknown else 0.0] * source.count(level)
        return read(source, term)

    return read_or_none


def _clips_and_ratios(level: Level, *spares: int) -> tuple[Field, ...]:
    """Which part of each row's tokens the clip bound, and their ratios.

    Args:
        spares: the ``spare`` of each of the six fields.
    """

    def clipped(*sides: int) -> Read:
        def read(source: Source) -> list[Any]:
            bound = np.isin(source.breakdown.clip, sides).astype(np.int64)
            return fraction(source.sum_tokens(level, bound), source.token_counts(level))

        return read

    def mean(source: Source) -> list[Any]:
        with np.errstate(over="ignore"):
            sums = source.sum_tokens(level, source.breakdown.ratio)
        return fraction(sums, source.token_counts(level))

    def extremes(which: np.ufunc) -> Read:
        def read(source: Source) -> list[Any]:
            if level == "trajectory":
                found = extreme(which, source.breakdown.ratio, source.batch.responses)
                pick = min if which is np.minimum else max
                return [
                    pick((one for at in members if (one := found[at]) is not None), default=None)
                    for members in source.trajectories.members
                ]
            segments = {
                "record": source.batch.record_tokens,
                "response": source.batch.responses,
                "turn": source.turns,
            }
            return extreme(which, source.breakdown.ratio, segments[level])

        return read

    reads = (
        *(clipped(-1, 1), clipped(-1), clipped(1)),
        *(mean, extremes(np.minimum), extremes(np.maximum)),
    )
    return tuple(map(_diagnostic, _CLIPS_AND_RATIOS, reads, spares))


_CLIPS_AND_RATIOS = (
    *("clip_fraction", "clip_fraction_low", "clip_fraction_high"),
    *("ratio_mean", "ratio_min", "ratio_max"),
)

SIDES = np.array([None, "high", "low"], dtype=object)
"""What a clip side of 0, 1 and −1 is called."""


def _one_value(values: F64, segments: Segments) -> list[float | None]:
    """[S] the value that a segment's elements have in common; None where they have none."""
    least, most = (extreme(which, values, segments) for which in (np.minimum, np.maximum))
    return [
        one + 0.0 if one is not None and one == other else None
        for one, other in zip(least, most, strict=True)
    ]


def _entropy(source: Source) -> list[Any]:
    if source.breakdown.term(ENTROPY) is None:
        return [None] * source.count("record")
    return plain(source.breakdown.record_value(ENTROPY))


def _undivided(source: Source) -> list[dict[str, float]]:
    """[M] term → its part in a record's sum, which its batch's denominator divides."""
    found = source.breakdown
    sums = {
        term.name: found.record_values[term.name] * np.maximum(found.count(term.weights), 1)
        for term in found.active
    }
    parts = {term.name: plain(term.coefficient * sums[term.name]) for term in found.active}
    return [dict(zip(parts, row, strict=True)) for row in zip(*parts.values(), strict=True)]


UNDIVIDED = Field("undivided", _undivided, hidden=True)

STEP = Field("step", lambda source: [one.step for one in source.records], usual=same, kind="any")
"""Nested rows have it only where their record says it."""

RECORD = (
    STEP,
    Field("id", lambda source: [record.name for record in source.records], kind="any"),
    Field("source", lambda s: [record.source for record in s.records], 6, same, kind="text"),
    Field("line", lambda source: [record.line for record in source.records], 15, kind="whole"),
    Field("objective", lambda source: plain(source.breakdown.record_objective), 6),
    Field("loss", lambda source: plain(-source.breakdown.record_objective)),
    Field("policy", lambda source: plain(source.breakdown.record_value(POLICY)), 9),
    Field(
        "kl", _kl("record", lambda s, kl: plain(s.breakdown.record_value(kl.name))), 5, usual=0.0
    ),
    _diagnostic("entropy", _entropy),
    Field("denominator", lambda source: whole(source.breakdown.denominator), 14),
    Field(
        "denominator_of",
        lambda source: [source.breakdown.policy.weights.of] * source.count("record"),
        hidden=True,
        kind="text",
    ),
    Field("groups", lambda source: source.breakdown.record_groups.tolist(), 10, 1, kind="whole"),
    Field("response_count", lambda s: s.batch.records.lengths.tolist(), 7, kind="whole"),
    Field("tokens", lambda source: source.token_counts("record"), 2, kind="whole"),
    *_clips_and_ratios("record", 1, 13, 12, 8, 11, 3),
    _diagnostic("gradient_norm", lambda s: np.sqrt(s.breakdown.record_gradient_squares).tolist()),
    Field("dead_groups", lambda source: source.breakdown.dead_groups.tolist(), 4, 0, kind="whole"),
    Field(
        "variant",
        lambda source: [source.breakdown.objective.name] * source.count("record"),
        hidden=True,
        kind="text",
    ),
    Field(
        "signature",
        lambda source: source.breakdown.objective.signatures(source.count("record")),
        hidden=True,
        kind="text",
    ),
)


def _advantages(source: Source) -> list[Any]:
    """[R] None where the tokens of a response have advantages of their own."""
    advantage = source.breakdown.response_advantage
    return [None] * source.count("response") if advantage is None else plain(advantage)


RESPONSE = (
    Field("response", lambda source: source.batch.records.positions.tolist(), kind="whole"),
    Field("group", group_names, 5, same, kind="any"),
    Field("reward", rewards_of, kind="any"),
    Field("advantage", _advantages),
    Field("length", lambda source: source.token_counts("response"), 1, kind="whole"),
    Field("weight", lambda source: plain(source.breakdown.weight), 8),
    *_terms("response"),
    *_clips_and_ratios("response", 2, 11, 10, 6, 9, 3),
    _diagnostic("gradient_norm", lambda source: source.breakdown.response_gradient_norms.tolist()),
)


def _trajectories_of_turns(source: Source) -> list[Any]:
    names = trajectory_names(source)
    return [names[at] for at in source.turn_responses.spread(source.trajectories.index).tolist()]


def _turn_rewards(source: Source) -> list[Any]:
    """[turns] the reward of each turn, or the sum of its tokens' rewards."""
    batch = source.breakdown.batch
    if batch.turn_rewards is not None:
        return plain(batch.turn_rewards)
    if batch.token_rewards is not None:
        return plain(source.turns.sum(batch.token_rewards))
    return [None] * source.turns.count


def _turn_gradients(source: Source) -> list[float]:
    with np.errstate(over="ignore"):
        return np.sqrt(source.turns.sum(np.square(source.breakdown.gradient))).tolist()


TURN = (
    Field("turn", lambda source: source.turn_numbers.tolist(), kind="whole"),
    Field("trajectory", _trajectories_of_turns, 12, kind="any"),
    Field("tokens", lambda source: source.token_counts("turn"), 1, kind="whole"),
    Field("turn_reward", _turn_rewards),
    Field("advantage", lambda s: _one_value(s.breakdown.advantage, s.turns)),
    Field("weight", lambda s: _one_value(s.breakdown.token_weight, s.turns), 8),
    *_terms("turn"),
    *_clips_and_ratios("turn", 2, 11, 10, 6, 9, 3),
    _diagnostic("gradient_norm", _turn_gradients),
)


def _of_last(read: Read) -> Read:
    """The value of each trajectory's last response."""

    def of_trajectories(source: Source) -> list[Any]:
        values = read(source)
        return [values[members[-1]] for members in source.trajectories.members]

    return of_trajectories


def _common_advantage(source: Source) -> list[float | None]:
    """The advantage that all the tokens of a trajectory have; None where they differ."""
    found = _one_value(source.breakdown.advantage, source.batch.responses)
    lengths = source.token_counts("response")
    each = [
        {one for at in members if (one := found[at]) is not None or lengths[at]}
        for members in source.trajectories.members
    ]
    return [one.pop() if len(one) == 1 else None for one in each]


TRAJECTORY = (
    Field("trajectory", trajectory_names, kind="any"),
    Field("group", _of_last(group_names), 5, same, kind="any"),
    Field("reward", _of_last(rewards_of), kind="any"),
    Field("advantage", _common_advantage),
    Field("response_count", lambda s: s.trajectories.responses.lengths.tolist(), 12, kind="whole"),
    Field(
        "turn_count",
        lambda s: [*map(int, s.trajectories.sum(s.turn_responses.lengths))],
        1,
        kind="whole",
    ),
    Field("tokens", lambda source: source.token_counts("trajectory"), 2, kind="whole"),
    *_terms("trajectory"),
    *_clips_and_ratios("trajectory", 3, 11, 10, 6, 9, 8),
    _diagnostic(
        "gradient_norm",
        lambda source: np.sqrt(
            source.trajectories.sum(np.square(source.breakdown.response_gradient_norms))
        ).tolist(),
    ),
)


def _written(name: str) -> Callable[[Source], list[Any] | None]:
    """[N] token strings or ids, those of masked tokens left out; None where no record has any."""

    def read(source: Source) -> list[Any] | None:
        if all(getattr(record, name) is None for record in source.records):
            return None
        values: list[Any] = []
        cuts = pairwise(bounds(source.batch.responses))
        for record in source.records:
            rows = getattr(record, name)
            for place in range(len(record.widths)):
                begin, end = next(cuts)
                row = [None] * record.widths[place] if rows is None else rows[place]
                values += counted_words(row, source.positions[begin:end])
        return values

    return read


def counted_words(row: Sequence[Any], positions: I64) -> Sequence[Any]:
    """A response's token strings or ids, those of masked tokens left out.

    Args:
        row: as written.
        positions: of the tokens that count.
    """
    words = listed(row)
    return words if len(words) == len(positions) else [words[at] for at in positions.tolist()]


def _token_kl(source: Source) -> Any:
    breakdown = source.breakdown
    if breakdown.kl_unknown:
        return None
    return np.zeros(len(breakdown.ratio)) if breakdown.kl is None else breakdown.kl + 0.0


def _versions(source: Source) -> list[int | None] | None:
    """[N] the version of the weights that sampled each token; None where that is not known."""
    versions = source.breakdown.batch.weight_versions
    return None if versions is None else [one if one >= 0 else None for one in versions.tolist()]


TOKEN = (
    Field("token", _written("tokens"), kind="text"),
    Field("token_id", _written("token_ids"), 7, kind="whole"),
    Field("position", lambda source: source.positions, kind="whole"),
    Field("log_ratio", lambda source: source.breakdown.log_ratio + 0.0, 1),
    Field("ratio", lambda source: source.breakdown.ratio + 0.0),
    Field("clip", lambda source: source.breakdown.clip, kind="text"),  # codes of SIDES
    Field("advantage", lambda source: source.breakdown.advantage + 0.0, 5),
    Field("surrogate", lambda source: source.breakdown.surrogate + 0.0, 4),
    Field("kl", _token_kl, 2, usual=0.0),
    Field("correction", lambda source: source.breakdown.correction, 3),
    Field("weight", lambda source: source.breakdown.token_weight + 0.0, 6),
    Field("contribution", lambda source: source.breakdown.contribution + 0.0),
    Field("gradient", lambda source: source.breakdown.gradient + 0.0),
)

TABLE: Mapping[Level, tuple[Field, ...]] = {
    "batch": TOTAL,
    "record": RECORD,
    "trajectory": TRAJECTORY,
    "response": RESPONSE,
    "turn": TURN,
    "token": TOKEN,
}


def _share_of(size: int, level: Level) -> Callable[[Source], Any]:
    """The part of one of ``Sizes`` that each row's tokens have: NaN if unknown, 0 of nothing."""

    def read(source: Source) -> Any:
        values: F64 = np.abs(getattr(source.breakdown, SIZED[size]))
        whole = np.full(source.count("record"), np.nan)
        whole = whole if source.sizes is None else source.sizes[:, size]
        if level != "record":
            whole = source.rows_of_records(level).spread(whole)
        if level != "token":
            values = np.array(source.sum_tokens(level, values))
        parts = np.divide(values, whole, out=np.zeros(len(values)), where=whole != 0.0)
        return parts if level == "token" else parts.tolist()

    return read


def _shares(level: Level) -> tuple[Field, ...]:
    return tuple(Field(name, _share_of(at, level)) for at, name in enumerate(SHARES))


SHARES = ("share", "contribution_share")
"""A row's part of the update, |gradient| / Σ |gradient| over its batch; and of Σ |contribution|."""


def _only_groups(source: Source) -> list[Any]:
    """What the user calls the group that each record is; None where it has several, or no name."""
    labels = (record.group_labels or () for record in source.records)
    return [each[0] if len(each) == 1 else None for each in labels]


EXTRA: Mapping[Level, tuple[Field, ...]] = {
    "batch": (),
    "record": (
        Field("contribution", lambda s: s.sum("record", s.breakdown.response_contribution)),
        *_shares("record"),
        Field("group", _only_groups, kind="any"),
        UNDIVIDED,
    ),
    "trajectory": _shares("trajectory"),
    "response": _shares("response"),
    "turn": _shares("turn"),
    "token": (
        *_shares("token"),
        Field("turn", lambda source: source.turns.spread(source.turn_numbers), kind="whole"),
        Field("role", _written("roles"), kind="text"),
        Field("weight_version", _versions, kind="whole"),
        Field("log_prob", lambda source: source.breakdown.batch.log_probs_new),
        Field("difference", lambda source: differences_of(source.breakdown).get("difference")),
        Field("mismatch", lambda source: differences_of(source.breakdown).get("mismatch")),
    ),
}
"""What rows have only where it is asked for: most of it needs another pass over the input first."""


ACCUMULATED = ("micro_batches", "accumulation", "accumulated_loss")
"""What follows a batch's totals where its records name micro-batches or ranks."""

NAMED = ("trajectories", "turns")
"""What follows a batch's totals where its records name turns or trajectories."""

KINDS: Mapping[str, Kind] = {
    **{field.name: field.kind for level in LEVELS for field in (*TABLE[level], *EXTRA[level])},
    **dict(zip(ACCUMULATED, ("whole", "text", "number"), strict=True)),
    **dict.fromkeys(NAMED, "whole"),
}
"""What the values of each field are, at any level."""


OWN: Mapping[Level, tuple[str, ...]] = {
    level: tuple(field.name for field in fields) for level, fields in TABLE.items()
}
"""The names of a level's own fields."""

EXTRAS: Mapping[Level, tuple[str, ...]] = {
    level: tuple(field.name for field in fields if not field.hidden)
    for level, fields in EXTRA.items()
}
"""The names of what rows of a level have only where it is asked for."""


def spare(level: Level) -> list[str]:
    """The names of what a narrow terminal goes without, the first to go first."""
    fields = [field for field in TABLE[level] if field.spare]
    return [field.name for field in sorted(fields, key=lambda field: -field.spare)]


RECORD_CONTEXT = ("step", "id", "source", "line", "variant", "signature")
"""What a row within a record may say of it."""

RESPONSE_CONTEXT = ("response", "group", "reward")
"""What a row within a response may say of it."""

_CONTEXT: Mapping[Level, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "batch": (("variant", "signature"), ("variant", "signature")),
    "record": ((), ()),
    "trajectory": (RECORD_CONTEXT, ("step", "id")),
    "turn": ((*RECORD_CONTEXT, *RESPONSE_CONTEXT), ("step", "id", "response")),
    "response": (RECORD_CONTEXT, ("step", "id")),
    "token": ((*RECORD_CONTEXT, *RESPONSE_CONTEXT), ("step", "id", "response", "group")),
}
"""What a row may say of what holds it, and what it does say."""

FIELDS: Mapping[Level, tuple[str, ...]] = {
    level: (*context, *OWN[level], *(NAMED if level == "batch" else EXTRAS[level]))
    for level, (context, _) in _CONTEXT.items()
}
"""The names that can be chosen at each level."""


def at_other_levels(name: str, level: Level) -> str:
    """The levels that have the column which a name, perhaps misspelt, means; "" if this one has."""
    near = nearest(name, KINDS)
    levels = [one for one, names in FIELDS.items() if near in names]
    if not levels or level in levels:
        return ""
    return f"; {near} is a column of --level {', '.join(levels)}"


COLUMNS: Mapping[Level, tuple[str, ...]] = {
    level: (*usual, *OWN[level]) for level, (_, usual) in _CONTEXT.items()
}
"""What a row has unless other fields are chosen."""
