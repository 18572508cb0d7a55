"""Faults of rewards and rows: unequal scales, dead groups, copies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trials.faults.fault import Fault
from trials.simulate.batch import Batch
from trials.simulate.policy import Random
from trials.simulate.setup import Rewards, Setup


def _functions(setup: Setup, strength: float) -> Setup:
    return replace(setup, rewards=Rewards(kind="functions"), prompts=4)


def _dominated(batch: Batch, strength: float, random: Random) -> Batch:
    """One reward function is on another scale: the others no longer matter."""
    scores = batch.rewards.copy()
    scores[:, 2] *= strength
    return replace(batch, rewards=scores)


def _dead(batch: Batch, strength: float, random: Random) -> Batch:
    """All responses to a prompt are right: no signal (behaviour, told as information)."""
    scores = batch.rewards.copy()
    for group in np.unique(batch.groups):
        if random.random() < strength or group == 0:
            scores[batch.groups == group] = 1.0
    return replace(batch, rewards=scores)


def _copied(batch: Batch, strength: int, random: Random) -> Batch:
    """The last rows of the batch are its first (padding to a multiple of the workers)."""
    spans = list(batch.spans())[:strength]
    columns = {
        name: np.concatenate([values, *(values[span] for span in spans)])
        for name, values in batch.columns.items()
    }
    return replace(
        batch,
        columns=columns,
        ids=np.concatenate([batch.ids, *(batch.ids[span] for span in spans)]),
        lengths=np.concatenate([batch.lengths, batch.lengths[:strength]]),
        groups=np.concatenate([batch.groups, batch.groups[:strength]]),
        rewards=np.concatenate([batch.rewards, batch.rewards[:strength]]),
    )


GROUPS = (
    Fault(
        "reward functions on unequal scales",
        (20.0, 100.0),
        ("functions",),
        r"scale|dominat|unequal|outweigh",
        _functions,
        _dominated,
        any_severity=True,
    ),
    Fault(
        "dead groups",
        (0.5, 1.0),
        ("vllm", "tempered", "experts"),
        r"dead|no policy gradient|all .*rewards are",
        edit=_dead,
        any_severity=True,
    ),
    Fault(
        "copies of rows",
        (1, 4),
        ("vllm", "recomputed"),
        r"duplicate|already|copies|copy|twice",
        edit=_copied,
        dump={"layout": "record"},
    ),
)
