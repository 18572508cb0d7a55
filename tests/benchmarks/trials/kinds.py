"""A kind of clean batches: what a healthy real trainer would dump.

It is a setup and a sentence that says whose dump it resembles. ``check`` has nothing to warn of in
it. A batch whose own engines differ by more than the bound that frameworks publish
(a mean exp|d| of 1.05: NeMo-RL's docs/guides/dtensor-tp-accuracy.md) is no clean batch, whatever
its recipe, and is drawn again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from trials.product import Record, rows
from trials.simulate.batches import Batch, records, simulate
from trials.simulate.policies import (
    EXPERTS,
    FLOAT8,
    FLOAT32,
    Dump,
    Engine,
    Moves,
    Random,
    Rewards,
    Sampling,
    Setup,
    Sharpness,
    Text,
)

MOST = 1.045
"""Mean exp|old − rollout| beyond which a batch is drawn again."""


@dataclass(frozen=True)
class Kind:
    """A kind of clean batch; ``vary`` draws what differs from run to run (temperatures, …)."""

    name: str
    recipe: str
    setup: Setup
    vary: Callable[[Setup, Random], Setup] = lambda setup, random: setup


def clean(kind: Kind, random: Random) -> tuple[Batch, Setup]:
    """A batch of the kind, and the setup it came from."""
    while True:
        setup = precise(kind.vary(kind.setup, random), random)
        batch = finish(simulate(setup, random), setup)
        if _apart(batch) <= MOST:
            return batch, setup


def finish(batch: Batch, setup: Setup) -> Batch:
    """What a dump adds: the engine has no log-probs of a tool's tokens, rewards may be left out."""
    if batch.mask is not None and "log_probs_rollout" in batch.columns:
        batch.columns["log_probs_rollout"][batch.mask == 0] = 0.0
    if not setup.rewards.written:
        batch.extra["unrewarded"] = True
    return batch


def _apart(batch: Batch) -> float:
    columns = batch.columns
    if "log_probs_rollout" not in columns:
        return 1.0
    trained = columns.get("log_probs_old", columns["log_probs_new"])
    size = np.abs(trained - columns["log_probs_rollout"])
    counted = size if batch.mask is None else size[batch.mask == 1]
    return float(np.exp(counted).mean())


def dumped(kind: Kind, random: Random, name: str) -> list[Record]:
    """The records of a clean batch."""
    batch, setup = clean(kind, random)
    return records(batch, setup.dump, random, name)


def precise(setup: Setup, random: Random) -> Setup:
    """Engines differ in noise from model to model, by a factor of two either way."""
    factor = float(np.exp(random.uniform(-0.7, 0.7)))
    engine, trainer = (
        replace(one, spread=one.spread * factor) for one in (setup.engine, setup.trainer)
    )
    return replace(setup, engine=engine, trainer=trainer)


# ---- the kinds -----------------------------------------------------------------------------------


_ROLLOUT = Dump(rollout=True, ids=True)
_LATER = Moves(update=0.08, same_pass=False)


def _warmth(setup: Setup, random: Random) -> Setup:
    warm = float(random.choice([0.6, 0.7, 0.8, 0.9, 1.1, 1.2, 1.3]))
    return replace(setup, sampling=replace(setup.sampling, temperature=warm))


def _nucleus(setup: Setup, random: Random) -> Setup:
    top_p = float(random.choice([0.8, 0.9, 0.95, 0.99]))
    warm = float(random.choice([0.7, 1.0]))
    return replace(setup, sampling=Sampling(temperature=warm, top_p=top_p))


_VARY = {"tempered": _warmth, "nucleus": _nucleus}
"""What differs from run to run."""

