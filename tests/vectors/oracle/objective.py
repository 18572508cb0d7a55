"""The policy term of each token: the ratio, and how it is tamed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mpmath import exp, inf, log, mpf, nan

from vectors.oracle.batch import (
    Batch,
    Response,
    Token,
    Values,
    advantages,
    clamp,
    mean,
    moved,
    read_batch,
)

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


# ---- the KL, and the weights ---------------------------------------------------------------------


def k1(x: mpf) -> mpf:
    return x


def k2(x: mpf) -> mpf:
    return x**2 / 2


def k3(x: mpf) -> mpf:
    return exp(-x) + x - 1


ESTIMATORS: dict[str, Callable[[mpf], mpf]] = {"k1": k1, "k2": k2, "k3": k3, "abs": abs}
"""Of x = log π_θ − log π_ref."""


def penalties(batch: Batch, choice: str, level: str, how: How) -> Values:
    return [[_weighed(t, r, choice, level, how) for t in r.tokens] for r in batch]


def _weighed(t: Token, r: Any, choice: str, level: str, how: How) -> mpf:
    value = estimate(t, choice, how)
    if how.get("kl_weight") != "ratio":
        return value
    at = "token" if how.get("kl-weight-level") == "the token's ratio" else level
    return ratio(t, r, at) * value


def estimate(t: Token, choice: str, how: How) -> mpf:
    """The estimate; ``k3+`` and the like have their value and the slope of k2."""
    inside, outside = how.get("kl_input_clamp"), how.get("kl_output_clamp")

    def of(log_prob: mpf, kind: str) -> mpf:
        x = log_prob - t.ref
        x = x if inside is None else clamp(x, -mpf(inside), inside)
        value = ESTIMATORS[kind](x)
        return value if outside is None else clamp(value, -mpf(outside), outside)

    if choice.endswith("+"):
        return of(t.frozen, choice[:-1]) + of(t.new, "k2") - of(t.frozen, "k2")
    return of(t.new, choice)


def weights(batch: Batch, choice: str, how: How) -> list[mpf]:
    """The weight of each token of a response, one number per response."""
    lengths = [mpf(len(r.tokens)) for r in batch]
    tokens = sum(lengths)
    if not tokens and choice != "sum":
        return [mpf(0)] * len(batch)
    counted = sum(1 for n in lengths if n or how.get("empty-response") != "left out")
    if choice == "response-mean":
        return [1 / (counted * n) if n else mpf(0) for n in lengths]
    if choice == "prompt-mean":
        return _per_prompt(batch, lengths)
    if choice == "bnpo":
        return _per_micro_batch(lengths, how.get("split") or [[[*range(len(batch))]]])
    scale = {
        "token-mean": tokens,
        "token-sum": counted,
        "token-sum-norm": counted * mpf(how.get("max_completion_length", 1)),
        "sum": mpf(1),
    }
    return [1 / mpf(scale[choice])] * len(batch)


def _per_micro_batch(lengths: list[mpf], split: Any) -> list[mpf]:
    """The mean over each micro-batch's tokens; micro-batches and ranks count alike."""
    parts = [part for rank in split for part in rank]
    tokens = {i: sum(lengths[j] for j in part) for part in parts for i in part}
    return [1 / (len(parts) * tokens[i]) if tokens[i] else mpf(0) for i in range(len(lengths))]


def _per_prompt(batch: Batch, lengths: list[mpf]) -> list[mpf]:
    groups = {r.group for r in batch}
    own = {g: sum(n for r, n in zip(batch, lengths, strict=True) if r.group == g) for g in groups}
    return [1 / (len(groups) * own[r.group]) if own[r.group] else mpf(0) for r in batch]


NOTHING = mpf(10) ** -25
"""What is nearer to 0 than this is the rounding of the oracle."""


def number(x: mpf) -> float | str:
    """The nearest double, or the word that JSON has for what is not finite."""
    if x != x or x in (nan, inf, -inf):
        return {"+inf": "inf"}.get(str(x), str(x))
    return float(x) + 0.0 if abs(x) > NOTHING else 0.0


# ---- the loss of a batch, its slope, and what a trainer logs beside them -------------------------


STEP = mpf(10) ** -20
"""The error of a central difference is its square, far below a double's precision."""


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
    batch = read_batch(columns)
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
            above, below = (loss(moved(batch, i, t, s), how) for s in (STEP, -STEP))
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
