"""The bounds of each rule on two columns: what is just on either side of each, and exactly there.

The columns are made so that the statistic that decides is known: two or three values, patterns that
are orthogonal, powers of two.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import files
import numpy as np
import pytest
from paired import ENGINE, KEYS, UPDATE, Sample, sample, told, view

from grpo_cli.batch import F64, Segments
from grpo_cli.commands.check.pair import Pair
from grpo_cli.commands.check.rules import alignment, rules_of, scaling


def only(code: str, one: Sample, names: tuple[str, str] = UPDATE) -> Any:
    """The one finding of a rule on one sample, or None."""
    found = told(code, [one], names).get(0, [])
    assert len(found) <= 1
    return found[0] if found else None


def on(one: Sample, names: tuple[str, str] = UPDATE) -> Pair:
    """The columns of one record."""
    return Pair(view({names[0]: one.a, names[1]: one.b}, [one.widths]), names)


# ---- temperature ---------------------------------------------------------------------------------


def skewed(n: int = 200) -> F64:
    """Four of five tokens are likely, the fifth is not."""
    return np.where(np.arange(n) % 5 == 4, -3.0, -0.2) - 0.1 * np.cos(np.arange(n))


def sharpened(a: F64, strength: float) -> Sample:
    """A column that spreads e^strength times as wide as the other about the same mean."""
    b = a.mean() + math.exp(strength) * (a - a.mean())
    return sample(a, b + 1e-5 * np.resize([1.0, -1.0, -1.0, 1.0], len(a)))


@pytest.mark.parametrize(
    ("names", "strength", "found"),
    [
        (ENGINE, 0.0245, False), (ENGINE, 0.0255, True),
        (ENGINE, -0.0245, False), (ENGINE, -0.0255, True),
        (UPDATE, 0.0640, False), (UPDATE, 0.0660, True),
        (UPDATE, -0.0640, False), (UPDATE, -0.0660, True),
    ],
)  # fmt: skip
def test_how_much_wider_a_column_must_spread(names, strength, found):
    """0.025 of the engine's column, 0.065 of an update, where four tokens of five lean one way."""
    finding = only("temperature", sharpened(skewed(), strength), names)
    assert bool(finding) == found
    if found:
        assert finding.severity == "error"
        assert finding.evidence["slope"] == pytest.approx(math.exp(strength), rel=1e-4)
        assert finding.evidence["higher"] == pytest.approx(0.8)
        assert finding.evidence["sharper"] == KEYS[names[1 if strength > 0 else 0]]


def test_nine_tokens_of_ten_one_way_need_less():
    rare = np.where(np.arange(200) % 20 == 19, -6.0, -0.2) - 0.1 * np.cos(np.arange(200))
    found = [bool(only("temperature", sharpened(rare, of))) for of in (-0.0245, -0.0255)]
    assert found == [False, True]


BENT = (
    # slope, explained, sigmas, higher, sided, and whether it is told where 0.065 is the least
    ("bent", math.exp(-0.07), 0.1, 6.0, 0.2, 6.0, True),
    ("bent the other way", math.exp(0.07), 0.1, -6.0, -0.2, -6.0, True),
    ("0.064", math.exp(-0.064), 0.1, 6.0, 0.2, 6.0, False),
    ("sided at 5", math.exp(-0.07), 0.1, 6.0, 0.2, 5.0, False),
    ("sigmas at 5", math.exp(-0.07), 0.1, 5.0, 0.2, 6.0, False),
    ("the other way", math.exp(-0.07), 0.1, -6.0, 0.2, 6.0, False),
    ("higher where it is wider", math.exp(0.07), 0.1, 6.0, 0.2, 6.0, False),
    ("85 %", math.exp(-0.07), 0.1, 3.0, 0.35, 9.0, False),
    ("more than 85 %", math.exp(-0.07), 0.1, 3.0, 0.36, 9.0, True),
    ("less than 15 %", math.exp(0.07), 0.1, -3.0, -0.36, -9.0, True),
    ("90 % and 0.03", math.exp(-0.03), 0.1, 6.0, 0.4, 9.0, False),
    ("more than 90 % and 0.03", math.exp(-0.03), 0.1, 6.0, 0.41, 9.0, True),
    ("less than 10 % and 0.03", math.exp(0.03), 0.1, -6.0, -0.41, -9.0, True),
    ("straight", 1.11, 0.51, -6.0, 0.0, 0.0, True),
    ("straight the other way", 1 / 1.11, 0.51, 6.0, 0.0, 0.0, True),
    ("1.1", 1.1, 0.51, -6.0, 0.0, 0.0, False),
    ("half explained", 1.11, 0.5, -6.0, 0.0, 0.0, False),
    ("straight, sigmas at 5", 1.11, 0.51, -5.0, 0.0, 0.0, False),
)


