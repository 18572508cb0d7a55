"""Faults that the columns of a dump show, each from a fix or a report."""

from __future__ import annotations

from typing import Any

import numpy as np

from trials.product import KEYS, Record
from trials.strangers.dumps import agent, healthy, judged, steps_without_reference, written
from trials.strangers.mistake import MISMATCH, wrong_column
from trials.strangers.world import END, Array, Random, World


def _far(random: Random, count: int) -> Array:
    """Log-probs of tokens that the model did not take."""
    return -np.abs(random.normal(7.0, 3.5, count)) - 0.2


def uncut(random: Random, _: Any) -> list[Record]:
    """Without an end-of-text the mask goes on over the padding."""
    world = healthy(random, size=8, length=70.0, spread=0.8, longest=90)
    records = written(world, layout="record", padded=True, words="own")
    mask = records[0]["mask"]
    for row, done in enumerate(world.finished):
        if not done:
            mask[row] = [1] * len(mask[row])
    return records


def no_end(random: Random, _: Any) -> list[Record]:
    """Padding is told by its id, and the end-of-text has the same."""
    world = healthy(random)
    return written(world, mask=(world.ids != END).astype(int))


def raw(random: Random, heat: float) -> list[Record]:
    """The engine gives log-probs of before the temperature."""
    return written(healthy(random, temperature=heat, engine_heat=1.0, size=8))


def divided(random: Random, heat: float) -> list[Record]:
    """The engine's log-probs, and not its logits, are divided by the temperature."""
    world = healthy(random, size=8)
    world.columns["log_probs_rollout"] = world.columns["log_probs_rollout"] / heat
    return written(world)


def elsewhere(random: Random, _: Any) -> list[Record]:
    """An image widens the logits, and the trainer scores the tokens by those of other places."""
    world = healthy(random)
    far = _far(random, len(world.ids))
    noise = 0.03 * random.standard_normal(len(far))
    world.columns |= {"log_probs_new": far, "log_probs_old": np.minimum(far + noise, 0.0)}
    return written(world)


def filled(random: Random, _: Any) -> list[Record]:
    """Behind the end-of-text there are end-of-texts, and they count."""
    world = healthy(random, size=8)
    records = written(world, layout="record", padded=True, words="own")
    record = records[0]
    for row, length in enumerate(world.lengths.tolist()):
        record["token_ids"][row][length:] = [END] * (len(record["token_ids"][row]) - length)
        record["mask"][row] = [1] * len(record["mask"][row])
        for name in ("log_probs_new", "log_probs_old", "log_probs_rollout"):
            count = len(record[name][row]) - length
            record[name][row][length:] = (-0.02 * random.random(count)).tolist()
    return records


def poisoned(random: Random, _: Any) -> list[Record]:
    """A reward is NaN."""
    world = healthy(random)
    world.rewards[int(random.integers(len(world.rewards)))] = np.nan
    return [{**record, "not_finite": True} for record in written(world)]


def exploded(random: Random, _: Any) -> list[Record]:
    """The one success of a group is divided by the others' std, which is 0, plus 1e-6."""
    world = healthy(random, size=8, prompts=4)
    own = np.flatnonzero(world.groups == 1)
    world.rewards[own], world.rewards[own[2]] = 0.0, 1.0
    found = judged(world)
    found[own[2]] = 1e6
    return written(world, advantages=found)


def other_rows(random: Random, share: float) -> list[Record]:
    """The trainer pairs prompts with other prompts' responses."""
    world = healthy(random, size=8)
    for span in world.spans():
        if random.random() < share:
            count = span.stop - span.start
            far = world.columns["log_probs_old"][span] + _far(random, count) / 3.0
            for name in ("log_probs_new", "log_probs_old"):
                world.columns[name][span] = far + 0.01 * random.standard_normal(count)
    return written(world)


def likeliest(random: Random, _: Any) -> list[Record]:
    """The engine's column is that of the likeliest token, not of the one that was taken."""
    world = healthy(random, size=8)
    values = world.columns["log_probs_rollout"]
    left = np.log(np.maximum(-np.expm1(values), 1e-12)) + np.log(
        random.uniform(0.5, 1.0, len(values))
    )
    world.columns["log_probs_rollout"] = np.maximum(values, left)
    return written(world)


def without_adapter(random: Random, _: Any) -> list[Record]:
    """The engine scores with the weights of before the adapter."""
    world = healthy(random, reference=1.3, size=8)
    world.columns["log_probs_rollout"] = world.columns["log_probs_ref"]
    return written(world)


