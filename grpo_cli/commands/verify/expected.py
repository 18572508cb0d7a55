"""What a record may expect, by name: numbers per token, per response, or of the whole record.

Quantities are functions of the breakdown of one or more records, which give a number per token [N]
or per record [M]; None where the objective has no such quantity, NaN for a record that has none.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.errors import InputError, also_unknown, nearest
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.terms import KL, POLICY
from grpo_cli.records import Record
from grpo_cli.records.packed import Unusual, pack_floats
from grpo_cli.records.parse.columns import is_number
from grpo_cli.records.places import got as shown

Flags = NDArray[np.bool_]
Values = Callable[[Breakdown], F64 | None]
Reduction = Callable[[NDArray[Any]], Any]


def _by_record(values: NDArray[Any], counts: I64, reduce: Reduction, empty: float = np.nan) -> F64:
    """[M] reduces the values of each record, of which ``counts`` has the number."""
    ends = np.cumsum(counts)
    parts = np.split(values, ends[:-1])
    return np.array([float(reduce(part)) if len(part) else empty for part in parts])


def _of_tokens(
    values: Callable[[Breakdown], NDArray[Any] | None], reduce: Reduction, empty: float = np.nan
) -> Values:
    """Returns the function that reduces numbers per token to one per record."""

    def reduced(breakdown: Breakdown) -> F64 | None:
        tokens = values(breakdown)
        if tokens is None:
            return None
        return _by_record(tokens, breakdown.batch.record_tokens.lengths, reduce, empty)

    return reduced


# ---- what TRL logs ------------------------------------------------------------------------------


def _per_response(breakdown: Breakdown) -> bool:
    return breakdown.objective.ratio.choice.per_response


def _bound(breakdown: Breakdown, side: int) -> F64:
    """[N] 1 where TRL counts a token as clipped.

    Its δ, which binds where A < 0, is no clip, and one within the window hides what that clips.
    """
    bound = (breakdown.clip == side) & (np.sign(breakdown.advantage) == side)
    values = breakdown.objective.surrogate.values
    delta, width = values.get("delta"), values.get("epsilon_high")
    if side > 0 and isinstance(delta, float) and isinstance(width, float) and delta <= 1.0 + width:
        bound = np.zeros_like(bound)
    return bound.astype(np.float64)


def _shares(breakdown: Breakdown, side: int) -> F64:
    """[N], or [R] where each response has one ratio: what TRL takes the mean of.

    It is 1 where TRL counts the token as clipped; responses without tokens have the ratio 1.
    """
    bound = _bound(breakdown, side)
    return breakdown.batch.responses.mean(bound) if _per_response(breakdown) else bound


def _mean_share(breakdown: Breakdown, shares: F64) -> F64:
    batch = breakdown.batch
    counts = batch.records if _per_response(breakdown) else batch.record_tokens
    means = _by_record(shares, counts.lengths, np.mean)
    return np.where(batch.record_tokens.lengths > 0, means, np.nan)


def _clipped(*sides: int) -> Values:
    return lambda breakdown: _mean_share(
        breakdown, np.sum([_shares(breakdown, side) for side in sides], axis=0)
    )


def _extreme(side: int, reduce: Reduction) -> Values:
    """Returns the function for the least or greatest clip fraction of a record's responses."""

    def extreme(breakdown: Breakdown) -> F64:
        batch = breakdown.batch
        share = batch.responses.mean(_bound(breakdown, side))
        counted = batch.responses.lengths > 0
        if _per_response(breakdown):  # those without tokens too, if the record has any
            counted = np.repeat(batch.record_tokens.lengths > 0, batch.records.lengths)
        counts = batch.records.sum(counted.astype(np.int64))
        return _by_record(share[counted], counts, reduce)

    return extreme


def _capped(breakdown: Breakdown) -> F64 | None:
    """[M] TRL's share of tokens, or responses, that CISPO caps at A > 0."""
    surrogate = breakdown.objective.surrogate
    if surrogate.name != "trl/cispo":
        return None
    shares = _shares(breakdown, 1)
    if _per_response(breakdown) and float(surrogate.values["epsilon_high"] or 0.0) < 1.0:
        given = breakdown.response_advantage
        empty = breakdown.batch.responses.lengths == 0
        shares = np.where(empty & (given is not None and given > 0), 1.0, shares)
    return _mean_share(breakdown, shares)


