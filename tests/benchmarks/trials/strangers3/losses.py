"""Wrong losses; most are one change to a loss with ordinary settings of a trainer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from trials.strangers.losses import (
    Case,
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


def _again(rows: Rows, recipe: Recipe) -> Array:
    return whitened(advantages(rows, recipe)[:, None] * rows.mask, rows.mask)


def _padded_statistics(rows: Rows, recipe: Recipe) -> Array:
    """The padding's zeros count in the mean and the std."""
    plain = advantages(rows, replace(recipe, advantage="group", std=False))[:, None]
    return whitened(plain * rows.mask, np.ones_like(rows.mask)) * rows.mask


def _on_policy(rows: Rows, recipe: Recipe) -> Array:
    return log_ratio(replace(rows, old=np.real(rows.new)), recipe)


def _by_engine(rows: Rows, recipe: Recipe) -> Array:
    return log_ratio(replace(rows, old=rows.rollout), recipe)


def _current_weight(rows: Rows, recipe: Recipe) -> Array:
    return weights(replace(rows, old=np.real(rows.new)), recipe)


def _cispo_window(rows: Rows, recipe: Recipe, rho: Array, adv: Array) -> Array:
    return clamp(np.real(rho), 0.8, recipe.high) * adv * rows.new


def _sapo(case: Case, how: str) -> Case:
    positive, negative = case.recipe.taus
    if how == "one temperature":
        return case.by(taus=(positive, positive))

    def unscaled(rows: Rows, recipe: Recipe, rho: Array, adv: Array) -> Array:
        tau = np.where(adv > 0, positive, negative)
        return surrogate(rows, recipe, rho, adv) * (tau / 4.0)

    return case.but(surrogate=unscaled)


def _token_weighted(rows: Rows, recipe: Recipe, rho: Array) -> Array:
    return penalty(rows, recipe, np.exp(rows.new - rows.old))


def _of_the_mean(rows: Rows, recipe: Recipe, rho: Array) -> Array:
    d = (rows.ref - rows.new) * rows.mask
    mean = d.sum(-1, keepdims=True) / rows.lengths[:, None] + 0.0 * d
    return np.exp(mean) - mean - 1.0


def _kl_by_response(rows: Rows, recipe: Recipe, values: Array, mask: Array) -> Array:
    return reduce(rows, replace(recipe, reduction="response"), values, mask)


def _untied(rows: Rows, recipe: Recipe, rho: Array) -> Array:
    live = [np.ptp(rows.rewards[rows.groups == group]) > 0 for group in rows.groups]
    return penalty(rows, recipe, rho) * np.array(live)[:, None]


def _unbiased(rows: Rows, recipe: Recipe, rho: Array) -> Array:
    """The value of k3, with the gradient of the importance-weighted score."""
    score = np.real(rho) * (np.real(rows.new) - rows.ref)
    return np.real(penalty(rows, recipe, rho)) + score * (rows.new - np.real(rows.new))


def _scaled_kl(case: Case, by: int) -> Case:
    return case.but(penalty=lambda rows, recipe, rho: by * penalty(rows, recipe, rho))


def _numerator(rows: Rows, recipe: Recipe, values: Array, mask: Array) -> Array:
    return (values * rows.written).sum((-2, -1)) / mask.sum() / recipe.steps


def _without_ends(case: Case) -> Case:
    return case.of(mask=case.rows.mask * ~case.rows.ends)


def _padded_threshold(rows: Rows, recipe: Recipe) -> Array:
    limit = np.quantile(rows.entropies, 1.0 - recipe.top)
    return rows.mask * (rows.entropies >= limit)


def _kept_divide(case: Case) -> Case:
    return case.but(
        reduce=lambda rows, recipe, values, mask: reduce(
            rows, recipe, values, informative(rows, recipe)
        ),
        reduce_kl=reduce,
    )


