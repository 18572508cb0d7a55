"""Onsets beside their definitions: one series, one place at a time, with numpy's own functions."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from grpo_cli.batch import F64
from grpo_cli.commands.trend.findings import findings
from grpo_cli.commands.trend.metrics import METRICS
from grpo_cli.commands.trend.onsets import Onset, Series, onset, onsets, vanished
from grpo_cli.commands.trend.step import Step

Said = tuple[int, str, float]


def smoothed(values: F64) -> F64:
    """Hampel's filter: seven neighbours, mirrored at the ends, five times 1.4826 MADs."""
    padded = np.concatenate([values[3:0:-1], values, values[-2:-5:-1]])
    windows = [padded[at : at + 7] for at in range(len(values))]
    middles = [float(np.median(window)) for window in windows]
    mads = [
        1.4826 * float(np.median(np.abs(window - middle)))
        for window, middle in zip(windows, middles, strict=True)
    ]
    usual = float(np.median(mads))
    return np.array(
        [
            middle if abs(value - middle) > 5 * max(mad, usual) else value
            for value, middle, mad in zip(values, middles, mads, strict=True)
        ]
    )


def trend_of(past: F64) -> float:
    """Mann and Kendall's z."""
    n = len(past)
    s = sum(np.sign(later - earlier) for earlier, later in combinations(past, 2))
    return float((s - np.sign(s)) / math.sqrt(n * (n - 1) * (2 * n + 5) / 18))


def slope_of(past: F64) -> float:
    """Theil and Sen's."""
    pairs = combinations(range(len(past)), 2)
    return float(np.median([(past[j] - past[i]) / (j - i) for i, j in pairs]))


def scores(past: F64, future: F64, least: float) -> tuple[float, float]:
    """By how many standard errors the mean, and the slope, of what follows are off."""
    p, f = len(past), len(future)
    slopes = abs(trend_of(past)) > (2.0 if p >= 20 else 1.3)
    slope = slope_of(past) if slopes else 0.0
    places = np.arange(p) - (p - 1)
    level = float(np.median(past - slope * places))
    own = past - level - slope * places
    ahead = np.arange(1, f + 1)
    rest = future - level - slope * ahead
    sloped = slope != 0.0
    step = rest.mean()
    ahead_error = (p / 2 + f / 2) ** 2 * 12 / p**3 if sloped else 0.0
    shift_error = math.sqrt(1 / p + 1 / f + ahead_error) * noise(own, rest - step, least)
    ramp = (rest * ahead).sum() / (ahead**2).sum()
    squares = float((ahead**2).sum())
    lever = (ahead.sum() / squares) ** 2 * (4 if sloped else 1) / p
    error = math.sqrt(1 / squares + lever + (12 / p**3 if sloped else 0.0))
    return step / shift_error, ramp / (error * noise(own, rest - ramp * ahead, least))


def noise(own: F64, rest: F64, least: float) -> float:
    count = len(own) + len(rest) - 3
    square = float((own**2).sum() + (rest**2).sum()) / count
    if square <= least * least:
        return least or 1e-300
    pairs = float((own[1:] * own[:-1]).sum() + (rest[1:] * rest[:-1]).sum())
    r = pairs / (square * count)
    r = min(max(r + (1 + 4 * r) / (count + 3), 0.0), 0.95)
    return math.sqrt(square * (1 + r) / (1 - r))


def largest(values: F64, up: bool, down: bool, least: float) -> Said | None:
    best: Said | None = None
    for at in range(10, len(values) - 4 + 1):
        past, future = values[max(at - 30, 0) : at], values[at : at + 12]
        shift, drift = scores(past, future, least)
        few = 1 + 4 / len(past)
        wanted = (up if drift > 0 else down) and len(future) > 8
        for kind, score, bound in (
            ("shift", shift, 8.0),
            ("drift", drift if wanted else 0.0, 9.5),
        ):
            if abs(score) > bound * few and (best is None or abs(score) > abs(best[2])):
                best = (at, kind, score)
    return best


