"""The papers' formulas in plain loops over 50-digit numbers, without the code under test.

A formula takes a case and gives J. ``t.new`` is what the gradient sees, ``t.frozen`` is the same
number where the paper (or its code) stops the gradient.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mpmath import exp, log, mp, mpf, sqrt

from exactness.cases import Case, Response, Token

mp.dps = 50

EPS = mpf(1e-8)  # the double, as the table has it

Values = list[list[mpf]]
"""One number per response and token."""

# ---- rewards and advantages ------------------------------------------------------------------


def scores(case: Case) -> list[mpf]:
    return [sum(r.rewards) for r in case]


def mean(xs: list[mpf]) -> mpf:
    return sum(xs) / len(xs)


def std(xs: list[mpf], ddof: int) -> mpf:
    m = mean(xs)
    return sqrt(sum((x - m) ** 2 for x in xs) / (len(xs) - ddof))


def peers(case: Case, i: int) -> list[int]:
    return [j for j in range(len(case)) if case[j].group == case[i].group]


def over_group(case: Case, xs: list[mpf], formula: Callable[[mpf, list[mpf]], mpf]) -> list[mpf]:
    """A formula of the own number and the group's; 0 where all of the group are equal."""
    out = []
    for i in range(len(case)):
        group = [xs[j] for j in peers(case, i)]
        out.append(mpf(0) if len(set(group)) == 1 else formula(xs[i], group))
    return out


def centered(case: Case) -> list[mpf]:
    return over_group(case, scores(case), lambda r, g: r - mean(g))


def standardised(case: Case, xs: list[mpf] | None = None) -> list[mpf]:
    xs = scores(case) if xs is None else xs
    return over_group(case, xs, lambda r, g: (r - mean(g)) / (std(g, 1) + EPS))


def population_standardised(case: Case) -> list[mpf]:
    return over_group(case, scores(case), lambda r, g: (r - mean(g)) / std(g, 0))


def leave_one_out(case: Case, rewards: list[mpf]) -> list[mpf]:
    return over_group(case, rewards, lambda r, g: r - (sum(g) - r) / (len(g) - 1))


def batch_scaled(case: Case) -> list[mpf]:
    sigma = std(scores(case), 1)
    return [x / (sigma + EPS) if x else x for x in centered(case)]


def length_weighted(case: Case) -> list[mpf]:
    rewards = scores(case)
    out = []
    for i in range(len(case)):
        group = peers(case, i)
        tokens = sum(len(case[j].tokens) for j in group)
        weighed = sum(len(case[j].tokens) * rewards[j] for j in group)
        out.append(rewards[i] - weighed / tokens if tokens else mpf(0))
    return out


def live(case: Case) -> list[mpf]:
    rewards = scores(case)
    alive = sum(len({rewards[j] for j in peers(case, i)}) > 1 for i in range(len(case)))
    return [mpf(len(case)) / alive * x if alive else x for x in centered(case)]


def lead(case: Case) -> list[mpf]:
    rewards = scores(case)
    out = []
    for i in range(len(case)):
        others = [rewards[j] for j in peers(case, i) if j != i]
        whole = max([*others, rewards[i]])
        out.append(whole - max(others) if others else mpf(0))
    return out


def over_mean(case: Case) -> list[mpf]:
    rewards = scores(case)
    return over_group(case, rewards, lambda r, g: r / mean(g) - 1 if mean(g) > 0 else mpf(0))


def decoupled(case: Case) -> list[mpf]:
    summed = [mpf(0)] * len(case)
    for k in range(len(case[0].rewards)):
        column = standardised(case, [r.rewards[k] for r in case])
        summed = [a + b for a, b in zip(summed, column, strict=True)]
    m, sigma = mean(summed), std(summed, 1)
    return [(x - m) / (sigma + EPS) for x in summed]


def whitened_tokens(values: Values) -> Values:
    flat = [x for row in values for x in row]
    m, sigma = mean(flat), std(flat, 1)
    return [[(x - m) / (sigma + EPS) for x in row] for row in values]


def same(case: Case, advantages: list[mpf]) -> Values:
    return [[a] * len(r.tokens) for a, r in zip(advantages, case, strict=True)]


