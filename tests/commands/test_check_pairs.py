"""Two columns of log-probs, and what ``grpo check`` finds in them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from files import each, some

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


Said = dict[str, Any]


def same(finding: Any, wanted: Said) -> None:
    """A finding has these words, this place, severity and evidence, and no other evidence."""
    wanted = dict(wanted)
    assert wanted.pop("words", "") in finding.message
    assert finding.message.endswith(wanted.pop("ends", ""))
    for name in ("response", "token"):
        assert getattr(finding, name) == wanted.pop(name, None)
    assert finding.severity == wanted.pop("severity", finding.severity)
    if "columns" not in finding.evidence:
        del wanted["columns"]
    assert {*finding.evidence} == {*wanted}
    for name, value in wanted.items():
        close = (
            value if isinstance(value, str | list) else pytest.approx(value, rel=1e-6, abs=1e-12)
        )
        assert finding.evidence[name] == close, (name, finding, wanted)


# ---- each rule on two columns beside its definition ----------------------------------------------


ORDER = [
    *("filler", "shifted", "last-token", "unrelated", "drift", "log-base", "temperature"),
    *("constant-log-ratio", "extreme-ratio", "outliers", "ratio-noise", "mean-weight"),
    "rollout-mismatch",
]
"""The rules on two columns, in the order in which they are asked: one speaks of a sample."""
FIRST = {"probabilities", "padding", "prompt-included"}
"""What explains a record before its columns are compared."""

Define = Callable[[Sample], Said | list[Said] | None]
Bounds = Sequence[tuple[Sample, bool]]


def agrees(
    code: str,
    made: Iterable[Sample],
    names: Names,
    define: Define,
    bounds: Bounds = (),
) -> None:
    """The rule says of each sample what its definition does: evidence and place.

    Samples of which an earlier rule speaks are passed over, but not those at the bounds, of which
    it is given whether the rule finds something.
    """
    samples = [*(one for one, _ in bounds), *made]
    hides = {*FIRST, *ORDER[: ORDER.index(code)]}
    compared = Counter[bool]()
    for at, (one, found) in enumerate(zip(samples, told(samples, names), strict=True)):
        given = define(one) or []
        wanted = given if isinstance(given, list) else [given]
        findings = [finding for finding in found if finding.code == code]
        hidden = bool(hides & {finding.code for finding in found})
        if at < len(bounds):
            assert (bool(wanted), hidden) == (bounds[at][1], False), (at, wanted, found)
        if not hidden:
            compared[bool(wanted)] += 1
            assert len(findings) == len(wanted), (at, wanted, findings)
            for finding, of in zip(findings, wanted, strict=True):
                same(finding, {"columns": [*names]} | of)
    assert min(compared[True], compared[False]) >= 3, "the samples are not around the bounds"


def drawn(count: int, seed: int) -> Iterator[np.random.Generator]:
    for at in some(range(count), count // 3):
        yield np.random.default_rng([seed, at])


# ---- temperature and bases -----------------------------------------------------------------------

Middle = tuple[int, float, float]


def middle(values: F64) -> Middle:
    """How many, their median, and the distance of their quartiles as of a normal distribution."""
    if len(values) < 24:
        return 0, 0.0, 0.0
    low, half, high = np.quantile(values, (0.25, 0.5, 0.75))
    return len(values), half, (high - low) / 1.349


def alike(of: Middle, most: float) -> bool:
    return of[1] != 0.0 and of[2] <= most * abs(of[1])


class Scales(NamedTuple):
    line: Middle
    odds: Middle
    factor: Middle
    varied: float
    vanished: float
    offset: tuple[int, float, float]

    def is_factor(self, most: float) -> bool:
        return alike(self.factor, most * min(self.varied, 1.5))


def scales(one: Sample) -> Scales | None:
    """None where neither the signs nor the correlation of the difference are beyond 4.5 sigmas."""
    kept = (np.maximum(one.a, one.b) < -1e-5) & (one.a != one.b)
    a, b = one.a[kept], one.b[kept]
    if len(a) < 24:
        return None
    sure = a + b > -0.25
    sides = [np.sum(np.sign((a - b)[part])) / math.sqrt(part.sum()) for part in (sure | True, sure)
             if part.sum() >= 24]  # fmt: skip
    with np.errstate(invalid="ignore"):
        together = abs(np.corrcoef(a + b, a - b)[0, 1]) * math.sqrt(len(a))
    if max(map(abs, sides)) <= 4.5 and not together > 4.5:
        return None
    x, y = (np.log(p / (1 - p)) for p in (np.exp(a), np.exp(b)))
    centre, apart = (x + y) / 2, x - y
    slope, level = np.polyfit(centre, apart, 1)
    n, _, left = middle(apart - slope * centre - level)
    sloping = abs(slope) * centre.std() * math.sqrt(len(a)) > 5 * left
    return Scales(
        (n, slope, left) if sloping else (0, 0.0, 0.0),
        middle((apart / centre)[sure]),
        middle(np.log(b / a)),
        middle(np.log(-a))[2],
        float(np.mean((np.maximum(one.a, one.b) == 0.0) & (one.a + one.b < -1e-3))),
        middle(a - b),
    )


def temperature(names: tuple[str, str]) -> Callable[[Sample], Said | None]:
    least, steady, noisy = (0.13, 0.35, 1.5) if names == UPDATE else (0.02, 0.55, 4.0)

    def define(one: Sample) -> Said | None:
        of = scales(one)
        if of is None or of.vanished > 0.02 or alike(of.offset, 0.2):
            return None
        even = alike(of.odds, steady) and alike(of.line, noisy)
        even = even or (alike(of.line, 1.2) and (not of.odds[0] or names != UPDATE))
        share = of.odds if alike(of.odds, steady) else of.line
        divided = of.is_factor(0.07)
        if not (even and least < abs(of.line[1]) < 1.5) and not (
            divided and abs(of.factor[1]) > 0.05
        ):
            return None
        part = of.factor if divided else share
        slope = math.exp(part[1]) if divided else (2 - part[1]) / (2 + part[1])
        one_key, other = (KEYS[name] for name in names)
        sharper, flatter = (one_key, other) if slope < 1 else (other, one_key)
        tokens = f"all {part[0]:,}" if part[0] == len(one.a) else f"{part[0]:,} of {len(one.a):,}"
        what = "log-probs" if divided else "log-odds"
        return {
            "slope": slope,
            "spread": part[2],
            "tokens": part[0],
            "sharper": sharper,
            "words": f"{sharper} is more peaked than {flatter}, as if only one side applied the "
            f"temperature: the {what} are {max(slope, 1 / slope):.3f} times as large at "
            f"{tokens} tokens",
        }

    return define


def softened(draw: np.random.Generator) -> Sample:
    """Tokens of softmax policies, at another temperature, or trained, with noise."""
    n = int(draw.choice([22, 26, 60, 200, 500]))
    logits = draw.normal(0.0, draw.choice([2.0, 4.0, 8.0]), (n, 24))
    scale = np.full((n, 1), math.exp(draw.choice([-1, 1]) * draw.choice([0.02, 0.1, 0.15, 0.3])))
    if draw.random() < 0.4:
        scale = 1.0 + (scale - 1.0) * draw.exponential(1.0, (n, 1))
    other = logits * scale + draw.normal(0.0, draw.choice([1e-3, 0.03, 0.1, 0.3]), logits.shape)
    logs = [z - np.log(np.exp(z).sum(axis=1, keepdims=True)) for z in (logits, other)]
    words = [draw.choice(24, p=p / p.sum()) for p in np.exp(logs[0])]
    a, b = (np.minimum(log_p[np.arange(n), words], -1e-9) for log_p in logs)
    if draw.random() < 0.1:
        b[draw.random(n) < 0.1] = 0.0
    return sample(a, b)


def divided(factor: float, noise: float = 1e-9) -> Sample:
    a = -np.exp(np.linspace(-4.0, 1.0, 80))[np.arange(80) * 37 % 80]
    return sample(a, factor * a * (1.0 + noise * np.resize([1.0, -1.0], 80)))


def offset(noise: float) -> Sample:
    """Log-probs that one constant was taken from, of which the tokens keep a share of noise."""
    a = np.linspace(-0.5, -0.02, 80)[np.arange(80) * 37 % 80]
    return sample(a, a - 0.2 * (1.0 + noise * np.resize([1.0, -1.0], 80)))


@pytest.mark.more
@pytest.mark.parametrize("names", [ENGINE, UPDATE])
def test_temperature(names):
    made = [softened(one) for one in drawn(250, 1)]
    bounds = [(divided(factor), found) for factor, found in ((1.05, False), (1.053, True))]
    bounds += [(divided(1.3, noise), noise < 0.02) for noise in (0.015, 0.06) if names == UPDATE]
    bounds += [(offset(noise), found) for noise, found in ((0.05, False), (0.3, True))]
    agrees("temperature", made, names, temperature(names), bounds)


# ---- drift and mean weight -----------------------------------------------------------------------


def drift(one: Sample) -> Said | None:
    free = 1.0 - np.exp(np.maximum(one.a, one.b))
    place = np.concatenate([np.arange(width) for width in one.widths])
    kept = free > 0.1
    if not kept.any():
        return None
    middle = place[kept].mean()
    size = np.minimum(np.abs(one.a - one.b), 5.0) / free
    after, before = size[kept & (place > middle)], size[kept & (place <= middle)]
    if min(len(after), len(before)) < 20:
        return None
    error = math.sqrt(after.var() / len(after) + before.var() / len(before))
    times, sigmas = after.mean() / max(before.mean(), 1e-12), (after.mean() - before.mean()) / error
    if times <= 1.8 or sigmas <= 5.0:
        return None
    return {"times": times, "sigmas": sigmas, "position": middle}


def growing(draw: np.random.Generator) -> Sample:
    widths = [int(draw.integers(1, draw.choice([16, 30, 80]))) for _ in range(4)]
    place = np.concatenate([np.arange(width) / width for width in widths])
    a = -draw.exponential(1.0, sum(widths)) - 0.01
    scale = 0.1 + draw.choice([0.05, 0.1, 0.2, 0.4]) * place
    noise = draw.choice([0.1, 0.5, 1.0])
    size = scale * (1 - np.exp(a)) * (1 - noise + noise * draw.exponential(1.0, len(a)))
    size[draw.random(len(a)) < 0.01] = 7.0
    return sample(a, a - size, widths)


def drifting(early: list[float], late: list[float], gap: int = 0) -> Sample:
    """Differences of tokens that are free to move; sure ones stand between."""
    sizes = np.array([*early, *[0.0] * gap, *late])
    a = np.full(len(sizes), -800.0)
    a[len(early) : len(early) + gap] = -0.01
    return sample(a, a - sizes)


def test_drift():
    noisy = [0.75, 1.25] * 10
    bounds = [
        (drifting(noisy, [1.75] * 16 + [2.0] * 4), False),  # 1.8 times
        (drifting([0.0, 2.0] * 25, [1.0, 3.0] * 25), False),  # 5 standard errors
        (drifting(noisy, [2.0, 3.0] * 10), True),
        (drifting(noisy[:19], [2.0, 3.0] * 10, 20), False),
        (drifting(noisy, [2.0, 3.0, 2.0] * 6 + [3.0], 20), False),
        (drifting(noisy, [7.0, 3.0] * 10), True),  # 5 at most
        (drifting([*noisy, 3.5], [2.0, 3.0] * 10), True),  # the middle is none of the later
    ]
    agrees("drift", [growing(one) for one in drawn(150, 2)], UPDATE, drift, bounds)


def mean_weight(one: Sample) -> Said | None:
    change = one.a - one.b
    weights = np.exp(np.clip(change, -50.0, 50.0))
    near = np.abs(change) < 1.0
    spread = (weights[near] - 1.0).std() if near.any() else 0.0
    bound = 10.0 * spread + 1e-3
    cut = np.clip(weights, 1.0 - bound, 1.0 + bound)
    n, mean, sigma = len(cut), cut.mean(), cut.std()
    away = (mean - 1.0) * math.sqrt(n) / (sigma or math.inf)
    tail = (  # unclipped on the side that would bring the mean back
        np.maximum(weights, 1.0 - bound) if mean < 1.0 else np.minimum(weights, 1.0 + bound)
    )
    with_tail = (tail.mean() - 1.0) * math.sqrt(n) / (tail.std() or math.inf)
    if n < 48 or min(abs(away), with_tail * np.sign(away)) <= 4.4 or abs(mean - 1.0) <= 0.004:
        return None
    return {
        "mean_weight": mean,
        "standard_error": sigma / math.sqrt(n),
        "sigmas": away,
        "higher": np.sum(change > 0) / np.sum(change != 0),
        "tokens": n,
    }


def weighed(draw: np.random.Generator) -> Sample:
    n = int(draw.choice([46, 47, 48, 49, 120, 400]))
    change = draw.normal(0.0, draw.choice([0.003, 0.02, 0.1]), n)
    change += draw.choice([-1, 1]) * draw.choice([0.0, 0.003, 0.0039, 0.0043, 0.005, 0.03, 0.06])
    change[draw.random(n) < 0.1] = 0.0
    if draw.random() < 0.3:
        change[:2] = draw.choice([1.5, 3.0, 70.0, -2.0])
    return sample(-7.0 + change, np.full(n, -7.0))


def weights(counts: dict[float, int]) -> Sample:
    """Columns such that each weight stands so often."""
    return apart(np.concatenate([np.full(n, math.log(weight)) for weight, n in counts.items()]))


def test_mean_weight():
    near = np.resize(np.log([0.96, 0.98]), 60)
    bounds = [
        (weights({2.0: 54, 0.5: 42, 1.0: 37}), False),  # 4.4 standard errors
        (weights({2.0: 55, 0.5: 42, 1.0: 36}), True),
        *((apart([*near, *[-far] * 3]), True) for far in (1.001, 1.01)),  # cut at ten spreads
        (apart([*near, *[1.01] * 3]), False),  # with them the mean is no longer below 1
    ]
    agrees("mean-weight", [weighed(one) for one in drawn(150, 3)], ENGINE, mean_weight, bounds)


# ---- columns of other tokens ---------------------------------------------------------------------


def correlation(a: F64, b: F64) -> float:
    """Pearson's; 1 where a column does not vary (a spread of a thousandth is none)."""
    return 1.0 if a.std() <= 1e-3 or b.std() == 0.0 else float(np.corrcoef(a, b)[0, 1])