def test_what_a_bent_line_is():
    columns = [np.array(column) for column in zip(*(row[1:6] for row in BENT), strict=True)]
    usable = np.ones(len(BENT), dtype=np.bool_)
    found = scaling._is_sharpened(scaling.Lines(usable, *columns), 0.065)
    assert dict(zip((row[0] for row in BENT), found.tolist(), strict=True)) == {
        row[0]: row[6] for row in BENT
    }
    assert not scaling._is_sharpened(scaling.Lines(~usable, *columns), 0.065).any()
    exactly = abs(math.log(columns[0][0]))
    assert not scaling._is_sharpened(scaling.Lines(usable, *columns), exactly)[0]


def test_the_lines_through_tokens():
    """Slope, r², White's t and the sign test, of two samples, with numpy's own functions."""
    draw = np.random.default_rng(31)
    made = []
    for n in (40, 90):
        a = -draw.exponential(1.0, n)
        b = np.minimum(1.1 * a + draw.normal(0.05, 0.1, n), -1e-4)
        b[:5] = a[:5]
        made.append((a, b))
    small = made[0][0] * 0.01, made[0][1] * 0.01
    a, b = (np.concatenate(column) for column in zip(*made, small, strict=True))
    pair = Pair(view({"log_probs_new": a, "log_probs_old": b}, [[40], [50, 40], [40]]), UPDATE)
    lines = scaling.fit_lines(pair)
    for at, (one, other) in enumerate([*made, small]):
        x, y = one + other, one - other
        steep, level = np.polyfit(x, y, 1)
        x0 = x - x.mean()
        error = math.sqrt(np.sum((x0 * (y - steep * x - level)) ** 2)) / np.sum(x0 * x0)
        ups, of = np.sum(y > 0), np.sum(y != 0)
        expected = [
            other.std() / one.std(),
            np.corrcoef(x, y)[0, 1] ** 2,
            steep / error,
            ups / of - 0.5,
            (ups - of / 2) / (math.sqrt(of) / 2),
        ]
        assert lines.usable[at]
        assert [field[at] for field in lines[1:]] == pytest.approx(expected, rel=1e-9)


def narrow(spread: float, factor: float) -> Sample:
    """A column of two values that spreads that far, and one that spreads that many times as far."""
    a = np.resize([0.0, -2 * spread], 32)
    return sample(a, factor * a - 0.0005 + 1e-6 * np.resize([1.0, 1.0, -1.0, -1.0], 32))


@pytest.mark.parametrize(("spread", "found"), [(0.001, False), (0.0011, True), (0.0013, True)])
def test_columns_that_hardly_vary_have_no_slope(spread, found):
    one = narrow(spread, 1.3)
    assert float(np.std(one.a)) == spread
    assert bool(only("temperature", one)) == found
    assert bool(only("temperature", sample(one.b, one.a))) == found


def test_columns_without_a_line_through_them():
    """One falls as the other rises; they differ by a constant; nothing is uncertain; the line is
    exact, so that no error says how sure it is."""
    t = np.resize([0.25, -0.25, 0.5, -0.5], 40)
    u = np.resize([1.0, -1.0], 40)
    made = [
        sample(-1.0 - t, -1.0 + t), sample(-1.0 - t, -2.0 - t), sample(np.zeros(9), np.zeros(9)),
        sample(-1.0 + u * 0.625, -1.0 + u * 0.375),
    ]  # fmt: skip
    assert not told("temperature", made, UPDATE)


def test_one_token_tells_the_temperature():
    """Where one token alone differs, that is 100 % of those that do."""
    a = np.resize([-0.5, -1.0], 30)
    a[29], b = -9.0, a.copy()
    b[29] = -12.0
    finding = only("temperature", sample(a, b))
    assert finding.evidence["higher"] == 1.0
    assert "one is above the other at 100% of the tokens" in finding.message


# ---- drift ---------------------------------------------------------------------------------------


def stepping(widths: list[int], places: Any, step: int, after: float = 0.4) -> Sample:
    """|log ratio|/(1 − p) is 0.1 at places before the step and ``after`` from there on, each ± 5 %;
    tokens at places other than those given are certain."""
    place = np.concatenate([np.arange(width) for width in widths])
    p = np.where(np.isin(place, places), 0.5, 0.95)
    size = np.where(place < step, 0.1, after) * (1.0 + 0.05 * np.resize([1.0, -1.0], len(place)))
    a = np.log(p)
    return sample(a, a - (1.0 - p) * size, widths)


@pytest.mark.parametrize(
    ("places", "found"),
    [
        ([*range(20), *range(30, 50)], True),
        ([*range(20), *range(30, 49)], False),
        ([*range(19), *range(30, 50)], False),
        ([*range(19), *range(31, 60)], False),
        ([*range(29), *range(41, 60)], False),
    ],
)
def test_drift_needs_twenty_tokens_on_either_side(places, found):
    finding = only("drift", stepping([60], places, 30))
    assert bool(finding) == found
    if found:
        assert finding.evidence["position"] == pytest.approx((sum(range(20)) + 20 * 39.5) / 40)


