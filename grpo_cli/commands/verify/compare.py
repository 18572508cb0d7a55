"""Compares expected numbers with grpo's: when do they agree, and where do they first differ?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

import numpy as np

from grpo_cli.batch import F64, I64, Batch, Segments
from grpo_cli.commands.verify.answer import Difference
from grpo_cli.commands.verify.expected import METRIC, Expectation, Flags
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.records import Record

LOGGED = 1e-4
"""The relative tolerance of metrics, which trainers log in float32."""

KL_ROUNDING = 0.01
"""Of a float32 KL, in terms of the scale of gradients: 1e-6 by default. Of a loss it is 1e-7."""

FLOAT32_LOSS = 1.5e-6
"""What float32 leaves of a loss, as a share of the sizes that it is made of."""

FLOAT64 = 1e-12
"""What a float64 sum may leave of 0, as a share of the sizes that it is made of."""

OF_SUMS = ("policy", "objective", "loss")
"""The stages whose numbers are sums over tokens."""

LOGGED_DECIMALS = 4
"""The decimals to which trainers round what they log."""

NOISE_OF_SUMS = 0.03
_NOISE = {"gradient": 1.0} | dict.fromkeys(OF_SUMS, NOISE_OF_SUMS)
"""How much of the scale of a stage's numbers is noise, in terms of the relative tolerance."""


class Column(NamedTuple):
    """What records of one layout expect under one key.

    It has the tokens that count; of a gradient it has every token as written, since a masked
    token's is 0.

    Attributes:
        expectation: the first record's; its key, stage and level are those of all.
        found: [n] what the records evaluate to.
        values, given: [n] the values of all records, and which of them are not null.
        counts: [M] how many of the values each record has.
        scale: [n] how large the numbers are that each value is made of; or one for all.
        noise: how much of the scale is noise, in terms of the relative tolerance.
        precision: [M] "bfloat16", "float16" or "4 decimals" where a record's values were rounded
            to that.
        slack: [n] what that rounding may have moved each value by; None where none was rounded.
        written: cuts the tokens as written into responses; None where masked ones are left out.
    """

    expectation: Expectation
    found: F64
    values: F64
    given: Flags
    counts: I64
    scale: F64 | float
    noise: float
    precision: Sequence[str] = ()
    slack: F64 | None = None
    written: Segments | None = None

    @property
    def key(self) -> str:
        """What ``expected`` calls it."""
        return self.expectation.key

    @property
    def is_metric(self) -> bool:
        """Whether it is a metric, not the loss or a part of it."""
        return self.expectation.stage == METRIC

    @property
    def is_by_record(self) -> bool:
        """Whether it has one number of each record."""
        return self.expectation.level == "record"

    def worst(self, values: F64 | Flags) -> F64:
        """[M] the largest of numbers ≥ 0 in each record, [n]; 0 without any."""
        return largest(values, Segments(self.counts))

    @property
    def absent(self) -> Flags:
        """[M] the records that have no such quantity."""
        if self.is_by_record:
            return np.isnan(self.found)
        return np.zeros(len(self.counts), dtype=np.bool_)


@dataclass(frozen=True)
class Tolerance:
    """Two numbers agree when |e − g| ≤ atol + rtol·max(|e|, |g|).

    The defaults fit dumps whose trainer computed in float32: 1e-4 is about a thousand float32
    roundings, and less than any change of convention makes.

    Attributes:
        rtol: relative part.
        atol: absolute part; None: rtol times a tenth of the largest number of the column; for a
            sum (the loss) rtol times 0.03 of the sum of its absolute parts, so that a loss that
            cancels to 0 is not compared with 0 relatively (of 1,492 float32 losses of TRL under
            random options none needs more than 0.007). For gradients it is rtol times the largest:
            what is a ten-thousandth of it moves nothing, and float32 leaves noise of that size
            where a gradient is small.
        metrics: the relative part of metrics, which has nothing to do with that of the loss.
    """

    rtol: float = 1e-4
    atol: float | None = None
    metrics: float = LOGGED

    def relative(self, column: Column) -> float:
        """The relative part for a column."""
        return self.metrics if column.is_metric else self.rtol

    def absolute(self, column: Column) -> F64 | float:
        """[n] the absolute part for each value of a column; or one for all."""
        if self.atol is not None:
            return self.atol
        return self.relative(column) * column.noise * column.scale

    def agree(self, column: Column, found: F64) -> Flags:
        """[n] which of the numbers agree.

        A null agrees with anything, and anything with a response without tokens (NaN in
        ``found``); NaN and infinities that are expected differ from whatever is finite.
        """
        expected = column.values
        with np.errstate(invalid="ignore"):
            size = np.maximum(np.abs(expected), np.abs(found))
            allowed = self.absolute(column) + self.relative(column) * size
            if column.slack is not None:
                allowed = allowed + column.slack
            near = np.abs(expected - found) <= allowed
        near &= np.isfinite(expected)
        agrees: Flags = near | (expected == found) | ~column.given | np.isnan(found)
        return agrees

    def needs(self, column: Column, found: F64) -> F64:
        """[n] the relative tolerance that each number needs to agree, beyond its rounding."""
        with np.errstate(invalid="ignore"):
            off = np.abs(column.values - found) - (0.0 if column.slack is None else column.slack)
            size = np.maximum(np.abs(column.values), np.abs(found)) + column.noise * column.scale
            return np.where(column.given & (off > 0.0), off / np.where(size > 0.0, size, 1.0), 0.0)