def k1_reward(case: Case, beta: float) -> list[mpf]:
    """Rewards less β·Σ(log π_old − log π_ref)."""
    kl = [sum((t.old - t.ref for t in r.tokens), mpf(0)) for r in case]
    return [s - mpf(beta) * k for s, k in zip(scores(case), kl, strict=True)]


def returns(case: Case, beta: float) -> Values:
    out = []
    for r, score in zip(case, scores(case), strict=True):
        row = []
        for t in range(len(r.tokens)):
            ahead = sum((x.old - x.ref for x in r.tokens[t:]), mpf(0))
            row.append(score - mpf(beta) * ahead)
        out.append(row)
    return out


# ---- ratios ------------------------------------------------------------------------------------


def d(t: Token) -> mpf:
    return t.new - t.old


def d0(t: Token) -> mpf:
    return t.frozen - t.old


def geometric(r: Response, log_ratio: Callable[[Token], mpf] = d) -> mpf:
    return exp(sum((log_ratio(t) for t in r.tokens), mpf(0)) / len(r.tokens))


def clamp(x: mpf, low: object, high: object) -> mpf:
    return min(max(x, mpf(low)), mpf(high))


def ppo(ratio: mpf, a: mpf, low: float = 0.2, high: float = 0.2) -> mpf:
    return min(ratio * a, clamp(ratio, 1 - mpf(low), 1 + mpf(high)) * a)


# ---- aggregation -------------------------------------------------------------------------------


def response_mean(case: Case, values: Values) -> mpf:
    return sum((mean(row) for row in values if row), mpf(0)) / len(case)


def token_mean(case: Case, values: Values) -> mpf:
    del case
    flat = [x for row in values for x in row]
    return mean(flat) if flat else mpf(0)


def token_sum(case: Case, values: Values) -> mpf:
    return sum((sum(row, mpf(0)) for row in values), mpf(0)) / len(case)


def prompt_mean(case: Case, values: Values) -> mpf:
    total = mpf(0)
    groups = {r.group for r in case}
    for group in groups:
        rows = [row for r, row in zip(case, values, strict=True) if r.group == group]
        total += token_mean(case, rows)
    return total / len(groups)


def each(case: Case, advantages: Values, formula: Callable[[Token, mpf, Response], mpf]) -> Values:
    return [
        [formula(t, a, r) for t, a in zip(r.tokens, row, strict=True)]
        for r, row in zip(case, advantages, strict=True)
    ]


def penalty(case: Case, estimate: Callable[[Token], mpf]) -> Values:
    return [[estimate(t) for t in r.tokens] for r in case]


def k3(t: Token) -> mpf:
    return exp(t.ref - t.new) - (t.ref - t.new) - 1


def clipped(case: Case, a: Values, low: float = 0.2, high: float = 0.2) -> Values:
    return each(case, a, lambda t, x, _: ppo(exp(d(t)), x, low, high))


def reinforced(case: Case, a: list[mpf]) -> Values:
    return each(case, same(case, a), lambda t, x, _: x * t.new)


# ---- the rows ----------------------------------------------------------------------------------


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


def _cispo(case: Case, a: list[mpf]) -> Values:
    return each(case, same(case, a), lambda t, x, _: clamp(exp(d0(t)), 0, 5) * x * t.new)


def cispo(case: Case) -> mpf:
    return token_mean(case, _cispo(case, standardised(case)))


def scale_rl(case: Case) -> mpf:
    return prompt_mean(case, _cispo(case, batch_scaled(case)))


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
    """Two covariances on either side of the rank that counts differ by less than a double can say."""


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
    rows = []
    for r, a in zip(case, standardised(case), strict=True):
        row = []
        for at, t in enumerate(r.tokens):
            ahead = [mpf(0) if exp(d0(x)) > 10 else d0(x) for x in r.tokens[at:]]
            future = exp(sum((gamma**k * x for k, x in enumerate(ahead)), mpf(0)))
            weight = clamp(future, 1, 1 + mpf(0.2))
            if a < 0 and exp(d0(t)) > 4:
                weight = clamp(weight, 0.8, 1)
            ratio = exp(d(t))
            bounded = clamp(ratio, 1 - mpf(0.2), 1 + mpf(0.28))
            row.append(weight * min(min(ratio, mpf(10)) * a, bounded * a))
        rows.append(row)
    return token_mean(case, rows)


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


