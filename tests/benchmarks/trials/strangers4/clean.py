"""Batches that nothing is wrong with, of kinds that look like faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from trials.product import Record
from trials.strangers.dumps import agent, healthy, judged, steps, written
from trials.strangers.world import END, Array, Random, World

Clean = Callable[[Random], list[Record]]


def _shaped(world: World, taken: Array, **more: bool) -> Array:
    """Advantages of rewards less what a penalty takes; the record has the rewards before."""
    return judged(replace(world, rewards=world.rewards - taken), **more)


def _overlong(random: Random) -> list[Record]:
    """DAPO's soft penalty of long responses: it is in the advantages, not in the rewards."""
    world = healthy(random, size=8, spread=0.8, longest=140)
    taken = np.clip((world.lengths - 90) / 50, 0.0, 1.0)
    return written(world, advantages=_shaped(world, taken))


def _kl_in_reward(random: Random) -> list[Record]:
    """Each response's reward has paid for its KL."""
    world = healthy(random, size=8, reference=0.4)
    columns = world.columns
    sums = np.add.reduceat(
        columns["log_probs_old"] - columns["log_probs_ref"], world.ends - world.lengths
    )
    return written(world, columns=("ref",), advantages=_shaped(world, 0.05 * sums))


def _kl_by_token(random: Random) -> list[Record]:
    """REINFORCE++: the return from each token on, less its KL, whitened over the batch."""
    world = healthy(random, size=8, reference=0.4)
    kl = world.columns["log_probs_old"] - world.columns["log_probs_ref"]
    found = np.zeros(len(kl))
    for row, span in enumerate(world.spans()):
        found[span] = world.rewards[row] - 0.02 * np.cumsum(kl[span][::-1])[::-1]
    found = (found - found.mean()) / found.std()
    return written(world, columns=("ref",), advantages=found.astype(np.float32).astype(float))


def _lora(random: Random) -> list[Record]:
    """The reference is the base model under an adapter that a long fine-tuning made."""
    return written(healthy(random, reference=1.1, size=8), columns=("ref",))


def _stale(random: Random) -> list[Record]:
    """Generated four versions ago, all by the same weights."""
    return written(healthy(random, engine=0.16, update=0.12))


def _across_versions(random: Random) -> list[Record]:
    """Partial rollouts went on under new weights."""
    return written(
        healthy(random, versions=5, stale=0.07, length=110.0, size=8), columns=("versions",)
    )


def _whitened(random: Random) -> list[Record]:
    """Advantages of the group's mean, whitened over all tokens."""
    world = healthy(random, size=8, rewards="graded")
    plain = np.repeat(judged(world, std=False), world.lengths)
    scaled = (judged(world, std=False) - plain.mean()) / plain.std()
    return written(world, advantages=scaled.astype(np.float32).astype(float))


def _tools(random: Random) -> list[Record]:
    """Half of the tokens are those of tools, which are not counted."""
    world = agent(random, tools=(15, 60), turns=(2, 5))
    return written(world, columns=("turn_ids", "roles"), advantages=judged(world))


def _no_signal(random: Random) -> list[Record]:
    """Half of the groups are solved or failed as a whole."""
    world = healthy(random, prompts=8, size=8)
    world.rewards[world.groups % 4 == 0] = 1.0
    world.rewards[world.groups % 4 == 1] = 0.0
    return written(world, advantages=judged(world))


def _batch_std(random: Random) -> list[Record]:
    """The group's mean and the batch's std."""
    world = healthy(random, size=8, rewards="graded")
    return written(world, advantages=judged(world, std=False) / (world.rewards.std() + 1e-4))


def _first_step(random: Random) -> list[Record]:
    """A first mini-batch: the old log-probs are the new ones."""
    return written(healthy(random, update=0.0, trainer=0.0, size=8))


def _all_cut(random: Random) -> list[Record]:
    """No response ended: the limit is short."""
    return written(healthy(random, length=90.0, spread=0.2, longest=48))


def _indented(random: Random) -> list[Record]:
    """Code: runs of up to six equal tokens, which are sure."""
    world = healthy(random, size=8)
    for span in world.spans():
        for at in range(span.start + 5, span.stop - 8, 17):
            world.ids[at : at + int(random.integers(2, 7))] = 220
    return written(world)


def _format_bonus(random: Random) -> list[Record]:
    """An answer's reward and a small one for its form."""
    world = healthy(random, size=8)
    world.rewards = world.rewards + 0.1 * (random.random(len(world.rewards)) < 0.6)
    return written(world, advantages=judged(world))


def _mixed_rows(random: Random) -> list[Record]:
    """Rows sorted by length, so that groups are scattered."""
    world = healthy(random, size=8, rewards="graded")
    record = written(world, advantages=judged(world), layout="record", words="verl")[0]
    order = np.argsort(world.lengths, kind="stable")
    for key, values in record.items():
        if isinstance(values, list) and len(values) == len(order):
            record[key] = [values[at] for at in order]
    return [record]


def _chosen(random: Random) -> list[Record]:
    """Of sixteen responses the best and the worst four are trained, as normalised among all."""
    world = healthy(random, size=16, prompts=3, rewards="graded", length=30.0)
    found = judged(world)
    kept = np.zeros(len(found), dtype=bool)
    for group in np.unique(world.groups):
        own = np.flatnonzero(world.groups == group)
        order = own[np.argsort(world.rewards[own], kind="stable")]
        kept[order[:4]] = kept[order[-4:]] = True
    record = written(world, advantages=found, layout="record", words="verl")[0]
    for key, values in record.items():
        if isinstance(values, list) and len(values) == len(kept):
            record[key] = [value for value, keep in zip(values, kept, strict=True) if keep]
    return [record]


def _turns(random: Random) -> list[Record]:
    """A row a turn; the trajectory's advantage less 0.1 for each turn that is left."""
    world = steps(random, turns=(1, 4))
    return written(world, advantages=judged(world), columns=("turn_ids",))


def _short_and_long(random: Random) -> list[Record]:
    """Refusals of two tokens next to long answers."""
    world = healthy(random, size=8, length=20.0, spread=1.8, shortest=1, longest=400)
    world.ids[world.ends - 1] = np.where(world.finished, END, world.ids[world.ends - 1])
    return written(world)


CLEAN: dict[str, Clean] = {
    "overlong penalties": _overlong,
    "KL in the reward": _kl_in_reward,
    "KL in the reward by token": _kl_by_token,
    "reference far from an adapter": _lora,
    "generated four versions ago": _stale,
    "partial rollouts": _across_versions,
    "whitened advantages": _whitened,
    "long answers of tools": _tools,
    "groups without a signal": _no_signal,
    "std of the batch": _batch_std,
    "first mini-batch": _first_step,
    "every response cut": _all_cut,
    "runs of equal tokens": _indented,
    "a bonus for the form": _format_bonus,
    "rows sorted by length": _mixed_rows,
    "chosen after normalising": _chosen,
    "a row for each turn": _turns,
    "refusals": _short_and_long,
}
