"""The policy term of each token: the ratio, and how it is tamed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mpmath import exp, mpf

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
    if choice == "gmpo":
        return [gmpo(r, a, how) for r, a in zip(batch, advantages, strict=True)]
    term = SURROGATES[choice]
    return [
        [term(ratio(t, r, level), a, t, how) for t in r.tokens]
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


SURROGATES: dict[str, Callable[[mpf, mpf, Token, How], mpf]] = {
    "clip": clip,
    "unclipped": unclipped,
    "reinforce": reinforce,
    "cispo": cispo,
    "sapo": sapo,
}


def corrections(batch: Batch, advantages: list[mpf], choice: str, how: How) -> Values:
    """The constant that multiplies each surrogate: π_old against the engine that sampled."""
    return [
        [_correction(t, r, a, choice, how) for t in r.tokens]
        for r, a in zip(batch, advantages, strict=True)
    ]


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
