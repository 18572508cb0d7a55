"""Softmax policies over Zipf logits, and what two engines make of them.

A position of a text is mostly sure (one word fits) and sometimes a fork. So the logit of the word
of rank k is c − a·ln k, with a sharpness ``a`` of its own for every position: high for the sure
ones, 0.9 to 3 at forks. The level c is about 18, as logits of language models are, because that is
what the rounding to bfloat16 acts on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Random = np.random.Generator

WORDS = 192
"""Words of the vocabulary; as many as log-probs need to look like a language model's."""


@dataclass(frozen=True)
class Sharpness:
    """How sure the policy is: the share of sure positions, and the range of ``a`` on either side.

    The defaults give a mean entropy of about 0.5 nats, three tokens of four above 0.95, and
    log-probs of exactly 0.0 (in float32) at one token in seven.
    """

    sure: float = 0.72
    sure_from: float = 4.0
    sure_to: float = 30.0
    fork_from: float = 0.9
    fork_to: float = 3.0


def positions(random: Random, count: int, sharpness: Sharpness) -> F32:
    """[N, V] logits, the words in the order of their rank."""
    sure = random.random(count) < sharpness.sure
    low = np.where(sure, sharpness.sure_from, sharpness.fork_from)
    high = np.where(sure, sharpness.sure_to, sharpness.fork_to)
    slope = low + (high - low) * random.random(count)
    ranks = np.log(np.arange(1, WORDS + 1))
    level = random.normal(18.0, 2.0, count)
    uneven = random.normal(0.0, 0.3, (count, WORDS))
    return (level[:, None] - slope[:, None] * ranks + uneven).astype(np.float32)


def kept(logits: F32, temperature: float, top_p: float, top_k: int) -> NDArray[np.bool_]:
    """[N, V] the words that top-p and top-k leave, of the tempered policy."""
    order = np.argsort(-logits, axis=1, kind="stable")
    probs = np.exp(log_softmax(np.take_along_axis(logits, order, 1) / temperature))
    before = np.cumsum(probs, axis=1) - probs
    fits = (before < top_p) & (np.arange(WORDS) < top_k)
    fits[:, 0] = True
    back = np.empty_like(fits)
    np.put_along_axis(back, order, fits, 1)
    return back


def sample(random: Random, logits: F32, temperature: float, allowed: object = None) -> I64:
    """[N] the rank of the word drawn at each position (Gumbel's trick)."""
    noisy = logits / np.float32(temperature) + random.gumbel(size=logits.shape)
    return np.argmax(noisy if allowed is None else np.where(allowed, noisy, -np.inf), axis=1)


def log_softmax(logits: F32) -> F32:
    """[N, V] in float32, as trainers and engines compute it."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True, dtype=np.float32))


def taken(logits: F32, words: I64, temperature: float = 1.0, allowed: object = None) -> F32:
    """[N] the log-prob of the words, over all words or over those allowed."""
    tempered = logits / np.float32(temperature)
    if allowed is not None:
        drawn = np.zeros(logits.shape, dtype=bool)
        drawn[np.arange(len(words)), words] = True
        tempered = np.where(allowed | drawn, tempered, np.float32(-1e30))
    picked = log_softmax(tempered)[np.arange(len(words)), words]
    return np.minimum(picked, np.float32(0.0))


def entropy(logits: F32, temperature: float = 1.0) -> F32:
    """[N] in nats."""
    log_probs = log_softmax(logits / np.float32(temperature))
    return -(np.exp(log_probs) * log_probs).sum(axis=1)
