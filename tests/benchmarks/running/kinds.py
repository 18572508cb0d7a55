"""Kinds of runs: what is done to one from its onset on, and what has to be found.

Detectors may be built with these; the sixteen that only measured are in commit d794f6d2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from running.simulate import HEALTHY, STEPS, Change, Conditions, World, conditions

UP, DOWN, EITHER = "up", "down", "either"


@dataclass(frozen=True)
class Kind:
    """A way in which a run goes wrong, or does not.

    Attributes:
        change: steps since the onset → conditions; None: healthy all the way.
        signs: metrics whose finding counts (a pattern of their names) → the way they move.
        within: the most steps after the onset at which it must have been found.
        sound: whether nothing is wrong, so that a finding of another metric is false.
        marked: whether the step itself has to be named.
        periodic: the steps between two of a fault that comes back; 0: it does not.
        steady: whether it is so from the first step of the run on.
        informs: whether information is enough, since it is no fault.
        nan: whether a number is none, which has to be said at its step.
    """

    name: str
    change: Change | None
    signs: Mapping[str, str]
    within: int = 20
    sound: bool = False
    marked: bool = False
    periodic: int = 0
    steady: bool = False
    informs: bool = False
    nan: bool = False

    def sign_of(self, metric: str) -> str | None:
        """The way in which a metric moves with this fault; None where it is not of its metrics."""
        for pattern, sign in self.signs.items():
            if re.fullmatch(pattern, metric):
                return sign
        return None


def ramp(since: int, steps: int, first: float = 0.0, last: float = 1.0) -> float:
    """From the first value to the last in so many steps, and then the last."""
    return first + (last - first) * min((since + 1) / steps, 1.0)


def _always(**values: object) -> Change:
    held = conditions(**values)
    return lambda since, world: held


def _at_once(**values: object) -> Change:
    held = conditions(**values)
    return lambda since, world: held if since == 0 else HEALTHY


def _grows(name: str, path: Callable[[int], float], **more: object) -> Change:
    return lambda since, world: conditions(**{name: path(since)}, **more)


def _kl_exponential(since: int) -> float:
    """0.014 → 2.5 in forty steps."""
    return float(np.exp(np.log(2.5 / 0.014) * ramp(since, 40)))


def _periodic(since: int, world: World) -> Conditions:
    return conditions(engine_noise=30.0) if since % 5 == 0 else HEALTHY


def _loops(since: int, world: World) -> Conditions:
    return conditions(loops=ramp(since, 28, 0.0, 0.7))


def _dead(since: int, world: World) -> Conditions:
    return conditions(dead=ramp(since, 28))


def _hacked(since: int, world: World) -> Conditions:
    """Longer responses are paid for, the policy writes more and more of them."""
    return conditions(
        length=ramp(since, 40, 1.0, 2.0),
        pays_length=ramp(since, 40, 0.0, 0.8),
        judge=ramp(since, 40, 1.0, 0.3),
    )


MISMATCH = r"mismatch\..*|ess"
KL = r"kl|kl_k1|kl_k3|loss"
SHARP = r"entropy|nll"
RATIOS = r"ratio_p999|clip_low|clip_high|ess|ratio_mean|loss|objective"
MISMATCH_UP = {r"mismatch\.ess|ess": DOWN, r"mismatch\..*": UP}
DEAD_UP = {r"groups_equal": UP, r"groups_all_[01]": UP, r"reward_group_std|gradient_norm": DOWN}
LONGER = {r"length_.*|at_longest|truncated|reward_length_corr": UP, r"reward_mean": UP}

KINDS = (
    Kind("KL, exponential", _grows("kl", _kl_exponential), {KL: UP, "objective": DOWN}),
    Kind(
        "KL, linear × 40",
        _grows("kl", lambda since: ramp(since, 50, 1.0, 40.0)),
        {KL: UP, "objective": DOWN},
    ),
    Kind("KL halved", _always(reference_kl=0.5), {"kl|kl_k1|kl_k3": DOWN}, informs=True),
    Kind(
        "entropy, gradual",
        _grows("entropy", lambda since: ramp(since, 45, 1.0, 0.11)),
        {SHARP: DOWN, "repetition": UP},
        within=15,
    ),
    Kind(
        "entropy → a third, from the first step on",
        _grows("entropy", lambda since: 3.0 ** -ramp(since, STEPS)),
        {SHARP: DOWN},
        within=100,
        steady=True,
    ),
    Kind("entropy, at once", _always(entropy=0.25), {SHARP: DOWN, "repetition": UP}, within=5),
    Kind(
        "learning rate × 20, one step",
        _at_once(rate=20.0),
        {KL: EITHER, SHARP: EITHER, RATIOS: EITHER, "reward_mean": EITHER, "gradient_norm": EITHER},
        marked=True,
        within=6,
    ),
    Kind(
        "a poisoned step",
        _at_once(poisoned=True),
        {RATIOS: EITHER, KL: EITHER, "nll|gradient_norm|longest_quarter": EITHER, MISMATCH: EITHER},
        marked=True,
        within=1,
    ),
    Kind("mismatch × 30, every fifth step", _periodic, MISMATCH_UP, marked=True, periodic=5),
    Kind("mismatch × 30", _always(engine_noise=30.0), MISMATCH_UP, within=5),
    Kind(
        "mismatch, growing",
        _grows("engine_noise", lambda since: ramp(since, 40, 1.0, 30.0)),
        MISMATCH_UP,
    ),
    Kind("temperature 0.7 in the engine", _always(engine_temperature=0.7), MISMATCH_UP, within=5),
    Kind("dead groups → 100 %", _dead, DEAD_UP, within=24),
    Kind(
        "truncation → 67 %",
        _grows("cut", lambda since: ramp(since, 28, 0.0, 0.67)),
        {r"truncated|at_longest|length_.*": UP},
        within=24,
    ),
    Kind("loops → 70 %", _loops, {"repetition": UP, SHARP: DOWN}, within=24),
    Kind("length hacking", _hacked, LONGER, within=24),
    Kind(
        "responses cut to a third",
        _always(longest=0.33),
        {"length_.*": DOWN, "truncated|at_longest": UP},
        within=5,
    ),
    Kind(
        "reward broken: always 0",
        _always(reward=lambda rewards: 0.0 * rewards),
        {"reward_mean": DOWN, "reward_std|pass_at_.*": DOWN, **DEAD_UP},
        within=5,
    ),
    Kind(
        "reward with its sign reversed",
        _always(judge=-1.0, hardness=-1.0),
        {"reward_mean|pass_at_.*": DOWN, "groups_all_0|groups_equal": UP, "groups_all_1": DOWN},
    ),
    Kind(
        "engine forty steps behind",
        _always(lag=40, rate=3.0),
        MISMATCH_UP,
    ),
    Kind(
        "a step with NaN",
        _at_once(not_a_number=True),
        {".*": EITHER},
        marked=True,
        within=1,
        nan=True,
    ),
)
HEALTHY_RUN = Kind("healthy", None, {}, sound=True)