def test_a_token_in_the_very_middle_is_early():
    one = stepping([61], range(61), 31)
    one.b[30] = one.a[30] - 1.0  # 2 of 0.5 that are free
    before = np.abs(one.a - one.b)[:31].mean()
    finding = only("drift", one)
    assert finding is None  # as its spread is too wide
    one.b[30] = one.a[30] - 0.1
    before = (0.5 * 0.1 * 30 + 0.1) / 31
    finding = only("drift", one)
    assert finding.evidence["position"] == 30.0
    assert finding.evidence["times"] == pytest.approx(0.5 * 0.4 / before, rel=1e-3)


@pytest.mark.parametrize(("after", "found"), [(0.1795, False), (0.1805, True)])
def test_how_much_further_later_tokens_must_be(after, found):
    assert bool(only("drift", stepping([60, 60], range(60), 30, after))) == found


def test_drift_where_earlier_tokens_are_equal():
    """Whatever is there later counts as so many times 1e-12."""
    one = stepping([60], range(60), 30)
    one.b[:30] = one.a[:30]
    assert only("drift", one).evidence["times"] == pytest.approx(0.4e12)


def test_a_token_that_is_nine_tenths_certain_does_not_count():
    """1 − p of exactly 0.1 is not above it, and no difference counts for more than 5 nats."""
    near = math.log(0.9)
    while -np.expm1(near) > 0.1:
        near = math.nextafter(near, 0.0)
    while -np.expm1(near) < 0.1:
        near = math.nextafter(near, -1.0)
    assert -np.expm1(near) == 0.1
    one = stepping([62], range(60), 30)
    one.a[60:] = near
    one.b[60:] = near - 0.01
    finding = only("drift", one)
    assert finding.evidence["position"] == 29.5
    assert finding.evidence["times"] == pytest.approx(4.0)
    one.b[59] = one.a[59] - 5.0
    capped = only("drift", one)
    one.b[59] = one.a[59] - 50.0
    assert capped is None  # 10 where the others are 0.4
    many = stepping([400], range(400), 200)
    many.b[399] = many.a[399] - 5.0
    capped = only("drift", many).evidence
    many.b[399] = many.a[399] - 50.0
    assert only("drift", many).evidence == capped
    assert capped["times"] == pytest.approx((0.4 * 199 + 10.0) / 200 / 0.1, rel=1e-3)


# ---- columns of other tokens ---------------------------------------------------------------------

RELATED = np.log(np.resize([0.2, 0.8], 11))
"""A response too short to be judged alone."""


def beside(width: int, odd: int, short: int) -> Sample:
    """So many responses of which the columns correlate by 0, beside short ones where they agree."""
    a = [np.log(np.resize([0.2, 0.8], width))] * odd + [RELATED] * short
    b = [np.log(np.resize([0.2, 0.2, 0.8, 0.8], width))] * odd + [RELATED] * short
    return sample(np.concatenate(a), np.concatenate(b), [width] * odd + [11] * short)


@pytest.mark.parametrize(
    ("width", "odd", "short", "found"),
    [
        (12, 6, 12, True), (12, 5, 12, False), (11, 30, 60, False),
        (60, 1, 12, True), (52, 1, 12, True), (48, 1, 12, False),
    ],
)  # fmt: skip
def test_responses_that_are_unrelated_on_their_own(width, odd, short, found):
    """6·(1 + ln(6·0.5·exp(−z²/2)/6)) < ln 1e-6, z being (atanh 0.8 − atanh 0.3)·√(12 − 3)."""
    finding = only("unrelated", beside(width, odd, short))
    assert bool(finding) == found
    if found:
        assert (finding.response, finding.token, finding.severity) == (0, None, "error")
        assert finding.evidence["rows"] == odd
        assert finding.evidence["tokens"] == width
        assert finding.evidence["correlation"] == pytest.approx(0.0, abs=1e-12)
        assert f"this response ({odd} such in all)" in finding.message


def test_a_long_response_of_other_tokens():
    """Of 3,000 tokens none is by chance: the probability is less than a float can be."""
    n = 3000
    a = np.log(np.resize([0.2, 0.8], 4 * n))
    b = a.copy()
    b[n : 2 * n] = np.log(np.resize([0.2, 0.2, 0.8, 0.8], n))
    finding = only("unrelated", sample(a, b, [n] * 4))
    assert (finding.response, finding.evidence["rows"], finding.evidence["tokens"]) == (1, 1, n)


def chernoff(widths: list[int], rows: int) -> float:
    """ln of the bound on the probability, in plain Python."""
    away = math.atanh(0.8) - math.atanh(0.3)
    expected = sum(0.5 * math.exp(-0.5 * away**2 * (w - 3)) for w in widths if w >= 12)
    return rows * (1.0 + math.log(expected / rows))


