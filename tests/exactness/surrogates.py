"""The papers that tame the ratio, and GRPO itself: J of a case, row by row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mpmath import exp, log, mpf

from exactness.cases import Case, Response, Token
from exactness.pieces import (
    EPS,
    Values,
    centered,
    clamp,
    clipped,
    d,
    d0,
    each,
    geometric,
    k3,
    mean,
    penalty,
    population_standardised,
    ppo,
    prompt_mean,
    response_mean,
    same,
    standardised,
    std,
    token_mean,
    token_sum,
)


def grpo(case: Case) -> mpf:
    policy = response_mean(case, clipped(case, same(case, standardised(case))))
    return policy - mpf(0.04) * response_mean(case, penalty(case, k3))


def dr(case: Case) -> mpf:
    return token_sum(case, clipped(case, same(case, centered(case))))


def grpo_unbiased_kl(case: Case) -> mpf:
    policy = response_mean(case, clipped(case, same(case, standardised(case))))
    weighed = penalty(case, lambda t: exp(d(t)) * k3(t))
    return policy - mpf(0.01) * response_mean(case, weighed)


def grpo_k1(case: Case) -> mpf:
    policy = response_mean(case, clipped(case, same(case, population_standardised(case))))
    return policy - mpf(0.04) * response_mean(case, penalty(case, lambda t: t.new - t.ref))


def dapo(case: Case) -> mpf:
    return token_mean(case, clipped(case, same(case, standardised(case)), 0.2, 0.28))


def dapo_prompt(case: Case) -> mpf:
    return prompt_mean(case, clipped(case, same(case, standardised(case)), 0.2, 0.28))


def bnpo(case: Case) -> mpf:
    policy = token_mean(case, clipped(case, same(case, standardised(case))))
    return policy - mpf(0.04) * token_mean(case, penalty(case, k3))


def _sequence(case: Case, low: float, high: float) -> Values:
    a = same(case, standardised(case))
    return each(case, a, lambda _, x, r: ppo(geometric(r), x, low, high))


def gspo(case: Case) -> mpf:
    return response_mean(case, _sequence(case, 3e-4, 4e-4))


def luspo(case: Case) -> mpf:
    return token_sum(case, _sequence(case, 2e-3, 2.5e-3))


def gspo_token(case: Case) -> mpf:
    def value(t: Token, a: mpf, r: Response) -> mpf:
        return ppo(geometric(r, d0) * exp(t.new) / exp(t.frozen), a, 3e-4, 4e-4)

    return response_mean(case, each(case, same(case, standardised(case)), value))


def cispo(case: Case) -> mpf:
    def value(t: Token, a: mpf, _: Response) -> mpf:
        return clamp(exp(d0(t)), 0, 5) * a * t.new

    return token_mean(case, each(case, same(case, standardised(case)), value))


def scale_rl(case: Case) -> mpf:
    """Its Â is divided by the std over the batch of Â, not of the rewards."""
    offsets = centered(case)
    sigma = std(offsets, 1)
    normalised = [x / (sigma + EPS) if x else x for x in offsets]

    def value(t: Token, a: mpf, _: Response) -> mpf:
        return clamp(exp(t.frozen - t.rollout), 0, 5) * a * t.new

    return prompt_mean(case, each(case, same(case, normalised), value))


def gmpo(case: Case) -> mpf:
    total = mpf(0)
    for r, a in zip(case, standardised(case), strict=True):
        if r.tokens:
            bound = mpf(0.4)
            ds = [min(d(t), bound) if a > 0 else max(d(t), -bound) for t in r.tokens]
            total += a * exp(sum(ds, mpf(0)) / len(ds))
    return total / len(case)


def sapo(case: Case) -> mpf:
    def value(t: Token, a: mpf, _: Response) -> mpf:
        tau = mpf(1.0) if a > 0 else mpf(1.05)
        return 4 / tau / (1 + exp(-tau * (exp(d(t)) - 1))) * a

    return response_mean(case, each(case, same(case, standardised(case)), value))


def vespo(case: Case) -> mpf:
    def value(t: Token, a: mpf, r: Response) -> mpf:
        w = exp(sum((d0(x) for x in r.tokens), mpf(0)))
        k, rate = (2, 3) if a >= 0 else (3, 2)
        return w**k * exp(rate * (1 - w)) * a * t.new

    return token_mean(case, each(case, same(case, standardised(case)), value))


def _dppo(case: Case, divergence: Callable[[mpf, mpf], mpf], bound: float) -> mpf:
    def value(t: Token, a: mpf, _: Response) -> mpf:
        p, q = exp(t.frozen), exp(t.old)
        far = divergence(p, q) > mpf(bound)
        dropped = far and ((a > 0 and p > q) or (a < 0 and p < q))
        return mpf(0) if dropped else exp(d(t)) * a

    return token_mean(case, each(case, same(case, standardised(case)), value))


def dppo_tv(case: Case) -> mpf:
    return _dppo(case, lambda p, q: abs(p - q), 0.15)


def dppo_kl(case: Case) -> mpf:
    return _dppo(case, lambda p, q: q * log(q / p) + (1 - q) * log((1 - q) / (1 - p)), 0.05)


def dro(case: Case) -> mpf:
    values = each(
        case, same(case, centered(case)), lambda t, a, _: a * t.new - mpf(0.05) / 2 * d(t) ** 2
    )
    return token_mean(case, values)


def topr(case: Case) -> mpf:
    def value(t: Token, a: mpf, r: Response) -> mpf:
        w = exp(sum((d0(x) for x in r.tokens), mpf(0)))
        return (a if a > 0 else min(w, mpf(1)) * a) * t.new

    return token_sum(case, each(case, same(case, centered(case)), value))


def _by_covariance(case: Case, a: Values) -> list[tuple[mpf, Token, mpf, Response]]:
    """(covariance, token, advantage, response), in rising order; at equal covariances by value."""
    rows = zip(case, a, strict=True)
    flat = [(t, x, r) for r, row in rows for t, x in zip(r.tokens, row, strict=True)]
    if not flat:
        return []
    mean_a, mean_l = mean([x for _, x, _ in flat]), mean([t.frozen for t, _, _ in flat])
    ranked = [((x - mean_a) * (t.frozen - mean_l), t, x, r) for t, x, r in flat]
    return sorted(ranked, key=lambda e: (e[0], e[2], e[1].frozen, d0(e[1]), len(e[3].tokens)))


class UndecidedError(Exception):
    """Two covariances on either side of the rank that counts are equal, but for rounding."""


def kl_cov(case: Case, share: float = 0.3) -> mpf:
    ranked = _by_covariance(case, same(case, standardised(case)))
    count = max(1, int(share * len(ranked)))
    covariances = [cov for cov, *_ in ranked]
    if len(ranked) > count and covariances[-count] - covariances[-count - 1] < 1e-14:
        raise UndecidedError
    total = mpf(0)
    for place, (_, t, a, _) in enumerate(ranked):
        held = abs(d(t)) if place >= len(ranked) - count else mpf(0)
        total += exp(d(t)) * a - held
    return total / len(ranked)


def clip_cov(case: Case, share: float = 0.3, low: float = 0.05, high: float = 5.0) -> mpf:
    ranked = _by_covariance(case, same(case, standardised(case)))
    inside = []
    for place, (cov, t, a, _) in enumerate(ranked):
        ratio = exp(d0(t))
        bound = (a > 0 and ratio > 1 + mpf(0.2)) or (a < 0 and ratio < 1 - mpf(0.2))
        if mpf(low) < cov < mpf(high) and not bound:
            inside.append(place)
    keys = np.random.PCG64(7).random_raw(len(inside)).tolist()
    drawn = [place for _, place in sorted(zip(keys, inside, strict=True))]
    out = set(drawn[: max(1, int(share * len(ranked)))])
    kept = [mpf(0) if p in out else ppo(exp(d(t)), a) for p, (_, t, a, _) in enumerate(ranked)]
    return sum(kept, mpf(0)) / len(ranked)


def two_sided(case: Case) -> mpf:
    def value(t: Token, a: mpf, _: Response) -> mpf:
        ratio = exp(d(t))
        return min(min(ratio, mpf(4)) * a, clamp(ratio, 1 - mpf(0.2), 1 + mpf(0.2)) * a)

    policy = token_mean(case, each(case, same(case, standardised(case)), value))
    return policy - mpf(0.001) * token_mean(case, penalty(case, k3))


def dual_clip(case: Case) -> mpf:
    def value(t: Token, a: mpf, _: Response) -> mpf:
        base = ppo(exp(d(t)), a)
        return max(base, 3 * a) if a < 0 else base

    return token_mean(case, each(case, same(case, standardised(case)), value))


def fipo(case: Case) -> mpf:
    gamma = mpf(2) ** (-1 / mpf(32))
    kept, rows = [], []
    for r, a in zip(case, standardised(case), strict=True):
        row = []
        for at, t in enumerate(r.tokens):
            ahead = [mpf(0) if exp(d0(x)) > 10 else d0(x) for x in r.tokens[at:]]
            future = exp(sum((gamma**k * x for k, x in enumerate(ahead)), mpf(0)))
            weight = clamp(future, 1, 1 + mpf(0.2))
            ratio = exp(d(t))
            if a < 0 and exp(d0(t)) > 10:
                weight = clamp(weight, 0.8, 1)
            bounded = clamp(ratio, 1 - mpf(0.2), 1 + mpf(0.28))
            row.append(weight * min(min(ratio, mpf(10)) * a, bounded * a))
        if sum(a < 0 and exp(d0(t)) > 10 for t in r.tokens) <= 1:
            kept.append(r)
            rows.append(row)
    return token_mean(kept, rows)


def real(case: Case) -> mpf:
    tau = mpf(0.5)
    total = mpf(0)
    groups = {r.group for r in case}
    labels = centered(case)
    for group in groups:
        members = [
            (sum((d(t) for t in r.tokens), mpf(0)) / len(r.tokens), a)
            for r, a in zip(case, labels, strict=True)
            if r.group == group and r.tokens
        ]
        good = [s for s, a in members if a > 0]
        bad = [s for s, a in members if a <= 0]
        if good and bad:
            total += log(1 + sum(exp(s / tau) for s in bad))
            total += log(1 + sum(exp(-s / tau) for s in good))
    return -total / len(groups)
