"""Further kinds of runs, with which nothing is built: they only measure.

What the kinds are like is taken from threads; the numbers are not. Stale weights: trl#5312.
Dropout: reef#536. Entropy that rises: verl#2738, rllm#116, Search-R1#162. Length: VLM-R1#280,
verl-agent#188. Resumed: open-r1#450, rsl_rl#89. Weights that a sync corrupts: SkyRL#1680.
"""

from __future__ import annotations

import numpy as np

from running.kinds import (
    DEAD_UP,
    DOWN,
    EITHER,
    KL,
    MISMATCH,
    MISMATCH_UP,
    RATIOS,
    SHARP,
    UP,
    Kind,
    ramp,
)
from running.logs import Planted, Series, names, paths
from running.simulate import HEALTHY, SIZE, Conditions, Random, StepRows, World, conditions

REWARD = r"reward_mean|reward_std|pass_at_.*|reward_group_std|groups_.*"
LEARNING = {KL: EITHER, SHARP: EITHER, RATIOS: EITHER, REWARD: EITHER, "gradient_norm": EITHER}


def _format(since: int, world: World) -> Conditions:
    """The form alone is paid, and the policy finds that out."""
    return conditions(pays_format=ramp(since, 25, 0.0, 0.97), judge=ramp(since, 25, 1.0, 0.2))


def _resumed(since: int, world: World) -> Conditions:
    """Without its second moments, the optimizer's first steps are large."""
    return conditions(rate=1.0 + 14.0 * float(np.exp(-since / 2.0)))


def _stale(since: int, world: World) -> Conditions:
    """The engine keeps the weights of the onset."""
    return conditions(lag=since + 1, rate=1.5)


def _worker(since: int, world: World) -> Conditions:
    """A reward worker gives 0 to a quarter of the groups."""

    def rows(step: StepRows, world: World) -> None:
        step.rewards[: 2 * SIZE] = 0.0

    return conditions(rows=rows)


def _outage(since: int, world: World) -> Conditions:
    """The reward server is away for six steps."""
    return conditions(reward=lambda rewards: 0.0 * rewards) if since < 6 else HEALTHY


def _vocabulary(since: int, world: World) -> Conditions:
    """The trainer scores other words than those that were sampled."""

    def rows(step: StepRows, world: World) -> None:
        for name in ("log_probs_new", "log_probs_old", "log_probs_ref"):
            step.columns[name] = np.roll(step.columns[name], 7) - 1.5

    return conditions(rows=rows, judge=0.0, hardness=-1.5)


def _dropout(since: int, world: World) -> Conditions:
    """The trainer's forward passes differ from each other, and from the engine's."""

    def rows(step: StepRows, world: World) -> None:
        names = ("log_probs_new", "log_probs_old") if world.ratios else ("log_probs_new",)
        for name in names:
            noise = 0.25 * world.random.standard_normal(len(step.ids))
            step.columns[name] = np.minimum(step.columns[name] + noise - 0.03, -1e-6)
        if not world.ratios:
            step.columns["log_probs_old"] = step.columns["log_probs_new"]

    return conditions(rows=rows)


def _environment(since: int, world: World) -> Conditions:
    """The environment of two of six kinds of prompts gives 0."""

    def rows(step: StepRows, world: World) -> None:
        failed = np.repeat(step.kinds < 2, SIZE)
        step.rewards[failed] = 0.0

    return conditions(rows=rows)


def _beta(since: int, world: World) -> Conditions:
    """The KL's coefficient is raised, as a schedule says."""

    def rows(step: StepRows, world: World) -> None:
        step.settings["beta"] = 0.1

    return conditions(rows=rows)


def _brief(since: int, world: World) -> Conditions:
    return conditions(length=float(np.exp(np.log(0.2) * ramp(since, 30))))


def _corrupt(since: int, world: World) -> Conditions:
    """A sync wrote a part of the engine's weights wrongly; what it samples is worse."""
    return conditions(engine_noise=120.0)


