"""Losses of trainers in plain numpy on padded arrays, a stage each; a mistake replaces one.

``np.real`` stops the gradient of what it is applied to (``tape.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from trials.tape import Array, Var


@dataclass(frozen=True)
class Rows:
    """What a trainer holds: R rows padded to T columns; 0 where nothing is written."""

    new: Array
    old: Array
    ref: Array
    rollout: Array
    mask: Array
    written: Array
    groups: Array
    trajectories: Array
    entropies: Array
    ends: Array
    rewards: Array
    given: Array | None = None

    @property
    def lengths(self) -> Array:
        return np.maximum(self.mask.sum(axis=1), 1.0)


@dataclass(frozen=True)
class Recipe:
    """A trainer's settings, and how ``grpo`` is told of them.

    Attributes:
        advantage: "group", "batch" (its std), "whitened" (over tokens), "trajectory", "returns".
        reduction: "response", "token", "sum" (mean of sums, over ``length`` if it is given),
            "items" (over ``items``).
        surrogate: "clip", "cispo", "sapo" with ``taus``; ``delta``: TRL's two-sided clip.
        top: the share of the tokens that are kept, by their entropy.
        scored: whether the KL's gradient has the term of the draw (NeMo-RL).
        correction: "", "token", "masked" (0 above the cap); up to ``cap``.
        same_entropy: whether the bonus is reduced as the policy term is (verl).
        kl_reduction: of the KL, where it is another.
        words: the command's.
    """

    advantage: str = "group"
    eps: float = 1e-8
    std: bool = True
    lone: bool = False
    sequence: bool = False
    surrogate: str = "clip"
    low: float = 0.2
    high: float = 0.2
    dual: float | None = None
    delta: float | None = None
    taus: tuple[float, float] = (1.0, 1.05)
    top: float = 1.0
    beta: float = 0.0
    in_reward: bool = False
    kl_reduction: str = ""
    weighted: bool = False
    scored: bool = False
    correction: str = ""
    cap: float = 2.0
    reduction: str = "token"
    length: float = 1.0
    items: float = 1.0
    steps: int = 1
    entropy: float = 0.0
    same_entropy: bool = False
    words: tuple[str, ...] = ()
    keys: str = "own"


Stage = Callable[..., Array]


@dataclass(frozen=True)
class Case:
    """A batch, its settings, stages that are not the right ones, and what of the loss is logged."""

    rows: Rows
    recipe: Recipe
    stages: dict[str, Stage] = field(default_factory=dict)
    logged: Callable[[float], float] = float

    def stage(self, name: str) -> Stage:
        if name == "reduce_kl" and name not in self.stages and not self.recipe.kl_reduction:
            name = "reduce"
        return self.stages.get(name, RIGHT[name])

    def but(self, **stages: Stage) -> Case:
        return replace(self, stages={**self.stages, **stages})

    def of(self, **rows: Any) -> Case:
        return replace(self, rows=replace(self.rows, **rows))

    def by(self, **recipe: Any) -> Case:
        return replace(self, recipe=replace(self.recipe, **recipe))


def lower(a: Array, b: Array) -> Array:
    return np.where(np.real(a) <= np.real(b), a, b)


def clamp(x: Array, low: float, high: float) -> Array:
    return np.where(np.real(x) < low, low, np.where(np.real(x) > high, high, x))


def normalised(rewards: Array, groups: Array, recipe: Recipe) -> Array:
    """[R] less the group's mean, over its std (ddof 1)."""
    found = np.zeros(len(rewards))
    for group in np.unique(groups):
        own = groups == group
        if own.sum() == 1:
            found[own] = rewards[own] / (1.0 + recipe.eps) if recipe.lone else 0.0
            continue
        found[own] = rewards[own] - rewards[own].mean()
        if recipe.std:
            found[own] /= rewards[own].std(ddof=1) + recipe.eps
    return found


def firsts(rows: Rows) -> Array:
    """The first row of each trajectory."""
    return np.unique(rows.trajectories, return_index=True)[1]


def penalties(rows: Rows, recipe: Recipe) -> Array:
    """[R, T] what the KL takes off each token's reward."""
    return recipe.beta * (rows.old - rows.ref) * rows.mask if recipe.in_reward else 0.0 * rows.mask


def advantages(rows: Rows, recipe: Recipe) -> Array:
    """[R] or [R, T]"""
    if rows.given is not None:
        return rows.given
    if recipe.advantage == "group":
        return normalised(rows.rewards, rows.groups, recipe)
    if recipe.advantage == "batch":
        plain = normalised(rows.rewards, rows.groups, replace(recipe, std=False))
        return plain / (rows.rewards.std(ddof=1) + recipe.eps)
    if recipe.advantage == "whitened":
        plain = normalised(rows.rewards, rows.groups, replace(recipe, std=False))
        return whitened(plain[:, None] * rows.mask, rows.mask)
    if recipe.advantage == "trajectory":
        at = firsts(rows)
        once = normalised(rows.rewards[at], rows.groups[at], recipe)
        return once[np.searchsorted(rows.trajectories[at], rows.trajectories)]
    return token_returns(rows, recipe)


def whitened(plain: Array, mask: Array) -> Array:
    count = mask.sum()
    mean = (plain * mask).sum() / count
    var = (((plain - mean) ** 2) * mask).sum() / (count - 1.0)
    return (plain - mean) / np.sqrt(var + 1e-8) * mask


