"""The table of fields: what each number of a row is called, and how it is computed.

A new column of the tables is a line here. Order is the order in which they are printed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.engine.rows.field import LEVELS, Kind
from grpo_cli.engine.rows.field import Field as Field  # every reader of rows has these from here
from grpo_cli.engine.rows.field import Level as Level
from grpo_cli.engine.rows.source import (
    Source,
    bounds,
    differences_of,
    exact_sums,
    extreme,
    fraction,
    group_names,
    kept,
    plain,
    rewards_of,
    same,
    whole,
)
from grpo_cli.engine.rows.turns import TRAJECTORY, TURN, kl_by
from grpo_cli.engine.sizes import SIZED
from grpo_cli.objective.breakdown import record_sums
from grpo_cli.objective.terms import ENTROPY, KL, POLICY


def _share(part: int, all_of_it: int) -> float | None:
    return part / all_of_it if all_of_it else None


TOTAL = (
    Field("objective", lambda total: total.objective + 0.0),
    Field("loss", lambda total: -total.objective + 0.0),
    Field("policy", lambda total: total.value(POLICY) + 0.0),
    Field("kl", lambda total: total.value(KL) + 0.0 if total.kl_known else None),
    Field("entropy", lambda total: total.value(ENTROPY) if total.sums(ENTROPY) else None),
    Field("denominator", lambda total: total.denominator),
    Field("denominator_of", lambda total: total.denominator_of, kind="text"),
    Field("records", lambda total: total.records, kind="whole"),
    Field("groups", lambda total: total.groups, kind="whole"),
    Field("responses", lambda total: total.responses, kind="whole"),
    Field("tokens", lambda total: total.tokens, kind="whole"),
    Field("clip_fraction", lambda t: _share(t.clipped_low + t.clipped_high, t.tokens)),
    Field("clip_fraction_low", lambda total: _share(total.clipped_low, total.tokens)),
    Field("clip_fraction_high", lambda total: _share(total.clipped_high, total.tokens)),
    Field("ratio_mean", lambda total: total.ratio.value() / total.tokens if total.tokens else None),
    Field("ratio_min", lambda total: total.ratio_min if total.tokens else None),
    Field("ratio_max", lambda total: total.ratio_max if total.tokens else None),
    Field("gradient_norm", lambda total: total.gradient_norm),
    Field("dead_groups", lambda total: total.dead_groups, kind="whole"),
    Field("empty_responses", lambda total: total.empty_responses, kind="whole"),
    Field("on_policy_records", lambda total: total.on_policy, kind="whole"),
)


def _record_kl(source: Source) -> list[Any]:
    breakdown = source.breakdown
    if breakdown.kl_unknown:
        return [None] * source.records_count
    return plain(breakdown.record_value(KL))


def _record_entropy(source: Source) -> list[Any]:
    if source.breakdown.term(ENTROPY) is None:
        return [None] * source.records_count
    return plain(source.breakdown.record_value(ENTROPY))


def _clip_fraction(level: str, *sides: str) -> Callable[[Source], list[float | None]]:
    """The share of a record's or a response's tokens that the clip bound on some sides."""

    def read(source: Source) -> list[float | None]:
        counts = np.sum([getattr(source.summary, f"clipped_{side}") for side in sides], axis=0)
        if level == "record":
            return fraction(source.summary.records.sum(counts).tolist(), source.record_lengths)
        return fraction(counts.tolist(), source.response_lengths)

    return read


RECORD = (
    Field("id", lambda source: [record.name for record in source.records], kind="any"),
    Field(
        "source", lambda source: [record.source for record in source.records], 6, same, kind="text"
    ),
    Field("line", lambda source: [record.line for record in source.records], 15, kind="whole"),
    Field("objective", lambda source: plain(source.breakdown.record_objective)),
    Field("loss", lambda source: plain(-source.breakdown.record_objective)),
    Field("policy", lambda source: plain(source.breakdown.record_value(POLICY)), 9),
    Field("kl", _record_kl, 5),
    Field("entropy", _record_entropy),
    Field("denominator", lambda source: whole(source.breakdown.denominator), 14),
    Field(
        "denominator_of",
        lambda source: [source.breakdown.policy.weights.of] * source.records_count,
        hidden=True,
        kind="text",
    ),
    Field("groups", lambda source: source.breakdown.record_groups.tolist(), 10, 1, kind="whole"),
    Field(
        "response_count", lambda source: source.summary.records.lengths.tolist(), 7, kind="whole"
    ),
    Field("tokens", lambda source: source.record_lengths, 2, kind="whole"),
    Field("clip_fraction", _clip_fraction("record", "low", "high"), 1),
    Field("clip_fraction_low", _clip_fraction("record", "low"), 13),
    Field("clip_fraction_high", _clip_fraction("record", "high"), 12),
    Field(
        "ratio_mean",
        lambda source: fraction(
            exact_sums(source.summary.ratio_sums, source.summary.records), source.record_lengths
        ),
        8,
    ),
    Field(
        "ratio_min",
        lambda s: extreme(np.minimum, s.breakdown.ratio, s.summary.record_tokens),
        11,
    ),
    Field(
        "ratio_max",
        lambda s: extreme(np.maximum, s.breakdown.ratio, s.summary.record_tokens),
        3,
    ),
    Field("gradient_norm", lambda s: np.sqrt(s.summary.record_gradient_squares).tolist()),
    Field("dead_groups", lambda source: source.summary.dead_groups.tolist(), 4, 0, kind="whole"),
    Field(
        "variant",
        lambda s: [s.breakdown.objective.name] * s.records_count,
        hidden=True,
        kind="text",
    ),
    Field(
        "signature",
        lambda s: s.breakdown.signatures,
        hidden=True,
        kind="text",
    ),
)


def _advantages(source: Source) -> list[Any]:
    """[R] None where the tokens of a response have advantages of their own."""
    if source.breakdown.response_advantage is None:
        return [None] * source.responses_count
    return plain(source.breakdown.response_advantage)


RESPONSE = (
    Field("response", lambda source: source.summary.records.positions.tolist(), kind="whole"),
    Field("group", group_names, 5, same, kind="any"),
    Field("reward", rewards_of, kind="any"),
    Field("advantage", _advantages),
    Field("length", lambda source: source.response_lengths, 1, kind="whole"),
    Field("weight", lambda source: plain(source.breakdown.weight), 8),
    Field("policy", lambda s: plain(s.breakdown.weight * s.breakdown.policy.sums), 7),
    Field("kl", kl_by("response", lambda s, kl: plain(s.breakdown.term_weight(kl) * kl.sums)), 4),
    Field("contribution", lambda source: plain(source.breakdown.response_contribution)),
    Field("clip_fraction", _clip_fraction("response", "low", "high"), 2),
    Field("clip_fraction_low", _clip_fraction("response", "low"), 11),
    Field("clip_fraction_high", _clip_fraction("response", "high"), 10),
    Field("ratio_mean", lambda s: fraction(s.summary.ratio_sums.tolist(), s.response_lengths), 6),
    Field("ratio_min", lambda s: extreme(np.minimum, s.breakdown.ratio, s.summary.responses), 9),
    Field("ratio_max", lambda s: extreme(np.maximum, s.breakdown.ratio, s.summary.responses), 3),
    Field("gradient_norm", lambda source: source.summary.response_gradient_norms.tolist()),
)


def _written(name: str) -> Callable[[Source], list[Any] | None]:
    """[N] token strings or ids, those of masked tokens left out; None where no record has any."""

    def read(source: Source) -> list[Any] | None:
        if all(getattr(record, name) is None for record in source.records):
            return None
        positions, values = source.positions, []
        cuts = pairwise(bounds(source.summary.responses))
        for record in source.records:
            rows = getattr(record, name)
            for place in range(len(record.widths)):
                begin, end = next(cuts)
                row = [None] * record.widths[place] if rows is None else rows[place]
                values += kept(row, positions[begin:end])
        return values

    return read


def _token_kl(source: Source) -> Any:
    breakdown = source.breakdown
    if breakdown.kl_unknown:
        return None
    return np.zeros(len(breakdown.ratio)) if breakdown.kl is None else breakdown.kl + 0.0


def _versions(source: Source) -> list[int | None] | None:
    """[N] the version of the weights that sampled each token; None where that is not known."""
    versions = source.breakdown.batch.weight_versions
    return None if versions is None else [one if one >= 0 else None for one in versions.tolist()]


SIDES = np.array([None, "high", "low"], dtype=object)
"""What a clip side of 0, 1 and −1 is called."""

TOKEN = (
    Field("token", _written("tokens"), kind="text"),
    Field("token_id", _written("token_ids"), 7, kind="whole"),
    Field("position", lambda source: source.positions, kind="whole"),
    Field("log_ratio", lambda source: source.breakdown.log_ratio + 0.0, 1),
    Field("ratio", lambda source: source.breakdown.ratio + 0.0),
    Field("clip", lambda source: source.breakdown.clip, kind="text"),  # codes of SIDES
    Field("advantage", lambda source: source.breakdown.advantage + 0.0, 5),
    Field("surrogate", lambda source: source.breakdown.surrogate + 0.0, 4),
    Field("kl", _token_kl, 2),
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
        whole = np.full(source.records_count, np.nan)
        whole = whole if source.sizes is None else source.sizes[:, size]
        if level != "record":
            whole = source.rows_of_records(level).spread(whole)
        if level == "turn":
            values = source.turns.sum(values)
        elif level != "token":
            values = source.summary.responses.sum(values)
        if level == "trajectory":
            values = np.array(source.trajectories.sum(values))
        elif level == "record":
            values = record_sums(values, source.summary.records)
        parts = np.divide(values, whole, out=np.zeros(len(values)), where=whole != 0.0)
        return parts if level == "token" else parts.tolist()

    return read


def _shares(level: Level) -> tuple[Field, ...]:
    return tuple(Field(name, _share_of(at, level)) for at, name in enumerate(SHARES))


SHARES = ("share", "contribution_share")
"""A row's part of the update, |gradient| / Σ |gradient| over its batch; and of Σ |contribution|."""

