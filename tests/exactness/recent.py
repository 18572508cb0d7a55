"""Papers with bounds that follow the data, and those that select responses: J of a case."""

from __future__ import annotations

from mpmath import exp, mpf, sqrt

from exactness.cases import Case, Response, Token
from exactness.pieces import (
    centered,
    clamp,
    clipped,
    d,
    d0,
    each,
    mean,
    over_group,
    peers,
    ppo,
    same,
    scores,
    standardised,
    std,
    token_mean,
    token_sum,
)


class TiedError(Exception):
    """The balance that decides a bound is equal to its target, but for rounding."""


def ce_gppo(case: Case) -> mpf:
    low, high = 1 - mpf(0.2), 1 + mpf(0.2)

    def value(t: Token, a: mpf, _: Response) -> mpf:
        through = exp(t.new) / exp(t.frozen)  # 1, with a slope
        frozen = exp(d0(t))
        if a < 0 and frozen < low:
            return mpf(0.5) * low * through * a
        if a > 0 and frozen > high:
            return high * through * a
        return exp(d(t)) * a

    return token_mean(case, each(case, same(case, standardised(case)), value))


def dcpo(case: Case) -> mpf:
    def value(t: Token, a: mpf, _: Response) -> mpf:
        q = exp(t.old)
        low = (1 + sqrt(max(1 - 4 * mpf(0.2) / q, mpf(0)))) / 2
        high = min((1 + sqrt(1 + 4 * mpf(0.28) / q)) / 2, mpf(10))
        ratio = exp(d(t))
        return min(ratio * a, clamp(ratio, low, high) * a)

    advantages = over_group(case, scores(case), lambda r, g: (r - mean(g)) / std(g, 1))
    values = each(case, same(case, advantages), value)
    return sum((mean(row) for row in values if row), mpf(0))


def bapo(case: Case) -> mpf:
    advantages = standardised(case)
    flat = [(exp(d0(t)), a) for r, a in zip(case, advantages, strict=True) for t in r.tokens]

    def short(low: float, high: float) -> bool:
        positive = sum((min(r, mpf(high)) * a for r, a in flat if a > 0), mpf(0))
        negative = sum((max(r, mpf(low)) * -a for r, a in flat if a < 0), mpf(0))
        if flat and abs(positive - negative) < 1e-13 * (positive + negative):
            raise TiedError
        return negative > 0 and positive < negative

    low, high = 0.6, 1.2
    while short(low, high) and low < 0.9:
        low = min(low + 0.05, 0.9)
    while short(low, high) and high < 3.0:
        high = min(high + 0.05, 3.0)

    def value(t: Token, a: mpf, _: Response) -> mpf:
        ratio = exp(d(t))
        return min(ratio * a, clamp(ratio, low, high) * a)

    return token_mean(case, each(case, same(case, advantages), value))


def minirl(case: Case) -> mpf:
    def value(t: Token, a: mpf, _: Response) -> mpf:
        update = exp(d0(t))
        if (a > 0 and update > 1 + mpf(0.27)) or (a < 0 and update < 1 - mpf(0.2)):
            return mpf(0)
        return exp(t.frozen - t.rollout) * a * t.new

    return token_sum(case, each(case, same(case, centered(case)), value))


def _signed(case: Case, positive: float, negative: float) -> mpf:
    advantages = [mpf(positive) if r > 0 else -mpf(negative) for r in scores(case)]
    return token_mean(case, clipped(case, same(case, advantages)))


def psr(case: Case) -> mpf:
    return _signed(case, 1.0, 0.0)


def nsr(case: Case) -> mpf:
    return _signed(case, 0.0, 1.0)


def w_reinforce(case: Case) -> mpf:
    return _signed(case, 0.1, 1.0)


def _filtered(case: Case, ranks: list[mpf], keep: int = 2) -> mpf:
    rewards, advantages = scores(case), []
    for i in range(len(case)):
        least = sorted((ranks[j] for j in peers(case, i)), reverse=True)[:keep][-1]
        kept = [rewards[j] for j in peers(case, i) if ranks[j] >= least]
        moved = ranks[i] >= least and len(set(kept)) > 1
        advantages.append((rewards[i] - mean(kept)) / std(kept, 0) if moved else mpf(0))
    return token_mean(case, each(case, same(case, advantages), lambda t, a, _: ppo(exp(d(t)), a)))


def gfpo(case: Case) -> mpf:
    return _filtered(case, [-mpf(len(r.tokens)) for r in case])


def gfpo_efficiency(case: Case) -> mpf:
    pairs = zip(scores(case), case, strict=True)
    return _filtered(case, [mpf(float(s) / max(len(r.tokens), 1)) for s, r in pairs])
