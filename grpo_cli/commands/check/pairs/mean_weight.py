"""Importance weights whose mean is not 1."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from grpo_cli.commands.check.finding import Finding, Rule
from grpo_cli.commands.check.pair import Pair

_LEAST = 48
_SIGMAS = 4.4
_AWAY = 0.004


def _look(pair: Pair) -> Iterator[Finding]:
    """The mean of π_train/π_rollout over the tokens drawn from π_rollout is not 1.

    Σ_v π_rollout(v) · π_train(v)/π_rollout(v) = 1 at every position, whatever the two policies
    are, as long as the tokens were drawn from what the rollout column says: noise, staleness and
    updates leave the mean at 1. A mass that one side lacks does not: renormalised over the words
    that top-p or top-k kept, π_rollout is too high by the mass cut off, and every weight too low.
    Reported where the mean is 4.4 standard errors (one in 90,000) from 1 and by more than 0.004.
    Heavy tails are no harm: weights are cut at ten times their typical distance from 1, on both
    sides.
    """
    if not pair.to_engine or pair.equal.all():
        return
    _, _, spread = pair.moments(pair.weight, pair.size < 1.0)
    bound = pair.samples.spread(10.0 * spread + 1e-3)
    n, mean, sigma = pair.moments(np.clip(pair.weight, 1.0 - bound, 1.0 + bound))
    away = (mean - 1.0) * np.sqrt(n) / np.where(sigma > 0.0, sigma, np.inf)
    found = (n >= _LEAST) & (np.abs(away) > _SIGMAS) & (np.abs(mean - 1.0) > _AWAY)
    for sample in np.flatnonzero(found).tolist():
        yield _finding(
            pair, sample, float(mean[sample]), float(sigma[sample] / math.sqrt(n[sample]))
        )


def _finding(pair: Pair, sample: int, mean: float, error: float) -> Finding:
    part = pair.tokens(sample)
    change = pair.log_ratio[part]
    higher = float(np.count_nonzero(change > 0.0) / np.count_nonzero(change))
    one, other = pair.keys
    if mean < 1.0:
        reading = (
            f"{one} lies below {other}, as where {other} was renormalised over the words that "
            "top-p or top-k kept (the mass that was kept is lost), or has another one-sided bias"
        )
    else:
        reading = f"{one} lies above {other}: one-sided errors, as of a penalty on one side"
    return Finding(
        "warning",
        f"the mean weight exp({pair}) is {mean:.4f} ± {error:.2g}, not 1; {reading}",
        "compute both over the same words: the whole vocabulary, or the words kept; penalties "
        "(repetition, presence) must be on neither side or on both",
        {
            "columns": list(pair.names),
            "mean_weight": mean,
            "standard_error": error,
            "sigmas": (mean - 1.0) / error,
            "higher": higher,
            "tokens": part.stop - part.start,
        },
        record=pair.record(sample),
    )


RULES = (
    Rule(
        "mean-weight",
        ("warning",),
        "Importance weights do not average to 1: top-p or top-k mass, or a one-sided bias.",
        70,
        _look,
        pairs=True,
        about="rollout mismatch",
        needs=("log_probs_rollout",),
    ),
)