@files.each(["widths", "rows"], [
    ([12] * 40, 10), ([12] * 40, 11), ([13] * 40, 9), ([14] * 60, 9), ([20] * 90, 5),
    ([47], 1), ([48], 1), ([49], 1), ([12, 30, 11, 11, 11], 2), ([25] * 8 + [5] * 30, 2),
    ([12] * 30, 9), ([12] * 31, 9), ([12] * 32, 9), ([12] * 6, 6), ([12] * 9, 6), ([16] * 32, 6),
    *(([w] * n, rows) for w in range(12, 40, 3) for n in range(2, 60, 3) for rows in (1, 2, 3, 5)),
])  # fmt: skip
def test_how_many_are_chance(widths, rows):
    by_chance = chernoff(widths, rows) >= math.log(1e-6)
    assert alignment._by_chance(np.array(widths), rows) == by_chance


def joint(counts: dict[tuple[int, int], int], values: list[float]) -> tuple[F64, F64]:
    """Two columns of three values: how often each two of them stand beside each other."""
    rows = [pair for pair, count in counts.items() for _ in range(count)]
    a, b = zip(*rows, strict=True)
    return np.array(values)[np.array(a) + 1], np.array(values)[np.array(b) + 1]


LOW = {(-1, -1): 3, (-1, 0): 2, (0, -1): 2, (1, 0): 5, (0, 1): 5, (0, 0): 47}
"""Σu² = Σv² = 10 and Σuv = 3, so that u and v correlate by 0.3: by their low values."""
HIGH = {(-one, -other): count for (one, other), count in LOW.items()}


def test_a_correlation_of_three_tenths_is_no_longer_unrelated():
    logs = joint(LOW, [-3.0, -2.0, -1.0])
    p = joint(HIGH, [0.25, 0.5, 0.75])
    for a, b in (logs, (np.log(p[0]), np.log(p[1]))):
        assert only("unrelated", sample(a, b)) is None
        shared = np.concatenate([a, RELATED.repeat(20)]), np.concatenate([b, RELATED.repeat(20)])
        assert only("unrelated", sample(*shared, [64, *[11] * 20])) is None
    apart = joint(LOW | {(-1, -1): 2, (-1, 0): 3, (0, -1): 3, (0, 0): 46}, [-3.0, -2.0, -1.0])
    finding = only("unrelated", sample(*apart))
    assert finding.evidence["tokens"] == 64


def test_correlations_by_segment():
    """1 where a column does not vary: a spread of a thousandth of the first is none."""
    segments = Segments(np.array([2, 2, 2, 4]))
    one = np.array([-0.001, 0.001, -0.00101, 0.00101, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0])
    other = np.array([1.0, 0.0, 1.0, 0.0, 0.5, 0.5, 0.0, 1.0, 0.0, 1.0])
    assert alignment._correlate(segments, one, other).tolist() == [1.0, -1.0, 1.0, 0.0]


def test_correlations_that_are_far_enough_below():
    """4.5 standard errors below 0.8: of 24 tokens from 0.118 down, of 36 from 0.3 down."""
    lengths = np.array([24, 24, 23, 35, 36, 36, 24, 24, 2])
    found = np.array([0.110, 0.125, -0.9, 0.299, 0.299, 0.3, -1.0, 1.0, 0.0])
    expected = []
    for n, r in zip(lengths.tolist(), found.tolist(), strict=True):
        z = math.atanh(max(min(r, 0.999), -0.999))
        sigmas = (math.atanh(0.8) - z) * math.sqrt(max(n - 3, 0))
        expected.append(n >= 24 and r < 0.3 and sigmas > 4.5)
    assert expected == [True, False, False, False, True, False, True, False, False]
    assert alignment._is_unrelated(Segments(lengths), found).tolist() == expected


def test_whom_unrelated_columns_tell():
    """A model that is sure of some tokens, by more than 0.2, or else where the means agree."""
    near, far = sample([-2.0, -4.0], [-3.25] * 2), sample([-2.0, -4.0], [-3.24] * 2)
    sure, unsure, level = np.array([[0.0, 0.4001], [0.0, 0.4], [0.5, 0.5]])
    assert not alignment._can_correlate(on(near), unsure, level)[0]
    assert alignment._can_correlate(on(far), unsure, level)[0]
    assert alignment._can_correlate(on(near), sure, level)[0]
    assert alignment._can_correlate(on(near), level, sure)[0]


# ---- constants, bases, fillers -------------------------------------------------------------------


