"""Mistakes of agents: turns, trajectories, tools, several versions of the weights."""

from __future__ import annotations

from functools import partial

import numpy as np

from trials.strangers.losses import Array, Case, Recipe, Rows, normalised
from trials.strangers.mistake import wrong_loss
from trials.strangers.settings import Wish

SPAN, ROWS = ("span",), ("rows",)
RETURNS = ("-v", "dapo", "--advantage", "returns", "-p", "gamma=1")
GAE = ("-v", "dapo", "--advantage", "gae", "-p", "gamma=1", "-p", "gae_lambda=0.9")


def _reset(rows: Rows, recipe: Recipe) -> Array:
    """The running return is set to 0 at every token that a tool wrote."""
    found = np.zeros(rows.mask.shape)
    for row, mask in enumerate(rows.mask):
        places = np.flatnonzero(rows.written[row])
        last = np.flatnonzero(mask)[-1]
        running = 0.0
        for place in places[::-1]:
            running = (rows.rewards[row] if place == last else 0.0) + recipe.gamma * running
            found[row, place] = running
            running *= mask[place]
    return found


def _gae_everywhere(rows: Rows, recipe: Recipe) -> Array:
    """Every written token is a step, those of tools too."""
    found = np.zeros(rows.mask.shape)
    for row in range(len(found)):
        running = value = 0.0
        places = np.flatnonzero(rows.written[row])
        last = np.flatnonzero(rows.mask[row])[-1]
        for place in places[::-1]:
            reward = rows.rewards[row] if place == last else 0.0
            here = rows.values[row, place]
            running = reward + recipe.gamma * value - here + recipe.gamma * recipe.decay * running
            found[row, place], value = running, here
    return found


def _padded_value(rows: Rows, recipe: Recipe) -> Array:
    """The critic's value of the slot behind the end is the next value of the last token."""
    found = np.zeros(rows.mask.shape)
    for row, mask in enumerate(rows.mask):
        places = np.flatnonzero(mask)
        behind = min(places[-1] + 1, rows.mask.shape[1] - 1)
        running, value = 0.0, rows.values[row, behind] if behind > places[-1] else 0.0
        for place in places[::-1]:
            reward = rows.rewards[row] if place == places[-1] else 0.0
            here = rows.values[row, place]
            running = reward + recipe.gamma * value - here + recipe.gamma * recipe.decay * running
            found[row, place], value = running, here
    return found


def _leaking(rows: Rows, recipe: Recipe) -> Array:
    """The KL of tools' tokens is paid by the tokens before them."""
    paid = recipe.beta * (rows.old - rows.ref) * rows.written
    later = np.cumsum(paid[:, ::-1], axis=1)[:, ::-1]
    return (rows.rewards[:, None] - later) * rows.mask


def _lasts(rows: Rows) -> Array:
    """[R] the last row of each row's trajectory."""
    last = {key: row for row, key in enumerate(rows.trajectories)}
    return np.array([last[key] for key in rows.trajectories])


def _last_places(case: Case) -> Case:
    """Right-aligned rows get the advantages of the last turn where that has tokens."""
    right = case.stage("advantages")

    def advantages(rows: Rows, recipe: Recipe) -> Array:
        adv, last = right(rows, recipe), _lasts(rows)
        found = np.zeros(rows.mask.shape)
        for row in range(len(found)):
            places = np.flatnonzero(rows.mask[row])
            count = int(rows.mask[last[row]].sum())
            found[row, places[-count:]] = adv[row]
        return found

    return case.but(advantages=advantages)


def _by_row(rows: Rows, recipe: Recipe) -> Array:
    return normalised(rows.rewards, rows.groups, recipe)


def _cumulated(case: Case) -> Case:
    """Turns come in the order of their numbers, and the advantages by counting last turns."""
    rows = case.rows
    right = case.stage("advantages")(rows, case.recipe)
    at = np.unique(rows.trajectories, return_index=True)[1]
    once = right[at]
    number = np.concatenate([[0], np.cumsum(_lasts(rows) == np.arange(len(right)))[:-1]])
    order = np.argsort(_numbers(rows), kind="stable")
    found = np.zeros(len(right))
    found[order] = once[number]
    return case.but(advantages=lambda rows, recipe: found)


def _numbers(rows: Rows) -> Array:
    """[R] the number of each row in its trajectory."""
    seen: dict[int, int] = {}
    found = []
    for key in rows.trajectories.tolist():
        found.append(seen.get(key, 0))
        seen[key] = found[-1] + 1
    return np.array(found)


def _own_raw(rows: Rows, recipe: Recipe) -> Array:
    return rows.rewards / (1.0 + 1e-6)


def _by_number(rows: Rows, recipe: Recipe) -> Array:
    return normalised(rows.rewards, 1_000 * rows.groups + _numbers(rows), recipe)


def _ratio_by_turn(rows: Rows, recipe: Recipe) -> Array:
    d = (rows.new - rows.old) * rows.mask
    found = 0.0 * d
    for turn in range(int(rows.turns.max()) + 1):
        own = rows.mask * (rows.turns == turn)
        mean = (d * own).sum(-1) / np.maximum(own.sum(axis=1), 1.0)
        found = found + mean[..., None] * own
    return found


