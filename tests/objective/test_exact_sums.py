"""Sums against rational arithmetic, which rounds nothing; numbers at the edge."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import run
from files import each, expressions, some
from hypothesis import example, given
from hypothesis import strategies as st

from grpo_cli import VARIANTS, InputError, evaluate
from grpo_cli.batch import Segments
from grpo_cli.objective.arithmetic import exact_sums as exact
from grpo_cli.objective.arithmetic.exact_sums import (
    ExactSum,
    added,
    row_offsets,
    row_sums,
    segment_sums,
)
from grpo_cli.objective.arithmetic.groups import Groups  # noqa: F401 - in edges.txt
from grpo_cli.objective.surrogate.joint import _covariance

doubles = st.floats(allow_nan=False, allow_infinity=False)
edges = st.sampled_from(
    [
        *(0.0, -0.0, 5e-324, -5e-324, 2.0**-1022, 2.0**-1023, 1.0, 1 - 2.0**-53, 0.1, 1e-300),
        *(2.0**768, math.nextafter(2.0**769, 0), 2.0**769, -(2.0**769)),
        *(1.7976931348623157e308, -1.7976931348623157e308),
    ]
)
lists = st.lists(doubles | edges, max_size=60)


def summed(*parts: list[float]) -> ExactSum:
    found = ExactSum()
    for part in parts:
        found.add(np.array(part, dtype=np.float64))
    return found


def rounded(total: Fraction) -> float:
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


@given(lists)
def test_it_is_the_rational_sum_and_its_nearest_double(values):
    total = sum(map(Fraction, values), Fraction(0))
    assert summed(values).fraction() == total
    assert summed(values).value() == rounded(total)


@given(lists, lists, st.integers(0, 60), st.randoms())
def test_neither_order_nor_split_nor_merging_counts(values, more, at, random):
    whole = summed(values + more)
    mixed = values + more
    random.shuffle(mixed)
    merged = summed(mixed[:at])
    merged.merge(summed(mixed[at:]))
    settled = summed(mixed[:at])
    settled.fraction()
    later = summed(mixed[at:])
    later.fraction()  # its numbers are in bins as well, and those are merged
    settled.merge(later)
    assert merged.value() == whole.value() == settled.value()
    assert merged.fraction() == whole.fraction() == settled.fraction()


def all_bits(exponent: int) -> float:
    return float(np.array([(exponent << 52) | ((1 << 52) - 1)]).view(np.float64)[0])


@pytest.mark.parametrize("exponents", [(0, 7), (1, 7), (8, 15), (0x6F8, 0x6FF), (0x7F8, 0x7FE)])
@pytest.mark.parametrize("sign", [1, -1])
def test_as_many_as_are_taken_at_once(exponents, sign):
    """A bin's largest numbers and one of its smallest: its sums have the most bits there are."""
    small, large = (sign * all_bits(exponent) for exponent in exponents)
    count = exact._ROOM - 1
    found = summed([large] * count + [small], [large])
    assert found.fraction() == Fraction(large) * (count + 1) + Fraction(small)


def test_bins_side_by_side():
    values = [math.ldexp(1 + number % 7 / 7, number) for number in range(-1070, 1020, 3)]
    assert summed(values).fraction() == sum(map(Fraction, values))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([math.inf, 1.0, 1e308], math.inf),
        ([-math.inf, 5e-324], -math.inf),
        ([math.inf, math.nan], math.nan),
        ([1e308] * 10, math.inf),
        ([1e308] * 10 + [-1e308] * 9, 1e308),
    ],
)
def test_what_is_not_finite(values, expected):
    assert summed(values).value() == pytest.approx(expected, abs=0, rel=0, nan_ok=True)
    for settled in (False, True):
        apart, later = summed(values[:1]), summed(values[1:])
        if settled:
            later.scaled()
        apart.merge(later)
        assert apart.value() == pytest.approx(expected, abs=0, rel=0, nan_ok=True)