# ---- what verl logs -----------------------------------------------------------------------------


def _ppo_kl(breakdown: Breakdown) -> F64 | None:
    """[M] the mean of log π_old − log π_θ over the kept tokens, bounded where the ratio is."""
    batch, objective = breakdown.batch, breakdown.objective
    to_engine = objective.ratio.name == "rollout"
    old = batch.log_probs_rollout if to_engine else batch.log_probs_old
    if old is None or batch.log_probs_new is None:
        return None
    moved, counts = old - batch.log_probs_new, batch.record_tokens.lengths
    if breakdown.kept is not None:
        moved = moved[breakdown.kept]
        counts = batch.records.sum(batch.responses.sum(breakdown.kept.astype(np.int64)))
    bound = objective.ratio.values.get("log_ratio_clamp")
    if bound is not None:
        moved = np.clip(moved, -float(bound), float(bound))
    if "ppo_kl_coef" in objective.surrogate.values:  # kl_cov logs what it penalises
        moved = np.abs(moved)
    return _by_record(moved, counts, np.mean)


# ---- tables -------------------------------------------------------------------------------------

METRICS: Mapping[str, Values] = {
    "clip_fraction": _of_tokens(lambda b: b.clip != 0, np.mean),
    "clip_fraction_low": _of_tokens(lambda b: b.clip < 0, np.mean),
    "clip_fraction_high": _of_tokens(lambda b: b.clip > 0, np.mean),
    "ratio_mean": _of_tokens(lambda b: b.ratio, np.mean),
    "ratio_min": _of_tokens(lambda b: b.ratio, np.min),
    "ratio_max": _of_tokens(lambda b: b.ratio, np.max),
    "gradient_norm": _of_tokens(lambda b: b.gradient, np.linalg.norm, empty=0.0),
    "clip_ratio/low_mean": _clipped(-1),
    "clip_ratio/low_min": _extreme(-1, np.min),
    "clip_ratio/high_mean": _clipped(1),
    "clip_ratio/high_max": _extreme(1, np.max),
    "clip_ratio/region_mean": _clipped(-1, 1),
    "cispo_clip_ratio": _capped,
    "kl": _of_tokens(lambda b: b.kl, np.mean),  # weighted by the ratio where the loss's is
    "actor/ppo_kl": _ppo_kl,
}
"""TRL's and verl's names, and grpo's own → [M]."""


@dataclass(frozen=True)
class Quantity:
    """A number, or one per token, that a record may expect.

    Attributes:
        keys: what ``expected`` may call it.
        stage: the stage that makes it.
        tokens: its values per token [N]; None where it has none.
        record: its values per record [M]; None where it has none.
    """

    keys: tuple[str, ...]
    stage: str
    tokens: Values | None = None
    record: Values | None = None


_OWN = {
    **dict.fromkeys(("clip_fraction", "clip_fraction_low", "clip_fraction_high"), "surrogate"),
    **dict.fromkeys(("ratio_mean", "ratio_min", "ratio_max"), "ratio"),
    "gradient_norm": "gradient",
}
"""The metrics that are no framework's → the stage that makes each."""
LOSS_GRADIENT = "loss_gradient"

QUANTITIES = (
    Quantity(("advantages", "advantage"), "advantage", lambda b: b.advantage),
    Quantity(("log_ratio", "log_ratios"), "ratio", lambda b: b.log_ratio),
    Quantity(("ratio", "ratios"), "ratio", lambda b: b.ratio, METRICS["ratio_mean"]),
    Quantity(("surrogate",), "surrogate", lambda b: b.surrogate),
    Quantity(("kl",), "kl", lambda b: b.kl, lambda b: b.record_value(KL)),
    Quantity(("weight", "weights"), "aggregate", lambda b: b.token_weight),
    Quantity(("contribution", "contributions"), "aggregate", lambda b: b.contribution),
    Quantity(("gradient",), "gradient", lambda b: b.gradient),
    Quantity((LOSS_GRADIENT,), "gradient", lambda b: -b.gradient),
    *(Quantity((name,), stage, record=METRICS[name]) for name, stage in _OWN.items()),
    Quantity(("policy",), "policy", record=lambda b: b.record_value(POLICY)),
    Quantity(("policy_loss",), "policy", record=lambda b: -b.record_value(POLICY)),
    Quantity(("kl_loss",), "kl", record=lambda b: b.record_value(KL)),
    Quantity(("objective",), "objective", record=lambda b: b.record_objective),
    Quantity(("loss",), "loss", record=lambda b: -b.record_objective),
)
"""In the order of the stages."""

