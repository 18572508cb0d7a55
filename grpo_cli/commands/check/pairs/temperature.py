"""Two columns of which one was computed at another temperature."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.check.finding import Finding, Rule
from grpo_cli.commands.check.pair import Pair

_LEAST = 24
_LEAST_SLOPE = 0.025
_LEAST_UPDATE = 0.065
_SIGMAS = 5.0
_NEARLY_ALL = 0.35
_STRAIGHT = np.log(1.1)
_ALL = 0.4


class Lines(NamedTuple):
    """[S] How the columns go together in each sample.

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


def lines(pair: Pair) -> Lines:
    """The lines through the tokens of each sample.

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
    told = np.maximum(ups + downs, 1.0)
    usable = (n >= _LEAST) & (spread_a > 1e-3) & (spread_b > 1e-3) & (change > 0.0)
    of_a, of_b, of_both = (np.where(usable, one, 1.0) for one in (spread_a, spread_b, change))
    return Lines(
        usable,
        of_b / of_a,
        np.square(slope * spread / of_both),
        slope / np.where(error > 0.0, error, np.inf),
        ups / told - 0.5,
        (ups / told - 0.5) * 2.0 * np.sqrt(told),
    )


def _look(pair: Pair) -> Iterator[Finding]:
    """One column is sharper than the other: above it at common tokens, below it at rare ones.

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
    line = lines(pair)
    for sample in np.flatnonzero(
        _bent(line, _LEAST_SLOPE if pair.to_engine else _LEAST_UPDATE)
    ).tolist():
        yield _finding(pair, line, sample)


def _bent(line: Lines, least: float) -> NDArray[np.bool_]:
    strength = np.abs(np.log(line.slope))
    sure = np.abs(line.sigmas) > _SIGMAS
    sure |= np.abs(line.higher) > _NEARLY_ALL
    straight = (strength > _STRAIGHT) & (line.explained > 0.5) & (np.abs(line.sigmas) > _SIGMAS)
    bent = (
        (strength > np.where(np.abs(line.higher) > _ALL, _LEAST_SLOPE, least))
        & (np.abs(line.sided) > _SIGMAS)
        & (np.sign(line.higher) == np.sign(1.0 - line.slope))
        & (np.sign(line.sigmas) == np.sign(line.higher))
        & sure
    )
    found: NDArray[np.bool_] = line.usable & (bent | straight)
    return found


def _finding(pair: Pair, line: Lines, sample: int) -> Finding:
    one, other = pair.keys
    slope, share = float(line.slope[sample]), float(line.higher[sample]) + 0.5
    sharper, flatter = (one, other) if slope < 1.0 else (other, one)
    share = max(share, 1.0 - share)
    return Finding(
        "error",
        f"{sharper} is sharper than {flatter}, as with a temperature on one side only: {other} "
        f"against {one} has slope {slope:.3f}, not 1; one is above the other at {share:.0%} of the "
        "tokens",
        "divide the logits by the sampling temperature in both places, or in neither (vLLM gives "
        "raw log-probs unless logprobs_mode is processed_logprobs)",
        {
            "columns": list(pair.names),
            "slope": slope,
            "r2": float(line.explained[sample]),
            "sigmas": float(line.sigmas[sample]),
            "higher": share,
            "sharper": sharper,
        },
        record=pair.record(sample),
    )


RULES = (
    Rule(
        "temperature",
        ("error",),
        "One of two columns was computed at another temperature.",
        42,
        _look,
        pairs=True,
        about="temperature",
        needs=("log_probs_old|log_probs_rollout",),
    ),
)
