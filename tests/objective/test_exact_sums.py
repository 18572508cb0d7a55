"""Sums against rational arithmetic, which rounds nothing; numbers at the edge."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
from command import run
from files import each, some
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
from grpo_cli.objective.arithmetic.groups import Groups
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
    groups = Groups(np.array([0, 1, 0, 1]), 2, {})
    rewards = np.array([1.0, 2.0, 2.0, 5.0]), [-0.5, -1.5, 0.5, 1.5]
    others = np.array([4.0, 0.0, 0.0, 1.0]), [2.0, -0.5, -2.0, 0.5]
    for values, expected in (rewards, others, rewards):
        for _ in range(2):
            offsets = groups.offsets(values)
            assert offsets.tolist() == expected
            offsets *= 0.0


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


# ---- ratios and rewards near the ends of a double: finite where the limit is, else an error ------


HUGE = {  # log ratio 800: the ratio is no double
    "log_probs_new": [[-1.0, -1.0], [-1.0]],
    "log_probs_old": [[-801.0, -1.0], [-1.0]],
    "log_probs_ref": [[-1.5, -1.0], [-1.0]],
}


def test_a_kl_that_beta_keeps_out_may_overflow():
    chosen = {"variant": "dr", "stages": {"kl": "k3"}, "kl_weight": "ratio"}
    found = evaluate({**HUGE, "advantages": [1.0, -1.0]}, **chosen, beta=0.0)
    assert math.isfinite(found.objective)
    with pytest.raises(InputError, match="response 0, token 0: the objective is not finite"):
        evaluate({**HUGE, "advantages": [1.0, -1.0]}, **chosen, beta=0.1)


def test_the_token_is_named_where_only_one_term_overflows():
    losing = {**HUGE, "advantages": [-1.0, 1.0]}
    with pytest.raises(InputError, match=r"response 0, token 0: .* surrogate -inf, kl 0\.1"):
        evaluate(losing, "grpo")


@pytest.mark.parametrize("kl", ["k1", "k2", "k3", "slime/low_var_kl"])
def test_an_infinite_ratio_times_no_kl_is_0(kl):
    record = {**HUGE, "log_probs_ref": [[-1.0, -1.0], [-1.0]], "advantages": [0.0, 0.0]}
    chosen = {"variant": "dr", "stages": {"kl": kl}, "kl_weight": "ratio", "beta": 0.1}
    if kl == "k1":  # its slope is 1 whatever the distance
        with pytest.raises(InputError, match="response 0, token 0"):
            evaluate(record, **chosen)
    else:
        assert evaluate(record, **chosen).objective == 0.0


@pytest.mark.parametrize("variant", ["kl-cov", "verl/kl_cov"])
def test_an_infinite_ratio_times_no_advantage_is_0(variant):
    record = {**HUGE, "advantages": [0.0, 0.0]}
    assert evaluate(record, variant=variant, ppo_kl_coef=0.0).objective == 0.0


def test_responses_that_overflow_together_are_an_error():
    record = {
        "log_probs_new": [[-1.0], [-1.0]],
        "log_probs_old": [[-710.7], [-710.7]],
        "advantages": [-1.0, -1.0],
    }
    with pytest.raises(InputError, match="the sum over the record's responses overflows"):
        evaluate(record, variant="dr")
    tokens = {name: [[-0.1], [row[0] for row in record[name]]] for name in list(record)[:2]}
    with pytest.raises(InputError, match="response 1: the sum over the response's tokens"):
        evaluate({**tokens, "advantages": [1.0, -1.0]}, variant="dr")


def test_where_no_sum_overflows_there_is_no_error():
    """A J of 10³⁰⁶ is told, and of two records the one that overflows is blamed."""
    large = {"log_probs_new": [[-1.0]], "log_probs_old": [[-706.0]], "advantages": [-1.0]}
    assert evaluate(large, variant="dr").objective == pytest.approx(-math.exp(705.0), rel=1e-12)
    many = {name: values * 150 for name, values in large.items()}
    with pytest.raises(InputError, match=r"^\[1\]: the sum over the record's responses"):
        evaluate([large, many], variant="dr")


@pytest.mark.parametrize("reward", [1e101, -1.7e308, 10**200])
@pytest.mark.parametrize(
    ("name", "place"),
    [("rewards", "[1]"), ("advantages", "[1]"), ("rewards", "[1][0]"), ("advantages", "[1][0]")],
)
def test_rewards_whose_squares_overflow_are_an_error(tmp_path, reward, name, place):
    """They used to be dead groups (σ = ∞), or a traceback."""
    values = [1.0, reward] if place == "[1]" else [[1.0], [reward]]
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"log_probs_new": [[-1.0], [-1.0]], name: values}))
    found = run("eval", path, "-v", "dapo")
    assert found.exit_code == 3
    said = found.stderr.strip().removeprefix(f"grpo: {path}:1: ")
    assert said.startswith(f"{name}{place}: expected a number between -1e+100 and 1e+100, got ")


def test_the_place_of_a_fault_is_the_one_that_counts():
    """Not that of a NaN before it that the mask takes out."""
    record = {**HUGE, "log_probs_old": [[math.nan, math.nan], [-1.0]], "advantages": [1.0, -1.0]}
    masked = {**record, "mask": [[0, 1], [1]]}
    with pytest.raises(InputError, match=r"log_probs_old\[0\]\[1\]: expected a finite number"):
        evaluate(masked, variant="dr")
    assert evaluate({**masked, "mask": [[0, 0], [1]]}, variant="dr").objective == -0.5


# ---- what verl's decoupled correction rejects is as if it were masked, in every loss -------------


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


def test_all_rejected_is_no_loss() -> None:
    rejects = REJECTS | {"rollout_rs_threshold": "0.999999_1.000001"}
    apart = [[x - 0.5 for x in row] for row in RECORD["log_probs_old"]]
    record = RECORD | {"log_probs_rollout": apart, "hyperparameters": rejects}
    for variant in LOSSES:
        assert evaluate(record, variant, stages={"correction": "verl/decoupled"}).loss == 0.0


@given(st.lists(st.lists(doubles | edges, max_size=9), max_size=12))
@example([[1.7e308, 1.7e308, -1.7e308], [1.7e308, 1.7e308]])
def test_sums_of_segments_are_each_rounded_once(segments: list[list[float]]) -> None:
    """Also where a sum on the way is too large, and the sum is not."""
    values = np.array([one for each in segments for one in each], dtype=np.float64)
    found = segment_sums(values, np.array([*map(len, segments)], dtype=np.int64))
    exact_sums = [rounded(sum(map(Fraction, each), Fraction(0))) for each in segments]
    assert found.tolist() == exact_sums
    assert [added(each) for each in segments] == exact_sums
