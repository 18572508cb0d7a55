"""The policy term of each token: the ratio, and how it is tamed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mpmath import exp, log, mpf

from vectors.oracle.batch import Batch, Response, Token, Values, clamp, mean

How = Mapping[str, Any]


def d(t: Token) -> mpf:
    return t.new - t.old


def d0(t: Token) -> mpf:
    return t.frozen - t.old


def ratio(t: Token, r: Response, level: str) -> mpf:
    if level == "token":
        return exp(d(t))
    if level == "product":
        return exp(sum(d(x) for x in r.tokens))
    if level == "sequence":
        return exp(mean([d(x) for x in r.tokens]))
    return exp(mean([d0(x) for x in r.tokens])) * exp(t.new - t.frozen)  # sequence-token


def surrogates(batch: Batch, advantages: list[mpf], choice: str, level: str, how: How) -> Values:
    if choice in WHOLE:
        return [WHOLE[choice](r, a, how) for r, a in zip(batch, advantages, strict=True)]
    if choice in ("kl-cov", "clip-cov"):
        return covariant(batch, advantages, choice, how)
    term = SURROGATES[choice]
    bound = exp(mpf(20)) if how.get("ratio-clamp") == "20" else None
    return [
        [term(clamp(ratio(t, r, level), None, bound), a, t, how) for t in r.tokens]
        for r, a in zip(batch, advantages, strict=True)
    ]


def clip(rho: mpf, a: mpf, _: Token, how: How) -> mpf:
    """min(min(ρ, δ)·A, clip(ρ)·A), and with dual clip not below c·A where A < 0."""
    bounded = clamp(rho, 1 - mpf(how["epsilon_low"]), 1 + mpf(how["epsilon_high"])) * a
    value = min(clamp(rho, None, how.get("delta")) * a, bounded)
    return max(value, mpf(how["dual_clip"]) * a) if a < 0 and "dual_clip" in how else value


def unclipped(rho: mpf, a: mpf, _: Token, how: How) -> mpf:
    return rho * a


def reinforce(_: mpf, a: mpf, t: Token, how: How) -> mpf:
    return a * t.new


def cispo(rho: mpf, a: mpf, t: Token, how: How) -> mpf:
    weight = clamp(exp(d0(t)), 1 - mpf(how["epsilon_low"]), 1 + mpf(how["epsilon_high"]))
    return weight * a * t.new


def sapo(rho: mpf, a: mpf, _: Token, how: How) -> mpf:
    tau = mpf(how["tau_pos"] if a > 0 else how["tau_neg"])
    return 4 / tau / (1 + exp(-tau * (rho - 1))) * a


def gmpo(r: Response, a: mpf, how: How) -> list[mpf]:
    """The geometric mean of the token ratios, each clipped in log space, for every token."""
    low, high = -mpf(how["epsilon_low"]), mpf(how["epsilon_high"])
    clipped = [min(d(t), high) if a > 0 else max(d(t), low) for t in r.tokens]
    return [a * exp(mean(clipped))] * len(clipped) if clipped else []


def vespo(r: Response, a: mpf, how: How) -> list[mpf]:
    """φ(W)·A·log π, φ(W) = Wᵏ·exp(λ·(1 − W)) of the response's ratio W, held constant."""
    side = "pos" if a >= 0 else "neg"
    k, rate = mpf(how[f"vespo_k_{side}"]), mpf(how[f"vespo_lambda_{side}"])
    whole = exp(sum((d0(t) for t in r.tokens), mpf(0)))
    return [whole**k * exp(rate * (1 - whole)) * a * t.new for t in r.tokens]


def _away(t: Token, a: mpf, divergence: mpf, how: How) -> bool:
    """Whether the probability has moved where the advantage drives it, further than it may."""
    up = exp(t.frozen) > exp(t.old)
    bound = mpf(how["divergence_high" if a > 0 else "divergence_low"])
    return up == (a > 0) and divergence > bound