def tolerances(rtol: float | None, atol: float | None, metrics: float | None) -> Tolerance:
    """Returns the tolerance with the usual numbers where none are given."""
    given = {"rtol": rtol, "atol": atol, "metrics": metrics}
    return Tolerance(**{name: one for name, one in given.items() if one is not None})


def largest(values: F64 | Flags, cut: Segments) -> F64:
    """[S] the largest of numbers ≥ 0 in each segment; 0 without any."""
    found, filled = np.zeros(cut.count), cut.lengths > 0
    if cut.total:
        found[filled] = np.fmax.reduceat(values, cut.starts[filled])
    return np.fmax(found, 0.0)


def column_of(
    records: Sequence[Record],
    expectations: Sequence[Expectation],
    breakdown: Breakdown,
) -> Column | None:
    """What records expect under one key; None where the objective has no such quantity.

    Args:
        records: records of one layout, masked or not.
        expectations: what each of them expects, at one level.
        breakdown: what they evaluate to.
    """
    first = expectations[0]
    found = first.evaluated(breakdown) if first.given.any() else None
    if found is None:
        return None
    values = np.concatenate([each.values for each in expectations])
    given = np.concatenate([each.given for each in expectations])
    batch, written = breakdown.batch, None
    counted = np.ones(len(values), dtype=np.bool_)
    widths = np.array([width for record in records for width in record.widths], dtype=np.int64)
    if first.level == "token" and records[0].mask is not None:
        counted = np.frombuffer(b"".join(record.mask or b"" for record in records), np.bool_)
        if first.stage == "gradient":
            written = Segments(widths)
            found = as_written(found, batch, written, 0.0)
            ignored = ~counted & ~np.isfinite(values)  # a masked NaN never matters
            values, given = np.where(ignored, 0.0, values), given & ~ignored
        else:
            values, given = values[counted], given[counted]
    counts = {
        "token": breakdown.batch.record_tokens.lengths,
        "response": batch.records.lengths,
        "record": np.ones(batch.records.count, dtype=np.int64),
    }[first.level]
    if written is not None:
        counts = batch.records.sum(widths)
    scale = np.repeat(_scale(first.stage, values, counts, breakdown), counts)
    noise = _NOISE.get(first.stage, 0.1)
    known = values if written is None else np.where(counted, values, 0.0)
    rounded = precisions(np.where(np.abs(known) <= FLOAT64 * scale, 0.0, known), counts)
    if first.level == "record":
        pairs = zip(rounded, values.tolist(), found.tolist(), strict=True)
        rounded = [name or _decimals(one, ours) for name, one, ours in pairs]
    slack = None
    if any(rounded):
        steps = zip(rounded, np.split(values, np.cumsum(counts)[:-1]), strict=True)
        slack = np.concatenate([half_steps(name, part) for name, part in steps])
    return Column(first, found, values, given, counts, scale, noise, rounded, slack, written)


def as_written(values: F64, batch: Batch, written: Segments, fill: float) -> F64:
    """[N as written] values of the tokens that count; ``fill`` at the masked ones."""
    responses = batch.responses
    positions = responses.positions if batch.positions is None else batch.positions
    found = np.full(written.total, fill)
    found[responses.spread(written.starts) + positions] = values
    return found


def deciding(columns: Sequence[Column]) -> list[Column]:
    """Returns those that say whether a record agrees: metrics only where there are no others."""
    return [column for column in columns if not column.is_metric] or [*columns]


def _scale(stage: str, values: F64, counts: I64, breakdown: Breakdown) -> F64:
    """[M] the largest number that a record expects; of sums the size of what adds up to them.

    A float32 KL leaves its rounding of numbers that are 0.
    """
    batch = breakdown.batch
    if stage in OF_SUMS:
        kl = batch.records.sum(breakdown.kl_scale * batch.responses.lengths)
        return breakdown.record_scale * _cancelled(batch) + KL_ROUNDING * 0.1 / NOISE_OF_SUMS * kl
    scale = np.zeros(batch.records.count)
    if stage == "gradient":
        np.maximum.at(scale, batch.records.index, KL_ROUNDING * breakdown.kl_scale)
    owner = np.repeat(np.arange(len(counts)), counts)
    np.maximum.at(scale, owner, np.where(np.isfinite(values), np.abs(values), 0.0))
    return scale


