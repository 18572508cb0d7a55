"""Sums against rational arithmetic, which rounds nothing."""

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
from files import each
from hypothesis import given
from hypothesis import strategies as st

from grpo_cli import evaluate
from grpo_cli.batch import Segments
from grpo_cli.objective.arithmetic import exact_sums as exact
from grpo_cli.objective.arithmetic.exact_sums import ExactSum, added, row_offsets, row_sums
from grpo_cli.objective.arithmetic.groups import Remembered
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
    settled.value()
    settled.merge(summed(mixed[at:]))
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


def test_row_sums_keep_what_doubles_lose():
    rows = [[1e16, 1.0, -1e16], [1.0, 2.0**-53, 2.0**-53]]
    assert row_sums(np.array(rows)).tolist() == [1.0, 1 + 2.0**-52]


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


def test_offsets_belong_to_who_asked_for_them():
    """They are kept for whoever asks again; what is done to them stays there."""
    groups = Remembered(np.array([0, 1, 0, 1]), 2)
    rewards = np.array([1.0, 2.0, 2.0, 5.0]), [-0.5, -1.5, 0.5, 1.5]
    others = np.array([4.0, 0.0, 0.0, 1.0]), [2.0, -0.5, -2.0, 0.5]
    for values, expected in (rewards, others, rewards):
        for _ in range(2):
            offsets = groups.offsets(values)
            assert offsets.tolist() == expected
            offsets *= 0.0


@pytest.mark.parametrize("size", [2, 3, 4, 6, 7, 8, 16])
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


@pytest.mark.parametrize(
    "row",
    [
        [1e15, 1e15 + 1, 1e15],
        [0.0, 0.5, 1.0],
        [1.0, 0.0, 0.0],
        [0.1, 0.2, 0.3],
        [1e16, 1.0, -1e16],
        [-3.0, 0.3, 0.7, 1e16],  # the mean of four is no double, and neither is what it lacks
        [1e100, 1e-100, -1e100, 3.0],
        [1.0, 1.0 + 2**-52, 1.0],
        [5e-324, 0.0, 5e-324],
    ],
)
def test_offsets_of_awkward_rows(row):
    rows = np.array([row, row[::-1]])
    np.testing.assert_array_equal(row_offsets(rows), _rational(rows))
    assert (row_offsets(np.full((1, 5), row[0])) == 0.0).all()


def test_a_large_common_offset_costs_no_digit():
    # 1e15 off, the rewards 0, 1, 0: A = (r − 1/3)/σ, σ² = (2/3)/2; by hand −0.577…, 1.154…
    record = {
        "log_probs_new": [[-1.0]] * 3,
        "log_probs_old": [[-1.0]] * 3,
        "rewards": [1e15, 1e15 + 1, 1e15],
    }
    found = [float(one[0]) for one in evaluate(record, beta=0, std_eps=0).advantages]
    assert found == pytest.approx([-(3**-0.5), 2 * 3**-0.5, -(3**-0.5)], rel=1e-15)


def test_a_large_common_offset_costs_no_digit_against_the_others_either():
    # 1e15 off, the rewards 0, 1, 3: against 1 and 3 it is (0 − 2)/√2; against 0 and 3,
    # (1 − 1.5)/√4.5; against 0 and 1, (3 − 0.5)/√0.5.
    record = {
        "log_probs_new": [[-1.0]] * 3,
        "log_probs_old": [[-1.0]] * 3,
        "rewards": [1e15, 1e15 + 1, 1e15 + 3],
    }
    stages = {"advantage": "nemo-rl/grpo"}
    made = evaluate(record, variant="nemo-rl/grpo", stages=stages, beta=0, std_eps=0)
    found = [float(one[0]) for one in made.advantages]
    assert found == pytest.approx([-(2**0.5), -0.5 / 4.5**0.5, 2.5 / 0.5**0.5], rel=1e-15)


@pytest.mark.parametrize("size", [2, 4, 8, 16])
@pytest.mark.parametrize("scale", [1.0, 1e6, 1e-290])
def test_ties_of_offsets_are_rounded_to_even(size, scale):
    """The mean of 2ᵐ numbers has a few bits more than they have: half of an ulp is frequent."""
    rows = scale * np.random.default_rng(size).integers(0, 101, (100, size)) / 100
    np.testing.assert_array_equal(row_offsets(rows), _rational(rows))
    np.testing.assert_array_equal(row_offsets(rows + scale), _rational(rows + scale))


def test_a_sum_that_is_no_number_is_no_traceback():
    assert added([1e308, 1e308]) == math.inf
    assert math.isnan(added([math.inf, -math.inf]))
    assert added([0.1] * 10) == 1.0


def test_a_covariance_of_infinite_advantages_is_no_number():
    """``match`` tries such a surrogate on advantages that overflowed in an earlier choice."""
    advantage, one = np.array([np.inf, -np.inf, 1.0]), Segments(np.array([1]))
    with np.errstate(all="ignore"):
        found = _covariance(advantage, np.array([-1.0, -0.5, -2.0]), Segments(np.array([3])), one)
    assert not np.isfinite(found).any()