OTHERS = (
    Kind(
        "reward hacked by format",
        _format,
        {
            r"reward_mean|pass_at_.*|groups_all_1|groups_equal": UP,
            r"groups_all_0|reward_std|reward_group_std|gradient_norm": DOWN,
        },
        within=24,
    ),
    Kind("optimizer state lost at resume", _resumed, LEARNING, within=12),
    Kind("engine keeps old weights", _stale, MISMATCH_UP, within=24),
    Kind(
        "a quarter of the rewards are 0",
        _worker,
        {r"reward_mean|pass_at_.*|reward_group_std": DOWN, **DEAD_UP},
        within=24,
    ),
    Kind(
        "reward server away for six steps",
        _outage,
        {r"reward_mean|reward_std|pass_at_.*": DOWN, **DEAD_UP},
        within=6,
    ),
    Kind(
        "another vocabulary after a resume",
        _vocabulary,
        {**MISMATCH_UP, "nll": UP, "reward_mean|pass_at_.*": DOWN, KL: EITHER},
        within=5,
    ),
    Kind(
        "learning rate × 6 for good",
        lambda since, world: conditions(rate=6.0),
        {KL: UP, RATIOS: EITHER, SHARP: EITHER, MISMATCH: EITHER},
        within=24,
    ),
    Kind("dropout left on", _dropout, {**MISMATCH_UP, RATIOS: EITHER, KL: UP}, within=5),
    Kind(
        "engine upgraded: mismatch × 5",
        lambda since, world: conditions(engine_noise=5.0),
        MISMATCH_UP,
        within=8,
    ),
    Kind("weights corrupted at a sync", _corrupt, {**MISMATCH_UP, "nll": UP}, within=3),
    Kind(
        "clipping saturates",
        lambda since, world: conditions(rate=ramp(since, 25, 1.0, 14.0)),
        {RATIOS: EITHER, KL: UP, SHARP: EITHER},
        within=24,
    ),
    Kind(
        "an environment of three breaks",
        _environment,
        {r"reward_mean|pass_at_.*|reward_group_std": DOWN, **DEAD_UP},
        within=24,
    ),
    Kind(
        "responses become short",
        _brief,
        {"length_.*|at_longest|truncated": DOWN},
        within=20,
    ),
    Kind(
        "entropy rises",
        lambda since, world: conditions(entropy=ramp(since, 35, 1.0, 1.4)),
        {SHARP: UP},
    ),
    Kind(
        "one temperature 1.2 in the engine",
        lambda since, world: conditions(engine_temperature=1.2),
        MISMATCH_UP,
        within=8,
    ),
    Kind(
        "an engine of another model for a tenth of the responses",
        lambda since, world: conditions(foreign=0.1),
        {**MISMATCH_UP, "nll": UP, "kl.*": UP},
        within=12,
    ),
    Kind(
        "healthy: harder prompts",
        lambda since, world: conditions(hardness=-1.0),
        {REWARD: EITHER, "gradient_norm": EITHER},
        sound=True,
    ),
    Kind(
        "healthy: second epoch",
        lambda since, world: conditions(hardness=0.5),
        {REWARD: EITHER, "gradient_norm": EITHER},
        sound=True,
    ),
    Kind("healthy: β raised", _beta, {"loss|objective|kl": EITHER}, sound=True),
    Kind(
        "healthy: a longer limit",
        lambda since, world: conditions(longest=1.6),
        {"length_.*|truncated|at_longest": EITHER},
        sound=True,
    ),
    Kind(
        "healthy: learning rate decays",
        lambda since, world: conditions(rate=ramp(since, 40, 1.0, 0.05)),
        {RATIOS: EITHER, KL: EITHER},
        sound=True,
    ),
)


def _dead(series: Series, onset: int, random: Random) -> None:
    ramp_ = paths(onset, lambda since: 1.0 + ramp(since, 25, 0.0, 1.0)) - 1.0
    series["dead"] = (series["dead"] + (0.95 - series["dead"]) * ramp_).clip(0.0, 1.0)


def _collapsed(series: Series, onset: int, random: Random) -> None:
    """The entropy decays, and the reward no longer rises."""
    series["entropy"] *= paths(onset, lambda since: 0.1 ** ramp(since, 35))
    series["reward"][onset:] -= (
        series["reward"][onset:] - series["reward"][onset - 8 : onset].mean()
    )
    series["reward"][onset:] += 0.03 * random.standard_normal(len(series["reward"]) - onset)


def _gamed(series: Series, onset: int, random: Random) -> None:
    """The reward rises; what is held out falls."""
    up = paths(onset, lambda since: 1.0 + ramp(since, 30)) - 1.0
    series["reward"] = series["reward"] + 0.25 * up
    series["eval"] = series["eval"] - 0.3 * up


def _long(series: Series, onset: int, random: Random) -> None:
    series["length"] *= paths(onset, lambda since: 3.0 ** ramp(since, 30))


def _clipped(series: Series, onset: int, random: Random) -> None:
    factor = paths(onset, lambda since: 60.0 ** ramp(since, 25))
    series["clipped"] = (series["clipped"] * factor).clip(0.0, 0.8)


def _drifting(series: Series, onset: int, random: Random) -> None:
    series["kl"] *= paths(onset, lambda since: 40.0 ** ramp(since, 35))


def _spiking(series: Series, onset: int, random: Random) -> None:
    """Every ninth step."""
    for at in range(onset, len(series["gradient"]), 9):
        series["gradient"][at] *= 30.0


def _owned(series: Series, onset: int, random: Random) -> None:
    """What is right is given up for the form, which is paid less."""
    up = paths(onset, lambda since: 1.0 + ramp(since, 25)) - 1.0
    series["accuracy"] = (series["accuracy"] - 0.4 * up).clip(0.0, 1.0)
    series["reward"] = series["reward"] - 0.4 * up


def _flat(series: Series, onset: int, random: Random) -> None:
    """Learning ends, and the run goes on."""
    for name in ("reward", "accuracy", "eval"):
        level = series[name][onset - 6 : onset].mean()
        series[name][onset:] = level + 0.03 * random.standard_normal(len(series[name]) - onset)


def _at(name: str, signs: dict[str, str], within: int = 24, periodic: int = 0) -> Kind:
    return Kind(name, None, signs, within=within, marked=bool(periodic), periodic=periodic)


OTHER_LOGS = (
    Planted(_at("advantage collapse", {names("dead"): UP}), _dead),
    Planted(_at("entropy collapse", {names("entropy"): DOWN}), _collapsed),
    Planted(_at("reward against what is held out", {names("eval"): DOWN}), _gamed),
    Planted(_at("length × 3", {names("length"): UP}), _long),
    Planted(_at("clipping saturates", {names("clipped"): UP}), _clipped),
    Planted(_at("KL × 40", {names("kl"): UP}), _drifting),
    Planted(_at("gradient × 30 every ninth step", {names("gradient"): UP}, 19, 9), _spiking),
    Planted(
        _at("one reward function owns the reward", {names("accuracy", "reward"): DOWN}), _owned
    ),
    Planted(_at("plateau", {names("reward", "accuracy"): EITHER}), _flat),
)
"""What the nine detectors of rldoctor are for."""