def test_a_constant_three_times_its_spread():
    """The median absolute deviation is d, and 3·1.4826·d the median: enough, to the bit."""
    d = 2.0**-8
    middle = 3.0 * (1.4826 * d)
    change = np.resize([middle - d, middle, middle + d], 24)
    finding = only("constant-log-ratio", sample(change, np.zeros(24)))
    assert finding.evidence["log_ratio"] == middle
    assert finding.severity == "warning"
    wide = np.resize([middle - 1.001 * d, middle, middle + 1.001 * d], 24)
    assert only("constant-log-ratio", sample(wide, np.zeros(24))) is None


@pytest.mark.parametrize(("few", "found"), [(4, True), (5, False)])
def test_the_mean_of_the_ratios_is_far_from_one(few, found):
    """Of 24 tokens some are 0.35 times as large, not 1.4427: the mean is e^0.2316 or e^0.1947."""
    a = -np.linspace(0.5, 3.0, 24)
    a[:few] = -0.06
    b = a / math.log(2)
    b[:few] = -0.021
    assert bool(only("log-base", sample(a, b))) == found


@pytest.mark.parametrize("base", [2, 10])
@pytest.mark.parametrize("at", [0, 1])
def test_a_base_and_what_to_do(base, at):
    """Certain tokens, which have no ratio, are not asked."""
    nats = np.append(-np.linspace(0.5, 3.0, 24), 0.0)
    other = nats / math.log(base)
    nats[-1], other[-1] = (0.0, -1.0) if at else (-1.0, 0.0)
    columns = [nats, other] if at else [other, nats]
    finding = only("log-base", sample(*columns))
    assert finding.severity == "error"
    assert finding.evidence["culprit"] == UPDATE[at]
    assert finding.advice.startswith(f"multiply it by ln {base} = {math.log(base):.4f}: ")


# ---- the engine that sampled ---------------------------------------------------------------------


def weights(counts: dict[float, int]) -> Sample:
    """A column of the trainer's less the engine's such that each weight stands so often."""
    change = np.concatenate([np.full(count, math.log(weight)) for weight, count in counts.items()])
    return sample(change, np.zeros(len(change)))


def test_mean_weights_at_4_4_standard_errors():
    """(mean − 1)·√132/σ of 54 twos, 42 halves and 36 ones is 4.4 to the bit; 55 twos are more."""
    assert only("mean-weight", weights({2.0: 54, 0.5: 42, 1.0: 36}), ENGINE) is None
    assert only("mean-weight", weights({2.0: 55, 0.5: 42, 1.0: 36}), ENGINE).severity == "warning"


@pytest.mark.parametrize("far", [1.0, 1.125])
def test_ratios_beyond_e_do_not_say_how_far_a_typical_one_is(far):
    """60 weights spread by 0.01 about 0.97; three of e or more count as 1 + 10·0.01 + 1e-3."""
    near = np.resize([0.96, 0.98], 60)
    change = np.append(np.log(near), [far] * 3)
    finding = only("mean-weight", sample(change, np.zeros(63)), ENGINE)
    assert finding.evidence["mean_weight"] == pytest.approx((60 * 0.97 + 3 * 1.101) / 63)
    assert finding.evidence["tokens"] == 63


def test_weights_that_are_all_one_number_do_not_say_how_sure():
    assert only("mean-weight", sample(np.full(64, -0.5), np.zeros(64)), ENGINE) is None


def outliers(n: int, few: dict[float, int], rest: float = 0.0) -> Any:
    change = np.full(n, rest)
    values = np.concatenate([np.full(count, value) for value, count in few.items()])
    change[: len(values)] = values
    return only("outliers", sample(change, np.zeros(n)), ENGINE)


@pytest.mark.parametrize(
    ("n", "few", "rest", "found"),
    [
        (150, {9.0: 3}, 0.0, 3), (149, {9.0: 3}, 0.0, 0), (160, {9.0: 4}, 0.0, 0),
        (149, {9.0: 2, 3.8: 1}, 0.0, 2), (149, {9.0: 2, 3.81: 1}, 0.0, 0),
        (100, {3.9: 3, 60.0: 1}, 0.0, 0),
        (200, {9.0: 1, 0.5: 2}, 0.0, 1), (200, {9.0: 1, 0.51: 2}, 0.0, 0),
        (200, {9.0: 1, 0.59: 2}, 0.2, 1), (200, {9.0: 1, 0.61: 2}, 0.2, 0),
        (200, {9.0: 1, 0.7: 2}, 0.2, 0), (200, {9.0: 1, 0.7: 1}, 0.2, 1),
        (99, {9.0: 1}, 0.0, 0),
    ],
)  # fmt: skip
def test_how_few_and_how_far_outliers_are(n, few, rest, found):
    """At most 2 % beyond 3.8 nats; no more beyond half a nat, or 3 times the rest, than there."""
    finding = outliers(n, few, rest)
    assert (finding.evidence["tokens"] if finding else 0) == found
    if found:
        assert finding.evidence["worst"] == 9.0
        assert finding.evidence["of"] == n
        assert finding.severity == "warning"


