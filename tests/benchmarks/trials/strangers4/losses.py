"""Wrong losses of a fourth list: surrogates, penalties, corrections, baselines, denominators."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trials.strangers.losses import (
    Array,
    Case,
    Recipe,
    Rows,
    clamp,
    lower,
    normalised,
    reduce,
)
from trials.strangers.mistake import wrong_loss
from trials.strangers.settings import Wish

PLAIN = ("paper", "trl", "slime")
CISPO = {
    "families": ("trl",),
    "reductions": ("items",),
    "recipe": {"surrogate": "cispo", "high": 1.3},
    "framework": {"loss_type": "cispo"},
}
BONUS = Wish(("trl",), recipe={"entropy": 0.1}, columns=("entropies",), large=True)
PAIRED = {"spec": {"reference": 0.5}, "large": True}


def _bounds(recipe: Recipe, rho: Array) -> Array:
    return clamp(rho, 1.0 - recipe.low, 1.0 + recipe.high)


def _greater(rows: Rows, recipe: Recipe, rho: Array, adv: Array) -> Array:
    return -lower(-rho * adv, -_bounds(recipe, rho) * adv)


def _normalised_late(rows: Rows, recipe: Recipe, rho: Array, adv: Array) -> Array:
    """The unclipped branch has the advantages of before they were divided by the std."""
    plain = normalised(rows.rewards, rows.groups, replace(recipe, std=False))[:, None]
    return lower(rho * plain, _bounds(recipe, rho) * adv)


def _without_bracket(rows: Rows, recipe: Recipe) -> Array:
    found = np.zeros(len(rows.rewards))
    for group in np.unique(rows.groups):
        own = rows.rewards[rows.groups == group]
        found[rows.groups == group] = own - own.mean() / (own.std(ddof=1) + recipe.eps)
    return found


def _leave_one_out(rows: Rows, recipe: Recipe) -> Array:
    found = np.zeros(len(rows.rewards))
    for row, group in enumerate(rows.groups):
        others = np.delete(rows.rewards, row)[np.delete(rows.groups, row) == group]
        found[row] = (rows.rewards[row] - others.mean()) / (others.std(ddof=1) + recipe.eps)
    return found


def _twice(rows: Rows, recipe: Recipe) -> Array:
    plain = normalised(rows.rewards, rows.groups, recipe)
    tokens = np.repeat(plain, rows.mask.sum(axis=1).astype(int))
    return (plain - tokens.mean()) / (tokens.std(ddof=1) + 1e-8)


def _mean_with_padding(rows: Rows, recipe: Recipe) -> Array:
    plain = normalised(rows.rewards, rows.groups, recipe)[:, None] * rows.mask
    mean = plain.mean()
    var = (((plain - mean) ** 2) * rows.mask).sum() / rows.mask.sum()
    return (plain - mean) / np.sqrt(max(var, 1e-8)) * rows.mask


def _again(rows: Rows, recipe: Recipe, values: Array, mask: Array) -> Array:
    return reduce(rows, recipe, values, mask) / recipe.steps


def _micro_batches(rows: Rows, recipe: Recipe, values: Array, mask: Array) -> Array:
    half, total = len(mask) // 2, values * mask
    parts = [
        total[part].sum((-2, -1)) / mask[part].sum() for part in (slice(half), slice(half, None))
    ]
    return sum(parts) / 2.0 / recipe.steps


def _mirrored(rows: Rows, recipe: Recipe, rho: Array) -> Array:
    d = rows.new - rows.ref
    return np.exp(d) - d - 1.0


def _bounded_below(rows: Rows, recipe: Recipe, adv: Array) -> Array:
    return np.clip(np.exp((rows.old - rows.rollout) * rows.mask), 1.0 / recipe.cap, recipe.cap)


def _two_bounds(rows: Rows, recipe: Recipe, rho: Array, adv: Array) -> Array:
    return np.clip(np.real(rho), 0.8, recipe.high) * adv * rows.new


def _shifted(case: Case) -> Case:
    old = np.concatenate([case.rows.old[:, 1:], 0.0 * case.rows.old[:, :1]], axis=1)
    return case.of(old=old * case.rows.written)


def _padding_of_the_cut(case: Case) -> Case:
    rows = case.rows
    return case.of(mask=np.where(rows.finished[:, None] | (rows.written > 0), rows.mask, 1.0))


def _gate(rows: Rows, recipe: Recipe, rho: Array, adv: Array) -> Array:
    tau = np.where(adv > 0, *recipe.taus)
    return 4.0 / tau / (1.0 + np.exp(tau * (1.0 - rho)))


MISTAKES = {
    "maximum for the minimum": wrong_loss(
        lambda case: case.but(surrogate=_greater),
        Wish(PLAIN, spec={"update": 0.5}, large=True),
        stage="clip",
    ),
    "normalised in the clipped term alone": wrong_loss(
        lambda case: case.but(surrogate=_normalised_late),
        Wish(("trl", "slime"), spec={"update": 0.4}),
        stage="advantage",
    ),
    "only the mean divided by the std": wrong_loss(
        lambda case: case.but(advantages=_without_bracket),
        Wish(("trl", "slime"), large=True),
        stage="advantage",
    ),
    "whitening's mean over the padding": wrong_loss(
        lambda case: case.but(advantages=_mean_with_padding),
        Wish(
            ("slime",),
            recipe={"advantage": "slime"},
            words=("-v", "slime/grpo", "--advantage", "slime/normalised"),
        ),
        stage="advantage",
    ),
    "divided by the accumulation again": wrong_loss(
        lambda case: case.but(reduce=_again),
        Wish(("trl",), ("items",), recipe={"steps": 4}, large=True),
        stage="scale",
    ),
    "each sample's mean under accumulation": wrong_loss(
        lambda case: case.by(reduction="response"),
        Wish(("paper", "verl"), ("token",), large=True),
        stage="aggregation",
    ),
    "mean of two micro-batches' means": wrong_loss(
        lambda case: case.but(reduce=_micro_batches),
        Wish(("paper", "verl", "trl"), ("token",), large=True),
        stage="aggregation",
    ),
    "squared log ratio as the KL": wrong_loss(
        lambda case: case.but(
            penalty=lambda rows, recipe, rho: (rows.new - rows.ref) * (rows.new - rows.ref)
        ),
        Wish(("paper", "verl"), beta=True, **PAIRED),
        stage="kl",
    ),
    "k3 of the inverse ratio": wrong_loss(
        lambda case: case.but(penalty=_mirrored),
        Wish(("paper", "trl", "verl"), beta=True, **PAIRED),
        stage="kl",
    ),
    "KL subtracted": wrong_loss(
        lambda case: case.by(beta=-case.recipe.beta),
        Wish(("paper", "trl", "verl"), beta=True, **PAIRED),
        stage="kl",
    ),
    "KL coefficient ignored": wrong_loss(
        lambda case: case.by(beta=0.0),
        Wish(("paper", "trl", "verl"), beta=True, recipe={"beta": 0.1}, **PAIRED),
        stage="kl",
    ),
    "SAPO without the advantages": wrong_loss(
        lambda case: case.but(surrogate=_gate),
        Wish(
            ("trl",),
            ("response",),
            recipe={"surrogate": "sapo"},
            framework={"loss_type": "sapo"},
            large=True,
        ),
        stage="advantage",
    ),
    "std although it is turned off": wrong_loss(
        lambda case: case.by(std=True),
        Wish(("paper",), ("sum",), large=True),
        stage="advantage",
    ),
    "ratio of the summed log-probs": wrong_loss(
        lambda case: case.but(
            log_ratio=lambda rows, recipe: (
                ((rows.new - rows.old) * rows.mask).sum(-1, keepdims=True) + 0.0 * rows.new
            )
        ),
        Wish(PLAIN, large=True),
        stage="ratio",
    ),
    "aggregation mode not passed on": wrong_loss(
        lambda case: case.by(reduction="token"),
        Wish(("verl",), ("response",), large=True),
        stage="aggregation",
    ),
    "CISPO without log-probs": wrong_loss(
        lambda case: case.but(
            surrogate=lambda rows, recipe, rho, adv: clamp(rho, 0.0, recipe.high) * adv
        ),
        Wish(**CISPO, large=True),
        stage="clip",
    ),
    "CISPO bounded below": wrong_loss(
        lambda case: case.but(surrogate=_two_bounds),
        Wish(**CISPO, spec={"update": 0.6}, large=True),
        stage="clip",
    ),
    "CISPO's ratio from the engine": wrong_loss(
        lambda case: case.but(log_ratio=lambda rows, recipe: rows.new - rows.rollout),
        Wish(**CISPO, columns=("rollout",), spec={"engine": 0.3}),
        stage="ratio",
    ),
    "ratio against itself": wrong_loss(
        lambda case: case.but(log_ratio=lambda rows, recipe: rows.new - np.real(rows.new)),
        Wish(PLAIN, large=True),
        stage="ratio",
    ),
    "a constant ratio": wrong_loss(
        lambda case: case.but(log_ratio=lambda rows, recipe: 0.0 * (rows.new - rows.old)),
        Wish(("paper", "trl"), beta=True, large=True),
        stage="ratio",
    ),
    "normalised twice": wrong_loss(
        lambda case: case.but(advantages=_twice),
        Wish(("paper", "verl"), large=True),
        stage="advantage",
    ),
    "population std": wrong_loss(
        lambda case: case.but(
            advantages=lambda rows, recipe: (
                normalised(rows.rewards, rows.groups, recipe)
                * np.sqrt(
                    np.bincount(rows.groups)[rows.groups]
                    / (np.bincount(rows.groups)[rows.groups] - 1.0)
                )
            )
        ),
        Wish(("trl", "slime", "verl"), large=True),
        stage="advantage",
    ),
    "padding counts without an end-of-text": wrong_loss(
        _padding_of_the_cut,
        Wish(("span",), spec={"longest": 7}),
        stage="mask",
    ),
    "engine's weights bounded below": wrong_loss(
        lambda case: case.but(weights=_bounded_below),
        Wish(("trl",), recipe={"correction": "token"}, columns=("rollout",), spec={"engine": 0.9}),
        stage="correction",
    ),
    "entropy added to the loss": wrong_loss(
        lambda case: case.by(entropy=-case.recipe.entropy), BONUS, stage="entropy"
    ),
    "entropy never added": wrong_loss(lambda case: case.by(entropy=0.0), BONUS, stage="entropy"),
    "baseline of the whole batch": wrong_loss(
        lambda case: case.but(advantages=lambda rows, recipe: rows.rewards - rows.rewards.mean()),
        Wish(("paper",), ("sum",), large=True),
        stage="advantage",
    ),
    "mean and std of the others": wrong_loss(
        lambda case: case.but(advantages=_leave_one_out),
        Wish(("paper", "trl", "verl"), spec={"rewards": "graded"}, large=True),
        stage="advantage",
    ),
    "old log-probs a token early": wrong_loss(
        _shifted, Wish(("paper", "trl", "verl"), large=True), stage="ratio"
    ),
    "log-probs divided by the temperature": wrong_loss(
        lambda case, heat: case.of(old=case.rows.old / heat),
        Wish(("paper", "trl", "verl"), large=True),
        strengths=(0.7, 1.2),
        stage="ratio",
    ),
}