LOSSES = ("loss", "policy_loss")
"""What ``expected`` calls the loss of a record, which adds up to that of its step."""

OF_STEP = ("step_loss", "step_metrics")
"""What ``expected`` may have of the step of its record; a bundle's replay compares it."""

LOGGED = {
    **dict.fromkeys(("loss", "train_loss", "train/loss"), "loss"),
    **dict.fromkeys(("policy_loss", "pg_loss", "actor/pg_loss", "train/pg_loss"), "policy_loss"),
}
"""What a record, like a log, may call its trainer's loss → what ``expected`` calls it."""

KEYS = (*(key for quantity in QUANTITIES for key in quantity.keys), "metrics", *OF_STEP)
"""What ``expected`` may have."""


# ---- what a record expects ----------------------------------------------------------------------

METRIC = "metrics"
"""The stage of a trainer's metrics."""


class Expectation(NamedTuple):
    """One quantity that a record expects.

    Attributes:
        key: as ``expected`` has it; a metric's is ``metrics.NAME``.
        stage: the stage that makes it.
        level: "token", "response" or "record".
        values: [N as written], [R] or [1].
        given: which of the values are numbers and not null.
    """

    key: str
    stage: str
    level: str
    values: F64
    given: Flags

    @property
    def evaluated(self) -> Values:
        """The function of a breakdown that gives its [N], [R] or [M]."""
        quantity = _QUANTITY.get(self.key)
        if quantity is None:
            return METRICS[self.key.removeprefix("metrics.")]
        found = {"token": quantity.tokens, "record": quantity.record}.get(self.level)
        return found or _of_responses(quantity)

    @property
    def kind(self) -> tuple[str, str, bool]:
        """What expectations of records that are compared together have in common."""
        return self.key, self.level, bool(self.given.any())


Wanted = tuple[list[Expectation], list[str]]
"""What a record expects, in the order of the stages, and its keys that cannot be compared."""


_QUANTITY = {key: quantity for quantity in QUANTITIES for key in quantity.keys}
_ORDER = {key: at for at, key in enumerate(_QUANTITY)}
"""The order of the stages."""


def read_expectations(record: Record) -> Wanted:
    """Reads ``expected`` of a record.

    Raises:
        InputError: for an unknown key, for a value that is no number, or for a number of values
            that fits neither tokens nor responses; without the record's place.
    """
    expected = _object(record.expected, "expected")
    if unknown := {key: nearest(key, KEYS, 0.5) for key in expected if key not in KEYS}:
        first, *others = unknown
        close = unknown[first]
        near = f"did you mean {close}?" if close else f"known keys: {', '.join(KEYS)}"
        why = f"verify does not know this key; {near} (put what a trainer logs under metrics)"
        raise InputError(why + also_unknown(unknown, others), path=f"expected.{first}")
    keys = [key for key, value in expected.items() if value is not None and key in _QUANTITY]
    keys.sort(key=_ORDER.__getitem__)
    found = [_expectation(_QUANTITY[key], key, expected[key], record) for key in keys]
    given = expected.get("metrics")
    metrics = {} if given is None else _object(given, "expected.metrics")
    for name, value in metrics.items():
        if name in METRICS and value is not None:
            numbers = _numbers([value], f"expected.metrics.{name}")
            found.append(Expectation(f"metrics.{name}", METRIC, "record", *numbers))
    return found, [f"metrics.{key}" for key in metrics if key not in METRICS]


def logged_results(value: Mapping[str, Any]) -> dict[str, str]:
    """The results that a trainer wrote into a record: what ``expected`` calls each → its key."""
    found = {LOGGED[key]: key for key in reversed(LOGGED) if is_number(value.get(key))}
    if isinstance(value.get(LOSS_GRADIENT), list):
        found[LOSS_GRADIENT] = LOSS_GRADIENT
    return found