def by_definition(one: Series) -> Onset | None:
    values, found = one.values, None
    if len(values) < 16 or (values == values[0]).all():
        return None
    kinds = np.unique(values)
    least = float(np.diff(kinds).min()) / 2 if len(kinds) <= 12 else 0.0
    clean, end = smoothed(values), len(values)
    while change := largest(clean[:end], one.drift_up, one.drift_down, least):
        found, end = change, change[0]
        if end < 16:
            break
    if found is None:
        return None
    at, kind, score = found
    future = values[at : at + 12]
    after = future if kind == "shift" else future[-4:]
    before = float(np.median(values[max(at - 30, 0) : at]))
    return Onset(at, kind, abs(score), score > 0, before, float(np.median(after)))


def drawn(seed: int) -> Series:
    draw = np.random.default_rng([17, seed])
    count = int(draw.choice([15, 16, 17, 24, 24, 30, 36, 45]))
    values = draw.normal(0.0, 1.0, count)
    correlation = draw.choice([0.0, 0.0, 0.0, 0.4, 0.99])
    for at in range(1, count):
        values[at] += correlation * values[at - 1]
    at = np.arange(count, dtype=np.float64)
    begin = int(draw.integers(9, max(count - 9, 13)))
    values += draw.choice([0.0, 0.0, 0.05, 0.4, -0.4]) * at
    if draw.random() < 0.5:
        values += draw.choice([3, 5, 6, 9, 14, -14, -7, 20]) * (at >= begin)
    else:
        values += draw.choice([1.2, 2.5, 4, -2, -4]) * np.maximum(at - begin + 1, 0)
    if draw.random() < 0.3:
        values[int(draw.integers(0, count))] += draw.choice([5.0, 8.0, -30.0])
    if draw.random() < 0.3:
        values = np.round(values / draw.choice([2.0, 4.0, 9.0]))
    return Series(values, bool(draw.random() < 0.6), bool(draw.random() < 0.6))


def test_onsets_are_those_of_their_definition() -> None:
    """Levels, slopes, drifts, outliers and whole numbers, around what is told and what is not."""
    series = [drawn(seed) for seed in range(180)]
    expected = [by_definition(one) for one in series]
    assert 50 < sum(one is not None for one in expected) < 140
    assert {one.kind for one in expected if one is not None} == {"shift", "drift"}
    for at, (found, wanted) in enumerate(zip(onsets(series), expected, strict=True)):
        assert (found is None) == (wanted is None), (at, found, wanted)
        if found is not None and wanted is not None:
            assert (found.at, found.kind, found.up) == (wanted.at, wanted.kind, wanted.up), at
            numbers = (wanted.score, wanted.before, wanted.after)
            assert (found.score, found.before, found.after) == pytest.approx(numbers, rel=1e-9)


@pytest.mark.parametrize(("begin", "at"), [(16, 10), (17, 10)])
def test_what_was_before_the_largest_change_may_have_changed_too(begin: int, at: int) -> None:
    """Where there are steps enough before it, sixteen."""
    values = np.random.default_rng(3).normal(0.0, 0.01, 40)
    values[10:] += 5.0
    values[begin:] += 100.0
    found = onset(values)
    assert found is not None
    assert found.at == at
    assert found == by_definition(Series(values, False, False))._replace(score=found.score)  # type: ignore[union-attr]


def test_a_line_without_noise_that_turns() -> None:
    """Whatever is left of it is 0: the least number that there is stands for its noise."""
    values = np.concatenate([np.arange(40.0), 39.0 + 3.0 * np.arange(1, 21)])
    one = Series(values, drift_up=True, drift_down=False)
    found, wanted = onsets([one])[0], by_definition(one)
    assert found is not None
    assert wanted is not None
    assert found[:2] == wanted[:2] == (40, "drift")
    assert found.score == pytest.approx(wanted.score, rel=1e-9)


@pytest.mark.parametrize("begin", [10, 57, 265, 266, 267, 521, 522, 700, 797])
def test_an_onset_anywhere_in_a_long_series_is_found(begin: int) -> None:
    """Places are looked at in stretches, of which none hides what is at its border."""
    values = np.random.default_rng(5).normal(0.0, 1.0, 801)
    values[begin:] += 40.0
    found = onset(values)
    assert found is not None
    assert (found.at, found.kind, found.up) == (begin, "shift", True)
    near = onset(values[max(begin - 60, 0) : begin + 60])  # which has them in one stretch
    assert near is not None
    assert near[1:] == found[1:]