def unrelated(one: Sample) -> Said | None:
    p, q = np.exp(one.a), np.exp(one.b)
    change = one.a - one.b
    if max(p.std(), q.std()) <= 0.2 and abs(change.mean()) >= 0.25 * change.std():
        return None
    all_of, logs = correlation(p, q), correlation(one.a, one.b)
    z = math.atanh(0.8) - math.atanh(min(max(all_of, -0.999), 0.999))
    far = len(p) >= 24 and z * math.sqrt(max(len(p) - 3, 0)) > 4.5
    if far and all_of < 0.3 and logs < 0.3 and np.mean(change**2) > 0.0625:
        rows = len(one.widths)
        return {"correlation": all_of, "tokens": len(p), "rows": rows}
    ends = np.cumsum(one.widths)
    parts = [slice(end - width, end) for end, width in zip(ends, one.widths, strict=True)]
    each = [correlation(p[part], q[part]) for part in parts]
    low = [
        width >= 12
        and max(of, correlation(one.a[part], one.b[part])) < 0.3
        and np.mean(change[part] ** 2) > 0.0625
        for width, of, part in zip(one.widths, each, parts, strict=True)
    ]
    if not any(low):
        return None
    away = (math.atanh(0.8) - math.atanh(0.3)) * np.sqrt([w - 3 for w in one.widths if w >= 12])
    expected, rows = np.sum(0.5 * np.exp(-0.5 * away**2)), sum(low)
    if rows <= expected or rows * (1 + math.log(expected / rows)) >= math.log(1e-6):
        return None
    at = low.index(True)
    return {"correlation": each[at], "tokens": one.widths[at], "rows": rows, "response": at}


