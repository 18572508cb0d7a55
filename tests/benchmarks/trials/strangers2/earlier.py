"""Kinds of a first list, known for long, that no other experiment plants."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trials.product import Record
from trials.strangers.dumps import agent, healthy, written
from trials.strangers.losses import Recipe, Rows, advantages, reduce
from trials.strangers.mistake import wrong_column, wrong_loss
from trials.strangers.settings import Wish
from trials.strangers.world import Random
from trials.tape import Array

KL = r"\b(kl|penalty|k3)\b"
TOOLS = Wish(("span",))


def _prompts(rows: Rows, recipe: Recipe, values: Array, mask: Array) -> Array:
    owns = [rows.groups == group for group in np.unique(rows.groups)]
    means = [(values * mask)[own].sum((-2, -1)) / mask[own].sum() for own in owns]
    return sum(means) / len(means) / recipe.steps


def _everywhere(rows: Rows, recipe: Recipe, values: Array, mask: Array) -> Array:
    return (values * mask).sum((-2, -1)) / mask.size / recipe.steps


def _unmasked(rows: Rows, recipe: Recipe, values: Array, mask: Array) -> Array:
    return reduce(rows, recipe, values, rows.written)


def _over_padding(rows: Rows, recipe: Recipe) -> Array:
    return advantages(rows, recipe) * rows.mask.mean(axis=1)


def _interleaved(rows: Rows, recipe: Recipe) -> Array:
    count = len(np.unique(rows.groups))
    return advantages(replace(rows, groups=np.arange(len(rows.groups)) % count), recipe)


def _summed_weights(rows: Rows, recipe: Recipe, adv: Array) -> Array:
    ratios = np.exp((rows.old - rows.rollout) * rows.mask) * rows.mask
    return np.minimum(ratios.sum(axis=1, keepdims=True), recipe.cap) + 0.0 * rows.mask


def _leading_zero(random: Random, _: None) -> list[Record]:
    world = healthy(random)
    values = world.columns["log_probs_rollout"]
    for span in world.spans():
        values[span] = np.append(0.0, values[span][:-1])
    return written(world)


def _inverted(random: Random, _: None) -> list[Record]:
    world = agent(random)
    return written(world, mask=world.tool.astype(int))


MISTAKES = {
    "token mean of each prompt for that of the batch": wrong_loss(
        lambda case: case.but(reduce=_prompts), Wish(reductions=("token",))
    ),
    "KL averaged over a padded tensor": wrong_loss(
        lambda case: case.but(reduce_kl=_everywhere), Wish(beta=True)
    ),
    "KL of masked tokens counted": wrong_loss(
        lambda case: case.but(reduce_kl=_unmasked),
        Wish(("paper", "trl"), ("response", "token", "sum"), beta=True, masked="cut"),
    ),
    "mask inverted": wrong_loss(
        lambda case: case.of(mask=case.rows.written - case.rows.mask), TOOLS
    ),
    "advantage of a sequence averaged over its padding": wrong_loss(
        lambda case: case.but(advantages=_over_padding),
        Wish(("paper", "trl", "verl"), ("response",)),
    ),
    "groups taken across prompts": wrong_loss(
        lambda case: case.but(advantages=_interleaved), Wish(("paper", "trl", "verl"))
    ),
    "correction for the engine left out": wrong_loss(
        lambda case: case.by(correction=""),
        Wish(
            ("trl",),
            ("response", "token", "sum"),
            recipe={"correction": "token"},
            columns=("rollout",),
            spec={"engine": 0.3},
        ),
    ),
    "weights of a sequence summed for multiplied": wrong_loss(
        lambda case: case.but(weights=_summed_weights),
        Wish(
            ("trl",),
            ("response", "token", "sum"),
            recipe={"correction": "sequence", "cap": 20.0},
            columns=("rollout",),
            spec={"engine": 0.1},
        ),
    ),
    "engine's log-probs for the old policy's": wrong_loss(
        lambda case: case.of(old=case.rows.rollout),
        Wish(("paper", "trl", "verl"), columns=("rollout",), spec={"engine": 0.2}),
    ),
}
FAULTS = {
    "engine's column begins with the prompt's zero": wrong_column(_leading_zero),
    "mask inverted": wrong_column(_inverted, agent=True),
}