EXTRA: Mapping[Level, tuple[Field, ...]] = {
    "batch": (),
    "record": (
        Field(
            "contribution",
            lambda s: plain(record_sums(s.breakdown.response_contribution, s.summary.records)),
        ),
        *_shares("record"),
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


def names(level: Level) -> tuple[str, ...]:
    """The names of a level's own fields."""
    return tuple(field.name for field in TABLE[level])


def extras(level: Level) -> tuple[str, ...]:
    """The names of what rows of a level have only where it is asked for."""
    return tuple(field.name for field in EXTRA[level])


def spare(level: Level) -> list[str]:
    """The names of what a narrow terminal goes without, the first to go first."""
    fields = [field for field in TABLE[level] if field.spare]
    return [field.name for field in sorted(fields, key=lambda field: -field.spare)]


RECORD_CONTEXT = ("id", "source", "line", "variant", "signature")
"""What a row within a record may say of it."""

RESPONSE_CONTEXT = ("response", "group", "reward")
"""What a row within a response may say of it."""

FIELDS: dict[Level, tuple[str, ...]] = {
    "batch": ("variant", "signature", *names("batch"), *NAMED),
    "record": (*names("record"), *extras("record")),
    "trajectory": (*RECORD_CONTEXT, *names("trajectory"), *extras("trajectory")),
    "turn": (*RECORD_CONTEXT, *RESPONSE_CONTEXT, *names("turn"), *extras("turn")),
    "response": (*RECORD_CONTEXT, *names("response"), *extras("response")),
    "token": (*RECORD_CONTEXT, *RESPONSE_CONTEXT, *names("token"), *extras("token")),
}
"""The names that can be chosen at each level."""

COLUMNS: dict[Level, tuple[str, ...]] = {
    "batch": ("variant", "signature", *names("batch")),
    "record": names("record"),
    "trajectory": ("id", *names("trajectory")),
    "turn": ("id", "response", *names("turn")),
    "response": ("id", *names("response")),
    "token": ("id", "response", *names("token")),
}
"""What a row has unless other fields are chosen."""