def foreign(draw: np.random.Generator) -> Sample:
    """Some responses, or all, of which one column is of other tokens to some degree."""
    short = draw.choice([False, True])
    widths = [
        int(draw.integers(*((10, 16) if short else (4, 40)))) for _ in range(draw.integers(1, 9))
    ]
    if draw.random() < 0.3:
        widths = [int(draw.choice([22, 23, 24, 25, 34, 35, 36]))]
    n = sum(widths)
    a = -draw.exponential(draw.choice([0.5, 1.5]), n)
    if draw.random() < 0.3:  # sure of nothing
        a = -8.0 + draw.normal(0.0, draw.choice([0.3, 2.0]), n) * 0.5
    other = draw.permutation(a) + draw.choice([0.0, 0.1, 0.4])
    share = draw.choice([0.0, 0.2, 0.3, 0.5, 1.0], p=[0.4, 0.2, 0.2, 0.1, 0.1])
    b = np.where(draw.random(n) < share, a + draw.normal(0.0, 0.05, n), other)
    if draw.random() < 0.6:  # a few responses only
        from_here = sum(widths[: int(draw.integers(0, len(widths)))])
        b[:from_here] = (a + draw.normal(0.0, 0.01, n))[:from_here]
    return sample(a, np.minimum(b, 0.0), widths)


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