@given(st.lists(st.floats(-1e100, 1e100), min_size=1, max_size=20), st.randoms())
def test_row_sums(values, random):
    mixed = list(values)
    random.shuffle(mixed)
    both = row_sums(np.array([values, mixed]))
    alone = row_sums(np.array([mixed]))
    assert both[0].tobytes() == both[1].tobytes() == alone[0].tobytes()
    nearest = math.fsum(values)
    assert abs(both[0] - nearest) <= math.ulp(nearest) + 1e-29 * sum(map(abs, values))


# ---- offsets from a group's mean ---------------------------------------------------------------


def _rational(rows: np.ndarray) -> np.ndarray:
    exact = [[Fraction(value) for value in row] for row in rows.tolist()]
    means = [sum(row) / len(row) for row in exact]
    return np.array(
        [[float(v - mean) for v in row] for row, mean in zip(exact, means, strict=True)]
    )


@each("size", [1, 2, 3, 7, 16])
@each("offset", [0.0, 1.0, 1e15, -1e15, 1e100])
@each("spread", [1.0, 1e-9, 1e9])
def test_offsets_are_rounded_once(size, offset, spread):
    random = np.random.default_rng(size)
    rows = offset + spread * random.normal(size=(80, size))
    np.testing.assert_array_equal(row_offsets(rows), _rational(rows))


def _awkward(size: int) -> Iterator[tuple[np.ndarray, bool]]:
    """Rows whose offsets are often half-way between doubles; whether two doubles are enough."""
    draw, shape = np.random.default_rng(size), (300, size)
    yield draw.choice([0.0, 1.0, 0.1, 0.2, 0.3, 0.5], shape), True  # rewards
    yield 1.0 + draw.integers(0, 8, shape) * 2.0**-52, True
    yield draw.normal(size=shape).astype(np.float32).astype(np.float64), True
    yield draw.choice([0.1, 0.3, 0.7, 1.1, 1e16, -3.0], shape), size == 2
    yield draw.integers(-9, 9, shape) * 10.0 ** draw.integers(-20, 20, shape), size == 2
    powers = 2.0 ** draw.integers(-60, 60, shape) * draw.choice([-1.0, 1.0], shape)
    yield powers * (1 + draw.integers(0, 4, shape) * 2.0**-52), size == 2


@pytest.mark.more
@pytest.mark.parametrize("size", some([2, 3, 4, 6, 7, 8, 16], 4))
def test_offsets_half_way_between_doubles(size, monkeypatch):
    """Rational numbers, which are slow, are for rows that two doubles cannot decide."""
    slow: list[list[float]] = []
    rational = exact._rational_offsets
    monkeypatch.setattr(exact, "_rational_offsets", lambda row: slow.append(row) or rational(row))
    for rows, enough in _awkward(size):
        np.testing.assert_array_equal(row_offsets(rows), _rational(rows))
        assert not slow or not enough or size in (3, 6, 7)
        together = slow[:]
        slow.clear()
    for row in rows:
        row_offsets(row[None])
    assert slow == together  # and each row alone as in company


@pytest.mark.parametrize("size", [2, 4, 8, 16])
@pytest.mark.parametrize("scale", [1.0, 1e6, 1e-290])
def test_ties_of_offsets_are_rounded_to_even(size, scale):
    """The mean of 2ᵐ numbers has a few bits more than they have: half of an ulp is frequent."""
    rows = scale * np.random.default_rng(size).integers(0, 101, (100, size)) / 100
    np.testing.assert_array_equal(row_offsets(rows), _rational(rows))
    np.testing.assert_array_equal(row_offsets(rows + scale), _rational(rows + scale))


def test_a_covariance_of_infinite_advantages_is_no_number():
    """``match`` tries such a surrogate on advantages that overflowed in an earlier choice."""
    advantage, one = np.array([np.inf, -np.inf, 1.0]), Segments(np.array([1]))
    with np.errstate(all="ignore"):
        found = _covariance(advantage, np.array([-1.0, -0.5, -2.0]), Segments(np.array([3])), one)
    assert not np.isfinite(found).any()


