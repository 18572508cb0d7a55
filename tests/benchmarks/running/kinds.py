"""Kinds of runs: what is done to one from its onset on, and what has to be found.

Detectors may be built with these; the sixteen that only measured are in commit d794f6d2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from running.simulate import HEALTHY, Change, Conditions, World, conditions

UP, DOWN, EITHER = "up", "down", "either"


@dataclass(frozen=True)
class Kind:
    """A way in which a run goes wrong, or does not: an entry of ``kinds.json``.

    Attributes:
        change: steps since the onset → conditions; None: healthy all the way.
        signs: metrics whose finding counts (a pattern of their names) → the way they move.
        within: the most steps after the onset at which it must have been found.
        sound: whether nothing is wrong, so that a finding of another metric is false.
        marked: whether the step itself has to be named.
        periodic: the steps between two of a fault that comes back; 0: it does not.
        steady: whether it is so from the first step of the run on.
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


def always(**values: object) -> Change:
    held = conditions(**values)
    return lambda since, world: held


def at_once(**values: object) -> Change:
    held = conditions(**values)
    return lambda since, world: held if since == 0 else HEALTHY


def grows(name: str, path: Callable[[int], float], **more: object) -> Change:
    return lambda since, world: conditions(**{name: path(since)}, **more)


def kl_exponential(since: int) -> float:
    """0.014 → 2.5 in forty steps."""
    return float(np.exp(np.log(2.5 / 0.014) * ramp(since, 40)))


def periodic(since: int, world: World) -> Conditions:
    return conditions(engine_noise=30.0) if since % 5 == 0 else HEALTHY


def loops(since: int, world: World) -> Conditions:
    return conditions(loops=ramp(since, 28, 0.0, 0.7))


def dead(since: int, world: World) -> Conditions:
    return conditions(dead=ramp(since, 28))


def hacked(since: int, world: World) -> Conditions:
    """Longer responses are paid for, the policy writes more and more of them."""
    return conditions(
        length=ramp(since, 40, 1.0, 2.0),
        pays_length=ramp(since, 40, 0.0, 0.8),
        judge=ramp(since, 40, 1.0, 0.3),
    )


_TABLE = json.loads(Path(__file__).with_suffix(".json").read_bytes())
KINDS = [Kind(**one | {"change": eval(one["change"])}) for one in _TABLE]
HEALTHY_RUN = Kind("healthy", None, {}, sound=True)