def _across(rows: Rows, recipe: Recipe) -> Array:
    """The discounted sum does not stop where a trajectory ends."""
    found, running = np.zeros(len(rows.rewards)), 0.0
    for row in range(len(found))[::-1]:
        running = rows.turn_rewards[row] + recipe.gamma * running
        found[row] = running
    return found


def _last_turn(case: Case) -> Case:
    rows = case.rows
    last = np.where(rows.mask > 0, rows.turns, -1).max(axis=1, keepdims=True)
    return case.of(mask=rows.mask * (rows.turns == last))


def _fresh(case: Case, counted: bool) -> Case:
    """Tokens that older weights sampled are not trained; they may still be counted."""
    rows = case.rows
    mask = rows.mask * (rows.versions == rows.versions.max())
    if not counted:
        return case.of(mask=mask)
    return case.but(weights=lambda rows, recipe, adv: mask)


def _tools_counted(case: Case) -> Case:
    def over(rows: Rows, recipe: Recipe, values: Array, mask: Array) -> Array:
        count = rows.written.sum(axis=1)
        total = (values * mask).sum(-1)
        if recipe.reduction == "response":
            return (total / count).mean(-1)
        return total.sum(-1) / count.sum()

    return case.but(reduce=over)


def _tools_in_ratio(rows: Rows, recipe: Recipe) -> Array:
    d = rows.new - rows.old
    return ((d * rows.written).sum(-1) / rows.written.sum(axis=1))[..., None] + 0.0 * d


GSPO = Wish(
    SPAN,
    recipe={"sequence": True, "reduction": "response", "low": 0.05, "high": 0.08},
    words=("-v", "gspo"),
    columns=("turn_ids",),
)

agent_loss = partial(wrong_loss, agent=True)
MISTAKES = {
    "return cut off by a tool's answer": agent_loss(
        lambda case: case.but(advantages=_reset),
        Wish(SPAN, recipe={"advantage": "returns"}, words=RETURNS),
    ),
    "GAE steps over tools' tokens": agent_loss(
        lambda case: case.but(advantages=_gae_everywhere),
        Wish(
            SPAN,
            recipe={"advantage": "gae", "decay": 0.9},
            words=GAE,
            columns=("values",),
        ),
    ),
    "critic's value behind the end": agent_loss(
        lambda case: case.but(advantages=_padded_value),
        Wish(
            SPAN,
            recipe={"advantage": "gae", "decay": 0.9},
            words=GAE,
            columns=("values",),
        ),
    ),
    "KL of tools' tokens in the returns": agent_loss(
        lambda case: case.but(advantages=_leaking),
        Wish(
            SPAN,
            recipe={"advantage": "returns", "beta": 0.1, "in_reward": True},
            words=(*RETURNS, "--kl", "k1-in-reward"),
            spec={"reference": 0.6},
        ),
    ),
    "advantages at the places of the last turn": agent_loss(_last_places, Wish(ROWS)),
    "a trajectory counts once for each turn": agent_loss(
        lambda case: case.but(advantages=_by_row), Wish(ROWS)
    ),
    "advantages of interleaved turns": agent_loss(_cumulated, Wish(ROWS)),
    "every trajectory a group of its own": agent_loss(
        lambda case: case.but(advantages=_own_raw), Wish(ROWS)
    ),
    "a trajectory's turns as the group": agent_loss(
        lambda case: case.but(advantages=lambda rows, recipe: 0.0 * rows.rewards),
        Wish(ROWS),
        value=False,
    ),
    "turns compared by their number": agent_loss(
        lambda case: case.but(advantages=_by_number), Wish(ROWS, spec={"turns": (2, 4)})
    ),
    "a ratio for each turn": agent_loss(lambda case: case.but(log_ratio=_ratio_by_turn), GSPO),
    "tools' tokens in the sequence's ratio": agent_loss(
        lambda case: case.but(log_ratio=_tools_in_ratio), GSPO
    ),
    "each turn weighs alike": agent_loss(
        lambda case: case.by(reduction="response"),
        Wish(
            ROWS,
            recipe={
                "advantage": "trajectory",
                "eps": 1e-8,
                "lone": False,
                "dual": None,
                "reduction": "trajectory",
            },
            words=(
                "-v",
                "dapo",
                "--advantage",
                "trajectory-group-std",
                "--aggregate",
                "trajectory-mean",
            ),
        ),
    ),
    "returns run on into another trajectory": agent_loss(
        lambda case: case.but(advantages=_across),
        Wish(
            ROWS,
            recipe={"advantage": "turn-returns", "gamma": 0.9, "dual": None},
            words=("-v", "dapo", "--advantage", "turn-returns", "-p", "gamma=0.9"),
        ),
    ),
    "the last turn alone is trained": agent_loss(_last_turn, Wish(SPAN, columns=("turn_ids",))),
    "tokens of older weights left out": agent_loss(
        _fresh, Wish(SPAN, columns=("versions",), spec={"versions": 2}), strengths=(False, True)
    ),
    "tools' tokens in the denominator": agent_loss(_tools_counted, Wish(SPAN)),
}