HUGE = {  # log ratio 800: the ratio is no double
    "log_probs_new": [[-1.0, -1.0], [-1.0]],
    "log_probs_old": [[-801.0, -1.0], [-1.0]],
    "log_probs_ref": [[-1.5, -1.0], [-1.0]],
}


LOSSES = [
    name
    for name, row in VARIANTS.items()
    if name.startswith("verl/") and row.correction.choice.absent
]
RECORD = {
    "log_probs_new": [[-0.5, -1.0, -2.2, -0.7], [-0.25, -3.0, -1.5], [-0.3]],
    "log_probs_old": [[-0.9, -1.3, -1.9, -1.1], [-0.6, -3.2, -1.1], [-0.4]],
    "log_probs_rollout": [[-0.9, -2.3, -1.9, -1.0], [-0.6, -1.2, -1.1], [-2.4]],
    "log_probs_ref": [[-0.8, -1.2, -1.7, -1.0], [-0.5, -3.3, -1.3], [-0.6]],
    "entropies": [[0.5, 1.0, 0.3, 0.2], [0.4, 0.9, 0.8], [0.1]],
    "advantages": [-1.0, 1.5, 0.75],
}
KEPT = [[1, 0, 1, 1], [1, 0, 1], [0]]
"""The tokens whose π_old/π_rollout is within [0.5, 2]."""
HYPER = {"beta": 0.3, "entropy_coef": 0.1, "kl_cov_ratio": 0.4, "clip_cov_ratio": 1.0}
HYPER |= {"clip_cov_lb": 0.0}
REJECTS = {"rollout_is": None, "rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_2.0"}


@pytest.mark.parametrize("variant", LOSSES)
def test_what_is_rejected_is_as_if_it_were_masked(variant: str) -> None:
    stages = {"correction": "verl/decoupled"}
    rejected = evaluate(RECORD | {"hyperparameters": HYPER | REJECTS}, variant, stages=stages)
    masked = evaluate(RECORD | {"hyperparameters": HYPER, "mask": KEPT}, variant)
    assert rejected.loss == pytest.approx(masked.loss, rel=1e-13)
    kept = np.concatenate([np.array(row, dtype=bool) for row in KEPT])
    gradient = np.concatenate([np.array(row) for row in rejected.gradient])
    assert not gradient[~kept].any()
    wanted = np.concatenate([np.array(row) for row in masked.gradient])
    np.testing.assert_allclose(gradient[kept], wanted, rtol=1e-13)


@given(st.lists(st.lists(doubles | edges, max_size=9), max_size=12))
@example([[1.7e308, 1.7e308, -1.7e308], [1.7e308, 1.7e308]])
def test_sums_of_segments_are_each_rounded_once(segments: list[list[float]]) -> None:
    """Also where a sum on the way is too large, and the sum is not."""
    values = np.array([one for each in segments for one in each], dtype=np.float64)
    found = segment_sums(values, np.array([*map(len, segments)], dtype=np.int64))
    exact_sums = [rounded(sum(map(Fraction, each), Fraction(0))) for each in segments]
    assert found.tolist() == exact_sums
    assert [added(each) for each in segments] == exact_sums


def test_numbers_at_the_edge(tmp_path: Path) -> None:
    def error(record: Any, *row: str, **how: Any) -> str:
        with pytest.raises(InputError) as raised:
            evaluate(record, *row, **how)
        return str(raised.value)

    def printed(record: Any, *words: str) -> str:
        """The exit code and the error of eval."""
        path = tmp_path / "a.jsonl"
        path.write_text(json.dumps(record))
        found = run("eval", path, *words)
        return f"{found.exit_code} {found.stderr.strip()}".replace(str(path), "FILE")

    names = globals() | {"error": error, "printed": printed}
    expressions(Path(__file__).with_name("edges.txt"), names)