def sure(change: float) -> Sample:
    """Probabilities near 1 under noise; ``change``: the root mean square of the log ratio."""
    a, b = np.random.default_rng(6).exponential(size=(2, 200))
    return sample(*(-change / np.sqrt(np.mean((a - b) ** 2)) * np.array([a, b])))


def test_unrelated():
    """6·(1 + ln(6·0.5·exp(−z²/2)/6)) < ln 1e-6, z being (atanh 0.8 − atanh 0.3)·√(12 − 3)."""
    bounds = [
        (without(12, 6, 12), True), (without(12, 5, 12), False), (without(11, 30, 60), False),
        (without(60, 1, 12), True), (without(52, 1, 12), True), (without(48, 1, 12), False),
        *((reversed_in([w] * n, 900), found) for w, n, found in (
            (11, 12, False), (12, 12, True), (60, 1, True), (12, 1, False))),
        *((sure(change), found) for change, found in ((0.04, False), (0.24, False), (0.26, True))),
    ]  # fmt: skip
    agrees("unrelated", [foreign(one) for one in drawn(300, 4)], UPDATE, unrelated, bounds)


def last_token(one: Sample) -> Said | None:
    far = np.abs(one.a - one.b) > 1.0
    ends = np.cumsum(one.widths)
    long = [at for at, width in enumerate(one.widths) if width > 2]
    rows = [at for at in long if far[ends[at] - 1]]
    near = sum(int(far[ends[at] - 2]) for at in long)
    k, count = len(rows), len(one.widths)
    if k < 3 or k <= 4 * near:
        return None
    rate = (far.sum() - k + 1) / max(len(far) - count, 1)
    if k * (1 + math.log(count * rate / k)) >= math.log(1e-6):
        return None
    place = {"response": rows[0], "token": one.widths[rows[0]] - 1}
    return {"responses": k, "of": count, "elsewhere": rate} | place


def rolled(draw: np.random.Generator) -> Sample:
    widths = [int(draw.integers(1, draw.choice([6, 60, 200]))) for _ in range(draw.integers(3, 12))]
    change = np.zeros(sum(widths))
    ends = np.cumsum(widths)
    hit = draw.random(len(widths)) < draw.choice([0.5, 0.8])
    change[ends[hit] - 1] = draw.choice([1.0, 1.0625, 4.0])
    change[draw.choice(len(change), int(draw.integers(0, 4)))] = 2.0
    second = np.flatnonzero((np.array(widths) > 1) & (draw.random(len(widths)) < 0.1))
    change[ends[second] - 2] = 2.0
    return sample(np.full(len(change), -1.0), -1.0 - change, widths)


def three_ends(width: int, nats: float = 2.0) -> Sample:
    """3·(1 − ln n) < ln 1e-6 from n = 272 other tokens on."""
    change = np.zeros(3 * width)
    change[width - 1 :: width] = -nats
    base = -1.0 - np.arange(3 * width) % 7 / 8.0
    return sample(base + change, base, [width] * 3)


def test_last_token():
    bounds = [(three_ends(91), False), (three_ends(92), True)]
    bounds += [(three_ends(92, nats), nats > 1.0) for nats in (0.99, 1.01)]
    made = [one for one in map(rolled, drawn(200, 5)) if sum(one.widths) >= 128]  # each alone
    agrees("last-token", made, UPDATE, last_token, bounds)


# ---- shifts and log bases ------------------------------------------------------------------------


def shifted(one: Sample) -> list[Said]:
    ends = np.cumsum(one.widths)
    rows = [slice(end - width, end) for end, width in zip(ends, one.widths, strict=True)]
    findings: list[Said] = []
    for lag in (1, -1):
        counts = []
        for row in rows:
            a, b = one.a[row], one.b[row]
            inside = [t for t in range(len(a)) if 0 <= t + lag < len(a)]
            nearer = [abs(a[t] - b[t + lag]) - abs(a[t] - b[t]) for t in inside]
            counts.append((sum(x < 0 for x in nearer), sum(x != 0 for x in nearer)))
        total = tuple(map(sum, zip(*counts, strict=True)))
        chosen = [(None, total)] if beyond(*total, 4.0) else [
            (row, of) for row, of in enumerate(counts) if beyond(*of, 5.0)
        ]  # fmt: skip
        for row, (wins, of) in chosen:
            said = {"lag": lag, "share": wins / of, "tokens": of}
            findings.append(said | ({} if row is None else {"response": row}))
    return findings