def _cancelled(batch: Batch) -> F64:
    """[M] how many times float32's rounding grows where the rewards of a group hardly differ.

    Advantages are their differences: of rewards from 0.98 to 0.99 they keep five digits.
    """
    times = np.ones(batch.records.count)
    rewards = batch.summed_rewards
    if rewards is None or batch.advantages is not None or batch.token_advantages is not None:
        return times
    low, high = np.full((2, batch.group_count), np.nan)
    np.fmin.at(low, batch.groups, rewards)
    np.fmax.at(high, batch.groups, rewards)
    gap = high - low
    size = np.maximum(np.abs(low), np.abs(high)) / np.where(gap > 0.0, gap, np.inf)
    np.fmax.at(times, batch.records.index, 0.2 * size[batch.groups])
    return times


# ---- where they differ --------------------------------------------------------------------------


def differences(
    column: Column, breakdown: Breakdown, tolerance: Tolerance
) -> Iterator[tuple[int, Difference]]:
    """Yields each record that differs under a key, by its index, and where it first does."""
    differs = ~tolerance.agree(column, column.found)
    if not differs.any():
        return
    expectation, count = column.expectation, len(column.counts)
    owner = np.repeat(np.arange(count), column.counts)
    places = np.flatnonzero(differs)
    records, firsts = np.unique(owner[places], return_index=True)
    differing = np.bincount(owner, differs, count)
    given = np.bincount(owner, column.given, count)
    for record, at in zip(records.tolist(), places[firsts].tolist(), strict=True):
        response, token = _place(column, at, record, breakdown)
        yield (
            record,
            Difference(
                expectation.key,
                expectation.stage,
                response,
                token,
                expected=float(column.values[at]),
                got=float(column.found[at]),
                differing=int(differing[record]),
                of=int(given[record]),
            ),
        )


def _place(
    column: Column, at: int, record: int, breakdown: Breakdown
) -> tuple[int | None, int | None]:
    level, batch = column.expectation.level, breakdown.batch
    if level == "record":
        return None, None
    start = int(batch.records.starts[record])
    if level == "response":
        return at - start, None
    if column.written is not None:
        return int(column.written.index[at]) - start, int(column.written.positions[at])
    return batch.place(at)[1:]


# ---- half precision -----------------------------------------------------------------------------

_DIGITS = 5
"""A number of no more digits than these may have been typed, and is no evidence of a format."""


def to_half(values: F64, kind: str) -> F64:
    """Casts to bfloat16 or float16, and back."""
    with np.errstate(over="ignore"):
        if kind == "float16":
            return values.astype(np.float16).astype(np.float64)
        bits = values.astype(np.float32).view(np.uint32)
    even = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (even & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)


HALF: Mapping[str, Callable[[F64], F64]] = {
    "bfloat16": lambda values: np.ldexp(1.0, np.frexp(values)[1] - 8),
    "float16": lambda values: np.spacing(np.abs(values).astype(np.float16)).astype(np.float64),
}
"""Format → how far a number is from the next one of it."""


def precisions(values: F64, counts: I64) -> list[str]:
    """[M] the format that all numbers of a record were rounded to; "" where it is none of these."""
    found = [""] * len(counts)
    filled = np.flatnonzero(counts)
    starts = np.cumsum(counts)[filled] - counts[filled]
    for name in HALF:
        held = to_half(values[starts], name) == values[starts]  # of most records the first is not
        for record, start in zip(filled[held].tolist(), starts[held].tolist(), strict=True):
            part = values[start : start + counts[record]]
            if found[record] or (to_half(part, name) != part).any():
                continue
            some = part[part != 0.0][:50].tolist()
            if any(float(f"{value:.{_DIGITS}g}") != value for value in some):
                found[record] = name
    return found


def _decimals(value: float, found: float) -> str:
    """The decimals that a trainer's log left of a number, as "4 decimals"; "" for any other.

    A log's 0.0120 is read as 0.012, so fewer decimals count as four. A number that rounding does
    not explain is not taken for a log's, nor is a 0.
    """
    off = abs(value - found)
    if not 1e-6 * abs(value) < off <= 0.5 * 10.0**-LOGGED_DECIMALS:  # nearly all agree
        return ""
    digits, places = digits_of(value)
    places = max(places, LOGGED_DECIMALS)
    is_short = digits <= _DIGITS and value != 0.0
    return f"{places} decimals" if is_short and off <= 0.5 * 10.0**-places else ""


def digits_of(value: float) -> tuple[int, int]:
    """How many digits a finite number is written with, and how many decimals; below 0 for tens."""
    _, digits, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int)
    return len(digits), -exponent


def half_steps(name: str, values: F64) -> F64:
    """How far each number may be from what it was rounded from; 0 without a format."""
    if not name:
        return np.zeros_like(values)
    if name == "float32":
        return 0.5 * np.spacing(np.abs(values).astype(np.float32)).astype(np.float64)
    if name not in HALF:
        return np.full_like(values, 0.5 * 10.0 ** -int(name.split()[0]))
    return 0.5 * HALF[name](np.where(np.isfinite(values), values, 0.0))
