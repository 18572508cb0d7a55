"""Which contexts tokens stand in: the same context has the same words, and is as sure of them.

Most are any of 60. Besides: a beginning that a whole group shares (``<think>\\nOkay, so``), runs of
one token (indentation, rules of tables), and loops of a phrase that a response cannot leave.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trials.simulate import policy
from trials.simulate.policy import F32, I64, Random
from trials.simulate.setup import Setup, Text

_ORDINARY, _BEGINNING, _RUN, _LOOP = 60, 100, 10_000, 20_000


@dataclass(frozen=True)
class Contexts:
    """[N] contexts; [N] sharpness where the context decides it, else 0; [R] rows that loop."""

    names: I64
    slopes: np.ndarray
    looping: np.ndarray


def drawn(random: Random, lengths: I64, groups: I64, text: Text) -> Contexts:
    """The contexts of a batch."""
    names = random.integers(0, _ORDINARY, int(lengths.sum()))
    slopes = np.zeros(len(names))
    looping = random.random(len(lengths)) < text.looping
    start = 0
    for row, length in enumerate(lengths.tolist()):
        count = min(text.beginning, length - 1)
        places = np.arange(count)
        names[start : start + count] = _BEGINNING + 100 * groups[row] + places
        slopes[start : start + count] = 3.5 + (places * 37 % 11)
        for _ in range(text.runs):
            _repeat(names, slopes, start, length, random, row)
        if looping[row]:
            tail = slice(start + length - min(text.repeats, length - 2), start + length)
            steps = np.arange(tail.stop - tail.start)
            names[tail] = _LOOP + 3 * row + steps % 3
            slopes[tail] = np.linspace(5.0, 24.0, len(steps))
        start += length
    return Contexts(names, slopes, looping)


def _repeat(
    names: I64, slopes: np.ndarray, start: int, length: int, random: Random, row: int
) -> None:
    """A run of 4 to 12 equal tokens, now and then the last thing before the end of text."""
    count = int(random.integers(4, 13))
    if length < count + 3:
        return
    last = length - count - 1
    at = start + (last if random.random() < 0.2 else int(random.integers(0, last + 1)))
    names[at : at + count] = _RUN + row
    slopes[at : at + count] = np.linspace(4.0, 22.0, count)


def logits(setup: Setup, random: Random, contexts: Contexts, ends: I64) -> F32:
    """[N, V]; the end of text is likely where a response ends (``ends``: of those that do)."""
    made = policy.positions(random, len(contexts.names), setup.sharpness)
    slope = -np.log(np.arange(1, policy.WORDS + 1))
    fixed = np.flatnonzero(contexts.slopes)
    made[fixed] = (18.0 + contexts.slopes[fixed, None] * slope).astype(np.float32)
    sure = np.where(random.random(len(ends)) < 0.7, 6.0, 2.5)
    made[ends] = (18.0 + sure[:, None] * slope).astype(np.float32)
    return made


def ids(words: I64, contexts: Contexts) -> I64:
    """[N] token ids; the word of rank k of one context is the same token wherever it stands."""
    return 1_000 + (words * 613 + contexts.names * 7_919) % 120_000
