"""The papers on advantages and on corrections: J of a case, row by row."""

from __future__ import annotations

from collections.abc import Callable

from mpmath import exp, mpf

from exactness.cases import Case, Response, Token
from exactness.pieces import (
    batch_scaled,
    centered,
    clipped,
    d,
    decoupled,
    each,
    k1_reward,
    k3,
    lead,
    leave_one_out,
    length_weighted,
    live,
    over_mean,
    penalty,
    ppo,
    reinforced,
    response_mean,
    returns,
    same,
    standardised,
    token_mean,
    token_sum,
    whitened_tokens,
)


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
