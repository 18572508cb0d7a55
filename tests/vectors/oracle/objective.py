"""The loss of a batch, its slope at every token, and what a trainer logs beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mpmath import exp, mpf

from vectors.oracle import batch as batches
from vectors.oracle.advantages import advantages
from vectors.oracle.batch import Batch, Response, Token, mean
from vectors.oracle.policy import corrections, d, ratio, surrogates
from vectors.oracle.terms import estimate, number, penalties, weights

STEP = mpf(10) ** -20
"""The error of a central difference is its square, far below a double's precision."""

How = Mapping[str, Any]


def loss(batch: Batch, how: How) -> mpf:
    """−Σ w·c·s + β·Σ w·k over the tokens that count.

    ``how`` holds the choices by stage, the hyperparameters and the conventions.
    """
    given = advantages(batch, how.get("advantage", "given"), how)
    level = how.get("ratio", "token")
    policy = surrogates(batch, given, how["surrogate"], level, how)
    weighed = corrections(batch, given, how.get("correction", "none"), how)
    kl = how.get("kl", "none")
    beta = mpf(0) if kl in ("none", "k1-in-reward") else mpf(how["beta"])
    penalty = penalties(batch, kl, level, how) if beta else [[mpf(0)] * len(p) for p in policy]
    share = weights(_counted(batch, weighed, how), how["aggregate"], how)
    on_kl = how.get("correction-on-kl") == "too"
    total = -mpf(how.get("entropy_coef", 0)) * entropy(batch, how)
    for w, s, c, k in zip(share, policy, weighed, penalty, strict=True):
        for value, factor, divergence in zip(s, c, k, strict=True):
            total += w * (beta * divergence * (factor if on_kl else 1) - factor * value)
    return total


def entropy(batch: Batch, how: How) -> mpf:
    """Σ w·H, by the policy's weights or as the mean over all tokens."""
    tokens = how.get("entropy-aggregate") == "over the tokens"
    share = weights(batch, "token-mean" if tokens else how["aggregate"], how)
    sums = [sum((t.entropy for t in r.tokens), mpf(0)) for r in batch]
    return sum((w * h for w, h in zip(share, sums, strict=True)), mpf(0))


def _counted(batch: Batch, weighed: list[list[mpf]], how: How) -> Batch:
    """What the denominators count: all tokens, or those that the correction left something of."""
    if how.get("rejected-tokens") != "left out":
        return batch
    return [
        Response(
            [t for t, c in zip(r.tokens, row, strict=True) if c], r.rewards, r.advantage, r.group
        )
        for r, row in zip(batch, weighed, strict=True)
    ]


def expected(columns: Mapping[str, Any], how: How, wanted: tuple[str, ...]) -> dict[str, Any]:
    """What a vector expects: of ``loss``, ``gradient``, ``advantages``, metrics, those wanted."""
    batch = batches.of(columns)
    found: dict[str, Any] = {}
    for name in wanted:
        if name == "loss":
            found[name] = number(loss(batch, how))
        elif name == "gradient":
            found[name] = gradient(batch, how, [len(row) for row in columns["mask"]])
        elif name == "advantages":
            given = advantages(batch, how["advantage"], how)
            found[name] = [None if a is None else number(a) for a in given]
        else:
            found.setdefault("metrics", {})[name] = number(METRICS[name](batch, how))
    return found


def gradient(batch: Batch, how: How, lengths: list[int]) -> list[list[float | str]]:
    """∂loss/∂log π_θ, 0 at the tokens that the mask removes."""
    rows: list[list[float | str]] = [[0.0] * n for n in lengths]
    for i, response in enumerate(batch):
        for t, token in enumerate(response.tokens):
            above, below = (loss(batches.moved(batch, i, t, s), how) for s in (STEP, -STEP))
            slope = (above - below) / (2 * STEP)
            rows[i][token.position] = number(slope)
    return rows


def _tokens(batch: Batch, value: Callable[[Token, Response, mpf], mpf], how: How) -> mpf:
    given = advantages(batch, how.get("advantage", "given"), how)
    per_response = [[value(t, r, a) for t in r.tokens] for r, a in zip(batch, given, strict=True)]
    if how.get("clip-fraction") == "of the responses":
        return mean([row[0] for row in per_response if row])
    return mean([x for row in per_response for x in row])


def _low(t: Token, r: Response, a: mpf, how: How) -> mpf:
    return mpf(a < 0 and ratio(t, r, how.get("ratio", "token")) < 1 - mpf(how["epsilon_low"]))


def _high(t: Token, r: Response, a: mpf, how: How) -> mpf:
    return mpf(a > 0 and ratio(t, r, how.get("ratio", "token")) > 1 + mpf(how["epsilon_high"]))


def _dual(t: Token, r: Response, a: mpf, how: How) -> mpf:
    return mpf(a < 0 and ratio(t, r, how.get("ratio", "token")) > mpf(how["dual_clip"]))


def _dead(batch: Batch, how: How) -> mpf:
    """The share of prompts whose rewards are all equal."""
    rewards: dict[int, set[mpf]] = {}
    for r in batch:
        rewards.setdefault(r.group, set()).add(sum(r.rewards, mpf(0)))
    dead = [mpf(len(values) == 1) for values in rewards.values()]
    if how.get("dead-groups") == "of the responses":
        return mean([mpf(len(rewards[r.group]) == 1) for r in batch])
    return mean(dead)


METRICS: dict[str, Callable[[Batch, How], mpf]] = {
    "kl": lambda b, how: _tokens(b, lambda t, *_: estimate(t, how["kl"], how), how),
    "clip_fraction_low": lambda b, how: _tokens(b, lambda *x: _low(*x, how), how),
    "clip_fraction_high": lambda b, how: _tokens(b, lambda *x: _high(*x, how), how),
    "clip_fraction": lambda b, how: _tokens(b, lambda *x: _low(*x, how) + _high(*x, how), how),
    "dual_clip_fraction": lambda b, how: _tokens(b, lambda *x: _dual(*x, how), how),
    "ratio_mean": lambda b, how: _tokens(
        b, lambda t, r, _: ratio(t, r, how.get("ratio", "token")), how
    ),
    "ppo_kl": lambda b, how: _tokens(b, lambda t, *_: -d(t), how),
    "rollout_kl": lambda b, how: _tokens(b, lambda t, *_: t.rollout - t.old, how),
    "rollout_k3": lambda b, how: _tokens(
        b, lambda t, *_: exp(t.old - t.rollout) - (t.old - t.rollout) - 1, how
    ),
    "dead_groups": _dead,
}
"""By the names that a vector has for them."""