def test_the_bound_of_a_mismatch():
    """A mean exp|log ratio| of 1.05 to the bit is not beyond 1.05."""
    at = np.full(32, -math.log(1.05))
    assert np.exp(-at[0]) == 1.05
    assert only("rollout-mismatch", sample(at, np.zeros(32)), ENGINE) is None
    assert only("rollout-mismatch", sample(1.001 * at, np.zeros(32)), ENGINE)


@pytest.mark.parametrize(
    ("counts", "beyond"),
    [
        ({0.5: 32}, False), ({0.49: 32}, True), ({2.0: 32}, False), ({2.01: 32}, True),
        ({0.6: 32}, False), ({1.9: 32}, False),
        ({4.0: 2, 0.25: 16, 0.5: 12}, False),  # 18² / (30·36) = 0.3
        ({4.0: 2, 0.25: 17, 0.5: 12}, True), ({4.0: 2, 0.25: 15, 0.5: 18}, False),
    ],
)  # fmt: skip
def test_weights_that_no_correction_is_for(counts, beyond):
    """A mean outside 0.5 to 2, or an effective sample size below 30 %."""
    finding = only("rollout-mismatch", weights(counts), ENGINE)
    assert finding.message.endswith("; weights are beyond what verl corrects") == beyond


def test_a_mismatch_counts_differences_of_50_nats_at_most():
    change = np.zeros(32)
    change[0] = 60.0
    evidence = only("rollout-mismatch", sample(change, np.zeros(32)), ENGINE).evidence
    assert evidence["mean_exp_abs"] == pytest.approx((31 + math.exp(50.0)) / 32, rel=1e-12)
    assert evidence["kl_k3"] == pytest.approx((math.expm1(50.0) - 60.0) / 32, rel=1e-12)
    assert evidence["mean_weight"] == pytest.approx((31 + math.exp(50.0)) / 32, rel=1e-12)
    assert evidence["max"] == 60.0


# ---- on policy -----------------------------------------------------------------------------------

WIDTHS = [[2, 1], [1, 2], [2, 1], [0, 0], [1, 0]]
NEW = np.array([-1.0, -2.0, -3.0, -1.0, -2.0, -3.0, -1.0, -2.0, -3.0, -0.5])
REWARDS = np.array([1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0])


def on_policy(columns: dict[str, F64], **more: Any) -> Any:
    """Record, tokens and words of each finding, and whether it says that all groups are dead."""
    given = replace(view(columns, WIDTHS), rewards=REWARDS, **more)
    (rule,) = [rule for rule in rules_of("record") if rule.code == "on-policy"]
    found = list(rule.find(given))
    assert all(one.severity == "info" and {*one.evidence} == {"tokens"} for one in found)
    return [
        (one.record, one.evidence["tokens"], one.message, "every group here is dead" in one.advice)
        for one in found
    ]


def test_ratios_that_are_all_one():
    """Of five records the third differs at a token, the fourth has none; the first is dead."""
    old = NEW.copy()
    old[7] += 1e-9
    words = "old = new at all {} tokens: every ratio is exactly 1"
    assert on_policy({"log_probs_new": NEW, "log_probs_old": old}) == [
        (0, 3, words.format(3), True), (1, 3, words.format(3), False),
        (4, 1, words.format(1), False),
    ]  # fmt: skip


def test_old_log_probs_that_are_missing():
    words = "log_probs_old is missing: taken as on-policy, every ratio is 1"
    found = on_policy({"log_probs_new": NEW})
    assert [one[:2] for one in found] == [(0, 3), (1, 3), (2, 3), (4, 1)]
    assert {one[2] for one in found} == {words}
    assert [one[3] for one in found] == [True, False, False, False]
    assert not on_policy({"log_probs_old": NEW})
    assert not on_policy({"log_probs_new": NEW, "ratios": NEW})
    derived = {"log_probs_new": NEW, "log_probs_old": NEW}
    assert not on_policy(derived, derived=("log_probs_old",))
    assert len(on_policy({"log_probs_new": NEW, "ratios": NEW}, derived=("ratios",))) == 4


# ---- samples -------------------------------------------------------------------------------------