def test_of_a_long_series_more_is_asked() -> None:
    """8 standard errors, times 1 + 4/30, times 1 + ln(n/400)/15 from 400 steps on."""
    noise = np.random.default_rng(8).uniform(-1.0, 1.0, 800)
    for count in (399, 440, 800):
        bound = 8 * (1 + 4 / 30) * (1 + math.log(max(count / 400, 1.0)) / 15)
        at = count - 60
        series = [noise[:count] + size * (np.arange(count) >= at) for size in SIZES]
        expected = [scores(one[at - 30 : at], one[at : at + 12], 0.0)[0] for one in series]
        found = onsets([Series(one, False, False) for one in series])
        assert [one is not None for one in found] == [score > bound for score in expected]
        assert 3 < sum(one is None for one in found) < len(SIZES) - 3
        near = min(score for score, one in zip(expected, found, strict=True) if one is not None)
        assert near / bound < 1.04


SIZES = np.linspace(0.6, 3.0, 120)


@pytest.mark.parametrize(
    ("zero_from", "count", "told"),
    [(10, 14, True), (9, 14, False), (10, 13, False), (10, 30, True), (20, 24, True)],
)
def test_from_when_on_numbers_are_exactly_0(zero_from: int, count: int, told: bool) -> None:
    """Ten steps before must have been another number, and four are 0."""
    values = np.arange(1.0, count + 1)
    values[zero_from:] = 0.0
    found = vanished(values)
    assert (found is not None) is told
    values[zero_from + 4 :] = 7.0  # whatever comes later
    assert (vanished(values) is not None) is told
    if found is not None:
        before = (zero_from + 1) / 2  # the median of 1 to zero_from
        assert found == Onset(zero_from, "shift", math.inf, False, before, 0.0)


def test_numbers_that_are_0_now_and_then_have_not_vanished() -> None:
    values = np.arange(1.0, 41.0)
    values[[25, 33, 34, 35]] = 0.0
    assert vanished(values) is None
    values[36:] = 0.0  # eight numbers after the first 0: it was 0 before, within ten
    assert vanished(values) is None
    values[25] = 1.0
    found = vanished(values)
    assert found is not None
    assert (found.at, found.before) == (33, 17.5)  # the median of 1, and of 4 to 33 without 26


# ---- findings ------------------------------------------------------------------------------------


def run_of(names: str | list[str], values: Any) -> list[Step]:
    nothing: dict[str, float | None] = dict.fromkeys(limit[0] for limit in LIMITS)
    some = [names] if isinstance(names, str) else names
    each = [nothing | dict.fromkeys(some, one if one is None else float(one)) for one in values]
    return [Step(at, "a", metrics, {}) for at, metrics in enumerate(each)]


LIMITS = [
    ("mismatch.mult", 1.05, "above", "NeMo-RL docs/guides/dtensor-tp-accuracy.md:31"),
    ("mismatch.chi2", 1.0, "above", "verl docs/algo/rollout_corr.md:1068"),
    ("mismatch.ess", 0.3, "below", "verl docs/algo/rollout_corr.md:1001"),
]


@pytest.mark.parametrize(("name", "bound", "side", "source"), LIMITS)
def test_limits(name: str, bound: float, side: str, source: str) -> None:
    """Three of five steps beyond the bound; at the bound is not beyond."""
    sign = 1 if side == "above" else -1
    fine, beyond = bound, bound * (1 + sign * 0.01)
    worst = bound * (1 + sign * 0.2)
    values = [fine, beyond, fine, fine, beyond, fine, fine, beyond, fine, beyond, fine, worst, fine]
    (found,) = findings(run_of(name, values))
    assert (found.metric, found.kind, found.onset, found.worst_step) == (name, "limit", 7, 11)
    assert found.sentence.startswith(f"{name} is {side} {bound} from step 7 on, ")
    assert found.sentence.endswith(f" at its worst; the limit is that of {source}")
    assert found.score == math.inf
    values[9] = fine  # of five, two are left
    assert findings(run_of(name, values)) == []
    gap = [None, *values[:6], None, beyond, None, beyond, None, beyond]
    (found,) = findings(run_of(name, gap))  # steps without it are none of the five
    assert (found.onset, found.worst_step) == (5, 2)


