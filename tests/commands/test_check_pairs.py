"""Two columns of log-probs: from where on ``grpo check`` finds something in them.

What is said there, with its numbers, is in ``cases/check``. Each bound here is computed by hand or
in the sample that stands on it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from grpo_cli import check
from grpo_cli.batch import F64

KEYS = {
    "log_probs_new": "logps",
    "log_probs_old": "old_logps",
    "log_probs_rollout": "rollout_logprobs",
    "log_probs_ref": "ref_logps",
}
UPDATE, ENGINE = ("log_probs_new", "log_probs_old"), ("log_probs_old", "log_probs_rollout")
REFERENCE = ("log_probs_new", "log_probs_ref")
Names = tuple[str, str]


class Sample(NamedTuple):
    """Two columns of one record, and the tokens of its responses."""

    a: F64
    b: F64
    widths: list[int]


def sample(a: Any, b: Any, widths: Sequence[int] | None = None) -> Sample:
    a, b = np.array(a, dtype=np.float64), np.array(b, dtype=np.float64)
    return Sample(a, b, [len(a)] if widths is None else list(widths))


def apart(change: Any) -> Sample:
    """Columns that differ so far, at log-probs that have nothing to do with it."""
    change = np.array(change, dtype=np.float64)
    base = -0.25 - 6.0 * (np.arange(len(change)) * 37 % 101 / 101.0) ** 2
    return sample(base + np.minimum(change, 0.0), base - np.maximum(change, 0.0))


def as_record(one: Sample, names: Names, number: int, claims: bool) -> dict[str, Any]:
    """The sample as a record, of other keys than its neighbours: it is compared on its own."""
    cuts = np.cumsum(one.widths)[:-1]
    a, b = ([part.tolist() for part in np.split(column, cuts)] for column in (one.a, one.b))
    record: dict[str, Any] = {KEYS["log_probs_new"]: a, KEYS[names[0]]: a, KEYS[names[1]]: b}
    if names == REFERENCE:
        record[KEYS["log_probs_old"]] = a
    if number % 2:
        record["entropies"] = [[0.5] * width for width in one.widths]
    if number % 4 > 1:
        record["rewards"] = [0.5 + at for at in range(len(one.widths))]
    if number % 8 > 3:
        record["group_ids"] = [0] * len(one.widths)
    return record | ({"ppo_epochs": 1} if claims else {})


def told(samples: Sequence[Sample], names: Names, claims: bool = False) -> list[list[Any]]:
    """The findings in each sample."""
    records = [as_record(one, names, at, claims) for at, one in enumerate(samples)]
    found: list[list[Any]] = [[] for _ in samples]
    for finding in check(records, limit=0).findings:
        found[int(finding.record)].append(finding)
    return found


ORDER = [
    *("filler", "shifted", "last-token", "unrelated", "drift", "log-base", "temperature"),
    *("constant-log-ratio", "extreme-ratio", "outliers", "ratio-noise", "mean-weight"),
    "rollout-mismatch",
]
"""The rules on two columns, in the order in which they are asked: one speaks of a sample."""
FIRST = {"probabilities", "padding", "prompt-included"}
"""What explains a record before its columns are compared."""

# ---- samples on either side of a bound -----------------------------------------------------------

Bounds = list[tuple[Sample, bool]]


def divided(factor: float, noise: float = 1e-9) -> Sample:
    a = -np.exp(np.linspace(-4.0, 1.0, 80))[np.arange(80) * 37 % 80]
    return sample(a, factor * a * (1.0 + noise * np.resize([1.0, -1.0], 80)))


def offset(noise: float) -> Sample:
    """Log-probs that one constant was taken from, of which the tokens keep a share of noise."""
    a = np.linspace(-0.5, -0.02, 80)[np.arange(80) * 37 % 80]
    return sample(a, a - 0.2 * (1.0 + noise * np.resize([1.0, -1.0], 80)))


def temperature(names: Names) -> Bounds:
    """Log-probs divided by a number, and what one constant was taken from."""
    bounds = [(divided(factor), found) for factor, found in ((1.05, False), (1.053, True))]
    bounds += [(divided(1.3, noise), noise < 0.02) for noise in (0.015, 0.06) if names == UPDATE]
    return bounds + [(offset(noise), found) for noise, found in ((0.05, False), (0.3, True))]


def drifting(early: list[float], late: list[float], gap: int = 0) -> Sample:
    """Differences of tokens that are free to move; sure ones stand between."""
    sizes = np.array([*early, *[0.0] * gap, *late])
    a = np.full(len(sizes), -800.0)
    a[len(early) : len(early) + gap] = -0.01
    return sample(a, a - sizes)


def drift() -> Bounds:
    noisy = [0.75, 1.25] * 10
    return [
        (drifting(noisy, [1.75] * 16 + [2.0] * 4), False),  # 1.8 times
        (drifting([0.0, 2.0] * 25, [1.0, 3.0] * 25), False),  # 5 standard errors
        (drifting(noisy, [2.0, 3.0] * 10), True),
        (drifting(noisy[:19], [2.0, 3.0] * 10, 20), False),
        (drifting(noisy, [2.0, 3.0, 2.0] * 6 + [3.0], 20), False),
        (drifting(noisy, [7.0, 3.0] * 10), True),  # 5 at most
        (drifting([*noisy, 3.5], [2.0, 3.0] * 10), True),  # the middle is none of the later
    ]


def weights(counts: dict[float, int]) -> Sample:
    """Columns such that each weight stands so often."""
    return apart(np.concatenate([np.full(n, math.log(weight)) for weight, n in counts.items()]))


def mean_weight() -> Bounds:
    near = np.resize(np.log([0.96, 0.98]), 60)
    return [
        *((apart(np.resize(np.log([0.96, 0.97, 0.98]), n)), n > 47) for n in (47, 48)),
        (apart(np.resize(np.log([1.0005, 1.0085]), 60)), True),  # 0.004 from 1
        (apart(np.resize(np.log([0.9998, 1.0078]), 60)), False),
        (weights({2.0: 54, 0.5: 42, 1.0: 37}), False),  # 4.4 standard errors
        (weights({2.0: 55, 0.5: 42, 1.0: 36}), True),
        *((apart([*near, *[-far] * 3]), True) for far in (1.001, 1.01)),  # cut at ten spreads
        (apart([*near, *[1.01] * 3]), False),  # with them the mean is no longer below 1
    ]


def reversed_in(widths: list[int], rest: int) -> Sample:
    """Responses whose probabilities rise in the one column as they fall in the other."""
    ups = [np.log(np.linspace(0.1, 0.9, width)) for width in [*widths, rest]]
    ups[-1] = ups[-1][np.arange(rest) * 37 % rest]  # neighbours are far apart
    downs = [*(one[::-1] for one in ups[:-1]), ups[-1] - 0.001]
    ups[1:-1:2], downs[1:-1:2] = downs[1:-1:2], ups[1:-1:2]  # or all begin with a prompt
    return sample(np.concatenate(ups), np.concatenate(downs), [*widths, rest])


short = np.log(np.resize([0.8, 0.2], 11))
"""A response too short to be judged alone."""


def without(width: int, odd: int, shorts: int) -> Sample:
    """So many responses of which the columns correlate by 0, and short ones where they agree."""
    a = [np.log(np.resize([0.2, 0.8], width))] * odd + [short] * shorts
    b = [np.log(np.resize([0.2, 0.2, 0.8, 0.8], width))] * odd + [short] * shorts
    return sample(np.concatenate(a), np.concatenate(b), [width] * odd + [11] * shorts)


def unrelated() -> Bounds:
    """6·(1 + ln(6·0.5·exp(−z²/2)/6)) < ln 1e-6, z being (atanh 0.8 − atanh 0.3)·√(12 − 3)."""
    a, b, _ = without(24, 1, 0)
    nearly = sample(np.concatenate([a[:1], a[2:0:-1], a[3:]]), b)  # 14 of 24 are alike
    return [
        (without(12, 6, 12), True), (without(12, 5, 12), False), (without(11, 30, 60), False),
        (without(24, 1, 0), True), (nearly, False),  # 5.0 and 4.3 of 4.5 standard errors
        (without(60, 1, 12), True), (without(52, 1, 12), True), (without(48, 1, 12), False),
        *((reversed_in([w] * n, 900), found) for w, n, found in (
            (11, 12, False), (12, 12, True), (60, 1, True), (12, 1, False))),
    ]  # fmt: skip


def three_ends(width: int, nats: float = 2.0) -> Sample:
    """3·(1 − ln n) < ln 1e-6 from n = 272 other tokens on."""
    change = np.zeros(3 * width)
    change[width - 1 :: width] = -nats
    base = -1.0 - np.arange(3 * width) % 7 / 8.0
    return sample(base + change, base, [width] * 3)


def last_token() -> Bounds:
    bounds = [(three_ends(91), False), (three_ends(92), True)]
    bounds += [(three_ends(92, nats), nats > 1.0) for nats in (0.99, 1.01)]
    return bounds


def shifted() -> Bounds:
    a = np.tile(-(np.arange(30.0) ** 1.5), 7)
    one = [np.resize([-0.1, 0.1], 210) + a - 0.1 for _ in range(2)]
    for b, width in zip(one, (30, 24), strict=True):  # 29 tokens are 5 standard deviations, 23 not
        b[90 : 90 + width] = np.roll(a[90 : 90 + width], 1)
    return [(sample(a, b, [30] * 7), found) for b, found in zip(one, (True, False), strict=True)]


def log_base() -> Bounds:
    """A hundredth beside 1/ln 2."""
    return [(divided(off / math.log(2)), abs(off - 1) < 0.01) for off in (0.97, 0.985, 0.995)]


def constant() -> Bounds:
    middle, d = 3.0 * 1.4826 * 2.0**-8, 2.0**-8
    bounds = [
        (apart(np.resize([middle - by * d, middle, middle + by * d], 24)), by < 1.0)
        for by in (0.999, 1.001)
    ]
    bounds += [(apart(np.full(30, by * -1e-3)), by > 1.0) for by in (0.999, 1.001)]
    bounds.append((apart(np.full(23, 0.01)), False))
    return bounds


def filler() -> Bounds:
    a = np.full(400, -2.0)
    turned = [(a.copy(), a.copy()) for _ in range(2)]
    for (one, other), count in zip(turned, (3, 4), strict=True):  # 0.3 of the ten
        other[:10], one[20:30], other[20:30] = 0.0, 0.0, -0.3
        one[10 : 10 + count] = 0.0
    bounds = [
        (sample([-2.0] * 4 + [0.0] * 2 + [-1.0] * 9, [0.0] * 4 + [turn] * 2 + [-1.01] * 9), found)
        for turn, found in ((-0.3, True), (-0.31, False))
    ]
    bounds += [
        (sample([other] * 3 + [-1.0] * 27, [0.0] * 3 + [-1.01] * 27), other > -4.0)
        for other in (-3.9, -4.1)  # so rare a token was not filled, its p is 1
    ]
    values = [-60.0] * 3 + [-70.0] * 2 + [-80.0] * 3 + [-50.0] * 3
    bounds += [(sample([-1.0] * 11, values), True), (sample([-1.0] * 3, [0.0] * 3), True)]
    return bounds


def standing(n: int, few: dict[float, int], rest: float = 0.0) -> Sample:
    values = [value for value, count in few.items() for _ in range(count)]
    return apart([*values, *np.resize([rest, -rest], n - len(values))])


def outliers() -> Bounds:
    """At most 2 % beyond 3.8 nats; no more beyond half a nat, or 3 times the rest, than there."""
    return [
        (standing(100, {9.0: 1}), True), (standing(150, {9.0: 3}), True),
        (standing(149, {9.0: 3}), False),
        (standing(149, {9.0: 2, 3.79: 1}), True), (standing(149, {9.0: 2, 3.81: 1}), False),
        (standing(100, {3.9: 3, 9.0: 1}), False), (standing(99, {9.0: 1}), False),
        (standing(200, {9.0: 1, 0.49: 2}), True), (standing(200, {9.0: 1, 0.51: 2}), False),
        (standing(200, {9.0: 1, 0.59: 2}, 0.2), True),
        (standing(200, {9.0: 1, 0.61: 2}, 0.2), False),
        (standing(120, {3.79: 1}), False), (standing(120, {4.79: 1}, 0.4), False),
        (standing(120, {4.85: 1}, 0.4), True),
    ]  # fmt: skip


def mismatch() -> Bounds:
    """A mean of exp(|Δ|) of 1.05."""
    size = np.resize([1.0, -1.0], 32) * math.log(1.05)
    return [(apart(by * size), by > 1.0) for by in (0.999, 1.001)]


RULES: list[tuple[str, Names, Bounds]] = [
    ("temperature", ENGINE, temperature(ENGINE)),
    ("temperature", UPDATE, temperature(UPDATE)),
    ("drift", UPDATE, drift()),
    ("mean-weight", ENGINE, mean_weight()),
    ("unrelated", UPDATE, unrelated()),
    ("last-token", UPDATE, last_token()),
    ("shifted", UPDATE, shifted()),
    ("log-base", UPDATE, log_base()),
    ("constant-log-ratio", UPDATE, constant()),
    ("filler", UPDATE, filler()),
    ("outliers", ENGINE, outliers()),
    ("rollout-mismatch", ENGINE, mismatch()),
]


@pytest.mark.parametrize(("code", "names", "bounds"), RULES)
def test_from_where_on_a_rule_finds_something(code: str, names: Names, bounds: Bounds) -> None:
    hides = {*FIRST, *ORDER[: ORDER.index(code)]}
    found = [codes_of(one) for one in told([sample for sample, _ in bounds], names)]
    assert [code in one for one in found] == [wanted for _, wanted in bounds]
    assert not [one for one in found if one & hides]


EVENED = [
    ({0.2: 16, 0.75: 16}, True), ({0.2: 16, 0.85: 16}, False),
    ({1.1: 16, 3.0: 16}, True), ({1.1: 16, 2.8: 16}, False),
    ({11.3: 2, 0.6: 12, 1.2: 21}, True),  # 55² / (35·289.94) = 0.298
    ({11.2: 2, 0.6: 12, 1.2: 21}, False),  # 54.8² / (35·285.44) = 0.301
]  # fmt: skip


@pytest.mark.parametrize(("counts", "bad"), EVENED)
def test_weights_beyond_what_verl_corrects(counts: dict[float, int], bad: bool) -> None:
    """A mean outside 0.5 to 2, or an effective sample size below 30 %."""
    (found,) = told([weights(counts)], ENGINE)
    (said,) = [one.message for one in found if one.code == "rollout-mismatch"]
    assert ("; the weights exceed what verl corrects" in said) == bad


def test_which_pairs_rules_are_asked_of() -> None:
    """The reference may be far away; some rules need tokens that the engine drew."""
    made = [one for _, _, bounds in RULES for one, found in bounds if found]
    noise = np.random.default_rng(0).normal(0.0, 0.3, 64)
    made += [apart(noise), apart([25.0, *noise])]
    said = {
        names: {*ORDER} & set[str]().union(*map(codes_of, told(made, names, claims=True)))
        for names in (UPDATE, ENGINE, REFERENCE)
    }
    assert said[REFERENCE] - {"filler"} == {"log-base", "shifted"}  # a column of one value
    assert said[UPDATE] == {*ORDER} - {"mean-weight", "outliers", "rollout-mismatch"}
    assert said[ENGINE] == {*ORDER} - {"ratio-noise"}
    equal = [sample(one.a, one.a, one.widths) for one in made]
    assert not any({*ORDER} & codes_of(one) for one in told(equal, ENGINE, claims=True))


def codes_of(findings: list[Any]) -> set[str]:
    return {one.code for one in findings}


def test_one_advantage_that_its_group_does_not_give() -> None:
    """Another one in its row is found; bounded advantages and those that a filter took are not."""
    draw = np.random.default_rng(5)
    rewards = draw.normal(size=8)
    rewards[3] += 6.0
    given = (rewards - rewards.mean()) / rewards.std(ddof=1)
    least = int(np.argmin(given))
    changes = {"same": {}, "other": {3: 2.0 * given[3]}, "larger": {least: 2.0 * given[least]}}
    changes |= {"bounded": {3: 1.0}, "filtered": {3: 0.0}, "two": {0: 1.5, 1: 1.5}}
    found = set()
    for name, rows in changes.items():
        advantages = given.copy()
        advantages[[*rows]] = [*rows.values()]
        record = {
            "log_probs_new": [[-1.0 - 0.1 * at, -2.0] for at in range(8)],
            "rewards": rewards.tolist(),
            "advantages": advantages.tolist(),
        }
        for one in check([record], limit=0).findings:
            if one.code == "advantages" and "the rest of its group" in one.message:
                found.add((name, one.response))
    assert found == {("other", 3), ("larger", least)}


def test_a_cap_of_log_probs_is_no_temperature_and_full_padding_no_early_mask():
    """Columns that are capped at -1e-4, and padding that is not zero."""
    draw = np.random.default_rng(1)
    found: Counter[str] = Counter()
    for _ in range(40):
        lengths = draw.integers(30, 35, 8)
        old = -draw.exponential(0.3, (8, lengths.max())) - 0.01
        new = np.minimum(old + draw.normal(0.0, 0.3, old.shape), -1e-4)
        mask = np.arange(lengths.max()) < lengths[:, None]
        record = {
            "log_probs_new": new.tolist(),
            "log_probs_old": old.tolist(),
            "mask": mask.astype(int).tolist(),
            "rewards": draw.random(8).tolist(),
        }
        found += Counter(one.code for one in check([record]).findings)
    assert not found.keys() & {"temperature", "mask"}
