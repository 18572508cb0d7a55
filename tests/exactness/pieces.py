"""The pieces of the papers' formulas, in plain loops over 50-digit numbers.

A formula takes a case and gives J. ``t.new`` is what the gradient sees, ``t.frozen`` is the same
number where the paper (or its code) stops the gradient.
"""

from __future__ import annotations

from collections.abc import Callable

from mpmath import exp, mpf
from vectors.oracle.batch import Batch as Case
from vectors.oracle.batch import Response, Token, Values, clamp, mean, std
from vectors.oracle.policy import d

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


def ppo(ratio: mpf, a: mpf, low: float = 0.2, high: float = 0.2) -> mpf:
    return min(ratio * a, clamp(ratio, 1 - mpf(low), 1 + mpf(high)) * a)


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


def clipped(case: Case, a: Values, low: float = 0.2, high: float = 0.2) -> Values:
    return each(case, a, lambda t, x, _: ppo(exp(d(t)), x, low, high))


def reinforced(case: Case, a: list[mpf]) -> Values:
    return each(case, same(case, a), lambda t, x, _: x * t.new)