VERBS = {
    ("shift", 1): "rose", ("shift", -1): "fell",
    ("drift", 1): "began to rise", ("drift", -1): "began to fall",
}  # fmt: skip


@pytest.mark.parametrize("begin", [20, 30, 31, 40])
@pytest.mark.parametrize("kind", ["shift", "drift"])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_finding_says_what_was_and_what_is(kind: str, sign: int, begin: int) -> None:
    """entropy drifts up, reward_mean down; the numbers are medians of 30 before and 12, or the
    last four of them, after."""
    name = "entropy" if sign > 0 else "reward_mean"
    values = 100.0 + np.random.default_rng(3).normal(0.0, 0.01, begin + 20)
    after = np.arange(1, 21) if kind == "drift" else np.full(20, 5.0)
    values[begin:] += sign * after
    values[begin + 10] += sign * 50.0  # the worst, which is an outlier
    (found,) = findings(run_of(name, values))
    assert (found.kind, found.metric, found.onset) == (kind, name, begin)
    assert found.worst_step == begin + 10
    before = np.median(values[max(begin - 30, 0) : begin])
    later = np.median(values[begin + (8 if kind == "drift" else 0) : begin + 12])
    words = f"{name} {VERBS[kind, sign]} at step {begin}: {before:.6g} before, {later:.6g} after"
    assert found.sentence.startswith(words)
    assert f"({found.score:.0f} standard errors)" in found.sentence


DRIFTS = {
    "reward_mean": -1, "length_mean": 1, "repetition": 1, "entropy": 1, "nll": 1, "clip_low": 1,
    "clip_high": 1, "gradient_norm": 1, "ratio_p999": 1, "ess": -1, "staleness": 1,
    "mismatch.k1": 1, "mismatch.k3": 1, "mismatch.ess": -1, "mismatch.mean_abs": 1,
}  # fmt: skip
"""What a healthy run does not do: rewards and effective samples fall, all others grow."""
UNWATCHED = {
    "pass_at_1", "length_p95", "at_longest", "objective", "kl", "kl_k1", "mismatch.chi2",
    "mismatch.mult", *(f"mismatch.decile_{number}" for number in range(1, 11)),
}  # fmt: skip
"""What another column says as well, or no change of which means anything."""
BY_LOGARITHM = {"kl_k3", "gradient_norm", "mismatch.k3", "mismatch.mean_abs", "mismatch.p999"}


def test_which_columns_are_watched_for_what() -> None:
    """A drift is a finding in one direction, a shift in both; what grows by factors is looked at
    by its logarithm."""
    small = np.random.default_rng(4).normal(0.0, 0.01, 60)
    ramp = np.concatenate([np.zeros(40), np.arange(1, 21)])
    for sign in (1, -1):
        found = findings(run_of([*METRICS], np.exp(small + sign * 0.1 * ramp)))
        drifting = {one.metric for one in found if one.kind == "drift"}
        assert drifting == {name for name, drift in DRIFTS.items() if drift == sign}
        found = findings(run_of([*METRICS], np.exp(small + sign * 0.5 * (ramp > 0))))
        shifted = {one.metric for one in found if one.kind == "shift"}
        assert shifted == {*METRICS} - UNWATCHED
    found = findings(run_of([*METRICS], np.where(ramp > 0, 0.0, np.exp(small))))
    assert {one.metric for one in found if "is exactly 0" in one.sentence} == BY_LOGARITHM


def test_what_spans_orders_of_magnitude_is_looked_at_by_its_logarithm() -> None:
    """A tenth of what was small beside its noise is a shift there; a 0 is half of the least."""
    draw = np.random.default_rng(6)
    values = np.exp(draw.normal(0.0, 0.4, 60))
    values[40:] *= 0.02
    assert [one.onset for one in findings(run_of("mismatch.p999", values))] == [40]
    assert findings(run_of("staleness", values)) == []
    assert [one.onset for one in findings(run_of("mismatch.p999", 1e-3 * values))] == [40]
    values = np.exp(draw.normal(0.0, 0.02, 60))
    values[[20, 33]] = 0.0
    assert findings(run_of("mismatch.p999", values)) == []
    assert findings(run_of("mismatch.p999", np.zeros(60))) == []