def lite_ppo(case: Case) -> mpf:
    return token_mean(case, clipped(case, same(case, batch_scaled(case))))


def rloo(case: Case) -> mpf:
    return token_sum(case, reinforced(case, leave_one_out(case, k1_reward(case, 0.03))))


def reinforce_plus_plus(case: Case) -> mpf:
    return token_mean(case, clipped(case, whitened_tokens(returns(case, 0.01))))


def reinforce_plus_plus_baseline(case: Case) -> mpf:
    policy = token_mean(case, clipped(case, whitened_tokens(same(case, centered(case)))))
    return policy - mpf(0.01) * token_mean(case, penalty(case, lambda t: (t.new - t.ref) ** 2 / 2))


def opo(case: Case) -> mpf:
    return token_sum(case, reinforced(case, length_weighted(case)))


def gpg(case: Case) -> mpf:
    return token_mean(case, reinforced(case, live(case)))


def pass_at_k(case: Case) -> mpf:
    return response_mean(case, clipped(case, same(case, lead(case))))


def max_rl(case: Case) -> mpf:
    return token_sum(case, reinforced(case, over_mean(case)))


def gdpo(case: Case) -> mpf:
    return response_mean(case, clipped(case, same(case, decoupled(case))))


def _weighed(case: Case, weight: Callable[[mpf], mpf]) -> mpf:
    def value(t: Token, a: mpf, _: Response) -> mpf:
        return weight(exp(t.old - t.rollout)) * ppo(exp(d(t)), a)

    return token_mean(case, each(case, same(case, standardised(case)), value))


def tis(case: Case) -> mpf:
    return _weighed(case, lambda w: min(w, mpf(2)))


def icepop(case: Case) -> mpf:
    return _weighed(case, lambda w: w if mpf(0.5) <= w <= 5 else mpf(0))


def deepseek(case: Case, threshold: float = 0.1) -> mpf:
    def value(t: Token, a: mpf, r: Response) -> mpf:
        behind = sum((x.rollout - x.frozen for x in r.tokens), mpf(0)) / len(r.tokens)
        return mpf(0) if a < 0 and behind > mpf(threshold) else ppo(exp(d(t)), a)

    policy = response_mean(case, each(case, same(case, centered(case)), value))
    weighed = penalty(case, lambda t: exp(d(t)) * k3(t))
    return policy - mpf(0.01) * response_mean(case, weighed)


ROWS: dict[str, Callable[[Case], mpf]] = {
    "grpo": grpo,
    "dr": dr,
    "grpo-unbiased-kl": grpo_unbiased_kl,
    "grpo-k1": grpo_k1,
    "dapo": dapo,
    "bnpo": bnpo,
    "gspo": gspo,
    "cispo": cispo,
    "dapo-prompt": dapo_prompt,
    "gspo-token": gspo_token,
    "luspo": luspo,
    "gmpo": gmpo,
    "sapo": sapo,
    "vespo": vespo,
    "dppo-tv": dppo_tv,
    "dppo-kl": dppo_kl,
    "dro": dro,
    "topr": topr,
    "kl-cov": kl_cov,
    "clip-cov": clip_cov,
    "two-sided": two_sided,
    "dual-clip": dual_clip,
    "fipo": fipo,
    "real": real,
    "lite-ppo": lite_ppo,
    "rloo": rloo,
    "reinforce++": reinforce_plus_plus,
    "reinforce++-baseline": reinforce_plus_plus_baseline,
    "opo": opo,
    "gpg": gpg,
    "pass-at-k": pass_at_k,
    "max-rl": max_rl,
    "gdpo": gdpo,
    "scale-rl": scale_rl,
    "tis": tis,
    "icepop": icepop,
    "deepseek-v3.2": deepseek,
}
"""Every row of a paper; those of ``GIVEN`` with hyperparameters at which they do something."""

GIVEN: dict[str, dict[str, object]] = {
    "kl-cov": {"kl_cov_ratio": 0.3},
    "clip-cov": {"clip_cov_ratio": 0.3, "clip_cov_lb": 0.05, "clip_cov_seed": 7},
    "deepseek-v3.2": {"off_policy_mask_threshold": 0.1},
}