def beyond(wins: int, of: int, sigmas: float) -> bool:
    """A coin's standard deviation is half the root of the throws."""
    return of >= 12 and wins > 0.6 * of and (wins - of / 2) / (math.sqrt(of) / 2) > sigmas


def displaced(draw: np.random.Generator) -> Sample:
    widths = [int(draw.integers(1, draw.choice([9, 30, 70]))) for _ in range(draw.integers(1, 6))]
    if draw.random() < 0.4:
        widths = [int(draw.integers(11, 20))]
    a = -draw.exponential(1.5, sum(widths))
    if draw.random() < 0.5:
        a = np.round(a, 1)  # ties, which do not count
    b, end = a.copy(), 0
    lag = int(draw.choice([-1, 1]))
    only = draw.choice([0.3, 0.7, 1.0])
    noise = draw.choice([0.0, 0.1, 0.5, 1.0])
    for width in widths:
        row, end = slice(end, end + width), end + width
        if draw.random() < only:
            b[row] = np.roll(a[row], lag) + noise * draw.normal(0.0, 1.0, width)
    return sample(a, np.minimum(b, 0.0), widths)


def test_shifted():
    a = np.tile(-(np.arange(30.0) ** 1.5), 7)
    one = [np.resize([-0.1, 0.1], 210) + a - 0.1 for _ in range(2)]
    for b, width in zip(one, (30, 24), strict=True):  # 29 tokens are 5 standard deviations, 23 not
        b[90 : 90 + width] = np.roll(a[90 : 90 + width], 1)
    bounds = [(sample(a, b, [30] * 7), found) for b, found in zip(one, (True, False), strict=True)]
    agrees("shifted", [displaced(one) for one in drawn(200, 6)], UPDATE, shifted, bounds)


BASES = {2: 1 / math.log(2), 10: 1 / math.log(10)}


def log_base(one: Sample) -> Said | None:
    of = scales(one)
    if of is None or not of.is_factor(0.3):
        return None
    n, middle, spread = of.factor
    factor, within = math.exp(middle), min(0.04, 0.01 + 4 * spread / math.sqrt(n))
    for base, per_nat in BASES.items():
        for at, wanted in ((1, per_nat), (0, 1 / per_nat)):
            if abs(factor / wanted - 1) <= within:
                return {"base": base, "factor": factor, "culprit": UPDATE[at]}
    return None