def test_samples_of_several_records():
    """Records 0 and 1 are compared together, 2 on its own, 3 to 5 together; some tokens are masked.

    Everything is told of the first record of a sample, by the tokens that count.
    """
    widths = [[2, 3], [4], [3, 1], [2], [5], [1, 1]]
    n = sum(map(sum, widths))
    a = -0.25 * np.arange(1, n + 1)
    b = np.where(np.arange(n) % 3 == 0, a, a - 0.5)
    mask = np.arange(n) % 7 != 6
    given = replace(
        view({"log_probs_new": a, "log_probs_old": b}, widths),
        samples=np.array([4, 4, 5, 9, 9, 9]),
        mask=mask,
    )
    pair = Pair(given, UPDATE)
    assert [pair.record(sample) for sample in range(3)] == [0, 2, 3]
    assert pair.rows.lengths.tolist() == [3, 2, 4]
    bounds = [slice(0, 9), slice(9, 13), slice(13, 22)]
    counted = [mask[part].sum() for part in bounds]
    assert pair.samples.lengths.tolist() == counted == [8, 4, 7]
    assert [pair.tokens(sample) for sample in range(3)] == [
        slice(0, 8), slice(8, 12), slice(12, 19)
    ]  # fmt: skip
    change = (a - b)[mask]
    assert pair.log_ratio.tolist() == change.tolist()
    assert pair.size.tolist() == np.abs(change).tolist()
    assert pair.keys == ("logps", "old_logps")
    assert str(pair) == "logps − old_logps"
    number, mean, spread = pair.moments(change)
    parts = [change[pair.tokens(sample)] for sample in range(3)]
    assert number.tolist() == [8, 4, 7]
    assert mean.tolist() == pytest.approx([part.mean() for part in parts])
    assert spread.tolist() == pytest.approx([part.std() for part in parts])
    among = np.arange(19) > 9
    number, mean, spread = pair.moments(pair.first, among)
    kept = [pair.first[pair.tokens(at)][among[pair.tokens(at)]] for at in (1, 2)]
    assert number.tolist() == [0, 2, 7]
    assert mean.tolist() == pytest.approx([0.0, kept[0].mean(), kept[1].mean()])
    assert spread.tolist() == pytest.approx([0.0, kept[0].std(), kept[1].std()])


def test_what_rules_ask_of_a_pair():
    a = np.array([0.0, 0.0, -1.0, -3.0, -90.0, 0.5, -70.0])
    b = np.array([0.0, -1.0, 0.0, -2.0, -10.0, 0.0, -10.0])
    pair = on(sample(a, b, [2, 2, 3]))
    assert pair.unsure.tolist() == [False, True, True, True, True, True, True]
    expected = [1.0, math.e, 1 / math.e, 1 / math.e, math.exp(-50.0), math.exp(0.5), math.exp(-50)]
    assert pair.weight.tolist() == pytest.approx(expected)
    assert on(sample(b, a)).weight[4] == pytest.approx(math.exp(50.0))
    likely = [1.0, 1.0, 1.0, math.exp(-2.0), math.exp(-10.0), 1.0, math.exp(-10.0)]
    assert pair.freedom.tolist() == pytest.approx([1.0 - p for p in likely], rel=1e-12)
    equal = view(
        {"log_probs_new": a, "log_probs_old": np.where(a < -60, a - 1, a)}, [[2], [2], [3]]
    )
    assert Pair(equal, UPDATE).equal.tolist() == [True, True, False]
    kinds = {(one, other): Pair(view({one: a, other: b}, [[7]]), (one, other)) for one, other in (
        UPDATE, ENGINE, ("log_probs_new", "log_probs_rollout"), ("log_probs_new", "log_probs_ref"),
    )}  # fmt: skip
    assert [pair.to_engine for pair in kinds.values()] == [False, True, True, False]
    assert [pair.to_reference for pair in kinds.values()] == [False, False, False, True]


# ---- fillers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "found"), [(3.0, False), (3.0625, True), (3.5, True)])
def test_fillers_differ_three_times_as_far_as_the_others(size, found):
    """95 % of the others differ by 1 nat at most: here all of them by exactly that."""
    a, b = np.full(40, -8.0), np.full(40, -9.0)
    a[:5], b[:5] = -size, 0.0
    finding = only("filler", sample(a, b))
    assert bool(finding) == found
    if found:
        assert finding.evidence == {"column": "old_logps", "value": 0.0, "tokens": 5, "of": 40}
        assert (finding.response, finding.token, finding.severity) == (0, 0, "error")


@pytest.mark.parametrize(("turned", "found"), [(3, True), (4, False)])
def test_fillers_of_other_tokens_in_both_columns(turned, found):
    """Where the other column is 0.0 at more than 3 tokens for 10 of its own, by more than e^0.3."""
    a, b = np.full(400, -2.0), np.full(400, -2.0)
    a[:10], b[:10] = -2.0, 0.0
    a[10 : 10 + turned], b[10 : 10 + turned] = 0.0, -2.0
    a[20:30], b[20:30] = 0.0, -0.3  # no doubt
    said = told("filler", [sample(a, b)], UPDATE).get(0, [])
    assert ("old_logps" in [one.evidence["column"] for one in said]) == found


@pytest.mark.parametrize(("hit", "found"), [(-10.0, True), (-11.9, True), (-12.1, False)])
def test_tokens_that_the_other_column_finds_impossible_are_no_fillers(hit, found):
    """Five in a hundred of the other tokens are at −12 or below: the third of 41 is."""
    a = np.concatenate([[-20.0, -16.0, -12.0, -6.0], np.full(37, -1.0), np.full(4, hit)])
    b = np.concatenate([a[:41] + 0.01, np.zeros(4)])
    assert bool(only("filler", sample(a, b))) == found


