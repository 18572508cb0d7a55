"""Tokens whose log-prob is a placeholder."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.check.finding import Finding, Rule
from grpo_cli.commands.check.pair import Pair

_DOUBT = -0.3
_BELOW = -50.0
_LEAST = 3
_TURNED = 0.3
_TIMES = 3.0
_RARE = -4.0


def _look(pair: Pair) -> Iterator[Finding]:
    """One column is exactly 0.0, or one and the same value below −50, where the other is not.

    0.0 says that the token was certain, so another engine cannot give it less than e^−0.3: of two
    noisy columns that takes an error of 15 nats in a logit. Displaced and foreign columns have
    such tokens too, so the columns must agree elsewhere: the median difference where one is 0.0
    is three times what 95 % of the other tokens stay below. No model gives −100 or −9999; a few
    tokens with the same value to the last bit are a filler's.
    """
    if pair.to_reference or pair.equal.all():
        return
    for name, values, other in (
        (pair.keys[1], pair.second, pair.first),
        (pair.keys[0], pair.first, pair.second),
    ):
        for value in _suspects(values):
            hit = (values == value) & (other < _DOUBT if value == 0.0 else other > value / 2.0)
            every = pair.samples.sum(hit.astype(np.int64))
            for sample in np.flatnonzero(every >= _LEAST).tolist():
                part = pair.tokens(sample)
                if value < 0.0 or _apart(pair.size[part], hit[part], values[part], other[part]):
                    yield _finding(pair, name, value, hit, sample)


def _apart(size: F64, hit: NDArray[np.bool_], values: F64, other: F64) -> bool:
    """Whether the columns agree but for the tokens that are 0.0 in one of them."""
    rest, usual = size[~hit], other[~hit]
    if len(rest) and np.median(other[hit]) < min(_RARE, float(np.quantile(usual, 0.05))):
        return False  # a few tokens that the other column finds impossible
    turned = np.count_nonzero((other == 0.0) & (values < _DOUBT))
    if turned > _TURNED * np.count_nonzero(hit):
        return False  # of other tokens, in both columns
    near = float(np.quantile(rest, 0.95)) if len(rest) else 0.0
    return float(np.median(size[hit])) > _TIMES * near


def _suspects(values: F64) -> list[float]:
    low = values[values < _BELOW]
    kinds, counts = np.unique(low, return_counts=True)
    return [0.0, *kinds[counts >= _LEAST].tolist()[:8]]


def _finding(pair: Pair, name: str, value: float, hit: np.ndarray, sample: int) -> Finding:
    part = pair.tokens(sample)
    tokens, of = int(hit[part].sum()), part.stop - part.start
    at = part.start + int(np.argmax(hit[part]))
    other = pair.keys[0] if name == pair.keys[1] else pair.keys[1]
    return Finding(
        "error",
        f"{name} is filled with {value:.1f}: exactly that at {tokens:,} of {of:,} tokens of which "
        f"{other} is not certain"
        if value == 0.0
        else f"{name} is filled with {value:g}, at {tokens:,} of {of:,} tokens",
        "a missing log-prob is no number: mask these tokens, drop the rows, or leave the column "
        "out (a missing old column means on-policy)",
        {"column": name, "value": value, "tokens": tokens, "of": of},
        **pair.view.place(at),
    )


RULES = (
    Rule(
        "filler",
        ("error",),
        "Log-probs that are missing were filled with 0.0, −100 or the like.",
        10,
        _look,
        pairs=True,
        about="other tokens and fillers",
        needs=("log_probs_old|log_probs_rollout",),
    ),
)
