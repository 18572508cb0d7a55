"""The pieces of the papers' formulas, in plain loops over 50-digit numbers.

A formula takes a case and gives J. ``t.new`` is what the gradient sees, ``t.frozen`` is the same
number where the paper (or its code) stops the gradient.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from mpmath import exp, log, mpf, sqrt
from vectors.oracle.batch import Batch as Case
from vectors.oracle.batch import Response, Token, Values, clamp, mean, std
from vectors.oracle.objective import d, d0, loss

EPS = mpf(1e-8)  # the double, as the table has it


# ---- rewards and advantages ------------------------------------------------------------------


def scores(case: Case) -> list[mpf]:
    return [sum(r.rewards) for r in case]


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


def live(case: Case) -> list[mpf]:
    rewards = scores(case)
    alive = sum(len({rewards[j] for j in peers(case, i)}) > 1 for i in range(len(case)))
    return [mpf(len(case)) / alive * x if alive else x for x in centered(case)]


def whitened_tokens(values: Values) -> Values:
    flat = [x for row in values for x in row]
    m, sigma = mean(flat), std(flat, 1)
    return [[(x - m) / (sigma + EPS) for x in row] for row in values]


def same(case: Case, advantages: list[mpf]) -> Values:
    return [[a] * len(r.tokens) for a, r in zip(advantages, case, strict=True)]


def returns(case: Case, beta: float) -> Values:
    out = []
    for r, score in zip(case, scores(case), strict=True):
        row = []
        for t in range(len(r.tokens)):
            ahead = sum((x.old - x.ref for x in r.tokens[t:]), mpf(0))
            row.append(score - mpf(beta) * ahead)
        out.append(row)
    return out


def ppo(ratio: mpf, a: mpf) -> mpf:
    return min(ratio * a, clamp(ratio, 1 - mpf(0.2), 1 + mpf(0.2)) * a)


# ---- aggregation -------------------------------------------------------------------------------


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


def clipped(case: Case, a: Values) -> Values:
    return each(case, a, lambda t, x, _: ppo(exp(d(t)), x))


def reinforced(case: Case, a: list[mpf]) -> Values:
    return each(case, same(case, a), lambda t, x, _: x * t.new)


# ---- every row of a paper: J of a case -----------------------------------------------------------


Formula = Callable[[Case], mpf]

CHOICES = json.loads(Path(__file__).with_name("choices.json").read_bytes())
"""Row → the choices at its stages and their hyperparameters, as its paper has them."""

ROWS: dict[str, Formula] = {
    name: lambda case, how=how: -loss(case, how) for name, how in CHOICES.items()
}
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


@row("scale-rl")
def scale_rl(case: Case) -> mpf:
    """Its Â is divided by the std over the batch of Â, not of the rewards."""
    offsets = centered(case)
    sigma = std(offsets, 1)
    normalised = [x / (sigma + EPS) if x else x for x in offsets]

    def value(t: Token, a: mpf, _: Response) -> mpf:
        return clamp(exp(t.frozen - t.rollout), 0, 5) * a * t.new

    return prompt_mean(case, each(case, same(case, normalised), value))


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


@row("reinforce++")
def reinforce_plus_plus(case: Case) -> mpf:
    return token_mean(case, clipped(case, whitened_tokens(returns(case, 0.01))))


@row("reinforce++-baseline")
def reinforce_plus_plus_baseline(case: Case) -> mpf:
    policy = token_mean(case, clipped(case, whitened_tokens(same(case, centered(case)))))
    return policy - mpf(0.01) * token_mean(case, penalty(case, lambda t: (t.new - t.ref) ** 2 / 2))


@row("gpg")
def gpg(case: Case) -> mpf:
    return token_mean(case, reinforced(case, live(case)))


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


def _filtered(case: Case, ranks: list[mpf]) -> mpf:
    rewards, advantages = scores(case), []
    for i in range(len(case)):
        least = sorted((ranks[j] for j in peers(case, i)), reverse=True)[:2][-1]
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


@row("mt-grpo")
def mt_grpo(case: Case) -> mpf:
    """An advantage of the trajectory's last reward, and one of each turn's among its number."""
    values = clipped(case, _with_turns(case, mpf(0), mpf(1e-4), by_state=False))
    return token_mean(case, values) - mpf(0.01) * token_mean(case, penalty(case, k3))


@row("gigpo")
def gigpo(case: Case) -> mpf:
    """An advantage of the trajectory's last reward, and one of each return among its state's."""
    values = clipped(case, _with_turns(case, mpf(0.95), mpf(1e-6), by_state=True))
    kl = penalty(case, k3)
    turns = [mpf(0)] * sum(not r.turns for r in case)  # without tokens: a turn that has none
    for r, own, k in zip(case, values, kl, strict=True):
        at = 0
        for size, _ in r.turns:
            turns.append(mean(own[at : at + size]) - mpf(0.01) * mean(k[at : at + size]))
            at += size
    return mean(turns)


def _with_turns(case: Case, gamma: mpf, eps: mpf, *, by_state: bool) -> Values:
    members: dict[int, list[int]] = {}
    for i, r in enumerate(case):
        members.setdefault(r.trajectory, []).append(i)
    outcomes: dict[int, dict[int, mpf]] = {}
    turns: dict[tuple[int, int], list[tuple[int, int, mpf]]] = {}
    for trajectory, rows in members.items():
        group = case[rows[-1]].group
        outcomes.setdefault(group, {})[trajectory] = sum(case[rows[-1]].rewards)
        own = [(i, at, reward) for i in rows for at, (_, reward) in enumerate(case[i].turns)]
        for number, (i, at, _) in enumerate(own):
            to_come = sum(gamma**k * reward for k, (*_, reward) in enumerate(own[number:]))
            peers = case[i].states[at] if by_state else number
            turns.setdefault((group, peers), []).append((i, at, to_come))

    def scaled(x: mpf, among: list[mpf]) -> mpf:
        return (x - mean(among)) / (std(among, 1) + eps) if len(set(among)) > 1 else mpf(0)

    credit: dict[tuple[int, int], mpf] = {}
    for peers_of in turns.values():
        rewards = [reward for _, _, reward in peers_of]
        credit |= {(i, at): scaled(reward, rewards) for i, at, reward in peers_of}
    advantages: Values = []
    for i, r in enumerate(case):
        among = outcomes[r.group]
        outcome = scaled(among[r.trajectory], [*among.values()])
        advantages.append(
            [outcome + credit[i, at] for at, (size, _) in enumerate(r.turns) for _ in range(size)]
        )
    return advantages
