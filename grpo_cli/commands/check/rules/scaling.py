"""Two columns of which one is scaled or offset: bases, temperatures and constant factors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.check.pair import Pair
from grpo_cli.commands.check.record_view import View
from grpo_cli.commands.check.rule import Finding, rule

# ---- bases ---------------------------------------------------------------------------------------

_BASE_MEANING = "Log-probs are in base 2 or 10 instead of e."
_BASE_TOKENS, _BASE_ENTROPIES = 24, 64
_BASES = {"2": 1.0 / math.log(2.0), "10": 1.0 / math.log(10.0)}
_BASE_WITHIN = 0.04
_BASE_LEFT = 0.25
_BASE_STRAIGHT = 0.7


@rule(
    "log-base",
    "error",
    _BASE_MEANING,
    rank=40,
    scope="pair",
    about="shifts and bases",
    needs=("log_probs_old|log_probs_ref|log_probs_rollout",),
)
def find_log_bases(pair: Pair) -> Iterator[Finding]:
    """Finds a column that is the other times 1.4427 or 0.4343, with no offset.

    The median of b/a over tokens with |a| > 0.05 is within 4 % of the factor, the factor takes
    three quarters of the difference away, and the difference is proportional to the log-probs
    (corr(a + b, a − b)² above 0.7): a temperature bends that line, a base does not.
    """
    clear = (pair.first < -0.05) & (pair.second < -0.02)
    ratio = np.divide(pair.second, pair.first, out=np.zeros_like(pair.first), where=clear)
    n, mean, _ = pair.moments(ratio, clear)
    for sample in np.flatnonzero(n >= _BASE_TOKENS).tolist():
        if abs(math.log(mean[sample])) > 0.2:
            yield from _find_log_base(pair, sample, clear)


def _find_log_base(pair: Pair, sample: int, clear: np.ndarray) -> Iterator[Finding]:
    part = pair.tokens(sample)
    kept = clear[part]
    a, b = pair.first[part][kept], pair.second[part][kept]
    factor = float(np.median(b / a))
    with np.errstate(invalid="ignore"):  # of a difference that is one number
        straight = np.square(np.corrcoef(a + b, a - b)[0, 1])
    if not straight >= _BASE_STRAIGHT:
        return
    for base, per_nat in _BASES.items():
        for at, wanted in ((1, per_nat), (0, 1.0 / per_nat)):
            left = float(np.mean(np.abs(b - wanted * a)))
            if abs(factor / wanted - 1.0) > _BASE_WITHIN or left > _BASE_LEFT * np.mean(
                np.abs(b - a)
            ):
                continue
            yield Finding(
                f"{pair.keys[at]} is in base {base}: {pair.keys[1]} is {factor:.4f} times "
                f"{pair.keys[0]}",
                f"multiply it by ln {base} = {math.log(float(base)):.4f}: log-probs are natural "
                "logarithms here",
                {
                    "base": int(base),
                    "factor": factor,
                    "culprit": pair.names[at],
                },
                record=pair.record(sample),
            )
            return


@rule("log-base", "error", _BASE_MEANING, rank=90)
def find_log_bases_by_entropy(view: View) -> Iterator[Finding]:
    """Finds records all of whose columns are in base 2 or 10, by their entropies in nats.

    Of tokens drawn from a policy at temperature 1 the mean of −log p is the mean entropy. Where
    the two differ by the factor of a base, within 10 % and by 6 standard errors, it is the base.
    """
    entropies, new = view.columns.get("entropies"), view.log_probs.get("log_probs_new")
    if entropies is None or new is None:
        return
    for record in np.flatnonzero(view.tokens >= _BASE_ENTROPIES).tolist():
        part = view.tokens_of(record)
        h, cost = entropies[part], -new[part]
        if not np.isfinite([h, cost]).all():
            continue
        over, mean = cost - h, float(h.mean())
        if mean <= 0.0 or not _have_equal_means(view, part, cost):
            continue  # a temperature on one side, which moves the mean too
        error = float(over.std(ddof=1)) / math.sqrt(len(h))
        factor = float(cost.mean()) / mean
        for base, per_nat in _BASES.items():
            if abs(factor / per_nat - 1.0) < 0.1 and abs(factor - 1.0) * mean > 6.0 * error:
                yield Finding(
                    f"the mean −log p is {factor:.3f} times the mean entropy: base {base}",
                    f"multiply the log-probs by ln {base}, or the entropies are in another base",
                    {
                        "columns": ["log_probs_new", "entropies"],
                        "base": int(base),
                        "factor": factor,
                    },
                    record=record,
                )


def _have_equal_means(view: View, part: slice, cost: np.ndarray) -> bool:
    """Returns whether all columns have nearly one mean, as they do in one base."""
    means = [float(column[part].mean()) for column in view.log_probs.values()]
    return max(means) - min(means) < 0.05 * float(cost.mean())


# ---- temperatures --------------------------------------------------------------------------------

_LINE_TOKENS = 24
_ENGINE_SLOPE = 0.025
_UPDATE_SLOPE = 0.065
_LINE_SIGMAS = 5.0
_SURE_SHARE = 0.35
_STRAIGHT_SLOPE = np.log(1.1)
_ONE_SIDED_SHARE = 0.4


class Lines(NamedTuple):
    """[S] How the two columns are related in each sample.

    Attributes:
        usable: whether there are enough tokens that are not certain in both, and both vary.
        slope: σ_b/σ_a, which unlike a least-squares slope is not pulled to 0 by noise in a.
        explained: how much of the variance of the log ratio goes with a + b: corr(a + b, a − b)².
        sigmas: the least-squares slope of a − b on a + b over its robust standard error.
        higher: the share of tokens, of those that differ, at which a is above b, less 1/2.
        sided: the same in standard deviations of a coin.
    """

    usable: NDArray[np.bool_]
    slope: F64
    explained: F64
    sigmas: F64
    higher: F64
    sided: F64


def fit_lines(pair: Pair) -> Lines:
    """Fits a line through the tokens of each sample.

    References:
        Pitman, A note on normal correlation, 1939; Morgan, 1939 (σ_a = σ_b by corr(a + b, a − b)).
        White, A heteroskedasticity-consistent covariance matrix estimator, 1980.
    """
    kept = pair.unsure
    n, _, spread_a = pair.moments(pair.first, kept)
    _, _, spread_b = pair.moments(pair.second, kept)
    middle = pair.first + pair.second
    _, centre, spread = pair.moments(middle, kept)
    _, mean, change = pair.moments(pair.log_ratio, kept)
    x = np.where(kept, middle - pair.samples.spread(centre), 0.0)
    y = pair.log_ratio - pair.samples.spread(mean)  # where x is 0, of no account
    xx, xy = pair.samples.sum(x * x), pair.samples.sum(x * y)
    whole = np.where(xx > 0.0, xx, 1.0)
    slope = xy / whole
    left = x * (y - pair.samples.spread(slope) * x)
    error = np.sqrt(pair.samples.sum(left * left)) / whole
    ups = pair.samples.sum((pair.log_ratio > 0.0).astype(np.float64))
    downs = pair.samples.sum((pair.log_ratio < 0.0).astype(np.float64))
    differing = np.maximum(ups + downs, 1.0)
    usable = (n >= _LINE_TOKENS) & (spread_a > 1e-3) & (spread_b > 1e-3) & (change > 0.0)
    of_a, of_b, of_both = (np.where(usable, s, 1.0) for s in (spread_a, spread_b, change))
    return Lines(
        usable,
        of_b / of_a,
        np.square(slope * spread / of_both),
        slope / np.where(error > 0.0, error, np.inf),
        ups / differing - 0.5,
        (ups / differing - 0.5) * 2.0 * np.sqrt(differing),
    )


@rule(
    "temperature",
    "error",
    "One of two columns was computed at another temperature.",
    rank=42,
    scope="pair",
    about="temperature",
    needs=("log_probs_old|log_probs_rollout",),
)
def find_temperatures(pair: Pair) -> Iterator[Finding]:
    """Finds a column that is sharper: above the other at common tokens, below it at rare ones.

    log softmax(z/T) with the smaller T is higher at the likely tokens, which are most of those
    that were drawn, and falls off faster. So two things go together that no noise and no missing
    normaliser brings together: the sharper column spreads wider, or narrower, than the other, and
    is higher at most tokens (sign test). Reported where |ln slope| exceeds 0.025 between the two
    engines, 0.065 between two policies of one engine, since an update sharpens too (but not nine
    tokens of ten: then 0.025 suffices); the sign test
    and the regression of a − b on a + b are 5 standard errors away (or, at temperatures below
    0.7, where the tokens drawn are nearly all certain, 85 % of the signs are one way). Softmax
    temperatures bend the line, so that r² is 0.1 to 0.6; where it is above 0.5 and the slope beyond
    1.1, the signs are not asked for (log-probs that were divided by a temperature themselves).
    """
    if pair.to_reference or pair.equal.all():
        return  # a policy that was trained long is sharper than its reference
    line = fit_lines(pair)
    for sample in np.flatnonzero(
        _is_sharpened(line, _ENGINE_SLOPE if pair.to_engine else _UPDATE_SLOPE)
    ).tolist():
        yield _describe_temperature(pair, line, sample)


def _is_sharpened(line: Lines, least: float) -> NDArray[np.bool_]:
    strength = np.abs(np.log(line.slope))
    sure = np.abs(line.sigmas) > _LINE_SIGMAS
    sure |= np.abs(line.higher) > _SURE_SHARE
    straight = (
        (strength > _STRAIGHT_SLOPE) & (line.explained > 0.5) & (np.abs(line.sigmas) > _LINE_SIGMAS)
    )
    bent = (
        (strength > np.where(np.abs(line.higher) > _ONE_SIDED_SHARE, _ENGINE_SLOPE, least))
        & (np.abs(line.sided) > _LINE_SIGMAS)
        & (np.sign(line.higher) == np.sign(1.0 - line.slope))
        & (np.sign(line.sigmas) == np.sign(line.higher))
        & sure
    )
    found: NDArray[np.bool_] = line.usable & (bent | straight)
    return found


def _describe_temperature(pair: Pair, line: Lines, sample: int) -> Finding:
    first, second = pair.keys
    slope, share = float(line.slope[sample]), float(line.higher[sample]) + 0.5
    sharper, flatter = (first, second) if slope < 1.0 else (second, first)
    share = max(share, 1.0 - share)
    return Finding(
        f"{sharper} is sharper than {flatter}, as with a temperature on one side only: {second} "
        f"against {first} has slope {slope:.3f}, not 1; one is above the other at {share:.0%} of "
        "the tokens",
        "divide the logits by the sampling temperature in both places, or in neither (vLLM gives "
        "raw log-probs unless logprobs_mode is processed_logprobs)",
        {
            "slope": slope,
            "r2": float(line.explained[sample]),
            "sigmas": float(line.sigmas[sample]),
            "higher": share,
            "sharper": sharper,
        },
        record=pair.record(sample),
    )


# ---- constants -----------------------------------------------------------------------------------

_CONSTANT_TOKENS = 24


@rule(
    "constant-log-ratio",
    "warning",
    "Every ratio is multiplied by one constant: a normaliser is missing on one side.",
    rank=45,
    scope="pair",
    about="other tokens and fillers",
    needs=("log_probs_old|log_probs_rollout",),
)
def find_constant_log_ratios(pair: Pair) -> Iterator[Finding]:
    """Finds log ratios that are one constant plus little, as after renormalising over top-p.

    A log ratio d of samples from the second policy has mean −KL, about −var(d)/2: far less than
    its spread while the two are close, and no training moves every token alike. Reported where
    the median of d exceeds 1e-3 and 3 times the spread (1.4826 times the median absolute
    deviation), and 4 of 5 tokens have its sign.
    """
    if pair.to_reference or pair.equal.all():
        return
    n, _, _ = pair.moments(pair.log_ratio)
    ups = pair.samples.sum((pair.log_ratio > 0.0).astype(np.float64))
    downs = pair.samples.sum((pair.log_ratio < 0.0).astype(np.float64))
    for sample in np.flatnonzero(
        (n >= _CONSTANT_TOKENS) & (np.maximum(ups, downs) >= 0.8 * n)
    ).tolist():
        change = pair.log_ratio[pair.tokens(sample)]
        middle = float(np.median(change))
        spread = 1.4826 * float(np.median(np.abs(change - middle)))
        if abs(middle) >= 1e-3 and abs(middle) >= 3.0 * spread:
            yield Finding(
                f"{pair} is about {middle:.4g} at every token (spread {spread:.2g}): "
                f"every ratio is multiplied by {math.exp(middle):.4g}",
                "one side was renormalised over top-p or top-k (the factor is the mass kept), or "
                "lacks a normaliser; compute both over the whole vocabulary",
                {
                    "log_ratio": middle,
                    "spread": spread,
                    "ratio": math.exp(middle),
                },
                record=pair.record(sample),
            )
