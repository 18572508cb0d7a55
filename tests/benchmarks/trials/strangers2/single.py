"""Mistakes of single answers: clips, penalties, corrections, baselines, denominators."""

from __future__ import annotations

import numpy as np

from trials.strangers.losses import (
    Array,
    Case,
    Recipe,
    Rows,
    clamp,
    lower,
    normalised,
    penalty,
    whitened,
)
from trials.strangers.mistake import wrong_loss
from trials.strangers.settings import Wish

KL = r"\b(kl|penalty|k3)\b"
TRL, VERL = ("trl",), ("verl",)
NOISY = {"engine": 0.6}
BIASED = ("-v", "verl/bypass_pg_is", "-p", "rollout_is=token")
REJECTING = (
    "-v",
    "verl/decoupled_token_is",
    "-p",
    "rollout_rs=token_k1",
    "-p",
    "rollout_rs_threshold=0.6_1.6",
)


def _low_clip(rows: Rows, recipe: Recipe, rho: Array, adv: Array) -> Array:
    return lower(rho * adv, clamp(rho, recipe.low, 1.0 + recipe.high) * adv)


def _live_weight(rows: Rows, recipe: Recipe, rho: Array, adv: Array) -> Array:
    """REINFORCE with a weight that is differentiated as well."""
    w = np.exp((rows.new - rows.rollout) * rows.mask)
    w = np.where(np.real(w) > recipe.cap, recipe.cap, w)
    return rows.new * adv * w / np.real(w)


def _dropped(rows: Rows, recipe: Recipe, adv: Array) -> Array:
    w = np.exp((rows.old - rows.rollout) * rows.mask)
    return w * (w <= recipe.cap)


def _mean_weight(rows: Rows, recipe: Recipe, adv: Array) -> Array:
    d = ((rows.old - rows.rollout) * rows.mask).sum(-1, keepdims=True) / rows.lengths[:, None]
    return np.minimum(np.exp(d + 0.0 * rows.mask), recipe.cap)


def _all_counted(case: Case) -> Case:
    def over(rows: Rows, recipe: Recipe, values: Array, mask: Array) -> Array:
        return (values * mask).sum((-2, -1)) / rows.mask.sum()

    return case.but(reduce=over)


def _by_old(case: Case) -> Case:
    """The off-policy mask measures from the old policy, not from the engine."""

    def weights(rows: Rows, recipe: Recipe, adv: Array) -> Array:
        far = ((rows.old - np.real(rows.new)) * rows.mask).sum(-1) / rows.lengths
        return 1.0 - ((adv[..., :1] < 0) & (far[..., None] > recipe.opsm)) * 1.0

    return case.but(weights=weights)


def _kl_in_reward(case: Case) -> Case:
    def advantages(rows: Rows, recipe: Recipe) -> Array:
        paid = (recipe.beta * (rows.old - rows.ref) * rows.mask).sum(axis=1)
        return normalised(rows.rewards - paid, rows.groups, recipe)

    return case.but(advantages=advantages)


def _centred_columns(rows: Rows, recipe: Recipe) -> Array:
    d = rows.new - rows.old
    return d - d.mean(axis=-2, keepdims=True)


def _padded_luspo(rows: Rows, recipe: Recipe, values: Array, mask: Array) -> Array:
    weighed = values * mask.sum(axis=1)[:, None]
    return weighed.mean((-2, -1)) / recipe.steps


def _finished_alone(rows: Rows, recipe: Recipe) -> Array:
    """Mean and std of the responses that ended; those that were cut are compared with them."""
    found = np.zeros(len(rows.rewards))
    for group in np.unique(rows.groups):
        own = rows.groups == group
        among = rows.rewards[own & rows.finished]
        if len(among) < 2:
            continue
        found[own] = rows.rewards[own] - among.mean()
        if recipe.std:
            found[own] /= among.std(ddof=1) + recipe.eps
    return found


def _first(rows: Rows, recipe: Recipe) -> Array:
    found = np.zeros(len(rows.rewards))
    for group in np.unique(rows.groups):
        own = np.flatnonzero(rows.groups == group)
        found[own] = rows.rewards[own] - rows.rewards[own[0]]
    return found


