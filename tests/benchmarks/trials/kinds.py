"""A kind of clean batches: what a healthy real trainer would dump.

It is a setup and a sentence that says whose dump it resembles. ``check`` has nothing to warn of in
it. A batch whose own engines differ by more than the bound that frameworks publish
(a mean exp|d| of 1.05: NeMo-RL's docs/guides/dtensor-tp-accuracy.md) is no clean batch, whatever
its recipe, and is drawn again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from trials.product import Record, rows
from trials.simulate import policies
from trials.simulate.batches import Batch, records, simulate
from trials.simulate.policies import (
    Dump,
    Moves,
    Random,
    Sampling,
    Setup,
)

MOST = 1.045
"""Mean exp|old − rollout| beyond which a batch is drawn again."""


@dataclass(frozen=True)
class Kind:
    """A kind of clean batch: a row of ``kinds.csv``.

    Attributes:
        name: of the kind.
        recipe: whose dump it resembles.
        setup: the run, as an expression.
        vary: what differs from run to run (temperatures, …), of ``setup`` and ``random``.
    """

    name: str
    setup: str
    vary: str
    recipe: str

    def drawn(self, random: Random) -> Setup:
        """The setup of a run."""
        names = vars(policies) | globals()
        setup = eval(self.setup, names)
        return eval(self.vary, names | {"setup": setup, "random": random})


def clean(kind: Kind, random: Random) -> tuple[Batch, Setup]:
    """A batch of the kind, and the setup it came from."""
    while True:
        setup = precise(kind.drawn(random), random)
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


ROLLOUT = Dump(rollout=True, ids=True)
LATER = Moves(update=0.08, same_pass=False)


def warmth(setup: Setup, random: Random) -> Setup:
    warm = float(random.choice([0.6, 0.7, 0.8, 0.9, 1.1, 1.2, 1.3]))
    return replace(setup, sampling=replace(setup.sampling, temperature=warm))


def nucleus(setup: Setup, random: Random) -> Setup:
    top_p = float(random.choice([0.8, 0.9, 0.95, 0.99]))
    warm = float(random.choice([0.7, 1.0]))
    return replace(setup, sampling=Sampling(temperature=warm, top_p=top_p))


KINDS = [Kind(**row) for row in rows(__file__, "kinds.csv")]
NAMES = {kind.name: kind for kind in KINDS}
