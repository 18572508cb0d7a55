"""The batches that numbers are logged of, and a richer one that tells conventions apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from trials.product import Record
from trials.simulate.policy import Random, Sharpness
from trials.simulate.run import simulate
from trials.simulate.setup import Dump, Moves, Rewards, Setup, Text
from trials.simulate.write import records

_SETUP = Setup(
    prompts=3,
    group=4,
    sharpness=Sharpness(sure=0.3, sure_to=12.0),
    moves=Moves(update=0.3, reference=0.3, same_pass=False),
    text=Text(length=20, spread=0.5, shortest=3, longest=60),
    dump=Dump(ref=True, rollout=True, layout="group"),
)


def logged(random: Random, hyper: dict[str, Any]) -> list[Record]:
    """A batch as a user has it: three groups, a record each, ratios that clip, a reference."""
    kind = str(random.choice(["binary", "continuous", "shaped"]))
    whole = "record" if random.random() < 0.5 else "group"
    setup = replace(_SETUP, rewards=Rewards(kind=kind), dump=replace(_SETUP.dump, layout=whole))
    return _told(records(simulate(setup, random), setup.dump, random, "logged"), hyper)


def richer(random: Random, hyper: dict[str, Any]) -> list[Record]:
    """The probe: more groups, of unequal sizes and spreads, and everything further apart.

    Two conventions that give one number here are one convention under two names. No log ratio is
    beyond ±2, so that a dual clip at 3 shows, but a clamp at 10 or 20, which never acts, does not.
    """
    setup = replace(
        _SETUP,
        prompts=5,
        group=6,
        uneven=True,
        moves=Moves(stale=0.3, update=0.9, reference=0.9, same_pass=False),
        rewards=Rewards(kind="continuous"),
        dump=replace(_SETUP.dump, layout="group"),
    )
    batch = simulate(setup, random)
    old = batch.columns["log_probs_old"]
    for name, values in batch.columns.items():
        batch.columns[name] = np.minimum(np.clip(values, old - 1.0, old + 2.0), 0.0)
    made = records(batch, setup.dump, random, "probe")
    for at, record in enumerate(made):
        record["rewards"] = [0.3 + (1.0 + at) * reward for reward in record["rewards"]]
    return _told(made, hyper)


def _told(made: list[Record], hyper: dict[str, Any]) -> list[Record]:
    for record in made:
        if hyper:
            record["hyperparameters"] = dict(hyper)
    return made