def token_returns(rows: Rows, recipe: Recipe) -> Array:
    """[R, T] by token: returns over the tokens that count."""
    found = np.zeros(rows.mask.shape)
    taken = penalties(rows, recipe)
    for row, mask in enumerate(rows.mask > 0):
        at = np.flatnonzero(mask)
        running = 0.0
        for place in at[::-1]:
            reward = (rows.rewards[row] if place == at[-1] else 0.0) - taken[row, place]
            running = reward + running
            found[row, place] = running
    return found


def log_ratio(rows: Rows, recipe: Recipe) -> Array:
    d = rows.new - rows.old
    if not recipe.sequence:
        return d
    return ((d * rows.mask).sum(-1) / rows.lengths)[..., None] + 0.0 * d


def surrogate(rows: Rows, recipe: Recipe, rho: Array, adv: Array) -> Array:
    """[R, T] to be maximised."""
    if recipe.surrogate == "cispo":
        return np.minimum(np.real(rho), recipe.high) * adv * rows.new
    if recipe.surrogate == "sapo":
        tau = np.where(adv > 0, *recipe.taus)
        return 4.0 / tau / (1.0 + np.exp(tau * (1.0 - rho))) * adv
    bounded = rho if recipe.delta is None else clamp(rho, 0.0, recipe.delta)
    kept = lower(bounded * adv, clamp(rho, 1.0 - recipe.low, 1.0 + recipe.high) * adv)
    if recipe.dual is None:
        return kept
    bound = recipe.dual * adv + 0.0 * kept
    return np.where((adv < 0) & (np.real(kept) < np.real(bound)), bound, kept)


def informative(rows: Rows, recipe: Recipe) -> Array:
    """[R, T] the tokens of high entropy."""
    limit = np.quantile(rows.entropies[rows.mask > 0], 1.0 - recipe.top)
    return rows.mask * (rows.entropies >= limit)


def weights(rows: Rows, recipe: Recipe) -> Array:
    """[R, T] for the engine that sampled; 0 drops a token from the policy term."""
    found = np.ones(rows.mask.shape)
    d = (rows.old - rows.rollout) * rows.mask
    if recipe.correction == "masked":
        found = np.exp(d) * (np.exp(d) <= recipe.cap)
    elif recipe.correction:
        found = np.minimum(np.exp(d), recipe.cap)
    if recipe.top < 1.0:
        found = found * informative(rows, recipe)
    return found


def penalty(rows: Rows, recipe: Recipe, rho: Array) -> Array:
    """[R, T] Schulman's k3; verl bounds it."""
    d = rows.ref - rows.new
    k3 = np.exp(d) - d - 1.0
    if recipe.keys == "verl":
        k3 = clamp(k3, -10.0, 10.0)
    if recipe.scored:
        return k3 * np.exp(rows.new - np.real(rows.new))
    return k3 * rho if recipe.weighted else k3


def reduce(rows: Rows, recipe: Recipe, values: Array, mask: Array) -> Array:
    count = np.maximum(mask.sum(axis=1), 1.0)
    total = (values * mask).sum(-1)
    if recipe.reduction == "response":
        found = (total / count).mean(-1)
    elif recipe.reduction == "token":
        found = total.sum(-1) / max(mask.sum(), 1.0)
    elif recipe.reduction == "sum":
        found = total.mean(-1) / recipe.length
    else:
        return total.sum(-1) / recipe.items
    return found / recipe.steps


def bonus(rows: Rows, recipe: Recipe) -> Array:
    """The entropy of the tokens that count (of those that are kept): their mean, or as reduced."""
    if recipe.same_entropy:
        return reduce(rows, recipe, rows.entropies, rows.mask)
    mask = informative(rows, recipe) if recipe.top < 1.0 else rows.mask
    return np.asarray((rows.entropies * mask).sum() / mask.sum() / recipe.steps)


RIGHT: dict[str, Stage] = {
    "advantages": advantages,
    "log_ratio": log_ratio,
    "surrogate": surrogate,
    "weights": weights,
    "penalty": penalty,
    "reduce": reduce,
    "reduce_kl": lambda rows, recipe, values, mask: reduce(
        rows, replace(recipe, reduction=recipe.kl_reduction), values, mask
    ),
    "bonus": bonus,
}


def loss(case: Case) -> Any:
    rows, recipe = case.rows, case.recipe
    adv = np.asarray(case.stage("advantages")(rows, recipe), dtype=float)
    adv = adv[:, None] if adv.ndim == 1 else adv
    rho = np.exp(case.stage("log_ratio")(rows, recipe))
    policy = -case.stage("surrogate")(rows, recipe, rho, adv)
    weights = case.stage("weights")(rows, recipe)
    found = case.stage("reduce")(rows, recipe, policy * weights, rows.mask)
    if recipe.beta and not recipe.in_reward:
        kl = case.stage("penalty")(rows, recipe, rho)
        found = found + recipe.beta * case.stage("reduce_kl")(rows, recipe, kl, rows.mask)
    if recipe.entropy:
        found = found - recipe.entropy * case.stage("bonus")(rows, recipe)
    return found


def evaluated(case: Case) -> tuple[float, Array]:
    """The loss and ∂loss/∂new [R, T]."""
    new = Var(case.rows.new)
    found = loss(case.of(new=new))
    found.backward()
    return case.logged(float(found.value)), new.slope * (case.rows.written > 0)
