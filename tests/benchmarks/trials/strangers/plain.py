"""The losses of TRL, verl and the papers as a trainer writes them: padded arrays, a line a step.

Gradients are complex steps: each token's log-prob gets an imaginary 1e-30, and the imaginary part
of the loss is the derivative to the last bit (Squire and Trapp, 1998). So a loss is plain numpy,
``detach`` is the real part, and a mistake is a loss with a line changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

Array = np.ndarray
STEP = 1e-30


@dataclass(frozen=True)
class Rows:
    """What a trainer holds: R rows padded to T columns.

    Attributes:
        new, old, ref, rollout: [R, T] log-probs, 0 where nothing is written. ``new`` gets a
            dimension in front when the loss is differentiated.
        mask: [R, T] 1 for tokens in the loss.
        written: [R, T] 1 where the record has a token, counted or not.
        rewards: [R].
        given: [R] advantages, or None to make them of the rewards.
        groups: [R] the prompt of each row.
        finished: [R] whether the row ends with an end of text.
    """

    new: Array
    old: Array
    ref: Array
    rollout: Array
    mask: Array
    written: Array
    rewards: Array
    given: Array | None
    groups: Array
    finished: Array

    @property
    def width(self) -> int:
        return int(self.mask.shape[1])

    @property
    def lengths(self) -> Array:
        return self.mask.sum(axis=1)


@dataclass(frozen=True)
class Recipe:
    """A trainer's settings.

    Attributes:
        family: "trl", "verl" or "paper".
        reduction: "response", "token", "batch-items" (TRL's dapo), "constant" (Dr. GRPO).
        length: the constant of Dr. GRPO; None for the paper's, which divides by rows alone.
        steps, generation: accumulation steps of an update and of a generation batch.
        items: tokens of the whole generation batch.
        correction: what weighs tokens by old/rollout: "", "token" or "sequence"; up to ``cap``.
    """

    family: str
    reduction: str
    low: float = 0.2
    high: float = 0.2
    beta: float = 0.0
    sequence: bool = False
    weighted_kl: bool = False
    eps: float = 1e-4
    std: bool = True
    length: float | None = None
    steps: int = 1
    generation: int = 1
    items: float = 1.0
    delta: float | None = None
    dual: float | None = None
    cispo: bool = False
    correction: str = ""
    cap: float = 2.0


Stage = Callable[..., Array]


@dataclass(frozen=True)
class Case:
    """A batch, the settings and the steps of its loss; a mistake replaces some of it."""

    rows: Rows
    recipe: Recipe
    steps: dict[str, Stage] = field(default_factory=dict)
    factor: float = 1.0

    def step(self, name: str) -> Stage:
        return self.steps.get(name, RIGHT[name])

    def but(self, **steps: Stage) -> Case:
        """With other steps."""
        return replace(self, steps={**self.steps, **steps})

    def of(self, **rows: Any) -> Case:
        """With other rows."""
        return replace(self, rows=replace(self.rows, **rows))

    def by(self, **recipe: Any) -> Case:
        """With other settings."""
        return replace(self, recipe=replace(self.recipe, **recipe))


def detach(x: Array) -> Array:
    return np.real(x)


def least(a: Array, b: Array) -> Array:
    return np.where(np.real(a) <= np.real(b), a, b)


def clamp(x: Array, low: float, high: float) -> Array:
    return np.where(np.real(x) < low, low, np.where(np.real(x) > high, high, x))


def by_group(values: Array, groups: Array, of: Callable[[Array], float]) -> Array:
    """[R] a number of each row's group."""
    found = np.zeros(len(values))
    for group in np.unique(groups):
        found[groups == group] = of(values[groups == group])
    return found


def spread(values: Array) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0


def advantages(rows: Rows, recipe: Recipe) -> Array:
    """[R]"""
    if rows.given is not None:
        return rows.given
    centred = rows.rewards - by_group(rows.rewards, rows.groups, np.mean)
    if not recipe.std:
        return centred
    return centred / (by_group(rows.rewards, rows.groups, spread) + recipe.eps)


def log_ratio(rows: Rows, recipe: Recipe) -> Array:
    """[R, T], at the sequence level the mean over a row's tokens."""
    d = rows.new - rows.old
    if not recipe.sequence:
        return d
    mean = (d * rows.mask).sum(-1) / np.maximum(rows.lengths, 1.0)
    return mean[..., None] + 0.0 * d


def ratio(rows: Rows, recipe: Recipe, log: Array) -> Array:
    return np.exp(log)


def surrogate(rows: Rows, recipe: Recipe, rho: Array, adv: Array) -> Array:
    """[R, T] to be maximised."""
    if recipe.cispo:
        return detach(least(rho, recipe.high + 0.0 * rho)) * adv * rows.new
    first = rho if recipe.delta is None else clamp(rho, -np.inf, recipe.delta)
    kept = least(first * adv, clamp(rho, 1.0 - recipe.low, 1.0 + recipe.high) * adv)
    if recipe.dual is None:
        return kept
    bound = recipe.dual * adv + 0.0 * kept
    return np.where((adv < 0.0) & (np.real(kept) < bound.real), bound, kept)


def penalty(rows: Rows, recipe: Recipe, rho: Array) -> Array:
    """[R, T] Schulman's k3."""
    d = rows.ref - rows.new
    k3 = np.exp(d) - d - 1.0
    return k3 * rho if recipe.weighted_kl else k3


def weights(rows: Rows, recipe: Recipe) -> Array:
    """[R, T] the correction for the engine that sampled, truncated at the cap."""
    if not recipe.correction:
        return np.ones(rows.mask.shape)
    d = (rows.old - rows.rollout) * rows.mask
    if recipe.correction == "sequence":
        d = d.sum(-1, keepdims=True) + 0.0 * d
    return np.minimum(np.exp(d), recipe.cap)


def reduce(rows: Rows, recipe: Recipe, values: Array) -> Array:
    """The scalar loss of one micro-batch."""
    kept = values * rows.mask
    if recipe.reduction == "response":
        found = (kept.sum(-1) / np.maximum(rows.lengths, 1.0)).mean(-1)
    elif recipe.reduction == "token":
        found = kept.sum((-2, -1)) / max(rows.mask.sum(), 1.0)
    elif recipe.reduction == "constant":
        found = kept.sum((-2, -1)) / (len(rows.mask) * (recipe.length or 1.0))
    else:
        return kept.sum((-2, -1)) / (recipe.items * recipe.steps / recipe.generation)
    return found / recipe.steps


RIGHT: dict[str, Stage] = {
    "advantages": advantages,
    "log_ratio": log_ratio,
    "ratio": ratio,
    "surrogate": surrogate,
    "penalty": penalty,
    "weights": weights,
    "reduce": reduce,
}


def loss(case: Case) -> Array:
    """The loss; with ``new`` of [K, R, T], K of them."""
    rows, recipe = case.rows, case.recipe
    adv = np.asarray(case.step("advantages")(rows, recipe))
    adv = adv[:, None] if adv.ndim == 1 else adv
    rho = case.step("ratio")(rows, recipe, case.step("log_ratio")(rows, recipe))
    policy = -case.step("surrogate")(rows, recipe, rho, adv)
    policy = policy * case.step("weights")(rows, recipe)
    found = case.step("reduce")(rows, recipe, policy)
    if recipe.beta:
        kl = case.step("penalty")(rows, recipe, rho)
        over = case.steps.get("reduce_penalty", case.step("reduce"))
        found = found + recipe.beta * over(rows, recipe, kl)
    return found * case.factor


def evaluated(case: Case) -> tuple[float, Array]:
    """The loss and ∂loss/∂new [R, T], 0 where nothing is written."""
    rows = case.rows
    at = np.flatnonzero(rows.written)
    steps = np.zeros((len(at), rows.written.size), dtype=complex)
    steps[np.arange(len(at)), at] = STEP * 1j
    moved = rows.new + steps.reshape(len(at), *rows.written.shape)
    slopes = np.zeros(rows.written.size)
    slopes[at] = loss(case.of(new=moved)).imag / STEP
    return float(loss(case).real), slopes.reshape(rows.written.shape)