_SETUPS = {
    # by what computed them: passes, epochs, temperatures, precision, staleness
    "first-pass": Setup(dump=Dump(words="trl", ids=True, padding="right")),
    "vllm": Setup(dump=Dump(words="trl", rollout=True, ids=True, padding="right")),
    "recomputed": Setup(
        trainer=Engine(spread=0.02),
        moves=Moves(same_pass=False),
        dump=Dump(words="verl", rollout=True, ids=True, entropies=True),
    ),
    "mini-batches": Setup(
        prompts=4,
        moves=_LATER,
        rewards=Rewards(given="group-std", eps=1e-6),
        dump=Dump(words="verl", ref=True, rollout=True, ids=True),
    ),
    "second-epoch": Setup(
        moves=Moves(update=0.06, rate=0.15, same_pass=False),
        rewards=Rewards(given="group-std"),
        dump=Dump(words="trl", ref=True, ids=True, padding="right"),
    ),
    "tempered": Setup(moves=_LATER, dump=_ROLLOUT),
    "nucleus": Setup(sampling=Sampling(top_p=0.9), dump=_ROLLOUT),
    "float8": Setup(engine=FLOAT8, dump=_ROLLOUT),
    "experts": Setup(engine=EXPERTS, prompts=4, moves=Moves(same_pass=False), dump=_ROLLOUT),
    "stale": Setup(moves=Moves(stale=0.08, update=0.03, same_pass=False), dump=_ROLLOUT),
    "small-model": Setup(
        sharpness=Sharpness(sure=0.0, fork_from=0.05, fork_to=0.6),
        engine=FLOAT32,
        trainer=FLOAT32,
        moves=Moves(update=0.1, reference=0.3, same_pass=False),
        text=Text(length=25, longest=32),
        dump=Dump(words="trl", ref=True, ids=True, padding="right"),
    ),
    # by what is dumped: turns, layouts, lengths, rewards
    "tools": Setup(
        text=Text(length=160, turns=4, shortest=60),
        dump=Dump(words="verl", rollout=True, ids=True),
    ),
    "sure": Setup(
        group=4,
        sharpness=Sharpness(sure=0.93, sure_from=8.0, sure_to=60.0),
        text=Text(length=350, spread=0.3, longest=900),
        moves=Moves(update=0.05, reference=0.3, sharper=0.15, same_pass=False),
        dump=Dump(ref=True, rollout=True, ids=True),
    ),
    "capped": Setup(
        text=Text(length=100, spread=0.4, longest=100),
        dump=Dump(words="trl", rollout=True, ids=True, padding="right"),
    ),
    "many-groups": Setup(
        prompts=8,
        uneven=True,
        rewards=Rewards(kind="continuous"),
        text=Text(length=50),
        dump=_ROLLOUT,
    ),
    "hook": Setup(
        prompts=4,
        text=Text(length=50),
        rewards=Rewards(given="group-std"),
        dump=Dump(words="trl", ids=True, strings=True, layout="micro", padding="right"),
    ),
    "micro-of-one": Setup(
        text=Text(length=70),
        moves=_LATER,
        rewards=Rewards(given="group-mean", written=False),
        dump=Dump(words="verl", layout="micro", micro=1),
    ),
    "rows": Setup(
        rewards=Rewards(given="group-std", eps=1e-6),
        dump=Dump(layout="rows", rollout=True, ids=True),
    ),
    "functions": Setup(
        prompts=3,
        rewards=Rewards(kind="functions"),
        moves=_LATER,
        dump=Dump(layout="group", ref=True),
    ),
    "short-answers": Setup(
        prompts=4,
        sharpness=Sharpness(sure=0.6),
        text=Text(length=2.5, spread=0.5, shortest=1, longest=6),
        dump=Dump(rollout=True, ids=True, strings=True),
    ),
    "shaped": Setup(
        prompts=3,
        rewards=Rewards(kind="shaped", given="group-mean"),
        moves=_LATER,
        dump=Dump(entropies=True, rollout=True, padding="left", ids=True),
    ),
    "tables": Setup(
        text=Text(length=150, shortest=40, runs=3),
        dump=Dump(words="trl", rollout=True, ids=True, padding="right"),
    ),
    "beginning": Setup(
        prompts=4, group=4, text=Text(beginning=14), moves=_LATER, dump=Dump(rollout=True)
    ),
    "solved": Setup(
        moves=_LATER,
        rewards=Rewards(kind="solved", given="group-std"),
        dump=Dump(words="trl", ref=True, ids=True, layout="micro", padding="right"),
    ),
}

KINDS = [
    Kind(**row, setup=_SETUPS[row["name"]], vary=_VARY.get(row["name"], Kind.vary))
    for row in rows(__file__, "kinds.csv")
]
NAMES = {kind.name: kind for kind in KINDS}
