"""One expectation beside what a breakdown has: where do they first differ?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.verify.expected import METRIC, Expectation
from grpo_cli.commands.verify.precision import half_steps, precision
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.records import Record

LOGGED = 1e-4
"""The least relative tolerance of metrics, which trainers log in float32."""


KL_ROUNDING = 0.01
"""Of a float32 KL, in terms of the scale: with the default tolerance 1e-7 of a loss."""


@dataclass(frozen=True)
class Tolerance:
    """Two numbers agree when |e − g| ≤ atol + rtol·max(|e|, |g|).

    The defaults fit dumps whose trainer computed in float32: 1e-4 is about a thousand float32
    roundings, and less than any change of convention makes.

    Attributes:
        rtol: relative part.
        atol: absolute part; None: rtol times a tenth of the scale of the numbers compared, which
            is the largest of the column, and for a sum (the loss) the sum of its absolute parts,
            so that a loss that cancels to 0 is not compared with 0 relatively. For gradients it
            is rtol times the whole scale: what is a ten-thousandth of the largest gradient moves
            nothing, and float32 leaves noise of that size where a gradient is small.
    """

    rtol: float = 1e-4
    atol: float | None = None

    def agree(self, column: Column, found: F64) -> NDArray[np.bool_]:
        """Which of the numbers agree.

        Where nothing is expected, nothing differs; NaN and infinities that are expected differ
        from whatever is finite. A response without tokens (NaN in ``found``) has nothing to show.
        """
        expected = column.values
        rtol = max(self.rtol, column.least)
        absolute = rtol * column.part * column.scale if self.atol is None else self.atol
        with np.errstate(invalid="ignore"):
            size = np.maximum(np.abs(expected), np.abs(found))
            allowed = absolute + rtol * size
            if column.slack is not None:
                allowed = allowed + column.slack
            near = np.abs(expected - found) <= allowed
        near &= np.isfinite(expected)
        agrees: NDArray[np.bool_] = near | (expected == found) | ~column.told | np.isnan(found)
        return agrees


class Column(NamedTuple):
    """What is expected under one key, of the tokens that count.

    Attributes:
        of: the expectation.
        values, told: its values, and which of them are there.
        scale: how large the numbers are that these are made of.
        part: how much of the scale, in terms of the relative tolerance, is noise.
        precision: "bfloat16" or "float16" where the values were rounded to that, else "".
        slack: what that rounding may have moved each value by, or None.
        least: the least relative tolerance that makes sense for it.
    """

    of: Expectation
    values: F64
    told: NDArray[np.bool_]
    scale: float
    part: float
    precision: str = ""
    slack: F64 | None = None
    least: float = 0.0


OF_SUMS = ("policy", "objective", "loss")
"""The stages whose numbers are sums over tokens."""


def part(expectation: Expectation) -> float:
    """How much of the scale is noise, in terms of the relative tolerance."""
    return 1.0 if expectation.stage == "gradient" else 0.1


def column(expectation: Expectation, record: Record, breakdown: Breakdown) -> Column:
    """An expectation beside the scale of the numbers that it is compared with."""
    values, told = expectation.values, expectation.told
    if expectation.level == "token" and record.mask is not None:
        counted = np.frombuffer(record.mask, dtype=np.bool_)
        values, told = values[counted], told[counted]
    size = _scale(expectation, values, breakdown)
    rounded = precision(values)
    slack = half_steps(rounded, values) if rounded else None
    least = LOGGED if expectation.stage == METRIC else 0.0
    return Column(expectation, values, told, size, part(expectation), rounded, slack, least)


@dataclass(frozen=True)
class Difference:
    """The first place where a record and its evaluation differ.

    Attributes:
        key: what ``expected`` calls it.
        stage: the stage that makes it.
        response, token: where; the token by its position as written. None for a whole record.
        expected, got: both numbers.
        differing, of: how many of the numbers differ, of how many.
    """

    key: str
    stage: str
    response: int | None
    token: int | None
    expected: float
    got: float
    differing: int
    of: int


def _scale(expectation: Expectation, expected: F64, breakdown: Breakdown) -> float:
    if expectation.stage in OF_SUMS:
        return float(sum_scale(breakdown).sum())
    filled = expected[np.isfinite(expected)]
    largest = float(np.abs(filled).max()) if filled.size else 0.0
    return max(largest, float(slope_scale(expectation, breakdown).max(initial=0.0)))


def sum_scale(breakdown: Breakdown) -> F64:
    """[M] the size of what adds up to each record's loss, and of what a float32 KL leaves of 0."""
    batch = breakdown.batch
    kl = batch.records.sum(breakdown.kl_scale * batch.responses.lengths)
    return breakdown.record_scale + KL_ROUNDING * kl


def slope_scale(expectation: Expectation, breakdown: Breakdown) -> F64:
    """[R] what a float32 KL may leave of a gradient that is 0."""
    if expectation.stage != "gradient":
        return np.zeros(breakdown.batch.responses.count)
    return KL_ROUNDING * breakdown.kl_scale


def difference(wanted: Column, breakdown: Breakdown, tolerance: Tolerance) -> Difference | None:
    """Where the two first differ; None where they agree, or there is nothing to compare with."""
    found = wanted.of.of(breakdown)
    if found is None:
        return None
    near = tolerance.agree(wanted, found)
    if near.all():
        return None
    at = int(np.argmin(near))
    response, token = _place(wanted.of.level, at, breakdown)
    return Difference(
        wanted.of.key,
        wanted.of.stage,
        response,
        token,
        float(wanted.values[at]),
        float(found[at]),
        int(np.count_nonzero(~near)),
        int(np.count_nonzero(wanted.told)),
    )


def _place(level: str, at: int, breakdown: Breakdown) -> tuple[int | None, int | None]:
    if level == "record":
        return None, None
    if level == "response":
        return at, None
    batch = breakdown.batch
    response = int(batch.responses.index[at])
    if batch.positions is not None:
        return response, int(batch.positions[at])
    return response, at - int(batch.responses.starts[response])
