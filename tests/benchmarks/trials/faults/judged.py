"""Faults of given advantages, beside the rewards that they come from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trials.faults.fault import Fault
from trials.simulate.batch import Batch
from trials.simulate.policy import F64, Random
from trials.simulate.rewards import advantages, summed
from trials.simulate.setup import Rewards, Setup

_GIVEN = ("mini-batches", "second-epoch", "shaped", "hook")
_WHOLE = {"layout": "record", "rollout": False}


def _live(setup: Setup, strength: object) -> Setup:
    """Rewards of a kind of which few groups are dead."""
    rewards = replace(setup.rewards, kind="continuous", written=True)
    return replace(setup, rewards=rewards, prompts=4)


def _standard(batch: Batch) -> F64:
    assert batch.advantages is not None
    return batch.advantages


def _sign(batch: Batch, strength: float, random: Random) -> Batch:
    return replace(batch, advantages=-_standard(batch))


def _centre(batch: Batch, strength: float, random: Random) -> Batch:
    """The baseline was not taken off: rewards are used, or all advantages are too high."""
    if strength == 0.0:
        return replace(batch, advantages=summed(batch.rewards))
    return replace(batch, advantages=_standard(batch) + strength)


def _order(batch: Batch, strength: float, random: Random) -> Batch:
    """A share of the rows has another row's advantage: rewards were shuffled, or came back late."""
    mixed = _standard(batch).copy()
    rows = np.flatnonzero(random.random(len(mixed)) < strength)
    mixed[rows] = mixed[np.roll(rows, 1)]
    return replace(batch, advantages=mixed)


def stride(batch: Batch, strength: str, random: Random) -> Batch:
    """Groups taken by position, and wrongly.

    "interleaved": the rows are sample-major, the trainer reshapes as if prompt-major.
    "partial": a rollout of the first group failed, so the fixed stride runs over the edge of every
    group after it, and the rows past the last stride keep r/eps (AReaL#1419).
    """
    size = int((batch.groups == 0).sum())
    scores = summed(batch.rewards)
    count = len(scores)
    if strength == "interleaved":
        wrong = np.arange(count) % (count // size)
        return replace(batch, advantages=advantages(scores, wrong, "group-std", 1e-6))
    wrong = np.arange(count) // (size + 1)
    found = advantages(scores, wrong, "group-std", 1e-5)
    rest = np.arange(count) >= (count // (size + 1)) * (size + 1)
    found[rest] = scores[rest] / 1e-5
    return replace(batch, advantages=found)


def _scale(batch: Batch, strength: float, random: Random) -> Batch:
    return replace(batch, advantages=_standard(batch) * strength)


def left_out(batch: Batch, strength: str, random: Random) -> Batch:
    """Leave-one-out mean and std: the std of the others is 0 where one is right (NeMo-RL#1518)."""
    scores = summed(batch.rewards)
    first = np.flatnonzero(batch.groups == 0)
    scores[first] = 0.0
    scores[first[int(random.integers(len(first)))]] = 1.0
    found = np.zeros(len(scores))
    for row, group in enumerate(batch.groups):
        others = scores[(batch.groups == group) & (np.arange(len(scores)) != row)]
        spread = float(others.std(ddof=1))
        found[row] = (scores[row] - others.mean()) / (spread + 1e-6)
    return replace(batch, rewards=scores, advantages=found)


def _binary(setup: Setup, strength: object) -> Setup:
    rewards = Rewards(kind="binary", given="group-std", eps=1e-6)
    return replace(setup, rewards=rewards, prompts=4)


_FOLLOW = r"do(es)? not (follow|go with|fit|match)|not those of|disagree"

JUDGED = (
    Fault(
        "advantages of the other sign",
        (1.0,),
        _GIVEN,
        r"sign|opposite|negated|revers|invert",
        _live,
        _sign,
        dump=_WHOLE,
    ),
    Fault(
        "advantages not centred",
        (0.0, 0.3, 1.0),
        _GIVEN,
        r"centr|centered|mean of (the|each|a|its) (group|advantages)|add up to|baseline",
        _live,
        _centre,
        dump=_WHOLE,
    ),
    Fault(
        "advantages in another order",
        (0.5, 1.0),
        _GIVEN,
        rf"order|permut|shuffl|other rows?|another (row|response)|{_FOLLOW}",
        _live,
        _order,
        dump=_WHOLE,
    ),
    Fault(
        "groups by a wrong stride",
        ("interleaved", "partial"),
        _GIVEN,
        rf"stride|group size|grouping|other groups?|boundar|wrong groups?|{_FOLLOW}",
        _live,
        stride,
        dump=_WHOLE,
    ),
    Fault(
        "advantages on another scale",
        (10.0, 100.0, 1e6),
        _GIVEN,
        r"scale|too large|huge|\blarge|\d+ times",
        _live,
        _scale,
        sure=(100.0, 1e6),
        dump=_WHOLE,
    ),
    Fault(
        "leave-one-out std of 0",
        ("one right",),
        _GIVEN,
        r"leave.one.out|std of 0|scale|too large|huge|\blarge",
        _binary,
        left_out,
        dump=_WHOLE,
    ),
)
