"""Softmax policies as tables: a row of logits for each context, a column for each word."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Flags = NDArray[np.bool_]
Random = np.random.Generator

PROMPTS, QUARTERS, WORDS = 6, 4, 24
CONTEXTS = PROMPTS * QUARTERS
"""A context is a kind of prompt and the quarter of the longest response that a token is in."""
_HALVINGS = 30


def log_softmax(logits: F64) -> F64:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def entropies(log_probs: F64) -> F64:
    """[C] the entropy of each context."""
    return -(np.exp(log_probs) * log_probs).sum(axis=-1)


def divergence(policy: F64, reference: F64) -> float:
    """The mean over contexts of KL(policy ‖ reference), both as log-probs."""
    return float((np.exp(policy) * (policy - reference)).sum(axis=-1).mean())


def sample(random: Random, log_probs: F64, contexts: I64) -> I64:
    """[N] a word for each token, from the policy of its context."""
    rises = np.cumsum(np.exp(log_probs), axis=1)[contexts]
    drawn = random.random(len(contexts))[:, None] * rises[:, -1:]
    return (drawn > rises).sum(axis=1)


def solve(function: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    """Where an increasing function takes a value; an end of the range where it does not."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if function(middle) < wanted else (low, middle)
    return (low + high) / 2.0


def sharpened(logits: F64, entropy: float) -> F64:
    """The logits at the temperature at which the mean entropy is this."""
    inverse = solve(
        lambda power: -float(entropies(log_softmax(np.exp(power) * logits)).mean()),
        -entropy,
        -3.0,
        6.0,
    )
    return np.exp(inverse) * logits


def moved(logits: F64, towards: F64, reference: F64, kl: float) -> F64:
    """The logits moved along a direction until the KL to the reference is this."""
    far = solve(
        lambda size: divergence(log_softmax(logits + size * towards), reference), kl, 0.0, 40.0
    )
    return logits + far * towards


def correlated(random: Random, count: int, correlation: float, *, heavy: bool) -> F64:
    """[n] AR(1) noise of standard deviation 1, normal or from a t with 3 degrees of freedom."""
    fresh = random.standard_t(3, count) / np.sqrt(3.0) if heavy else random.standard_normal(count)
    values = fresh.copy()
    for at in range(1, count):
        values[at] = correlation * values[at - 1] + np.sqrt(1.0 - correlation**2) * fresh[at]
    return values
