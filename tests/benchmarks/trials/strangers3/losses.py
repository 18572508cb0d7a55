"""What expressions of ``mistakes.json`` call: ``case``, changed by ``strength``.

Most are one change to a loss with ordinary settings of a trainer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from trials.strangers.losses import (
    Recipe,
    Rows,
    advantages,
    clamp,
    informative,
    log_ratio,
    penalty,
    reduce,
    surrogate,
    weights,
    whitened,
)
from trials.tape import Array

__all__ = [
    "advantages",
    "clamp",
    "informative",
    "log_ratio",
    "np",
    "penalty",
    "reduce",
    "replace",
    "surrogate",
    "weights",
    "whitened",
]
"""What the expressions call, beside what is written here."""


def k3_of_the_mean(rows: Rows, recipe: Recipe, rho: Array) -> Array:
    d = (rows.ref - rows.new) * rows.mask
    mean = d.sum(-1, keepdims=True) / rows.lengths[:, None] + 0.0 * d
    return np.exp(mean) - mean - 1.0


def unbiased(rows: Rows, recipe: Recipe, rho: Array) -> Array:
    """The value of k3, with the gradient of the importance-weighted score."""
    score = np.real(rho) * (np.real(rows.new) - rows.ref)
    return np.real(penalty(rows, recipe, rho)) + score * (rows.new - np.real(rows.new))


def of_ranks(count: int) -> Callable[..., Array]:
    """Each rank divides by its own tokens, and the ranks are averaged."""

    def over(rows: Rows, recipe: Recipe, values: Array, mask: Array) -> Array:
        parts = np.array_split(np.arange(len(mask)), count)
        means = [(values * mask)[part].sum((-2, -1)) / mask[part].sum() for part in parts]
        return sum(means) * (1.0 / count / recipe.steps)

    return over
