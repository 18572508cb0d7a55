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

from trials.product import Record
from trials.simulate.batch import Batch
from trials.simulate.policy import Random
from trials.simulate.run import simulate
from trials.simulate.setup import Setup
from trials.simulate.write import records

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
