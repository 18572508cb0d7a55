"""Wrong losses; most are one change to a loss with ordinary settings of a trainer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
from trials.strangers.mistake import wrong_loss
from trials.strangers.settings import Wish
from trials.tape import Array

KL = r"\b(kl|penalty|k3|k1|beta)\b|β"
TRL, VERL, PAPER = ("trl",), ("verl",), ("paper",)
RETURNS = ("-v", "dapo", "--advantage", "returns", "-p", "gamma=1", "--kl", "k1-in-reward")
SKYRL = ("-v", "skyrl/grpo")
SEQUENCE: dict[str, Any] = {"sequence": True, "low": 0.02, "high": 0.03}
TIS: dict[str, Any] = {"correction": "token", "cap": 2.0}
TOP: dict[str, Any] = {"top": 0.3}


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


MISTAKES = {
    "group's std for the batch's": wrong_loss(
        lambda case: case.by(advantage="group"),
        Wish(TRL, recipe={"advantage": "batch"}, framework={"scale_rewards": "batch"}),
        stage="advantage",
    ),
    "advantages whitened after their normalisation": wrong_loss(
        lambda case: case.but(advantages=_again),
        Wish(("paper", "verl"), ("token",)),
        stage="advantage",
    ),
    "whitened over the padding": wrong_loss(
        lambda case: case.but(advantages=_padded_statistics),
        Wish(
            PAPER,
            ("token",),
            beta=False,
            recipe={"advantage": "whitened"},
            words=("-v", "dapo", "--advantage", "token-whiten"),
        ),
        stage="advantage",
    ),
    "current log-probs for the old ones, by sequence": wrong_loss(
        lambda case: case.but(log_ratio=_on_policy),
        Wish(TRL, ("response",), beta=True, recipe=SEQUENCE, spec={"update": 0.4}),
        stage="ratio",
    ),
    "engine's ratio twice": wrong_loss(
        lambda case: case.but(log_ratio=_by_engine),
        Wish(
            ("slime",),
            recipe=TIS,
            words=("-v", "slime/tis"),
            columns=("rollout",),
            spec={"engine": 0.2},
        ),
        stage="ratio",
    ),
    "engine's weight of the current policy": wrong_loss(
        lambda case: case.but(weights=_current_weight),
        Wish(
            ("slime",),
            recipe=TIS,
            words=("-v", "slime/tis"),
            columns=("rollout",),
            spec={"engine": 0.1},
        ),
        stage="correction",
    ),
    "clip computed, not used": wrong_loss(
        lambda case: case.but(surrogate=lambda rows, recipe, rho, adv: rho * adv),
        Wish(("paper", "verl"), ("token",), spec={"update": 0.4}),
        stage="clip",
    ),
    "dual clip not passed on": wrong_loss(
        lambda case: case.by(dual=None), Wish(VERL, beta=True, spec={"update": 0.8}), stage="clip"
    ),
    "two-sided bound not passed on": wrong_loss(
        lambda case: case.by(delta=None),
        Wish(TRL, beta=True, recipe={"delta": 1.5}, spec={"update": 0.6}),
        stage="clip",
    ),
    "CISPO's ratio bounded below": wrong_loss(
        lambda case: case.but(surrogate=_cispo_window),
        Wish(
            TRL,
            ("items",),
            recipe={"surrogate": "cispo", "high": 1.4},
            framework={"loss_type": "cispo"},
            spec={"update": 0.5},
        ),
        stage="clip",
    ),
    "SAPO's gate simplified": wrong_loss(
        _sapo,
        Wish(
            TRL,
            ("response",),
            recipe={"surrogate": "sapo", "taus": (1.0, 1.5)},
            hyper={"sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.5},
            framework={"loss_type": "sapo"},
        ),
        ("one temperature", "unscaled"),
        stage="clip",
    ),
    "KL weighted by the token's own ratio": wrong_loss(
        lambda case: case.but(penalty=_token_weighted),
        Wish(
            TRL,
            ("response",),
            beta=True,
            recipe={**SEQUENCE, "weighted": True, "beta": 0.1},
            spec={"reference": 0.5},
        ),
        stage="kl",
    ),
    "KL's importance weight not passed on": wrong_loss(
        lambda case: case.by(weighted=False),
        Wish(
            TRL,
            beta=True,
            recipe={"weighted": True, "beta": 0.1},
            spec={"reference": 0.5, "update": 0.3},
        ),
        stage="kl",
    ),
    "KL without the term of the draw": wrong_loss(
        lambda case: case.by(scored=False),
        Wish(
            PAPER,
            ("token",),
            beta=True,
            recipe={"scored": True, "beta": 0.1},
            words=("-v", "nemo-rl/grpo"),
            spec={"reference": 0.5},
            given=True,
        ),
        value=False,
        stage="kl",
    ),
    "k3 of the response's mean log ratio": wrong_loss(
        lambda case: case.but(penalty=_of_the_mean),
        Wish(PAPER, ("response",), beta=True, recipe={"beta": 0.1}, spec={"reference": 0.5}),
        stage="kl",
    ),
    "KL averaged by response, the policy term by token": wrong_loss(
        lambda case: case.but(reduce_kl=_kl_by_response),
        Wish(
            ("paper", "trl", "verl"),
            ("token",),
            beta=True,
            recipe={"beta": 0.1},
            spec={"reference": 0.5, "spread": 0.8},
        ),
        stage="kl",
    ),
    "engine's weight on the KL too": wrong_loss(
        lambda case: case.but(
            penalty=lambda rows, recipe, rho: penalty(rows, recipe, rho) * weights(rows, recipe)
        ),
        Wish(
            TRL,
            beta=True,
            recipe={**TIS, "beta": 0.1},
            columns=("rollout",),
            spec={"engine": 0.4, "reference": 0.5},
        ),
        stage="kl",
    ),
    "KL left out where rewards tie": wrong_loss(
        lambda case: case.but(penalty=_untied),
        Wish(
            ("paper", "trl"),
            beta=True,
            recipe={"beta": 0.1},
            spec={"reference": 0.5},
            tied=True,
        ),
        stage="kl",
    ),
    "KL times the context-parallel size": wrong_loss(
        _scaled_kl,
        Wish(
            PAPER,
            ("token",),
            beta=True,
            recipe={"beta": 0.05, "eps": 1e-6, "lone": True, "kl_reduction": "response"},
            words=SKYRL,
            spec={"reference": 0.5},
        ),
        (2, 4),
        stage="kl",
    ),
    "KL in the reward left out": wrong_loss(
        lambda case: case.by(beta=0.0),
        Wish(
            PAPER,
            ("token",),
            beta=True,
            recipe={"advantage": "returns", "beta": 0.1, "in_reward": True},
            words=RETURNS,
            spec={"reference": 0.6},
        ),
        stage="kl",
    ),
    "k3 with the gradient of the reverse KL": wrong_loss(
        lambda case: case.but(penalty=_unbiased),
        Wish(PAPER, ("response",), beta=True, recipe={"beta": 0.1}, spec={"reference": 0.5}),
        value=False,
        stage="kl",
    ),
    "engine's weights missing at the sequence level": wrong_loss(
        lambda case: case.by(correction=""),
        Wish(
            TRL,
            ("response",),
            recipe={**SEQUENCE, **TIS},
            columns=("rollout",),
            spec={"engine": 0.3},
        ),
        stage="correction",
    ),
    "IcePop's mask not applied": wrong_loss(
        lambda case: case.by(correction="token", cap=np.inf),
        Wish(
            ("slime",),
            recipe={"correction": "masked", "cap": 2.0},
            words=("-v", "slime/icepop"),
            columns=("rollout",),
            spec={"engine": 0.6},
        ),
        stage="correction",
    ),
    "masked tokens in the numerator": wrong_loss(
        lambda case: case.but(reduce=_numerator),
        Wish(
            ("paper", "verl"),
            ("token",),
            spec={"length": 50.0, "longest": 70},
            masked="cut",
        ),
        stage="mask",
    ),
    "ends of turns left out by a mask of ids": wrong_loss(
        _without_ends, Wish(("span",), columns=("token_ids",)), agent=True, stage="mask"
    ),
    "entropy threshold over the padding": wrong_loss(
        lambda case: case.but(weights=_padded_threshold),
        Wish(TRL, recipe=TOP, columns=("entropies",), spec={"spread": 0.8}),
        stage="mask",
    ),
    "ranks divide by their own tokens": wrong_loss(
        _ranks,
        Wish(("paper", "verl"), ("token",), spec={"size": 8, "spread": 0.8}),
        (2, 4),
        stage="aggregation",
    ),
    "padding counted as tokens": wrong_loss(
        lambda case: case.but(reduce=_all_slots),
        Wish(("paper", "verl"), ("token",)),
        stage="aggregation",
    ),
    "kept tokens alone divide": wrong_loss(
        _kept_divide,
        Wish(TRL, ("token", "response"), recipe=TOP, columns=("entropies",)),
        stage="aggregation",
    ),
    "constant length of 1,000": wrong_loss(
        lambda case: case.by(length=1_000.0),
        Wish(TRL, ("sum",), recipe={"length": 256.0}),
        stage="aggregation",
    ),
    "data-parallel size in the denominator": wrong_loss(
        lambda case: case.but(reduce=_sixteenth),
        Wish(
            VERL,
            ("response",),
            beta=False,
            hyper={"dp_size": 4, "global_batch_size": 96},
            spec={"sizes": (8, 8, 8), "length": 35.0},
        ),
        stage="scale",
    ),
    "logged loss divided by the micro-batches again": wrong_loss(
        lambda case: replace(case, logged=lambda loss: loss / case.recipe.steps),
        Wish(TRL, ("token", "response", "sum"), recipe={"steps": 4}),
        stage="scale",
    ),
    "logged loss times the ranks": wrong_loss(
        lambda case: replace(case, logged=lambda loss: 8.0 * loss),
        Wish(
            PAPER,
            ("token",),
            beta=True,
            recipe={"scored": True},
            words=("-v", "nemo-rl/grpo"),
            given=True,
        ),
        stage="scale",
    ),
    "entropy by token, the policy term by response": wrong_loss(
        lambda case: case.by(same_entropy=False),
        Wish(
            VERL,
            ("response",),
            recipe={"same_entropy": True, "entropy": 0.1},
            columns=("entropies",),
            spec={"spread": 0.9},
        ),
        stage="entropy",
    ),
    "entropy times the context-parallel size": wrong_loss(
        lambda case: case.by(entropy=2.0 * case.recipe.entropy),
        Wish(
            PAPER,
            ("token",),
            beta=True,
            recipe={
                "beta": 0.01,
                "eps": 1e-6,
                "lone": True,
                "kl_reduction": "response",
                "entropy": 0.02,
            },
            words=SKYRL,
            columns=("entropies",),
        ),
        stage="entropy",
    ),
    "entropy bonus of the dropped tokens too": wrong_loss(
        lambda case: case.but(bonus=_bonus_of_all),
        Wish(TRL, recipe={**TOP, "entropy": 0.02}, columns=("entropies",)),
        stage="entropy",
    ),
}