def _ranks(case: Case, count: int) -> Case:
    """Each rank divides by its own tokens, and the ranks are averaged."""

    def over(rows: Rows, recipe: Recipe, values: Array, mask: Array) -> Array:
        parts = np.array_split(np.arange(len(mask)), count)
        means = [(values * mask)[part].sum((-2, -1)) / mask[part].sum() for part in parts]
        return sum(means) * (1.0 / count / recipe.steps)

    return case.but(reduce=over)


def _all_slots(rows: Rows, recipe: Recipe, values: Array, mask: Array) -> Array:
    return (values * mask).sum((-2, -1)) / mask.size / recipe.steps


def _sixteenth(rows: Rows, recipe: Recipe, values: Array, mask: Array) -> Array:
    return reduce(rows, recipe, values, mask) / 16.0


def _bonus_of_all(rows: Rows, recipe: Recipe) -> Array:
    return np.asarray((rows.entropies * rows.mask).sum() / rows.mask.sum() / recipe.steps)


MISTAKES: dict[str, Callable[..., Case]] = {
    "group's std for the batch's": lambda case: case.by(advantage="group"),
    "advantages whitened after their normalisation": lambda case: case.but(advantages=_again),
    "whitened over the padding": lambda case: case.but(advantages=_padded_statistics),
    "current log-probs for the old ones, by sequence": lambda case: case.but(log_ratio=_on_policy),
    "engine's ratio twice": lambda case: case.but(log_ratio=_by_engine),
    "engine's weight of the current policy": lambda case: case.but(weights=_current_weight),
    "clip computed, not used": lambda case: case.but(
        surrogate=lambda rows, recipe, rho, adv: rho * adv
    ),
    "dual clip not passed on": lambda case: case.by(dual=None),
    "two-sided bound not passed on": lambda case: case.by(delta=None),
    "CISPO's ratio bounded below": lambda case: case.but(surrogate=_cispo_window),
    "SAPO's gate simplified": _sapo,
    "KL weighted by the token's own ratio": lambda case: case.but(penalty=_token_weighted),
    "KL's importance weight not passed on": lambda case: case.by(weighted=False),
    "KL without the term of the draw": lambda case: case.by(scored=False),
    "k3 of the response's mean log ratio": lambda case: case.but(penalty=_of_the_mean),
    "KL averaged by response, the policy term by token": lambda case: case.but(
        reduce_kl=_kl_by_response
    ),
    "engine's weight on the KL too": lambda case: case.but(
        penalty=lambda rows, recipe, rho: penalty(rows, recipe, rho) * weights(rows, recipe)
    ),
    "KL left out where rewards tie": lambda case: case.but(penalty=_untied),
    "KL times the context-parallel size": _scaled_kl,
    "KL in the reward left out": lambda case: case.by(beta=0.0),
    "k3 with the gradient of the reverse KL": lambda case: case.but(penalty=_unbiased),
    "engine's weights missing at the sequence level": lambda case: case.by(correction=""),
    "IcePop's mask not applied": lambda case: case.by(correction="token", cap=np.inf),
    "masked tokens in the numerator": lambda case: case.but(reduce=_numerator),
    "ends of turns left out by a mask of ids": _without_ends,
    "entropy threshold over the padding": lambda case: case.but(weights=_padded_threshold),
    "ranks divide by their own tokens": _ranks,
    "padding counted as tokens": lambda case: case.but(reduce=_all_slots),
    "kept tokens alone divide": _kept_divide,
    "constant length of 1,000": lambda case: case.by(length=1_000.0),
    "data-parallel size in the denominator": lambda case: case.but(reduce=_sixteenth),
    "logged loss divided by the micro-batches again": lambda case: replace(
        case, logged=lambda loss: loss / case.recipe.steps
    ),
    "logged loss times the ranks": lambda case: replace(case, logged=lambda loss: 8.0 * loss),
    "entropy by token, the policy term by response": lambda case: case.by(same_entropy=False),
    "entropy times the context-parallel size": lambda case: case.by(
        entropy=2.0 * case.recipe.entropy
    ),
    "entropy bonus of the dropped tokens too": lambda case: case.but(bonus=_bonus_of_all),
}
"""The wrong losses by name; their batches and words are rows of ``mistakes.json``."""