def test_eight_fillers_are_told():
    """Values that stand there once or twice are none, however many."""
    kinds = np.concatenate(
        [np.arange(-900.0, -500.0, 10.0).repeat(2), np.arange(-180.0, -90.0, 10.0).repeat(3)]
    )
    found = told("filler", [sample(np.full(len(kinds), -1.0), kinds)], UPDATE)[0]
    values = [one.evidence["value"] for one in found]
    assert values == [-180.0, -170.0, -160.0, -150.0, -140.0, -130.0, -120.0, -110.0]


# ---- last tokens ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("responses", "found"), [(2, False), (3, True)])
def test_two_last_tokens_are_too_few(responses, found):
    """2·(1 + ln(1/4000)) is far below ln 1e-6 already."""
    change = np.zeros(responses * 2000)
    change[1999::2000] = 2.0
    zeros = np.zeros(len(change))
    finding = only("last-token", sample(zeros, change, [2000] * responses))
    assert bool(finding) == found
    if found:
        assert (finding.response, finding.token) == (0, 1999)
        assert finding.evidence["elsewhere"] == pytest.approx(1 / (3 * 1999))
        assert finding.message.startswith(
            "logps and old_logps differ by more than 1 nat at the last"
        )


# ---- shifts and extremes -------------------------------------------------------------------------


def test_what_no_coin_does():
    """So many standard deviations of a coin, and more than 3 of 5: all of 16 throws are 4 of them,
    all of 25 are 5."""
    wins = np.array([0, 16, 17, 25, 26, 300, 301, 302, 60])
    counted = np.array([0, 16, 17, 25, 26, 500, 501, 500, 101])
    away = [(w - n / 2) / (math.sqrt(max(n, 1)) / 2) for w, n in zip(wins, counted, strict=True)]
    for sigmas, expected in (
        (4.0, [0, 0, 1, 1, 1, 0, 1, 1, 0]),
        (5.0, [0, 0, 0, 0, 1, 0, 0, 0, 0]),
    ):
        by_hand = [
            bool(w > 0.6 * n and x > sigmas) for w, n, x in zip(wins, counted, away, strict=True)
        ]
        assert alignment._exceeds_coin(wins, counted, sigmas).tolist() == by_hand == expected


def test_one_response_is_shifted_among_others():
    """All of 29 tokens are beyond 5 standard deviations, as all of 23 are not; seven responses of
    which one is shifted are not beyond 4."""
    a = np.tile(-(np.arange(30.0) ** 1.5), 7)
    b = np.resize([-1.0, 1.0], 210) * 0.1 + a
    for width, found in ((30, [3]), (24, [])):
        other = b.copy()
        other[90 : 90 + width] = np.roll(a[90 : 90 + width], 1)
        said = told("shifted", [sample(a, other, [30] * 7)], UPDATE).get(0, [])
        assert [one.response for one in said] == found
        for one in said:
            assert one.severity == "error"
            assert one.evidence["lag"] == 1
            assert one.evidence["tokens"] == 29


def test_a_given_ratio_of_e_to_the_20():
    """Is not beyond it, to the bit; the next one is."""
    most, least = math.exp(20.0), math.exp(-20.0)
    assert (np.log(most), np.log(least)) == (20.0, -20.0)
    values = np.array([most, least, most * 1.001, least, least * 0.999])
    given = view({"ratios": values}, [[2], [1], [2]])
    rules = [rule for rule in rules_of("record") if rule.code == "extreme-ratio"]
    found = [finding for rule in rules for finding in rule.find(given)]
    assert [(one.record, one.response, one.token) for one in found] == [(1, 0, 0), (2, 0, 1)]


def test_entropies_that_tell_no_base():
    """None of them, none above 0, one that is no number, or no log-probs: nothing is said."""
    ones, base = np.ones(64), np.full(64, -1.0 / math.log(2.0))
    hole = np.append(np.ones(63), np.nan)
    (rule,) = [rule for rule in rules_of("record") if rule.code == "log-base"]

    def look(**columns: F64) -> list[Any]:
        return list(rule.find(view(columns, [[64]])))

    (finding,) = look(entropies=ones, log_probs_new=base)
    assert (finding.severity, finding.evidence["base"], finding.record) == ("error", 2, 0)
    assert finding.evidence["factor"] == pytest.approx(1.0 / math.log(2.0))
    assert not look(entropies=0.0 * ones, log_probs_new=base)
    assert not look(entropies=hole, log_probs_new=base)
    assert not look(entropies=ones, log_probs_new=base * hole)
    assert not look(log_probs_new=base)
    assert not look(entropies=ones, log_probs_old=base)