def rebased(draw: np.random.Generator) -> Sample:
    n = int(draw.choice([22, 23, 24, 25, 40, 100]))
    a = -draw.exponential(1.0, n) - 0.06
    a[: n // 20] = -0.03
    per_nat = BASES[int(draw.choice([2, 10]))]
    factor = (per_nat if draw.random() < 0.5 else 1 / per_nat) * draw.choice(
        [1.0, 0.955, 0.962, 0.985, 1.0, 1.038, 1.045, 0.85, 1.2]
    )
    b = factor * a + draw.normal(0.0, draw.choice([0.0, 0.05, 0.15, 0.3]), n) * np.abs(a)
    b[: n // 3 if draw.random() < 0.2 else 0] = 0.0
    if draw.random() < 0.2:
        b = a * (1 + draw.choice([-0.15, 0.15, 0.25]))
    return sample(a, np.minimum(b, 0.0))


def test_log_base():
    bounds = [(divided(off / math.log(2)), abs(off - 1) < 0.01) for off in (0.97, 0.985, 0.995)]
    agrees("log-base", [rebased(one) for one in drawn(150, 7)], UPDATE, log_base, bounds)


def entropic(entropies: F64, new: F64, others: F64) -> Said | None:
    cost = -new
    if len(new) < 64 or entropies.mean() <= 0.0:
        return None
    if abs(new.mean() - others.mean()) >= 0.05 * cost.mean():
        return None
    factor, mean = cost.mean() / entropies.mean(), entropies.mean()
    error = (cost - entropies).std(ddof=1) / math.sqrt(len(new))
    room = math.sqrt(float(np.square(cost - factor * entropies).sum())) / entropies.sum()
    within = 0.02 + 4 * room / factor
    if within > 0.1 or np.corrcoef(cost, entropies)[0, 1] < 0.2:
        return None
    for base, per_nat in BASES.items():
        if abs(factor / per_nat - 1) < within and abs(factor - 1) * mean > 6 * error:
            columns = ["log_probs_new", "entropies"]
            said = {"columns": columns, "base": base, "factor": factor}
            return said | {"standard_error": room, "tokens": len(new)}
    return None


def test_log_base_by_entropies():
    made = []
    for draw in drawn(150, 8):
        n = int(draw.choice([62, 63, 64, 65, 100, 400]))
        entropies = 1.0 + draw.exponential(1.0, n)  # of unsure tokens: no temperature shows there
        noise = draw.normal(0.0, draw.choice([0.1, 0.4, 0.8]), n)
        off = draw.choice([0.88, 0.94, 1.0, 1.03, 1.12])
        new = -BASES[int(draw.choice([2, 10]))] * off * np.maximum(entropies + noise, 0.0)
        shift = draw.choice([0.0, 0.03, 0.048, 0.055])
        made.append((entropies, new, new * (1 + shift)))
    names = ("entropies", "log_probs_new", "log_probs_old")
    expected = 0
    for one in made:
        columns = dict(zip(names, ([column.tolist()] for column in one), strict=True))
        found = [
            row
            for row in check([columns | {"rewards": [1.0]}]).findings
            if row.code == "log-base" and "entropies" in row.evidence["columns"]
        ]
        wanted = entropic(*one)
        assert bool(found) == (wanted is not None)
        if wanted is not None:
            same(found[0], wanted)
            expected += 1
    assert 3 < expected < len(made) - 3


def test_entropies_are_judged_over_the_whole_file():
    """Records of some 75 tokens are noise: no proof of base 10, and no two verdicts."""
    draw = np.random.default_rng(0)
    rows = []
    for _ in range(40):
        lengths = draw.integers(6, 14, 8)
        new = [(-draw.exponential(0.6, n) - 1e-4).tolist() for n in lengths]
        entropies = [draw.normal(1.2, 0.1, n).tolist() for n in lengths]
        rows.append({"log_probs_new": new, "entropies": entropies, "rewards": [0.0, 1.0] * 4})
    (found,) = (one for one in check(rows).findings if one.code in ("entropies", "log-base"))
    assert (found.code, found.severity) == ("entropies", "info")
    tokens = [len(part) for row in rows for part in row["log_probs_new"]]
    assert found.evidence["tokens"] == sum(tokens)
    assert abs(found.evidence["factor"] - 0.5) < 4 * found.evidence["standard_error"] < 0.05
    varied = [
        {**row, "entropies": [[-math.log(10) * x for x in part] for part in row["log_probs_new"]]}
        for row in rows
    ]
    assert any(one.code == "log-base" for one in check(varied).findings)


@each("kind", ["sound", "hotter", "shuffled", "base 2", "base 10"])
def test_a_base_is_distinguished_from_other_causes(kind):
    """Tokens sampled at 1.5 cost 1.4 times their entropy, as in base 2, but not the sure ones.

    Entropies of other tokens, none of which is sure, do not rise with −log p.
    """
    draw, rows = np.random.default_rng(11), []
    for _ in range(30):
        sharp = [0.6, 0.8, 1.0, 1.2] if kind == "shuffled" else [1.0, 2.5, 5.0, 8.0]
        logits = draw.choice(sharp, (128, 1), p=[0.15, 0.25, 0.3, 0.3])
        logits = logits * draw.normal(size=(128, 40))
        log_p = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        heat = 1.5 if kind == "hotter" else 1.0
        taken = np.argmax(logits / heat + draw.gumbel(size=logits.shape), axis=1)
        unit = {"base 2": math.log(2), "base 10": math.log(10)}.get(kind, 1.0)
        new = (log_p[np.arange(128), taken] / unit).reshape(4, 32)
        entropies = -(np.exp(log_p) * log_p).sum(axis=1).reshape(4, 32)
        if kind == "shuffled":
            entropies = math.log(2) * draw.permutation(entropies.ravel()).reshape(4, 32)
        row = {"log_probs_new": new.tolist(), "entropies": entropies.tolist()}
        rows.append(row | {"rewards": [0.0, 1.0, 0.0, 1.0]})
    found = [one for one in check(rows).findings if one.code in ("entropies", "log-base")]
    codes = {"sound": [], "hotter": ["entropies"], "shuffled": ["entropies"]}.get(
        kind, ["log-base"]
    )
    assert [one.code for one in found] == codes
    assert all(f"base {one.evidence['base']}" == kind for one in found if one.code == "log-base")


# ---- constants, fillers and ratios ---------------------------------------------------------------


def constant(one: Sample) -> Said | None:
    change = one.a - one.b
    n, middle = len(change), float(np.median(change))
    spread = 1.4826 * float(np.median(np.abs(change - middle)))
    sided = max(np.sum(change > 0), np.sum(change < 0)) >= 0.8 * n
    if n < 24 or not sided or abs(middle) < max(1e-3, 3.0 * spread):
        return None
    ratio = math.exp(middle)
    words = f"about {middle:.4g} at every token (± {spread:.2g} between tokens)"
    words += ": every ratio is multiplied by"
    said = {"log_ratio": middle, "spread": spread, "ratio": ratio}
    return said | {"words": f"{words} {ratio:.4g}"}


def lifted(draw: np.random.Generator) -> Sample:
    n = int(draw.choice([22, 23, 24, 25, 30, 100]))
    level = draw.choice([-1, 1]) * draw.choice([0.0009, 0.0011, 0.01, 0.1])
    change = level + draw.normal(0.0, abs(level) * draw.choice([0.1, 0.25, 0.3, 0.4, 0.45, 2.0]), n)
    few = draw.random(n) < draw.choice([0.0, 0.15, 0.2, 0.25])
    change[few] = draw.choice([0.0, -5 * level])
    return sample(-9.0 + change, np.full(n, -9.0))


def test_constant_log_ratio():
    # the median absolute deviation is d, and 3·1.4826·d the median
    middle, d = 3.0 * 1.4826 * 2.0**-8, 2.0**-8
    bounds = [
        (apart(np.resize([middle - by * d, middle, middle + by * d], 24)), by < 1.0)
        for by in (0.999, 1.001)
    ]
    bounds += [(apart(np.full(30, by * -1e-3)), by > 1.0) for by in (0.999, 1.001)]
    made = [lifted(one) for one in drawn(150, 9)]
    agrees("constant-log-ratio", made, UPDATE, constant, bounds)


def filler(one: Sample) -> list[Said]:
    findings: list[Said] = []
    for key, values, other in (("old_logps", one.b, one.a), ("logps", one.a, one.b)):
        low, counts = np.unique(values[values < -50.0], return_counts=True)
        for value in [0.0, *low[(counts >= 3) | (low < -1000.0)]]:
            hit = (values == value) & (other < -0.3 if value == 0.0 else other > value / 2)
            most = np.mean(values == value) >= 0.97
            if hit.sum() < (1 if value < -1000.0 else 3):
                continue
            if value == 0.0 and not most and not missing(values, other, hit):
                continue
            place = {"response": 0, "token": int(np.flatnonzero(hit)[0])}
            said = {"column": key, "value": value, "tokens": hit.sum(), "of": len(hit)}
            findings.append(said | place)
    return findings


def missing(values: F64, other: F64, hit: Any) -> bool:
    size, rest = np.abs(values - other), ~hit
    if rest.any() and np.median(other[hit]) < min(-4.0, np.quantile(other[rest], 0.05)):
        return False
    if np.sum((other == 0.0) & (values < -0.3)) > 0.3 * hit.sum():
        return False
    near = np.quantile(size[rest], 0.95) if rest.any() else 0.0
    return bool(np.median(size[hit]) > 3.0 * near)


def filled(draw: np.random.Generator) -> Sample:
    n = int(draw.choice([3, 4, 10, 30]))
    a = -draw.exponential(draw.choice([0.5, 2.0]), n)
    b = np.minimum(a + draw.normal(0.0, draw.choice([0.01, 0.1, 0.3]), n), 0.0)
    count = int(draw.choice([2, 3, 4, 9]))
    at = draw.permutation(n)[:count]
    value = draw.choice([0.0, -100.0, -9999.0, -50.0, -51.0])
    b[at] = value
    a[at] = draw.choice(
        [-0.29, -0.3, -0.31, -1.0, -4.1, -3.9, -7.0, -26.0, -49.0, value / 2, value / 2 + 1.0]
    )
    a[draw.permutation(n)[: int(draw.integers(0, 4))]] = 0.0
    return sample(b, a) if draw.random() < 0.5 else sample(a, b)


def test_filler():
    a = np.full(400, -2.0)
    turned = [(a.copy(), a.copy()) for _ in range(2)]
    for (one, other), count in zip(turned, (3, 4), strict=True):  # 0.3 of the ten
        other[:10], one[20:30], other[20:30] = 0.0, 0.0, -0.3
        one[10 : 10 + count] = 0.0
    bounds = [
        (sample([-2.0] * 4 + [0.0] * 2 + [-1.0] * 9, [0.0] * 4 + [turn] * 2 + [-1.01] * 9), found)
        for turn, found in ((-0.3, True), (-0.31, False))
    ]
    values = [-60.0] * 3 + [-70.0] * 2 + [-80.0] * 3 + [-50.0] * 3
    bounds += [(sample([-1.0] * 11, values), True), (sample([-1.0] * 3, [0.0] * 3), True)]
    made = [*(filled(one) for one in drawn(200, 10)), *(sample(*one) for one in turned)]
    agrees("filler", made, UPDATE, filler, bounds)


def outliers(one: Sample) -> Said | None:
    change = one.a - one.b
    size = np.abs(change)
    if len(size) < 100 or not 0 < np.sum(size > 3.8) <= max(0.02 * len(size), 1):
        return None
    near = float(np.quantile(size, 0.98))
    out = size > max(3.8, 12.0 * near)
    middling = np.sum((size > max(0.5, 3.0 * near)) & ~out)
    if not out.any() or middling > out.sum():
        return None
    at = int(np.argmax(size))
    return {
        "tokens": out.sum(),
        "of": len(size),
        "worst": change[at],
        "p98": near,
        "response": 0,
        "token": at,
    }


def standing_out(draw: np.random.Generator) -> Sample:
    n = int(draw.choice([98, 99, 100, 101, 150, 300]))
    change = draw.normal(0.0, draw.choice([0.01, 0.1, 0.15, 0.25]), n)
    far, between = int(draw.integers(0, 5)), int(draw.integers(0, 4))
    at = draw.permutation(n)
    change[at[:far]] = draw.choice([-1, 1]) * draw.choice([3.75, 3.85, 4.6, 9.0], far)
    change[at[far : far + between]] = draw.choice([0.49, 0.51, 0.6, 2.0])
    return sample(-12.0 + change, np.full(n, -12.0))


def standing(n: int, few: dict[float, int], rest: float = 0.0) -> Sample:
    values = [value for value, count in few.items() for _ in range(count)]
    return apart([*values, *np.resize([rest, -rest], n - len(values))])


def test_outliers():
    """At most 2 % beyond 3.8 nats; no more beyond half a nat, or 3 times the rest, than there."""
    bounds = [
        (standing(150, {9.0: 3}), True), (standing(149, {9.0: 3}), False),
        (standing(149, {9.0: 2, 3.79: 1}), True), (standing(149, {9.0: 2, 3.81: 1}), False),
        (standing(100, {3.9: 3, 9.0: 1}), False), (standing(99, {9.0: 1}), False),
        (standing(200, {9.0: 1, 0.49: 2}), True), (standing(200, {9.0: 1, 0.51: 2}), False),
        (standing(200, {9.0: 1, 0.59: 2}, 0.2), True),
        (standing(200, {9.0: 1, 0.61: 2}, 0.2), False),
        (standing(120, {3.79: 1}), False), (standing(120, {4.79: 1}, 0.4), False),
        (standing(120, {4.85: 1}, 0.4), True),
    ]  # fmt: skip
    agrees("outliers", [standing_out(one) for one in drawn(200, 11)], ENGINE, outliers, bounds)


def mismatch(one: Sample) -> Said | None:
    change = one.a - one.b
    error = np.exp(np.minimum(np.abs(change), 50.0)).mean()
    if len(change) < 30 or error <= 1.05:
        return None
    weights = np.exp(np.clip(change, -50.0, 50.0))  # or they overflow
    effective = weights.sum() ** 2 / (len(weights) * np.sum(weights**2))
    mean, k3 = weights.mean(), (weights - 1 - change).mean()
    p50, p99, p999 = np.quantile(np.abs(change), [0.5, 0.99, 0.999])
    bad = mean < 0.5 or mean > 2.0 or effective < 0.3
    return {
        "mean_abs": np.abs(change).mean(),
        "mean_exp_abs": error,
        "mean_weight": mean,
        "kl_k1": (one.b - one.a).mean(),
        "kl_k3": k3,
        "effective_sample_size": effective,
        "p50": p50,
        "p99": p99,
        "p999": p999,
        "max": np.abs(change).max(),
        "tokens": len(change),
        "ends": "; the weights exceed what verl corrects" if bad else f"within {p99:.3g}",
    }


def differing(draw: np.random.Generator) -> Sample:
    n = int(draw.choice([28, 29, 30, 31, 100]))
    change = draw.normal(0.0, draw.choice([0.05, 0.06, 0.3, 1.0, 1.5]), n)
    change += draw.choice([0.0, 0.0, -0.7, 0.65, 0.75, -0.65])
    return sample(-9.0 + change, np.full(n, -9.0))


def test_rollout_mismatch():
    """A mean outside 0.5 to 2, or an effective sample size below 30 %, is beyond what verl
    corrects: 18² / (30·36) = 0.3."""
    evened = [
        {0.6: 12, 1.4: 12, 1.0: 8}, {4.0: 2, 0.25: 15, 0.5: 18}, {4.0: 2, 0.25: 17, 0.5: 12},
        {0.49: 32}, {2.01: 32}, {0.51: 32}, {1.99: 32},
    ]  # fmt: skip
    far = [
        sample([-1.0] * 30 + [up], [-1.1] * 30 + [down])
        for up, down in ((-1.0, -61.0), (-61.0, -1.0))
    ]
    size = np.resize([1.0, -1.0], 32) * math.log(1.05)
    bounds = [(apart(by * size), by > 1.0) for by in (0.999, 1.001)]
    made = [*far, *map(weights, evened), *(differing(one) for one in drawn(150, 12))]
    agrees("rollout-mismatch", made, ENGINE, mismatch, bounds)


def codes_of(findings: list[Any]) -> set[str]:
    return {one.code for one in findings}


@pytest.mark.more
def test_which_pairs_rules_are_asked_of():
    """The reference may be far away; some rules need tokens that the engine drew."""
    makers = (filled, displaced, rolled, foreign, growing, rebased, softened, lifted)
    makers += (standing_out, weighed, differing)
    made = [make(np.random.default_rng([13, at])) for make in makers for at in range(14)]
    said = {
        names: {*ORDER} & set[str]().union(*map(codes_of, told(made, names, claims=True)))
        for names in (UPDATE, ENGINE, REFERENCE)
    }
    assert said[REFERENCE] - {"filler"} == {"log-base", "shifted", "unrelated"}  # of one value
    assert said[UPDATE] == {*ORDER} - {"mean-weight", "outliers", "rollout-mismatch"}
    assert said[ENGINE] == {*ORDER} - {"ratio-noise"}
    equal = [sample(one.a, one.a, one.widths) for one in made]
    assert not any({*ORDER} & codes_of(one) for one in told(equal, ENGINE, claims=True))


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


def log_sigmoid(odds: F64) -> F64:
    return -np.logaddexp(0.0, -odds)


def drawn_odds(draw: np.random.Generator, tokens: int) -> F64:
    return np.where(
        draw.random(tokens) < 0.55, draw.normal(4.5, 1.5, tokens), draw.normal(0.5, 1.5, tokens)
    )


@each(
    ("factor", "noise", "said"),
    [
        (1 / 0.7, 0.04, "or was divided by a temperature of 0.7"),
        (1 / 0.7, 0.0, "or was divided by a temperature of 0.7"),
        (1 / math.log(2.0), 0.005, "in base 2: "), (1 / math.log(10.0), 0.04, "in base 10: "),
    ],
)  # fmt: skip
def test_a_base_is_named_alone_where_it_is_nearer_than_a_temperature(factor, noise, said):
    """Log-probs divided by 0.7 (PrimeIntellect-ai/prime-rl#697) are almost in base 2."""
    draw = np.random.default_rng(4)
    odds = drawn_odds(draw, 400)
    other = log_sigmoid(odds + draw.normal(0.0, noise, 400)) * factor
    made = {"log_probs_old": [log_sigmoid(odds).tolist()], "log_probs_rollout": [other.tolist()]}
    (one,) = [
        row
        for row in check(
            [made | {"log_probs_new": made["log_probs_old"], "rewards": [1.0]}]
        ).findings
        if row.code == "log-base"
    ]
    assert said in one.message


@each(("noise", "said"), [(0.25, "a temperature of 0.6"), (1.6, "alone is not the cause")])
def test_a_temperature_of_the_policy_alone_is_not_denied(noise, said):
    """Logits of the reference that were not divided: huggingface/trl#3029."""
    draw = np.random.default_rng(1)
    odds = drawn_odds(draw, 400) / 0.6
    ref = log_sigmoid(odds * 0.6 + draw.normal(0.0, noise, 400))
    policy = [log_sigmoid(odds).tolist()]
    found = check([{"log_probs_new": policy, "log_probs_ref": [ref.tolist()], "rewards": [1.0]}])
    assert [said in one.message for one in found.findings if one.code == "sharper"] == [True]
