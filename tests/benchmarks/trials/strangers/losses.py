"""Losses of trainers in plain numpy on padded arrays, a stage each; a mistake replaces one.

``np.real`` stops the gradient of what it is applied to (``tape.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from trials.tape import Array, Var

LOW, HIGH = 0.6, 1.6
"""Bounds of verl's rejection by token, ``token_k1``, on π_rollout/π_old."""


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
    turns: Array
    versions: Array
    entropies: Array
    ends: Array
    finished: Array
    rewards: Array
    functions: Array | None = None
    turn_rewards: Array | None = None
    values: Array | None = None
    given: Array | None = None

    @property
    def lengths(self) -> Array:
        return np.maximum(self.mask.sum(axis=1), 1.0)


@dataclass(frozen=True)
class Recipe:
    """A trainer's settings, and how ``grpo`` is told of them.

    Attributes:
        advantage: "group", "batch" (its std), "whitened" (over tokens), "trajectory", "returns",
            "gae", "turn-returns", "slime".
        reduction: "response", "token", "sum" (mean of sums, over ``length`` if it is given),
            "items" (over ``items``), "trajectory".
        surrogate: "clip", "cispo", "pg", "sapo" with ``taus``; ``delta``: TRL's two-sided clip.
        top: the share of the tokens that are kept, by their entropy.
        scored: whether the KL's gradient has the term of the draw (NeMo-RL).
        correction: "", "token", "sequence", "rejected" (by token, with its weight), "masked" (0
            above the cap); up to ``cap``.
        same_entropy: whether the bonus is reduced as the policy term is (verl).
        kl_reduction: of the KL, where it is another.
        words, hyper, framework: the command's words, and what the record says.
    """

    advantage: str = "group"
    eps: float = 1e-8
    std: bool = True
    lone: bool = False
    reward_weights: tuple[float, ...] = ()
    gamma: float = 1.0
    decay: float = 1.0
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
    opsm: float | None = None
    reduction: str = "token"
    length: float = 1.0
    items: float = 1.0
    steps: int = 1
    entropy: float = 0.0
    same_entropy: bool = False
    words: tuple[str, ...] = ()
    hyper: dict[str, Any] = field(default_factory=dict)
    framework: dict[str, Any] | None = None
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


def scores(rows: Rows, recipe: Recipe) -> Array:
    """[R] one reward a row."""
    if rows.functions is None:
        return rows.rewards
    return rows.functions @ np.array(recipe.reward_weights)


def penalties(rows: Rows, recipe: Recipe) -> Array:
    """[R, T] what the KL takes off each token's reward."""
    return recipe.beta * (rows.old - rows.ref) * rows.mask if recipe.in_reward else 0.0 * rows.mask


def advantages(rows: Rows, recipe: Recipe) -> Array:
    """[R] or [R, T]"""
    if rows.given is not None:
        return rows.given
    if recipe.advantage == "group":
        return normalised(scores(rows, recipe), rows.groups, recipe)
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
    if recipe.advantage == "slime":
        plain = normalised(rows.rewards, rows.groups, recipe)[:, None] * rows.mask
        return whitened(plain, rows.mask)
    if recipe.advantage == "turn-returns":
        return turn_returns(rows, recipe)
    return token_returns(rows, recipe)


def whitened(plain: Array, mask: Array) -> Array:
    count = mask.sum()
    mean = (plain * mask).sum() / count
    var = (((plain - mean) ** 2) * mask).sum() / (count - 1.0)
    return (plain - mean) / np.sqrt(var + 1e-8) * mask


def turn_returns(rows: Rows, recipe: Recipe) -> Array:
    """[R] of rows that are a turn each, in the order of their trajectory."""
    found, running = np.zeros(len(rows.rewards)), {}
    for row in range(len(found))[::-1]:
        key = rows.trajectories[row]
        running[key] = rows.turn_rewards[row] + recipe.gamma * running.get(key, 0.0)
        found[row] = running[key]
    return found


def token_returns(rows: Rows, recipe: Recipe) -> Array:
    """[R, T] by token: discounted returns, or GAE, over the tokens that count."""
    found = np.zeros(rows.mask.shape)
    taken = penalties(rows, recipe)
    for row, mask in enumerate(rows.mask > 0):
        at = np.flatnonzero(mask)
        running = value = 0.0
        for place in at[::-1]:
            reward = (rows.rewards[row] if place == at[-1] else 0.0) - taken[row, place]
            if recipe.advantage == "gae":
                here = rows.values[row, place]
                running = (
                    reward + recipe.gamma * value - here + recipe.gamma * recipe.decay * running
                )
                value = here
            else:
                running = reward + recipe.gamma * running
            found[row, place] = running
    return found


def log_ratio(rows: Rows, recipe: Recipe) -> Array:
    d = rows.new - rows.old
    if not recipe.sequence:
        return d
    return ((d * rows.mask).sum(-1) / rows.lengths)[..., None] + 0.0 * d


def surrogate(rows: Rows, recipe: Recipe, rho: Array, adv: Array) -> Array:
    """[R, T] to be maximised."""
    if recipe.surrogate == "pg":
        return rows.new * adv
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


def weights(rows: Rows, recipe: Recipe, adv: Array) -> Array:
    """[R, T] for the engine that sampled; 0 drops a token from the policy term."""
    found = np.ones(rows.mask.shape)
    d = (rows.old - rows.rollout) * rows.mask
    if recipe.surrogate == "pg":
        d = (np.real(rows.new) - rows.rollout) * rows.mask
    if recipe.correction == "sequence":
        d = d.sum(-1, keepdims=True) + 0.0 * d
    if recipe.correction == "masked":
        found = np.exp(d) * (np.exp(d) <= recipe.cap)
    elif recipe.correction:
        found = np.minimum(np.exp(d), recipe.cap)
    if recipe.top < 1.0:
        found = found * informative(rows, recipe)
    if recipe.opsm is not None:
        far = ((rows.rollout - np.real(rows.new)) * rows.mask).sum(-1) / rows.lengths
        found = found * ~((adv[..., :1] < 0) & (far[..., None] > recipe.opsm))
    return found


def kept(rows: Rows, recipe: Recipe) -> Array:
    """[R, T] the mask, without what a correction rejects."""
    if recipe.correction != "rejected":
        return rows.mask
    ratio = np.exp((rows.rollout - rows.old) * rows.mask)
    return rows.mask * ((ratio >= LOW) & (ratio <= HIGH))


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
    elif recipe.reduction == "trajectory":
        parts = []
        for one in np.unique(rows.trajectories):
            own = rows.trajectories == one
            parts.append(total[..., own].sum(-1) / mask[own].sum())
        found = sum(parts) / len(parts)
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
    "kept": kept,
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
    weights = case.stage("weights")(rows, recipe, adv)
    mask = case.stage("kept")(rows, recipe)
    found = case.stage("reduce")(rows, recipe, policy * weights, mask)
    if recipe.beta and not recipe.in_reward:
        kl = case.stage("penalty")(rows, recipe, rho)
        found = found + recipe.beta * case.stage("reduce_kl")(rows, recipe, kl, mask)
    if recipe.entropy:
        found = found - recipe.entropy * case.stage("bonus")(rows, recipe)
    return found


def evaluated(case: Case) -> tuple[float, Array]:
    """The loss and ∂loss/∂new [R, T]."""
    new = Var(case.rows.new)
    found = loss(case.of(new=new))
    found.backward()
    return case.logged(float(found.value)), new.slope * (case.rows.written > 0)
