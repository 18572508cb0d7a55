"""One expectation beside what a breakdown has: where do they first differ?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.verify.expected import Expectation
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.records import Record


@dataclass(frozen=True)
class Tolerance:
    """Two numbers agree when |e − g| ≤ atol + rtol·max(|e|, |g|).

    The defaults fit dumps whose trainer computed in float32: 1e-4 is about a thousand float32
    roundings, and less than any change of convention makes.

    Attributes:
        rtol: relative part.
        atol: absolute part; None: ``OF_SCALE`` times the scale of the numbers compared, which is
            the largest of the column, and for a sum (the loss) the sum of its absolute parts, so
            that a loss that cancels to 0 is not compared with 0 relatively.
    """

    rtol: float = 1e-4
    atol: float | None = None

    def agree(self, expected: F64, found: F64, scale: float) -> NDArray[np.bool_]:
        """Which of the numbers agree; where nothing is expected (NaN), nothing differs."""
        absolute = OF_SCALE * scale if self.atol is None else self.atol
        with np.errstate(invalid="ignore"):
            near = np.abs(expected - found) <= absolute + self.rtol * np.maximum(
                np.abs(expected), np.abs(found)
            )
        return near | (expected == found) | np.isnan(expected)


OF_SCALE = 1e-6


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


def kept(expectation: Expectation, record: Record) -> F64:
    """What is expected, without the tokens that the mask takes out."""
    if expectation.level == "token" and record.mask is not None:
        return expectation.values[np.frombuffer(record.mask, dtype=np.bool_)]
    return expectation.values


def agrees(expected: F64, found: F64 | None, scale: float, tolerance: Tolerance) -> bool:
    """Whether all numbers agree."""
    if found is None or len(found) != len(expected):
        return False
    return bool(tolerance.agree(expected, found, scale).all())


def scale(expectation: Expectation, expected: F64, breakdown: Breakdown) -> float:
    """How large the numbers are that this one is made of."""
    if expectation.stage in ("policy", "objective", "loss"):
        return float(np.abs(breakdown.contribution).sum())
    filled = expected[np.isfinite(expected)]
    return float(np.abs(filled).max()) if filled.size else 0.0


def difference(
    expectation: Expectation, record: Record, breakdown: Breakdown, tolerance: Tolerance
) -> Difference | None:
    """Where the two first differ; None where they agree, or the objective has no such number."""
    expected, found = kept(expectation, record), expectation.of(breakdown)
    if found is None:
        return None
    near = tolerance.agree(expected, found, scale(expectation, expected, breakdown))
    if near.all():
        return None
    at = int(np.argmin(near))
    response, token = _place(expectation.level, at, breakdown)
    return Difference(
        expectation.key,
        expectation.stage,
        response,
        token,
        float(expected[at]),
        float(found[at]),
        int(np.count_nonzero(~near)),
        int(np.count_nonzero(~np.isnan(expected))),
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