def read_numbers(record: Record) -> dict[str, float]:
    """The numbers that a trainer computed of a record and its step, by their path in ``expected``.

    Raises:
        InputError: for a value that is no number; without the record's place.
    """
    expected = _object(record.expected or {}, "expected")
    found = {name: expected.get(name) for name in (*LOSSES, "step_loss")}
    for name in ("metrics", "step_metrics"):
        metrics = _object(expected.get(name) or {}, f"expected.{name}")
        found |= {f"{name}.{key}": value for key, value in metrics.items()}
    given = {path: value for path, value in found.items() if value is not None}
    return {
        path: float(_numbers([value], f"expected.{path}")[0][0]) for path, value in given.items()
    }


def _object(value: object, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"expected an object, got {shown(value)}", path=path)
    return value


def _expectation(quantity: Quantity, key: str, value: object, record: Record) -> Expectation:
    path, count = f"expected.{key}", len(record.widths)
    if is_number(value):
        if quantity.record is None and count > 1:
            raise InputError(f"expected a list of numbers, got {shown(value)}", path=path)
        level, flat = "response" if quantity.record is None else "record", [value]
    elif not isinstance(value, list) or quantity.tokens is None:
        wanted = "a number" if quantity.tokens is None else "a number or a list"
        raise InputError(f"expected {wanted}, got {shown(value)}", path=path)
    else:
        rows, level = _without_groups(value, record), "token"
        if list in map(type, rows):
            flat = _joined(rows, record, path)
        elif record.nested > 1 or count > 1:
            _check_count(len(rows), count, "response", path)
            level, flat = "response", rows
        else:
            flat = _joined([rows], record, path)
    return Expectation(key, quantity.stage, level, *_numbers(flat, path))


def _without_groups(rows: list[Any], record: Record) -> list[Any]:
    nested = record.shape is not None and len(rows) == len(record.shape)
    if nested and all(isinstance(group, list) for group in rows):
        return [row for group in rows for row in group]
    return rows


def _joined(rows: list[Any], record: Record, path: str) -> list[Any]:
    """Joins the rows of all responses, one number per token as written."""
    _check_count(len(rows), len(record.widths), "response", path)
    flat: list[Any] = []
    for at, (row, width) in enumerate(zip(rows, record.widths, strict=True)):
        if not isinstance(row, list):
            raise InputError(f"expected a list of numbers, got {shown(row)}", path=f"{path}[{at}]")
        if len(row) != width:  # the path is costly
            _check_count(len(row), width, "token", f"{path}[{at}]")
        flat += row
    return flat


def _check_count(came: int, wanted: int, what: str, path: str) -> None:
    if came != wanted:
        raise InputError(f"expected {wanted} numbers (one per {what}), got {came}", path=path)


def _numbers(values: list[Any], path: str) -> tuple[F64, Flags]:
    """Returns the numbers, and which of them are not null."""
    given = np.ones(len(values), dtype=np.bool_)
    if len(values) == 1 and type(values[0]) is float:
        return np.array(values), given
    with suppress(Unusual, struct.error, OverflowError):
        return pack_floats(values), given
    try:
        for at, value in enumerate(values):
            given[at] = value is not None
            if value is not None and not is_number(value):
                place = f"{path}, number {at}" if len(values) > 1 else path
                raise InputError(f"expected a number, got {shown(value)}", path=place)
        return np.array([np.nan if v is None else v for v in values], dtype=np.float64), given
    except OverflowError:
        raise InputError("expected a number that a double can hold", path=path) from None


def _of_responses(quantity: Quantity) -> Values:
    """[R] the first token's value; NaN for a response without tokens."""

    def firsts(breakdown: Breakdown) -> F64 | None:
        if quantity.stage == "advantage" and breakdown.response_advantage is not None:
            return breakdown.response_advantage
        tokens = None if quantity.tokens is None else quantity.tokens(breakdown)
        return None if tokens is None else first_tokens(tokens, breakdown.batch.responses)

    return firsts


def first_tokens(tokens: F64, responses: Segments) -> F64:
    """[R] the value of each response's first token; NaN for a response without tokens."""
    found, filled = np.full(responses.count, np.nan), responses.lengths > 0
    found[filled] = tokens[responses.starts[filled]]
    return found