def _sliced(case: Case) -> Case:
    """Every n rows are a group, n being the size of those in which nothing failed."""
    size = int(np.bincount(case.rows.groups).max())
    return case.of(groups=np.arange(len(case.rows.groups)) // size)


def _lone_zero(case: Case) -> Case:
    return case.by(lone=False)


def _halves(rows: Rows, recipe: Recipe) -> Array:
    """Two context-parallel ranks each whiten the half of every row that they hold."""
    plain = normalised(rows.rewards, rows.groups, recipe)[:, None] * rows.mask
    place = np.cumsum(rows.mask, axis=1)
    first = rows.mask * (place <= np.ceil(rows.lengths / 2)[:, None])
    return whitened(plain, first) + whitened(plain, rows.mask - first)


def _absolute(case: Case) -> Case:
    right = case.stage("advantages")

    def advantages(rows: Rows, recipe: Recipe) -> Array:
        place = np.maximum(np.cumsum(rows.mask, axis=1) - 1, 0)
        return right(rows, recipe) * recipe.gamma**place

    return case.but(advantages=advantages)


def _live_tokens(case: Case) -> Case:
    """Groups whose rewards tie are filtered, and with them their tokens."""

    def over(rows: Rows, recipe: Recipe, values: Array, mask: Array) -> Array:
        live = np.array([np.ptp(rows.rewards[rows.groups == group]) > 0 for group in rows.groups])
        count = (mask * live[:, None]).sum()
        return (values * mask * live[:, None]).sum((-2, -1)) / count / recipe.steps

    return case.but(reduce=over)


def _copied(case: Case) -> Case:
    """The last row fills the batch up once more."""
    right = case.stage("reduce")

    def over(rows: Rows, recipe: Recipe, values: Array, mask: Array) -> Array:
        more = np.concatenate([values, values[..., -1:, :]], axis=-2)
        return right(rows, recipe, more, np.concatenate([mask, mask[-1:]]))

    return case.but(reduce=over)


def _entropy_over(case: Case) -> Case:
    return case.but(
        bonus=lambda rows, recipe: np.asarray((rows.entropies * rows.mask).sum() / recipe.items)
    )


def _entropy_all(case: Case) -> Case:
    def bonus(rows: Rows, recipe: Recipe) -> Array:
        return np.asarray((rows.entropies * rows.written).sum() / rows.written.sum() / recipe.steps)

    return case.but(bonus=bonus)


MISTAKES = {
    "clip from epsilon up": wrong_loss(
        lambda case: case.but(surrogate=_low_clip),
        Wish(("paper", "trl", "slime"), spec={"update": 0.6}),
    ),
    "KL without a gradient": wrong_loss(
        lambda case: case.but(
            penalty=lambda rows, recipe, rho: np.real(penalty(rows, recipe, rho))
        ),
        Wish(beta=True),
        value=False,
    ),
    "KL in the reward as well": wrong_loss(
        _kl_in_reward,
        Wish(("paper", "trl"), beta=True, recipe={"beta": 0.1}, spec={"reference": 0.5}),
    ),
    "CISPO's bound counted from one": wrong_loss(
        lambda case: case.by(high=1.0 + case.recipe.high),
        Wish(
            TRL,
            ("items",),
            recipe={"surrogate": "cispo", "high": 1.3},
            framework={"loss_type": "cispo"},
            spec={"update": 0.7},
        ),
    ),
    "engine's weight with a gradient": wrong_loss(
        lambda case: case.but(surrogate=_live_weight),
        Wish(
            VERL,
            ("token",),
            beta=False,
            recipe={"surrogate": "pg", "correction": "token", "dual": None},
            words=BIASED,
            columns=("rollout",),
            spec=NOISY,
        ),
        value=False,
    ),
    "engine's weights not truncated": wrong_loss(
        lambda case: case.by(cap=np.inf),
        Wish(TRL, recipe={"correction": "token"}, columns=("rollout",), spec={"engine": 0.9}),
    ),
    "engine's weights beyond the cap dropped": wrong_loss(
        lambda case: case.but(weights=_dropped),
        Wish(TRL, recipe={"correction": "token"}, columns=("rollout",), spec={"engine": 0.9}),
    ),
    "sequence's weight a mean": wrong_loss(
        lambda case: case.but(weights=_mean_weight),
        Wish(TRL, recipe={"correction": "sequence"}, columns=("rollout",), spec={"engine": 0.35}),
    ),
    "rejected tokens in the denominator": wrong_loss(
        _all_counted,
        Wish(
            VERL,
            ("token",),
            beta=False,
            recipe={"correction": "rejected"},
            words=REJECTING,
            columns=("rollout",),
            spec=NOISY,
        ),
    ),
    "off-policy mask by the old policy": wrong_loss(
        _by_old,
        Wish(
            TRL,
            recipe={"opsm": 0.04},
            framework={"off_policy_mask_threshold": 0.04},
            columns=("rollout",),
            spec={"engine": 0.45, "update": 0.15},
        ),
    ),
    "entropy over the tokens of the generation batch": wrong_loss(
        _entropy_over,
        Wish(TRL, ("items",), recipe={"entropy": 0.05, "steps": 2}, columns=("entropies",)),
    ),
    "entropy of truncated rows": wrong_loss(
        _entropy_all, Wish(TRL, recipe={"entropy": 0.2}, columns=("entropies",), masked="cut")
    ),
    "log ratio centred over the batch": wrong_loss(
        lambda case: case.but(log_ratio=_centred_columns),
        Wish(("paper", "trl", "slime"), recipe={"sequence": False}),
    ),
    "LUSPO over the padded width": wrong_loss(
        lambda case: case.but(reduce=_padded_luspo),
        Wish(
            TRL,
            ("sum",),
            recipe={"length": 1.0},
            framework={"loss_type": "luspo"},
        ),
    ),
    "baseline of the finished responses": wrong_loss(
        lambda case: case.but(advantages=_finished_alone),
        Wish(("paper", "trl"), masked="cut", spec={"longest": 20}),
    ),
    "first response's reward as the baseline": wrong_loss(
        lambda case: case.but(advantages=_first),
        Wish(("paper",), ("sum",), spec={"rewards": "graded"}),
    ),
    "reward functions not weighted": wrong_loss(
        lambda case: case.but(
            advantages=lambda rows, recipe: normalised(rows.functions.sum(1), rows.groups, recipe)
        ),
        Wish(
            TRL,
            recipe={"reward_weights": (1.0, 0.3)},
            framework={"reward_weights": [1.0, 0.3]},
            functions=True,
        ),
    ),
    "uneven groups cut at one size": wrong_loss(
        _sliced, Wish(("paper", "verl"), spec={"sizes": (5, 3, 4)}, recipe={"lone": False})
    ),
    "lone response without an advantage": wrong_loss(
        _lone_zero, Wish(VERL, spec={"sizes": (4, 1, 5), "rewards": "graded"})
    ),
    "whitened by halves of each row": wrong_loss(
        lambda case: case.but(advantages=_halves),
        Wish(
            ("slime",),
            recipe={"advantage": "slime"},
            words=("-v", "slime/grpo", "--advantage", "slime/normalised"),
        ),
    ),
    "discount by the absolute position": wrong_loss(
        _absolute,
        Wish(
            ("paper",),
            ("token",),
            beta=False,
            recipe={"advantage": "returns", "gamma": 0.95},
            words=("-v", "dapo", "--advantage", "returns", "-p", "gamma=0.95"),
        ),
    ),
    "tokens of tied groups left out": wrong_loss(
        _live_tokens,
        Wish(
            ("paper", "trl", "verl"), ("token",), beta=False, spec={"sizes": (4, 4, 4)}, tied=True
        ),
    ),
    "own mean of each response for Dr. GRPO's sum": wrong_loss(
        lambda case: case.by(reduction="response", length=1.0), Wish(("paper", "trl"), ("sum",))
    ),
    "a row counted twice": wrong_loss(_copied, Wish(reductions=("response", "token", "sum"))),
}