def dppo_tv(rho: mpf, a: mpf, t: Token, how: How) -> mpf:
    return mpf(0) if _away(t, a, abs(exp(t.frozen) - exp(t.old)), how) else rho * a


def dppo_kl(rho: mpf, a: mpf, t: Token, how: How) -> mpf:
    p, q = exp(t.old), exp(t.frozen)
    divergence = p * log(p / q) + (1 - p) * log((1 - p) / (1 - q))
    return mpf(0) if _away(t, a, divergence, how) else rho * a


def covariant(batch: Batch, advantages: list[mpf], choice: str, how: How) -> Values:
    """Each token's (A − Ā)·(log π − mean) over all tokens; those where it is great are held."""
    flat = [(a, t) for r, a in zip(batch, advantages, strict=True) for t in r.tokens]
    middle, height = mean([a for a, _ in flat]), mean([t.frozen for _, t in flat])
    cov = [(a - middle) * (t.frozen - height) for a, t in flat]
    if choice == "kl-cov":
        count = max(1, int(len(flat) * how["kl_cov_ratio"]))
        held = set(sorted(range(len(flat)), key=lambda i: -cov[i])[:count])
    else:
        low, high = mpf(how["clip_cov_lb"]), mpf(how["clip_cov_ub"])
        held = {i for i, (a, t) in enumerate(flat) if low < cov[i] < high and not _cut(t, a, how)}
        assert len(held) <= max(int(how["clip_cov_ratio"] * len(flat)), 1)  # else at random
    values = iter(_held(t, a, i in held, choice, how) for i, (a, t) in enumerate(flat))
    return [[next(values) for _ in r.tokens] for r in batch]


def _cut(t: Token, a: mpf, how: How) -> bool:
    rho = exp(d0(t))
    return clip(rho, a, t, how) < rho * a


def _held(t: Token, a: mpf, held: bool, choice: str, how: How) -> mpf:
    rho = exp(d(t))
    if choice == "kl-cov":
        return rho * a - (mpf(how["ppo_kl_coef"]) * abs(d(t)) if held else 0)
    return mpf(0) if held else clip(rho, a, t, how)


SURROGATES: dict[str, Callable[[mpf, mpf, Token, How], mpf]] = {
    "clip": clip,
    "unclipped": unclipped,
    "reinforce": reinforce,
    "cispo": cispo,
    "sapo": sapo,
    "dppo-tv": dppo_tv,
    "dppo-kl": dppo_kl,
}


WHOLE = {"gmpo": gmpo, "vespo": vespo}
"""Those of a response at once."""


def corrections(batch: Batch, advantages: list[mpf], choice: str, how: How) -> Values:
    """The constant that multiplies each surrogate: π_old against the engine that sampled."""
    found = [
        [_correction(t, r, a, choice, how) for t in r.tokens]
        for r, a in zip(batch, advantages, strict=True)
    ]
    return _to_mean_one(found, choice) if how.get("is_batch_normalize") else found


def _to_mean_one(found: Values, choice: str) -> Values:
    """Divided by their mean over the tokens, or over the responses where each has one weight."""
    whole = choice.startswith("sequence")
    middle = mean([c for row in found if row for c in (row[:1] if whole else row)])
    return [[c / middle for c in row] for row in found]


def _correction(t: Token, r: Response, a: mpf, choice: str, how: How) -> mpf:
    if choice == "none":
        return mpf(1)
    if choice == "off-policy-mask":
        behind = mean([x.rollout - x.frozen for x in r.tokens])
        return mpf(a >= 0 or behind <= mpf(how["off_policy_mask_threshold"]))
    level, _, kind = choice.rpartition("-")
    logs = [x.old - x.rollout for x in r.tokens]
    own = exp(t.old - t.rollout)
    whole = {"token": own, "sequence": exp(sum(logs)), "geometric": exp(mean(logs))}[level]
    low, high = how.get("is_low"), how.get("is_high")
    if kind == "truncate":
        return clamp(whole, low, high)
    inside = clamp(whole, low, high) == whole
    return (own if level == "geometric" else whole) if inside else mpf(0)
