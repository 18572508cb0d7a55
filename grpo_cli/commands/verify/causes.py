"""Why a record and its evaluation differ: whichever other reading of it agrees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.verify.alternatives import Alternative, alternatives
from grpo_cli.commands.verify.compare import Tolerance, agrees, kept, scale
from grpo_cli.commands.verify.expected import Expectation
from grpo_cli.errors import GrpoError
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.pipeline import evaluate
from grpo_cli.records import Record

_MOST = 3
"""Causes named, where several agree."""


def causes(
    differing: Expectation,
    others: Sequence[Expectation],
    record: Record,
    breakdown: Breakdown,
    tolerance: Tolerance,
) -> list[str]:
    """The likely causes, the likeliest first; empty where none can be told.

    A reading that agrees with everything the record expects comes before one that agrees only
    with what differed first.

    Args:
        differing: the first expectation that differs.
        others: everything else that the record expects.
        record: the record.
        breakdown: what it evaluates to.
        tolerance: when two numbers agree.
    """
    expected, found = kept(differing, record), differing.of(breakdown)
    assert found is not None
    size = scale(differing, expected, breakdown)
    factors = [*_factors(expected, found, record, breakdown, tolerance)]
    if factors:
        return factors[:1]
    whole: list[str] = []
    part: list[str] = []
    for alternative in alternatives(record, breakdown.batch, breakdown.objective):
        again = _evaluated(alternative)
        if again is None or not _agrees(differing, record, again, size, tolerance):
            continue
        fits = all(_agrees(one, record, again, None, tolerance) for one in others)
        (whole if fits else part).append(alternative.cause)
    agreeing = list(dict.fromkeys(whole or part))
    return agreeing[:_MOST] or [*_constant(expected, found, tolerance)]


def _evaluated(alternative: Alternative) -> Breakdown | None:
    try:
        return evaluate(alternative.batch, alternative.objective)
    except (GrpoError, ArithmeticError, TypeError, ValueError):
        return None  # the record cannot be read so


def _agrees(
    one: Expectation, record: Record, again: Breakdown, size: float | None, tolerance: Tolerance
) -> bool:
    expected, found = kept(one, record), one.of(again)
    ignored = found is not None and len(found) == len(one.values) > len(expected)
    if found is not None and ignored and record.mask is not None:
        found = found[np.frombuffer(record.mask, dtype=np.bool_)]
    if size is None:
        size = scale(one, expected, again)
    return agrees(expected, found, size, tolerance)


# ---- a constant factor ---------------------------------------------------------------------------


def _factor(expected: F64, found: F64, tolerance: Tolerance) -> float | None:
    """What all of ``found`` would have to be multiplied by."""
    known = ~np.isnan(expected)
    expected, found = expected[known], found[known]
    square = float(found @ found)
    if not square or not np.isfinite(square):
        return None
    factor = float(expected @ found) / square
    size = float(np.abs(expected).max(initial=0.0))
    near = tolerance.agree(expected, factor * found, size)
    return factor if factor and near.all() else None


def _factors(
    expected: F64,
    found: F64,
    record: Record,
    breakdown: Breakdown,
    tolerance: Tolerance,
) -> Iterator[str]:
    """Sign and the factors that trainers multiply or divide by."""
    factor = _factor(expected, found, tolerance)
    if factor is None:
        return
    if _near(factor, -1.0, tolerance):
        yield "wrong sign: it is the negative (loss = −objective)"
    for words, value in _known_factors(record, breakdown):
        for times, said in ((value, f"times {words}"), (1.0 / value, f"divided by {words}")):
            for sign, also in ((1.0, ""), (-1.0, ", and of the wrong sign")):
                if value > 1 and _near(factor, sign * times, tolerance):
                    yield f"{_kind(words)}: expected is ours {said} = {value:g}{also}"


def _near(factor: float, wanted: float, tolerance: Tolerance) -> bool:
    return abs(factor - wanted) <= max(tolerance.rtol, 1e-9) * abs(wanted)


def _known_factors(record: Record, breakdown: Breakdown) -> Iterator[tuple[str, float]]:
    for name in (
        "gradient_accumulation_steps",
        "steps_per_generation",
        "dp_size",
        "num_processes",
        "max_completion_length",
        "response_length",
    ):
        value = record.hyperparameters.get(name)
        if isinstance(value, float | int) and value > 0:
            yield name, float(value)
    batch = breakdown.batch
    yield "the number of responses", float(batch.responses.count)
    yield "the number of tokens", float(batch.responses.total)
    yield "the number of groups", float(batch.group_count)
    yield "the denominator", float(breakdown.denominator[0])


_ACCUMULATION = ("gradient_accumulation_steps", "steps_per_generation", "dp_size", "num_processes")


def _kind(words: str) -> str:
    if words in _ACCUMULATION:
        return "off by the accumulation factor"
    return "a sum where a mean is meant, or a mean where a sum is meant"


def _constant(expected: F64, found: F64, tolerance: Tolerance) -> Iterator[str]:
    """A factor that nothing explains, where there is more than one number to see it in."""
    factor = _factor(expected, found, tolerance)
    if factor is not None and np.count_nonzero(found) > 1:
        yield f"off by a constant factor: expected is ours times {factor:.6g}"
    elif factor is not None and abs(factor) > 1 and _near(factor, round(factor), tolerance):
        yield f"off by a whole factor: expected is ours times {round(factor)}"
