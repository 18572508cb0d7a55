"""Every row of a paper by its formula: J of a case.

First the papers that tame the ratio, and GRPO itself; then those on advantages and on corrections;
then bounds that follow the data, and what selects responses.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mpmath import exp, log, mpf, sqrt

from exactness.cases import Case, Response, Token
from exactness.pieces import (
    EPS,
    Values,
    batch_scaled,
    centered,
    clamp,
    clipped,
    d,
    d0,
    decoupled,
    each,
    geometric,
    k1_reward,
    k3,
    lead,
    leave_one_out,
    length_weighted,
    live,
    mean,
    over_group,
    over_mean,
    peers,
    penalty,
    population_standardised,
    ppo,
    prompt_mean,
    reinforced,
    response_mean,
    returns,
    same,
    scores,
    standardised,
    std,
    token_mean,
    token_sum,
    whitened_tokens,
)

Formula = Callable[[Case], mpf]
ROWS: dict[str, Formula] = {}
"""Row → its formula; those of ``GIVEN`` with hyperparameters at which they do something."""

GIVEN: dict[str, dict[str, object]] = {
    "kl-cov": {"kl_cov_ratio": 0.3},
    "clip-cov": {"clip_cov_ratio": 0.3, "clip_cov_lb": 0.05, "clip_cov_seed": 7},
    "deepseek-v3.2": {"off_policy_mask_threshold": 0.1},
    "gfpo": {"gfpo_keep": 2},
    "gfpo-efficiency": {"gfpo_keep": 2},
}

SHIFTED = ("psr", "nsr", "w-reinforce")
"""Rows that tell rewards above 0 from others; the cases have hardly any others."""


class UndecidedError(Exception):
    """What decides is equal on both sides, but for rounding: take another case."""


def row(name: str) -> Callable[[Formula], Formula]:
    """Enters a formula under the name of its row."""

    def entered(formula: Formula) -> Formula:
        ROWS[name] = formula
        return formula

    return entered


@row("grpo")
def grpo(case: Case) -> mpf:
    policy = response_mean(case, clipped(case, same(case, standardised(case))))
    return policy - mpf(0.04) * response_mean(case, penalty(case, k3))


@row("dr")
def dr(case: Case) -> mpf:
    return token_sum(case, clipped(case, same(case, centered(case))))


@row("grpo-unbiased-kl")
def grpo_unbiased_kl(case: Case) -> mpf:
    policy = response_mean(case, clipped(case, same(case, standardised(case))))
    weighed = penalty(case, lambda t: exp(d(t)) * k3(t))
    return policy - mpf(0.01) * response_mean(case, weighed)


@row("grpo-k1")
def grpo_k1(case: Case) -> mpf:
    policy = response_mean(case, clipped(case, same(case, population_standardised(case))))
    return policy - mpf(0.04) * response_mean(case, penalty(case, lambda t: t.new - t.ref))


@row("dapo")
def dapo(case: Case) -> mpf:
    return token_mean(case, clipped(case, same(case, standardised(case)), 0.2, 0.28))


@row("dapo-prompt")
def dapo_prompt(case: Case) -> mpf:
    return prompt_mean(case, clipped(case, same(case, standardised(case)), 0.2, 0.28))


@row("bnpo")
def bnpo(case: Case) -> mpf:
    policy = token_mean(case, clipped(case, same(case, standardised(case))))
    return policy - mpf(0.04) * token_mean(case, penalty(case, k3))


def _sequence(case: Case, low: float, high: float) -> Values:
    a = same(case, standardised(case))
    return each(case, a, lambda _, x, r: ppo(geometric(r), x, low, high))


@row("gspo")
def gspo(case: Case) -> mpf:
    return response_mean(case, _sequence(case, 3e-4, 4e-4))


@row("luspo")
def luspo(case: Case) -> mpf:
    return token_sum(case, _sequence(case, 2e-3, 2.5e-3))


@row("gspo-token")
def gspo_token(case: Case) -> mpf:
    def value(t: Token, a: mpf, r: Response) -> mpf:
        return ppo(geometric(r, d0) * exp(t.new) / exp(t.frozen), a, 3e-4, 4e-4)

    return response_mean(case, each(case, same(case, standardised(case)), value))


@row("cispo")
def cispo(case: Case) -> mpf:
    def value(t: Token, a: mpf, _: Response) -> mpf:
        return clamp(exp(d0(t)), 0, 5) * a * t.new

    return token_mean(case, each(case, same(case, standardised(case)), value))


@row("scale-rl")
def scale_rl(case: Case) -> mpf:
    """Its Â is divided by the std over the batch of Â, not of the rewards."""
    offsets = centered(case)
    sigma = std(offsets, 1)
    normalised = [x / (sigma + EPS) if x else x for x in offsets]

    def value(t: Token, a: mpf, _: Response) -> mpf:
        return clamp(exp(t.frozen - t.rollout), 0, 5) * a * t.new

    return prompt_mean(case, each(case, same(case, normalised), value))


@row("gmpo")
def gmpo(case: Case) -> mpf:
    total = mpf(0)
    for r, a in zip(case, standardised(case), strict=True):
        if r.tokens:
            bound = mpf(0.4)
            ds = [min(d(t), bound) if a > 0 else max(d(t), -bound) for t in r.tokens]
            total += a * exp(sum(ds, mpf(0)) / len(ds))
    return total / len(case)


@row("sapo")
def sapo(case: Case) -> mpf:
    def value(t: Token, a: mpf, _: Response) -> mpf:
        tau = mpf(1.0) if a > 0 else mpf(1.05)
        return 4 / tau / (1 + exp(-tau * (exp(d(t)) - 1))) * a

    return response_mean(case, each(case, same(case, standardised(case)), value))


@row("vespo")
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


@row("dppo-tv")
def dppo_tv(case: Case) -> mpf:
    return _dppo(case, lambda p, q: abs(p - q), 0.15)


@row("dppo-kl")
def dppo_kl(case: Case) -> mpf:
    return _dppo(case, lambda p, q: q * log(q / p) + (1 - q) * log((1 - q) / (1 - p)), 0.05)


@row("dro")
def dro(case: Case) -> mpf:
    values = each(
        case, same(case, centered(case)), lambda t, a, _: a * t.new - mpf(0.05) / 2 * d(t) ** 2
    )
    return token_mean(case, values)


@row("topr")
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


@row("kl-cov")
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


@row("clip-cov")
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


@row("two-sided")
def two_sided(case: Case) -> mpf:
    def value(t: Token, a: mpf, _: Response) -> mpf:
        ratio = exp(d(t))
        return min(min(ratio, mpf(4)) * a, clamp(ratio, 1 - mpf(0.2), 1 + mpf(0.2)) * a)

    policy = token_mean(case, each(case, same(case, standardised(case)), value))
    return policy - mpf(0.001) * token_mean(case, penalty(case, k3))


@row("dual-clip")
def dual_clip(case: Case) -> mpf:
    def value(t: Token, a: mpf, _: Response) -> mpf:
        base = ppo(exp(d(t)), a)
        return max(base, 3 * a) if a < 0 else base

    return token_mean(case, each(case, same(case, standardised(case)), value))


@row("fipo")
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


@row("real")
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


@row("lite-ppo")
def lite_ppo(case: Case) -> mpf:
    return token_mean(case, clipped(case, same(case, batch_scaled(case))))


@row("rloo")
def rloo(case: Case) -> mpf:
    return token_sum(case, reinforced(case, leave_one_out(case, k1_reward(case, 0.03))))


@row("reinforce++")
def reinforce_plus_plus(case: Case) -> mpf:
    return token_mean(case, clipped(case, whitened_tokens(returns(case, 0.01))))


@row("reinforce++-baseline")
def reinforce_plus_plus_baseline(case: Case) -> mpf:
    policy = token_mean(case, clipped(case, whitened_tokens(same(case, centered(case)))))
    return policy - mpf(0.01) * token_mean(case, penalty(case, lambda t: (t.new - t.ref) ** 2 / 2))


@row("opo")
def opo(case: Case) -> mpf:
    return token_sum(case, reinforced(case, length_weighted(case)))


@row("gpg")
def gpg(case: Case) -> mpf:
    return token_mean(case, reinforced(case, live(case)))


@row("pass-at-k")
def pass_at_k(case: Case) -> mpf:
    return response_mean(case, clipped(case, same(case, lead(case))))


@row("max-rl")
def max_rl(case: Case) -> mpf:
    return token_sum(case, reinforced(case, over_mean(case)))


@row("gdpo")
def gdpo(case: Case) -> mpf:
    return response_mean(case, clipped(case, same(case, decoupled(case))))


def _weighed(case: Case, weight: Callable[[mpf], mpf]) -> mpf:
    def value(t: Token, a: mpf, _: Response) -> mpf:
        return weight(exp(t.old - t.rollout)) * ppo(exp(d(t)), a)

    return token_mean(case, each(case, same(case, standardised(case)), value))


@row("tis")
def tis(case: Case) -> mpf:
    return _weighed(case, lambda w: min(w, mpf(2)))


@row("icepop")
def icepop(case: Case) -> mpf:
    return _weighed(case, lambda w: w if mpf(0.5) <= w <= 5 else mpf(0))


@row("deepseek-v3.2")
def deepseek(case: Case, threshold: float = 0.1) -> mpf:
    def value(t: Token, a: mpf, r: Response) -> mpf:
        behind = sum((x.rollout - x.frozen for x in r.tokens), mpf(0)) / len(r.tokens)
        return mpf(0) if a < 0 and behind > mpf(threshold) else ppo(exp(d(t)), a)

    policy = response_mean(case, each(case, same(case, centered(case)), value))
    weighed = penalty(case, lambda t: exp(d(t)) * k3(t))
    return policy - mpf(0.01) * response_mean(case, weighed)


@row("ce-gppo")
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


@row("dcpo")
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


@row("bapo")
def bapo(case: Case) -> mpf:
    advantages = standardised(case)
    flat = [(exp(d0(t)), a) for r, a in zip(case, advantages, strict=True) for t in r.tokens]

    def short(low: float, high: float) -> bool:
        positive = sum((min(r, mpf(high)) * a for r, a in flat if a > 0), mpf(0))
        negative = sum((max(r, mpf(low)) * -a for r, a in flat if a < 0), mpf(0))
        if flat and abs(positive - negative) < 1e-13 * (positive + negative):
            raise UndecidedError
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


@row("minirl")
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


@row("psr")
def psr(case: Case) -> mpf:
    return _signed(case, 1.0, 0.0)


@row("nsr")
def nsr(case: Case) -> mpf:
    return _signed(case, 0.0, 1.0)


@row("w-reinforce")
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


@row("gfpo")
def gfpo(case: Case) -> mpf:
    return _filtered(case, [-mpf(len(r.tokens)) for r in case])


@row("gfpo-efficiency")
def gfpo_efficiency(case: Case) -> mpf:
    pairs = zip(scores(case), case, strict=True)
    return _filtered(case, [mpf(float(s) / max(len(r.tokens), 1)) for s, r in pairs])
