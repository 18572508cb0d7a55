"""Kinds of runs that were written down before any rule was changed for them; they only measure.

What they are like is taken from threads of 2025 and 2026, the numbers are not. One token for ever:
SPG#2, RM-R1#7. Empty responses: ROLL#303. Length without end: rllm#226. A KL of billions:
torchforge#664, OpenRLHF#931. Base weights in the engine: trl#3252, trl#5312. Gradients: trl#2980.
"""

from __future__ import annotations

import numpy as np

from running.kinds import DEAD_UP, DOWN, EITHER, KL, MISMATCH_UP, SHARP, UP, Kind, ramp
from running.logs import Planted, Series, names
from running.policy import Random
from running.simulate import ROWS, Conditions, StepRows, World, conditions

REWARD_DOWN = {r"reward_mean|pass_at_.*": DOWN, **DEAD_UP}


def _one_token(since: int, world: World) -> Conditions:
    """The weights are broken: every response is one token, which the model is sure of."""

    def rows(step: StepRows, world: World) -> None:
        step.ids[:], step.rewards[:] = 0, 0.0
        for name in ("log_probs_new", "log_probs_old", "log_probs_rollout"):
            step.columns[name][:] = -1e-4
        step.columns["entropies"][:] = 1e-3

    return conditions(rows=rows, cut=1.0)


def _empty(since: int, world: World) -> Conditions:
    """A growing share of the responses ends after two tokens, and is wrong."""
    share = ramp(since, 25, 0.0, 0.8)

    def rows(step: StepRows, world: World) -> None:
        ended = world.random.random(ROWS) < share
        owners = np.repeat(np.arange(ROWS), step.lengths)
        starts = np.repeat(np.cumsum(step.lengths) - step.lengths, step.lengths)
        kept = ~ended[owners] | (np.arange(len(owners)) - starts < 2)
        step.lengths = np.where(ended, np.minimum(step.lengths, 2), step.lengths)
        step.ids, step.finished = step.ids[kept], step.finished | ended
        step.rewards = np.where(ended, 0.0, step.rewards)
        step.columns = {name: values[kept] for name, values in step.columns.items()}

    return conditions(rows=rows)


def _billions(since: int, world: World) -> Conditions:
    """At one step of three, a token is 20 nats less likely than in the reference."""
    if since and world.random.random() < 0.67:
        return conditions()

    def rows(step: StepRows, world: World) -> None:
        at = int(world.random.integers(len(step.ids)))
        low = step.columns["log_probs_ref"][at] - float(world.random.uniform(14.0, 22.0))
        for name in ("log_probs_new", "log_probs_old", "log_probs_rollout"):
            step.columns[name][at] = low

    return conditions(rows=rows)


def _lost_rewards(since: int, world: World) -> Conditions:
    """More and more calls of the reward server time out and count 0."""
    share = ramp(since, 30, 0.0, 0.7)

    def rows(step: StepRows, world: World) -> None:
        step.rewards[world.random.random(ROWS) < share] = 0.0

    return conditions(rows=rows)


LATER = (
    Kind(
        "one token for ever",
        _one_token,
        {SHARP: DOWN, r"repetition|truncated|at_longest|length_.*": UP, **REWARD_DOWN},
        within=5,
    ),
    Kind("empty responses", _empty, {"length_.*": DOWN, **REWARD_DOWN}, within=24),
    Kind(
        "length without end",
        lambda since, world: conditions(
            length=ramp(since, 30, 1.0, 2.2), hardness=ramp(since, 30, 0.0, -3.0)
        ),
        {r"length_.*|truncated|at_longest": UP, **REWARD_DOWN},
        within=24,
    ),
    Kind("a KL of billions at some steps", _billions, {KL: EITHER, "nll|gradient_norm": UP}, 8),
    Kind(
        "engine on the base weights",
        lambda since, world: conditions(lag=1000),
        {**MISMATCH_UP, r"reward_mean|pass_at_.*": DOWN, "nll": UP},
        within=12,
    ),
    Kind("rewards time out", _lost_rewards, REWARD_DOWN, within=24),
)


def _higher(series: Series, onset: int, random: Random) -> None:
    """Spikes of the gradient, at no period, each higher than the last."""
    factor = 4.0
    for at in range(onset, len(series["gradient"])):
        if at == onset or random.random() < 0.15:
            series["gradient"][at] *= factor
            factor *= 1.6


def _endless(series: Series, onset: int, random: Random) -> None:
    """Longer and longer responses, and what is held out falls to nothing."""
    since = (np.arange(len(series["length"])) - onset).clip(0)
    series["length"] *= 4.0 ** np.minimum(since / 40, 1.0)
    series["eval"] = series["eval"] / (1.0 + np.exp((since - 20) / 4.0))


def _bare(series: Series, onset: int, random: Random) -> None:
    """The log keeps four decimals, and the policy loses its entropy step by step."""
    since = (np.arange(len(series["entropy"])) - onset).clip(0)
    series["entropy"] = (0.05 * series["entropy"] * np.exp(-since / 12.0)).round(4)
    series["length"] = series["length"].round(0)


LATER_LOGS = (
    Planted(Kind("spikes higher and higher", None, {names("gradient"): UP}, 24), _higher),
    Planted(
        Kind("length × 4, held-out to 0", None, {names("length"): UP, names("eval"): DOWN}, 24),
        _endless,
    ),
    Planted(Kind("small entropy in four decimals", None, {names("entropy"): DOWN}, 24), _bare),
)
