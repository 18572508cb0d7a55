"""Each rule on two columns beside its definition, one sample at a time, around its bounds.

The rules reckon all samples at once, by sums over segments; the definitions here are those of their
docstrings, with numpy's own functions, of one sample. Most samples are drawn so that what decides
is near its bound; those of counts are made by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from paired import ENGINE, KEYS, UPDATE, Said, Sample, same, sample, told, view

from grpo_cli.batch import F64
from grpo_cli.commands.check.rules import rules_of


def agrees(
    code: str,
    samples: list[Sample],
    names: tuple[str, str],
    define: Callable[[Sample], Said | list[Said] | None],
    claims: str = "",
) -> None:
    """The rule says of each sample what its definition does: evidence, place and words.

    One with equal columns is beside them, of which nothing is said.
    """
    equal = sample(samples[0].a, samples[0].a, samples[0].widths)
    found = told(code, [*samples, equal], names, claims)
    assert len(samples) not in found
    given = [define(one) or [] for one in samples]
    expected = [one if isinstance(one, list) else [one] for one in given]
    silent = sum(not one for one in expected)
    assert min(silent, len(samples) - silent) >= 3, "the samples are not around the bounds"
    for at, wanted in enumerate(expected):
        findings = found.get(at, [])
        assert len(findings) == len(wanted), (at, wanted, findings)
        for finding, of in zip(findings, wanted, strict=True):
            same(finding, {"columns": [*names]} | of)


def drawn(count: int, seed: int) -> Iterator[np.random.Generator]:
    for at in range(count):
        yield np.random.default_rng([seed, at])


# ---- temperature ---------------------------------------------------------------------------------


def temperature(names: tuple[str, str], least: float) -> Callable[[Sample], Said | None]:
    def define(one: Sample) -> Said | None:
        kept = (one.a != 0.0) | (one.b != 0.0)
        a, b = one.a[kept], one.b[kept]
        if len(a) < 24 or min(a.std(), b.std()) <= 1e-3 or (a - b).std() <= 1e-6 * a.std():
            return None
        slope = b.std() / a.std()
        middle, apart = (a + b) / 2, a - b
        x = middle - middle.mean()
        steep, level = np.polyfit(middle, apart, 1)
        left = apart - steep * middle - level
        sigmas = steep / math.sqrt(np.sum((x * left) ** 2)) * np.sum(x * x)
        r2 = np.corrcoef(middle, apart)[0, 1] ** 2
        ups, downs = np.sum(one.a > one.b), np.sum(one.a < one.b)
        higher = ups / (ups + downs)
        sided = abs(higher - 0.5) * 2 * math.sqrt(ups + downs)
        strength = abs(math.log(slope))
        bound = 0.025 if abs(higher - 0.5) > 0.4 else least
        sure = abs(sigmas) > 5 or abs(higher - 0.5) > 0.35
        right = (slope < 1) == (higher > 0.5) == (sigmas > 0)
        bent = strength > bound and sided > 5 and right and sure
        straight = strength > math.log(1.1) and r2 > 0.5 and abs(sigmas) > 5
        if not (bent or straight):
            return None
        one_key, other = (KEYS[name] for name in names)
        sharper, flatter = (one_key, other) if slope < 1 else (other, one_key)
        most = max(higher, 1 - higher)
        return {
            "slope": slope,
            "r2": r2,
            "sigmas": sigmas,
            "higher": most,
            "sharper": sharper,
            "words": f"{sharper} is sharper than {flatter}, as with a temperature on one side only:"
            f" {other} against {one_key} has slope {slope:.3f}, not 1; one is above the other at"
            f" {most:.0%}",
        }

    return define


def softened(draw: np.random.Generator) -> Sample:
    """Log-probs of a policy and of it at another temperature, with noise and exact zeros."""
    n = int(draw.choice([22, 23, 24, 25, 60, 200, 800]))
    a = -draw.exponential(draw.choice([0.3, 1.0, 2.0]), n)
    power = draw.choice([-1, 1]) * draw.choice([0.02, 0.028, 0.05, 0.07, 0.073, 0.076, 0.2])
    lift = draw.choice([0.0, 0.5, 1.0]) * -power * abs(a.mean())
    b = a * (1 + power) + lift * draw.random(n) * 2
    b += draw.normal(0.0, draw.choice([1e-4, 0.01, 0.03, 0.1]), n)
    zeros = draw.random(n) < draw.choice([0.0, 0.1])
    a[zeros], b[zeros] = 0.0, 0.0
    a[draw.random(n) < 0.02] = 0.0
    return sample(a, b)


@pytest.mark.parametrize(("names", "least"), [(ENGINE, 0.025), (UPDATE, 0.065)])
def test_temperature(names, least):
    made = [softened(one) for one in drawn(900, 1)]
    for one in made[:60]:
        scale = 1e-3 / np.array([one.a.std(), one.b.std()]).min()
        made += [sample(one.a * scale * by, one.b * scale * by) for by in (0.99, 1.01)]
    made += [bent(*of) for of in BENT]
    made.append(sample(np.zeros(30), np.zeros(30)))
    agrees("temperature", made, names, temperature(names, least))


BENT = [
    (60, 51, 0.1, 0.8), (60, 52, 0.1, 1.2),  # 85 % of the signs, which alone are sure
    (100, 90, 0.05, 0.3), (100, 91, 0.05, 0.3),  # nine of ten
    (100, 75, 0.08, 0.5), (100, 76, 0.08, 0.5),  # 5 standard deviations of a coin
    (100, 80, 0.06, 0.1), (100, 80, 0.062, 0.1),  # a slope of e^0.065
    (100, 80, 0.0235, 0.1), (100, 80, 0.0245, 0.1),  # and of e^0.025
]  # fmt: skip


def bent(count: int, ups: int, power: float, noise: float) -> Sample:
    """Two columns of which the first is above the second at so many tokens, the likeliest."""
    draw = np.random.default_rng([count, ups])
    a = -np.sort(draw.exponential(1.0, count))
    apart = power * (a - (a[ups - 1] + a[ups]) / 2) * np.exp(noise * draw.normal(0.0, 1.0, count))
    return sample(a, a - apart)


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
    times, sigmas = after.mean() / before.mean(), (after.mean() - before.mean()) / error
    if times <= 1.8 or sigmas <= 5.0:
        return None
    said = f"(from {middle:.0f} on) it is {times:.1f} times as far"
    return {"times": times, "sigmas": sigmas, "position": middle, "words": said}


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
    made = [
        drifting(noisy, [1.75] * 16 + [2.0] * 4),  # 1.8 times
        drifting([0.0, 2.0] * 25, [1.0, 3.0] * 25),  # 5 standard errors
        drifting(noisy, [2.0, 3.0] * 10),
        drifting(noisy[:19], [2.0, 3.0] * 10, 20),
        drifting(noisy, [2.0, 3.0, 2.0] * 6 + [3.0], 20),
        drifting(noisy, [7.0, 3.0] * 10),  # 5 at most
        drifting([*noisy, 3.5], [2.0, 3.0] * 10),  # the token in the middle is none of the later
    ]
    says = [drift(one) for one in made]
    assert [one is not None for one in says] == [False, False, True, False, False, True, True]
    agrees("drift", [*made, *(growing(one) for one in drawn(500, 2))], UPDATE, drift)


def mean_weight(one: Sample) -> Said | None:
    change = one.a - one.b
    weights = np.exp(np.clip(change, -50.0, 50.0))
    near = np.abs(change) < 1.0
    spread = (weights[near] - 1.0).std() if near.any() else 0.0
    bound = 10.0 * spread + 1e-3
    cut = np.clip(weights, 1.0 - bound, 1.0 + bound)
    n, mean, sigma = len(cut), cut.mean(), cut.std()
    away = (mean - 1.0) * math.sqrt(n) / (sigma or math.inf)
    if n < 48 or abs(away) <= 4.4 or abs(mean - 1.0) <= 0.004:
        return None
    side = "below" if mean < 1.0 else "above"
    return {
        "mean_weight": mean,
        "standard_error": sigma / math.sqrt(n),
        "sigmas": away,
        "higher": np.sum(change > 0) / np.sum(change != 0),
        "tokens": n,
        "words": f"exp(old_logps − engine_logps) is {mean:.4f} ± {sigma / math.sqrt(n):.2g}, not 1;"
        f" old_logps lies {side}",
    }


def weighed(draw: np.random.Generator) -> Sample:
    n = int(draw.choice([46, 47, 48, 49, 120, 400]))
    change = draw.normal(0.0, draw.choice([0.003, 0.02, 0.1]), n)
    change += draw.choice([-1, 1]) * draw.choice([0.0, 0.003, 0.0039, 0.0043, 0.005, 0.03, 0.06])
    change[draw.random(n) < 0.1] = 0.0
    if draw.random() < 0.3:
        change[:2] = draw.choice([1.5, 3.0, 70.0, -2.0])
    return sample(-7.0 + change, np.full(n, -7.0))


def test_mean_weight():
    agrees("mean-weight", [weighed(one) for one in drawn(600, 3)], ENGINE, mean_weight)


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
    words = "these tokens the probabilities correlate by"
    if far and all_of < 0.3 and logs < 0.3:
        rows = len(one.widths)
        return {"correlation": all_of, "tokens": len(p), "rows": rows, "words": words}
    ends = np.cumsum(one.widths)
    parts = [slice(end - width, end) for end, width in zip(ends, one.widths, strict=True)]
    each = [correlation(p[part], q[part]) for part in parts]
    low = [
        width >= 12 and of < 0.3 and correlation(one.a[part], one.b[part]) < 0.3
        for width, of, part in zip(one.widths, each, parts, strict=True)
    ]
    if not any(low):
        return None
    away = (math.atanh(0.8) - math.atanh(0.3)) * np.sqrt([w - 3 for w in one.widths if w >= 12])
    expected, rows = np.sum(0.5 * np.exp(-0.5 * away**2)), sum(low)
    if rows <= expected or rows * (1 + math.log(expected / rows)) >= math.log(1e-6):
        return None
    at = low.index(True)
    said = f"this response ({rows} such in all) the probabilities correlate by {each[at]:.2f}"
    return {
        "correlation": each[at],
        "tokens": one.widths[at],
        "rows": rows,
        "response": at,
        "words": said,
    }


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
    downs = [*(one[::-1] for one in ups[:-1]), ups[-1] - 0.001]
    return sample(np.concatenate(ups), np.concatenate(downs), [*widths, rest])


def test_unrelated():
    made = [reversed_in(widths, 900) for widths in ([11] * 12, [12] * 12, [60], [12])]
    assert [bool(unrelated(one)) for one in made] == [False, True, True, False]
    agrees("unrelated", [*made, *(foreign(one) for one in drawn(1500, 4))], UPDATE, unrelated)


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
    words = (
        f"logps and old_logps differ by more than 1 nat at the last token of {k} of {count} "
        f"responses, elsewhere at {rate:.1%} of the tokens"
    )
    return {
        "responses": k,
        "of": count,
        "elsewhere": rate,
        "words": words,
        "response": rows[0],
        "token": one.widths[rows[0]] - 1,
    }


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


def three_ends(width: int) -> Sample:
    """3·(1 − ln n) < ln 1e-6 from n = 272 other tokens on."""
    change = np.zeros(3 * width)
    change[width - 1 :: width] = -2.0
    return sample(change - 1.0, np.full(3 * width, -1.0), [width] * 3)


def test_last_token():
    made = [*(rolled(one) for one in drawn(400, 5)), three_ends(91), three_ends(92)]
    agrees("last-token", made, UPDATE, last_token)
    assert last_token(three_ends(91)) is None
    assert last_token(three_ends(92)) is not None


# ---- shifts and bases ----------------------------------------------------------------------------


def shifted(one: Sample) -> list[Said]:
    ends = np.cumsum(one.widths)
    rows = [slice(end - width, end) for end, width in zip(ends, one.widths, strict=True)]
    findings: list[Said] = []
    for lag, where in ((1, "next"), (-1, "previous")):
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
            words = (
                f"logps agrees better with the {where} token's old_logps than with its own "
                f"({wins / of:.0%} of {of} tokens)"
            )
            said = {"lag": lag, "share": wins / of, "tokens": of, "words": words}
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
    agrees("shifted", [displaced(one) for one in drawn(800, 6)], UPDATE, shifted)


BASES = {2: 1 / math.log(2), 10: 1 / math.log(10)}


def log_base(one: Sample) -> Said | None:
    clear = (one.a < -0.05) & (one.b < -0.02)
    a, b = one.a[clear], one.b[clear]
    if len(a) < 24 or abs(math.log((b / a).mean())) <= 0.2:
        return None
    factor = float(np.median(b / a))
    if np.corrcoef(a + b, a - b)[0, 1] ** 2 < 0.7:
        return None
    for base, per_nat in BASES.items():
        for at, wanted in ((1, per_nat), (0, 1 / per_nat)):
            left = np.abs(b - wanted * a).mean() / np.abs(b - a).mean()
            if abs(factor / wanted - 1) <= 0.04 and left <= 0.25:
                words = (
                    f"{KEYS[UPDATE[at]]} is in base {base}: old_logps is {factor:.4f} times logps"
                )
                return {"base": base, "factor": factor, "culprit": UPDATE[at], "words": words}
    return None


def rebased(draw: np.random.Generator) -> Sample:
    n = int(draw.choice([22, 23, 24, 25, 40, 100]))
    a = -draw.exponential(1.0, n) - 0.06
    a[: n // 20] = -0.03
    per_nat = BASES[int(draw.choice([2, 10]))]
    factor = (per_nat if draw.random() < 0.5 else 1 / per_nat) * draw.choice(
        [1.0, 0.955, 0.962, 1.038, 1.045, 0.85, 1.2]
    )
    b = factor * a + draw.normal(0.0, draw.choice([0.0, 0.05, 0.15, 0.3]), n) * np.abs(a)
    b[: n // 3 if draw.random() < 0.2 else 0] = 0.0
    if draw.random() < 0.2:
        b = a * (1 + draw.choice([-0.15, 0.15, 0.25]))
    return sample(a, np.minimum(b, 0.0))


def test_log_base():
    a = -np.linspace(0.5, 3.0, 24)
    made = [rebased(one) for one in drawn(700, 7)]
    made += [sample(a, a / math.log(2)), edge(a, 0, -0.05, -0.1), edge(a, 0, -0.06, -0.02)]
    agrees("log-base", made, UPDATE, log_base)
    assert [bool(log_base(one)) for one in made[-3:]] == [True, False, False]


def edge(a: F64, at: int, here: float, there: float) -> Sample:
    """A column and it in base 2, but for one token."""
    a, b = a.copy(), a / math.log(2)
    a[at], b[at] = here, there
    return sample(a, b)


def entropic(entropies: F64, new: F64, others: F64) -> Said | None:
    cost = -new
    if len(new) < 64 or entropies.mean() <= 0.0:
        return None
    if abs(new.mean() - others.mean()) >= 0.05 * cost.mean():
        return None
    factor, mean = cost.mean() / entropies.mean(), entropies.mean()
    error = (cost - entropies).std(ddof=1) / math.sqrt(len(new))
    for base, per_nat in BASES.items():
        if abs(factor / per_nat - 1) < 0.1 and abs(factor - 1) * mean > 6 * error:
            words = f"the mean −log p is {factor:.3f} times the mean entropy: base {base}"
            columns = ["log_probs_new", "entropies"]
            return {"columns": columns, "base": base, "factor": factor, "words": words}
    return None


def test_log_base_beside_entropies():
    made = []
    for draw in drawn(400, 8):
        n = int(draw.choice([62, 63, 64, 65, 100, 400]))
        entropies = draw.exponential(1.0, n)
        noise = draw.normal(0.0, draw.choice([0.1, 0.4, 0.8]), n)
        off = draw.choice([0.88, 0.92, 1.0, 1.08, 1.12])
        new = -BASES[int(draw.choice([2, 10]))] * off * (entropies + noise)
        shift = draw.choice([0.0, 0.03, 0.048, 0.055])
        made.append((entropies * draw.choice([1, -1], p=[0.95, 0.05]), new, new * (1 + shift)))
    columns = [np.concatenate(column) for column in zip(*made, strict=True)]
    names = ("entropies", "log_probs_new", "log_probs_old")
    given = view(dict(zip(names, columns, strict=True)), [[len(one[0])] for one in made])
    (rule,) = [rule for rule in rules_of("record") if rule.code == "log-base"]
    found = {finding.record: finding for finding in rule.find(given)}
    expected = {at: said for at, one in enumerate(made) if (said := entropic(*one))}
    assert 3 < len(expected) < len(made) - 3
    assert {*found} == {*expected}
    for at, wanted in expected.items():
        same(found[at], wanted)


# ---- constants, fillers and ratios ---------------------------------------------------------------


def constant(one: Sample) -> Said | None:
    change = one.a - one.b
    n, middle = len(change), float(np.median(change))
    spread = 1.4826 * float(np.median(np.abs(change - middle)))
    sided = max(np.sum(change > 0), np.sum(change < 0)) >= 0.8 * n
    if n < 24 or not sided or abs(middle) < max(1e-3, 3.0 * spread):
        return None
    ratio = math.exp(middle)
    words = f"about {middle:.4g} at every token (spread {spread:.2g}): every ratio is multiplied by"
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
    exactly = sample(np.full(30, -1e-3), np.zeros(30))
    assert constant(exactly)
    made = [exactly, *(lifted(one) for one in drawn(500, 9))]
    agrees("constant-log-ratio", made, UPDATE, constant)


def filler(one: Sample) -> list[Said]:
    findings: list[Said] = []
    for key, values, other in (("old_logps", one.b, one.a), ("logps", one.a, one.b)):
        beside = "logps" if key == "old_logps" else "old_logps"
        low, counts = np.unique(values[values < -50.0], return_counts=True)
        for value in [0.0, *low[counts >= 3]]:
            hit = (values == value) & (other < -0.3 if value == 0.0 else other > value / 2)
            if hit.sum() < 3 or (value == 0.0 and not missing(values, other, hit)):
                continue
            words = f"{key} is filled with {value:g}, at {hit.sum()} of {len(hit)} tokens"
            if value == 0.0:
                words = (
                    f"{key} is filled with 0.0: exactly that at {hit.sum()} of {len(hit)} tokens "
                    f"of which {beside} is not certain"
                )
            place = {"response": 0, "token": int(np.flatnonzero(hit)[0])}
            said = {"column": key, "value": value, "tokens": hit.sum(), "of": len(hit)}
            findings.append(said | place | {"words": words})
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
    mixed = [
        sample([-2.0] * 4 + [0.0] * 2 + [-1.0] * 9, [0.0] * 4 + [turned] * 2 + [-1.01] * 9)
        for turned in (-0.3, -0.31)
    ]
    assert [bool(filler(one)) for one in mixed] == [True, False]
    agrees("filler", [*mixed, *(filled(one) for one in drawn(900, 10))], UPDATE, filler)


def test_filler_of_several_values_and_of_all_tokens():
    """A value below −50 counts from three times on, a column of nothing but 0.0 always."""
    values = [-60.0] * 3 + [-70.0] * 2 + [-80.0] * 3 + [-50.0] * 3
    made = [sample(np.full(11, -1.0), values), sample([-1.0] * 3, [0.0] * 3)]
    found = told("filler", made, UPDATE)
    assert [one.evidence["value"] for one in found[0]] == [-80.0, -60.0]
    assert [(one.evidence["value"], one.evidence["of"]) for one in found[1]] == [(0.0, 3)]


def test_filler_of_eight_values_at_most():
    values = [-50.5 - at // 3 for at in range(30)]
    found = told("filler", [sample(np.full(30, -1.0), values)], UPDATE)
    assert [one.evidence["value"] for one in found[0]] == [-59.5 + at for at in range(8)]


def extreme(one: Sample) -> Said | None:
    change = one.a - one.b
    bad = np.abs(change) > 20.0
    if not bad.any():
        return None
    at = int(np.argmax(np.abs(change)))
    zeros = int(np.sum(one.a[bad] == 0.0) + np.sum(one.b[bad] == 0.0))
    ends = np.cumsum(one.widths)
    row = int(np.searchsorted(ends, at, side="right"))
    words = f"beyond 20 at {bad.sum()} of {len(bad)} tokens, at most {change[at]:.4g}"
    return {
        "tokens": bad.sum(),
        "of": len(bad),
        "log_ratio": change[at],
        "zeros": zeros,
        "response": row,
        "token": at - int(ends[row] - one.widths[row]),
        "words": words,
        "ends": f"; {zeros} of them are exactly 0.0" if zeros else f"{change[at]:.4g}",
    }


def test_extreme_ratio():
    made = [
        sample([-1.0, -25.0, -3.0], [-1.5, -4.0, -3.0]),
        sample([-21.0, -2.0], [-1.0, -2.0]),  # 20 to the bit
        sample([-1.0, -30.0, 0.0, -2.0, -23.0], [0.0, 0.0, -22.0, -22.5, 0.0], [1, 2, 2]),
        sample([-1.0] * 3, [-2.0] * 3),
        sample([-0.5, -28.0], [-20.625, -2.0], [1, 1]),
        sample([-0.5], [-1.0]),
    ]
    agrees("extreme-ratio", made, UPDATE, extreme)


def test_extreme_ratios_that_are_given():
    """Of three records, each with its own count: 0, infinity, and beyond e^±20 are."""
    ratios = [1.0, math.exp(20.01), 2.0, 1.0, math.exp(19.99), math.exp(-19.99), 0.0]
    given = view({"ratios": np.array([*ratios, 1.0, math.inf])}, [[1, 2], [2, 1], [1, 2]])
    rules = [rule for rule in rules_of("record") if rule.code == "extreme-ratio"]
    first, last = [finding for rule in rules for finding in rule.find(given)]
    said = {"tokens": 1, "of": 3, "ratio": math.exp(20.01)}
    same(first, said | {"columns": [], "response": 1, "token": 0, "words": "beyond e^±20"})
    same(last, {"tokens": 2, "of": 3, "ratio": 0.0, "columns": [], "response": 0, "token": 0})
    assert (first.record, last.record) == (0, 2)


# ---- the engine that sampled ---------------------------------------------------------------------


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
    words = f"{out.sum()} of {len(size)} tokens differ far more than the rest, the worst by"
    return {
        "tokens": out.sum(),
        "of": len(size),
        "worst": change[at],
        "p98": near,
        "response": 0,
        "token": at,
        "words": f"{words} {size[at]:.3g} nats",
    }


def standing_out(draw: np.random.Generator) -> Sample:
    n = int(draw.choice([98, 99, 100, 101, 150, 300]))
    change = draw.normal(0.0, draw.choice([0.01, 0.1, 0.15, 0.25]), n)
    far, between = int(draw.integers(0, 5)), int(draw.integers(0, 4))
    at = draw.permutation(n)
    change[at[:far]] = draw.choice([-1, 1]) * draw.choice([3.75, 3.85, 4.6, 9.0], far)
    change[at[far : far + between]] = draw.choice([0.49, 0.51, 0.6, 2.0])
    return sample(-12.0 + change, np.full(n, -12.0))


def test_outliers():
    at_bounds = [
        sample([-3.8] + [0.0] * 119, np.zeros(120)),
        sample([-12 * 0.4] + [-0.4] * 119, np.zeros(120)),
    ]
    assert [outliers(one) for one in at_bounds] == [None, None]
    for between, is_told in ((0.95, False), (0.85, True)):  # three times what 98 % are within
        one = sample([-4.0] + [-between] * 2 + [-0.3] * 197, np.zeros(200))
        assert bool(outliers(one)) is is_told
        at_bounds.append(one)
    made = [*at_bounds, *(standing_out(one) for one in drawn(700, 11))]
    agrees("outliers", made, ENGINE, outliers)


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
    words = (
        f"is {np.abs(change).mean():.3g} nats per token, mean exp|·| {error:.4g} (bound 1.05), KL "
        f"{k3:.3g}, effective sample size {effective:.0%}, 99 % within {p99:.3g}"
    )
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
        "words": words,
        "ends": "; weights are beyond what verl corrects" if bad else f"within {p99:.3g}",
    }


def differing(draw: np.random.Generator) -> Sample:
    n = int(draw.choice([28, 29, 30, 31, 100]))
    change = draw.normal(0.0, draw.choice([0.05, 0.06, 0.3, 1.0, 1.5]), n)
    change += draw.choice([0.0, 0.0, -0.7, 0.65, 0.75, -0.65])
    return sample(-9.0 + change, np.full(n, -9.0))


def test_rollout_mismatch():
    far = [
        sample([-1.0] * 30 + [up], [-1.1] * 30 + [down])
        for up, down in ((-1.0, -61.0), (-61.0, -1.0))
    ]
    made = [*far, *(differing(one) for one in drawn(400, 12))]
    agrees("rollout-mismatch", made, ENGINE, mismatch)


def noise(one: Sample) -> Said | None:
    size = np.abs(one.a - one.b)
    if not size.any():
        return None
    mean, outside = size.mean(), np.mean(size > math.log(1.1))
    return {
        "mean_abs": mean,
        "outside": outside,
        "claim": "ppo_epochs 1",
        "severity": "warning" if mean > 0.01 else "info",
        "words": f"mean |log ratio| {mean:.3g}, {outside:.1%} of the ratios outside [0.9, 1.1]",
    }


def test_ratio_noise():
    sizes = (
        [0.0, 0.0],
        [0.0098, 0.01],
        [0.0, 0.0202],
        [0.01],
        [0.094, 0.0],
        [0.0, 0.097],
        [math.log(1.1), 0.3],
        [0.0],
        [0.0],
        [0.0],
    )
    made = [sample(np.zeros(len(size)), -np.array(size)) for size in sizes]
    agrees("ratio-noise", made, UPDATE, noise, claims="ppo_epochs 1")
    assert not told("ratio-noise", made, UPDATE)
    assert not told("ratio-noise", made, ENGINE, claims="ppo_epochs 1")


@pytest.mark.parametrize("rule", list(rules_of("pair")), ids=lambda rule: rule.code)
def test_which_pairs_a_rule_is_asked_of(rule):
    """The reference may be far away; some need tokens that the engine drew; none says anything
    of columns that are equal to the bit."""
    any_pair, engine_only = {"log-base", "shifted"}, {"mean-weight", "outliers", "rollout-mismatch"}
    loud = {
        "filler": filled, "shifted": displaced, "last-token": rolled, "unrelated": foreign,
        "drift": growing, "log-base": rebased, "temperature": softened,
        "constant-log-ratio": lifted, "outliers": standing_out, "mean-weight": weighed,
        "rollout-mismatch": differing, "extreme-ratio": filled, "ratio-noise": differing,
    }  # fmt: skip
    made = [loud[rule.code](draw) for draw in drawn(150, 13)]
    if rule.code == "extreme-ratio":
        made = [sample([-1.0], [-30.0])]
    asked = {names: bool(told(rule.code, made, names, "claimed")) for names in (
        UPDATE, ENGINE, ("log_probs_new", "log_probs_ref"),
    )}  # fmt: skip
    reference = rule.code in any_pair
    update = rule.code not in engine_only
    engine = rule.code != "ratio-noise"
    assert [*asked.values()] == [update, engine, reference]
    names = UPDATE if update else ENGINE
    alone = told(rule.code, made, names, "claimed")
    equal = [sample(one.a, one.a, one.widths) for one in made]
    beside = told(rule.code, [equal[0], *made], names, "claimed")
    assert {at - 1 for at in beside} == {*alone}
    assert not told(rule.code, equal, UPDATE, "claimed")
    assert not told(rule.code, equal, ENGINE, "claimed")
