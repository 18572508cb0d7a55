"""Two columns of log-probs of the same tokens on different scales."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.check.finding import Finding
from grpo_cli.commands.check.record_view import View

Pair = tuple[str, str]

_LEAST = 24


class Line(NamedTuple):
    """How one column goes with the other: b ≈ offset + slope·a.

    Attributes:
        slope: σ_b/σ_a, which unlike a least-squares slope is not pulled to 0 by noise in a.
        offset: the mean of b less slope times the mean of a.
        explained: how much of the variance of b − a goes with a + b: corr(a + b, b − a)².
        sigmas: the rank correlation of the same two over its standard error 1/√(n − 1): the test
            of Pitman and Morgan for σ_a = σ_b, made safe against a few very unlikely tokens.
    """

    slope: float
    offset: float
    explained: float
    sigmas: float


def fit(a: F64, b: F64) -> Line | None:
    """The line through the tokens that are not sure (0.0) in both; None where there is none.

    References:
        Pitman, A note on normal correlation, 1939; Morgan, 1939.
    """
    unsure = (a != 0.0) | (b != 0.0)
    a, b = a[unsure], b[unsure]
    if a.size < _LEAST:
        return None
    spread_a, spread_b = float(a.std(ddof=1)), float(b.std(ddof=1))
    total, change = a + b, b - a
    if min(spread_a, spread_b) < 1e-3 or float(change.std(ddof=1)) < 1e-6 * spread_a:
        return None
    if float(np.corrcoef(a, b)[0, 1]) < 0.7:
        return None
    together = float(np.corrcoef(total, change)[0, 1])
    by_rank = float(np.corrcoef(_ranks(total), _ranks(change))[0, 1])
    agree = 1.0 if by_rank * together > 0 else 0.0
    slope = spread_b / spread_a
    return Line(
        slope,
        float(b.mean() - slope * a.mean()),
        together * together,
        agree * abs(by_rank) * math.sqrt(a.size - 1),
    )


def _ranks(values: F64) -> F64:
    ranks = np.empty(values.size)
    ranks[np.argsort(values, kind="stable")] = np.arange(values.size)
    return ranks


_BASES = {"2": 1.0 / math.log(2.0), "10": 1.0 / math.log(10.0)}


def log_base(view: View, pair: Pair) -> Iterator[Finding]:
    """One column is in base 2 or 10: it is the other times 1.4427 or 0.4343, with no offset.

    The median of b/a over tokens with |a| > 0.05 is within 1.5 % of the factor, and the factor
    takes nearly all of the difference away: a temperature bends that line, a base does not.
    """
    a, b = (view.log_probs[name] for name in pair)
    sure = (np.abs(a) > 0.05) & (np.abs(b) > 0.02)
    if np.count_nonzero(sure) < _LEAST:
        return
    factor = float(np.median(b[sure] / a[sure]))
    for base, per_nat in _BASES.items():
        for culprit, wanted in ((pair[1], per_nat), (pair[0], 1.0 / per_nat)):
            if abs(factor / wanted - 1.0) > 0.015:
                continue
            before, after = np.abs(b - a)[sure], np.abs(b - wanted * a)[sure]
            if float(np.median(after)) > 0.15 * float(np.median(before)):
                continue
            yield Finding(
                "log-base",
                "error",
                f"{view.key(culprit)} is in base {base}: {view.key(pair[1])} is {factor:.4f} "
                f"times {view.key(pair[0])}",
                f"multiply it by ln {base} = {math.log(float(base)):.4f}: log-probs are natural "
                "logarithms here",
                {"columns": list(pair), "base": int(base), "factor": factor, "culprit": culprit},
            )
            return


def entropy_base(view: View) -> Iterator[Finding]:
    """All columns in base 2 or 10, seen beside the entropies, which are in nats.

    Of tokens drawn from a policy at temperature 1 the mean of −log p is the mean entropy. Where
    the two differ by the factor of a base, within 10 % and by 6 standard errors, it is the base.
    """
    entropies, new = view.column("entropies"), view.log_probs.get("log_probs_new")
    if entropies is None or new is None or new.size < 64 or not np.isfinite(entropies).all():
        return
    mean = float(entropies.mean())
    error = float((-new - entropies).std(ddof=1)) / math.sqrt(new.size)
    factor = float(-new.mean()) / mean if mean > 0 else 1.0
    for base, per_nat in _BASES.items():
        if abs(factor / per_nat - 1.0) < 0.1 and abs(factor - 1.0) * mean > 6.0 * error:
            yield Finding(
                "log-base",
                "error",
                f"the mean −log p is {factor:.3f} times the mean entropy: base {base}",
                f"multiply the log-probs by ln {base}, or the entropies are in another base",
                {"columns": ["log_probs_new", "entropies"], "base": int(base), "factor": factor},
            )
            return


def temperature(view: View, pair: Pair) -> Iterator[Finding]:
    """One column is sharper than the other: its log-probs spread wider, token by token.

    log softmax(z/T) is, up to the normaliser, log-probs divided by T; so b against a has a slope
    other than 1. Reported where the slope is beyond 1 ± 0.1, that it is not 1 is sure by 4.5
    standard errors of a rank test, and the change goes with the log-prob itself (r² above 0.5),
    as noise and training do not.
    """
    line = fit(*(view.log_probs[name] for name in pair))
    if line is None or line.explained < 0.5 or line.sigmas < 4.5:
        return
    if abs(math.log(line.slope)) < math.log(1.1):
        return
    one, other = (view.key(name) for name in pair)
    sharper = other if line.slope > 1.0 else one
    reference = pair[1] == "log_probs_ref"
    if reference:
        return  # a policy that was trained long is sharper than its reference
    yield Finding(
        "temperature",
        "error",
        f"{other} against {one} has slope {line.slope:.3f}, not 1: {sharper} is sharper, as with a "
        f"temperature of {1.0 / max(line.slope, 1.0 / line.slope):.2f} on one side only",
        "divide the logits by the sampling temperature in both places, or in neither",
        {
            "columns": list(pair),
            "slope": line.slope,
            "offset": line.offset,
            "r2": line.explained,
            "sigmas": line.sigmas,
        },
    )


def constant_log_ratio(view: View, pair: Pair) -> Iterator[Finding]:
    """The log ratio is one constant plus little: what renormalising over top-p or top-k leaves.

    A log ratio d of samples from the second policy has mean −KL, about −var(d)/2: far less than
    its spread while the two are close, and no training moves every token alike. Reported where
    the median of d exceeds 1e-3 and 3 times the spread (1.4826 times the median absolute
    deviation), and 4 of 5 tokens have its sign.
    """
    a, b = (view.log_probs[name] for name in pair)
    change = a - b
    if change.size < _LEAST or pair[1] == "log_probs_ref":
        return
    middle = float(np.median(change))
    spread = 1.4826 * float(np.median(np.abs(change - middle)))
    if abs(middle) < 1e-3 or abs(middle) < 3.0 * spread:
        return
    if float(np.mean(np.sign(change) == math.copysign(1.0, middle))) < 0.8:
        return
    one, other = (view.key(name) for name in pair)
    yield Finding(
        "constant-log-ratio",
        "warning",
        f"{one} − {other} is about {middle:.4g} at every token (spread {spread:.2g}): "
        f"every ratio is multiplied by {math.exp(middle):.4g}",
        "one side was renormalised over top-p or top-k (the factor is the mass kept), or lacks a "
        "normaliser; compute both over the whole vocabulary",
        {"columns": list(pair), "log_ratio": middle, "spread": spread, "ratio": math.exp(middle)},
    )