def late_mask(random: Random, _: Any) -> list[Record]:
    """The mask is a token late of the log-probs."""
    world = agent(random)
    mask = (~world.tool).astype(int)
    for span in world.spans():
        mask[span] = np.append(0, mask[span][:-1])
    return written(world, columns=("roles",), mask=mask)


def all_trained(random: Random, _: Any) -> list[Record]:
    """What tools wrote is in the mask."""
    world = agent(random)
    return written(world, columns=("roles",), mask=np.ones(len(world.ids), dtype=int))


def ones(random: Random, _: Any) -> list[Record]:
    """Log-probs of padding are filled with 1, and some of it counts."""
    world = healthy(random)
    at = world.ends[::3] - 1
    for name in ("log_probs_new", "log_probs_old"):
        world.columns[name][at] = 1.0
    return written(world)


def encoded_again(random: Random, count: int) -> list[Record]:
    """Text was encoded again: at some places the trainer scores a token that nobody drew."""
    world = healthy(random, size=8)
    for span in world.spans():
        at = span.start + random.choice(span.stop - span.start, min(count, 3), replace=False)
        far = _far(random, len(at)) - 5.0
        for name in ("log_probs_new", "log_probs_old"):
            world.columns[name][at] = far
    return written(world)


def lone(random: Random, _: Any) -> list[Record]:
    """Every group is a single response less its own mean."""
    world = healthy(random, size=1, prompts=12)
    return written(world, advantages=np.zeros(12), layout="record")


def adapter_kept(random: Random, _: Any) -> list[Record]:
    """The reference is scored with the adapter: it is the policy in every step."""
    return steps_without_reference(random, 4)


def for_the_mask(random: Random, _: Any) -> list[Record]:
    """The mask has the advantages."""
    world = healthy(random)
    records = written(world, layout="record", padded=True, words="verl", advantages=judged(world))
    record = records[0]
    name = KEYS["verl"]["mask"]
    for row, advantage in enumerate(record["advantages"]):
        record[name][row] = [one * advantage for one in record[name][row]]
    return records


def padded_mean(random: Random, _: Any) -> list[Record]:
    """Advantages whose mean was taken over the padding as well: all are off by a number."""
    world = healthy(random, size=8, rewards="graded")
    found = judged(world)
    return written(world, advantages=(found + float(random.choice([-0.35, 0.3, 0.5]))))


def no_bracket(random: Random, _: Any) -> list[Record]:
    """The reward less mean/std."""
    world: World = healthy(random, size=8)
    found = np.zeros(len(world.rewards))
    for group in np.unique(world.groups):
        own = world.rewards[world.groups == group]
        found[world.groups == group] = own - own.mean() / (own.std(ddof=1) + 1e-5)
    return written(world, advantages=found.astype(np.float32).astype(float))


def constant(random: Random, _: Any) -> list[Record]:
    """The engine's column is filled with zeros where the request asked for no log-probs."""
    world = healthy(random, size=8)
    hit = random.random(len(world.lengths)) < 0.3
    hit[0] = True
    world.columns["log_probs_rollout"][np.repeat(hit, world.lengths)] = 0.0
    return written(world)


FAULTS = {
    "padding counts without an end-of-text": wrong_column(uncut),
    "end-of-text not counted": wrong_column(no_end, mild=True),
    "engine before the temperature": wrong_column(raw, (0.6, 1.4)),
    "log-probs divided by the temperature": wrong_column(divided, (0.7,)),
    "scored at other places": wrong_column(elsewhere),
    "end-of-texts behind the end": wrong_column(filled),
    "a reward that is no number": wrong_column(poisoned, refused=True),
    "an advantage of a million": wrong_column(exploded),
    "responses of other prompts": wrong_column(other_rows, (1.0, 0.25)),
    "likeliest token's log-prob": wrong_column(likeliest),
    "engine without the adapter": wrong_column(without_adapter),
    "mask a token late": wrong_column(late_mask, agent=True),
    "tools' tokens trained": wrong_column(all_trained, agent=True),
    "log-probs of 1": wrong_column(ones, refused=True),
    "text encoded again": wrong_column(encoded_again, (3, 1)),
    "groups of one": wrong_column(lone, mild=True),
    "reference with the adapter": wrong_column(adapter_kept, mild=True),
    "advantages for the mask": wrong_column(for_the_mask, refused=True),
    "advantages off by a number": wrong_column(padded_mean),
    "only the mean divided": wrong_column(no_bracket),
    "zeros where no log-probs came": wrong_column(constant, also=MISMATCH + "|zero|probability 1"),
}
