"""Batches that nothing is wrong with, of kinds that look odd; any error or warning is false."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from trials.product import Record
from trials.strangers.dumps import agent, healthy, judged, steps, written
from trials.strangers.world import Random

Clean = Callable[[Random], list[Record]]


def _pairs(random: Random) -> list[Record]:
    """Groups of two."""
    world = healthy(random, size=2, prompts=8, rewards="graded")
    return written(world, advantages=judged(world))


def _tails(random: Random) -> list[Record]:
    """Lengths from 3 to 900, many cut at the limit."""
    return written(healthy(random, length=45.0, spread=1.5, shortest=3, longest=900, prompts=3))


def _letters(random: Random) -> list[Record]:
    """Answers of one to three tokens, so that many in a group are alike."""
    world = healthy(random, length=1.6, spread=0.3, shortest=1, longest=3, prompts=8, size=8)
    texts = random.integers(3, 6, len(world.ids)) + 64
    world.ids = np.where(world.ids == 151_645, world.ids, texts)
    return written(world)


def _ties(random: Random) -> list[Record]:
    """Seven of eight groups are solved; their rewards are all 1, their advantages 0."""
    world = healthy(random, prompts=8, size=8)
    world.rewards[world.groups > 0] = 1.0
    return written(world, advantages=judged(world))


def _scores(random: Random) -> list[Record]:
    """Rewards from −100 to 0, only the mean taken off."""
    world = healthy(random, rewards="scores", size=8)
    return written(world, advantages=judged(world, std=False))


def _left_out(random: Random) -> list[Record]:
    """Leave-one-out advantages."""
    world = healthy(random, rewards="graded", size=8)
    return written(world, advantages=judged(world, std=False) * 8 / 7)


def _uneven(random: Random) -> list[Record]:
    """Groups of other sizes after some responses failed."""
    world = healthy(random, sizes=(8, 5, 7, 2, 8), rewards="graded")
    return written(world, advantages=judged(world))


def _overlong(random: Random) -> list[Record]:
    """Rows that were cut are masked as a whole, after the advantages were made."""
    world = healthy(random, size=8, length=60.0, spread=0.8, longest=100)
    mask = np.repeat(world.finished, world.lengths).astype(int)
    return written(world, advantages=judged(world), mask=mask)


def _odd_tools(random: Random) -> list[Record]:
    """An agent with turns of one token, long answers of tools and several in a row."""
    return written(
        agent(random, turns=(1, 7), length=4.0, spread=1.0, shortest=1, tools=(1, 60)),
        columns=("turn_ids",),
    )


def _ends_in_tool(random: Random) -> list[Record]:
    """The turn limit ends a trajectory behind a tool's answer."""
    world = agent(random, turns=(3, 4))
    last = np.zeros(len(world.ids), dtype=bool)
    for span in world.spans():
        turns = world.turns[span]
        last[span] = turns == turns.max()
    cut = np.flatnonzero(last)
    world.tool[cut] = True
    world.columns["log_probs_rollout"][cut] = 0.0
    world.ids[cut] = np.where(world.ids[cut] == 151_645, 198, world.ids[cut])
    return written(world)


def _rows(random: Random) -> list[Record]:
    """A row a turn, with the trajectory's advantage in each."""
    world = steps(random)
    return written(world, advantages=judged(world))


def _versions(random: Random) -> list[Record]:
    """Generation went on over four updates of the weights, each a small step."""
    world = healthy(random, versions=4, stale=0.06, length=120.0)
    return written(world, columns=("versions",))


def _far_off_policy(random: Random) -> list[Record]:
    """An asynchronous agent, six versions behind at the beginning of a trajectory."""
    world = agent(random, versions=6, stale=0.05, turns=(2, 6))
    return written(world, columns=("versions", "turn_ids"))


def _experts(random: Random) -> list[Record]:
    """A mixture of experts whose router sends 6 % of the tokens elsewhere."""
    return written(healthy(random, outliers=0.06, outlier=0.5, trainer=0.02))


def _eight_bits(random: Random) -> list[Record]:
    """An engine in fp8 against a trainer in bf16."""
    return written(healthy(random, engine=0.11, trainer=0.02))


def _cold(random: Random) -> list[Record]:
    """Drawn at 0.6, and every column of that temperature."""
    world = healthy(random, temperature=0.6)
    return written(world, columns=("ref", "entropies"))


def _hot(random: Random) -> list[Record]:
    """Drawn at 1.3, and every column of that temperature."""
    world = healthy(random, temperature=1.3, sure=0.8, surety=13.0)
    return written(world, columns=("ref", "entropies"))


def _collapsed(random: Random) -> list[Record]:
    """Entropy has collapsed: 97 % of the tokens have probability 1 to five digits."""
    return written(healthy(random, sure=0.97, surety=15.0))


def _far_reference(random: Random) -> list[Record]:
    """Two thousand steps from the reference."""
    return written(healthy(random, reference=0.7), columns=("ref",))


def _fourth_epoch(random: Random) -> list[Record]:
    """The policy has taken many steps on these tokens."""
    return written(healthy(random, update=0.25))


def _sub_agents(random: Random) -> list[Record]:
    """A planner and its sub-agents: prompts of their own, groups by role."""
    world = steps(random, turns=(3, 3), size=8)
    role = world.turns[world.ends - 1]
    world = replace(world, groups=3 * world.groups + role.clip(max=2))
    world = replace(world, spec=replace(world.spec, rows=False))
    order = np.argsort(world.groups, kind="stable")
    records = written(world, layout="rows", words="verl")
    return [records[at] for at in order]


CLEAN: dict[str, Clean] = {
    "groups of two": _pairs,
    "very long tails": _tails,
    "one-letter answers": _letters,
    "most groups solved": _ties,
    "scores below 0, mean only": _scores,
    "leave-one-out": _left_out,
    "uneven groups": _uneven,
    "overlong rows masked": _overlong,
    "odd tools": _odd_tools,
    "ends in a tool's answer": _ends_in_tool,
    "rows of turns": _rows,
    "four versions of the weights": _versions,
    "agent six versions behind": _far_off_policy,
    "rerouted experts": _experts,
    "engine in fp8": _eight_bits,
    "drawn at 0.6": _cold,
    "drawn at 1.3": _hot,
    "collapsed entropy": _collapsed,
    "far reference": _far_reference,
    "many steps on one batch": _fourth_epoch,
    "sub-agents": _sub_agents,
}
