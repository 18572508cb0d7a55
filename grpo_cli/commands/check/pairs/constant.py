"""Log ratios that are one constant."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from grpo_cli.commands.check.finding import Finding, Rule
from grpo_cli.commands.check.pair import Pair

_LEAST = 24


def _look(pair: Pair) -> Iterator[Finding]:
    """The log ratio is one constant plus little: what renormalising over top-p or top-k leaves.

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
    for sample in np.flatnonzero((n >= _LEAST) & (np.maximum(ups, downs) >= 0.8 * n)).tolist():
        change = pair.log_ratio[pair.tokens(sample)]
        middle = float(np.median(change))
        spread = 1.4826 * float(np.median(np.abs(change - middle)))
        if abs(middle) >= 1e-3 and abs(middle) >= 3.0 * spread:
            yield _finding(pair, sample, middle, spread)


def _finding(pair: Pair, sample: int, middle: float, spread: float) -> Finding:
    return Finding(
        "warning",
        f"{pair} is about {middle:.4g} at every token (spread {spread:.2g}): "
        f"every ratio is multiplied by {math.exp(middle):.4g}",
        "one side was renormalised over top-p or top-k (the factor is the mass kept), or lacks a "
        "normaliser; compute both over the whole vocabulary",
        {
            "columns": list(pair.names),
            "log_ratio": middle,
            "spread": spread,
            "ratio": math.exp(middle),
        },
        record=pair.record(sample),
    )


RULES = (
    Rule(
        "constant-log-ratio",
        ("warning",),
        "Every ratio is multiplied by one constant: a normaliser is missing on one side.",
        45,
        _look,
        pairs=True,
        about="other tokens and fillers",
        needs=("log_probs_old|log_probs_rollout",),
    ),
)
