"""Errors that grow along the response."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from grpo_cli.commands.check.finding import Finding, Rule
from grpo_cli.commands.check.pair import Pair

_LEAST = 20
_FREE = 0.1
_TIMES = 1.8
_SIGMAS = 5.0


def _look(pair: Pair) -> Iterator[Finding]:
    """The columns are further apart in the later half of the tokens than in the earlier one.

    Where the probability is p a log-prob can move by about 1 − p, so |log ratio|/(1 − p) is
    compared, over tokens with p < 0.9, between places in the response above and below the mean
    place (of tokens that count: padding on the left is none).
    Reported where the mean is 1.8 times as great and the difference 5 standard errors (Welch):
    noise, staleness and updates do not know the position.
    """
    if pair.to_reference or pair.equal.all():
        return
    free = pair.freedom > _FREE
    rows = pair.view.responses
    place = (np.arange(rows.total) - rows.spread(rows.starts)).astype(np.float64)
    _, middle, _ = pair.moments(place, free)
    late = place > pair.samples.spread(middle)
    size = np.minimum(pair.size, 5.0) / np.where(free, pair.freedom, 1.0)
    n, after, spread = pair.moments(size, free & late)
    m, before, spread_before = pair.moments(size, free & ~late)
    enough = (n >= _LEAST) & (m >= _LEAST)
    error = np.sqrt(spread**2 / np.maximum(n, 1.0) + spread_before**2 / np.maximum(m, 1.0))
    away = (after - before) / np.where(error > 0.0, error, np.inf)
    found = enough & (after > _TIMES * before) & (away > _SIGMAS)
    for sample in np.flatnonzero(found).tolist():
        times = float(after[sample] / max(float(before[sample]), 1e-12))
        yield Finding(
            "error",
            f"{pair} grows with the position: among later tokens (from {middle[sample]:.0f} on) it "
            f"is {times:.1f} times as far from 0 as before",
            "positions differ on one side: left padding without position_ids, a cache that was not "
            "reset, other rotary settings; give position_ids that skip the padding",
            {
                "columns": list(pair.names),
                "times": times,
                "sigmas": float(away[sample]),
                "position": float(middle[sample]),
            },
            record=pair.record(sample),
        )


RULES = (
    Rule(
        "drift",
        ("error",),
        "Two columns drift apart along the response: positions are off on one side.",
        35,
        _look,
        pairs=True,
        about="other tokens and fillers",
        needs=("log_probs_old|log_probs_rollout",),
    ),
)
