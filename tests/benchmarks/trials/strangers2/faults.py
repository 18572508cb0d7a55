"""Faults that the columns of a dump show, each from a fix or a confirmed report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from trials.product import KEYS, Record
from trials.strangers.dumps import agent, healthy, judged, steps, written
from trials.strangers.mistake import MISMATCH, wrong_column
from trials.strangers.world import Random


def last_label(random: Random, share: float) -> list[Record]:
    """The last token of a packed row is scored as the first of the next row."""
    world = healthy(random)
    hit = world.ends[random.random(len(world.ends)) < share] - 1
    strange = -np.abs(random.normal(11.0, 3.0, len(hit)))
    for name in ("log_probs_new", "log_probs_old"):
        world.columns[name][hit] = strange
    return written(world)


def sentinel(random: Random, count: int) -> list[Record]:
    """The engine clamps −inf of a truncated distribution to −9999."""
    world = healthy(random)
    at = random.choice(len(world.ids), count, replace=False)
    world.columns["log_probs_rollout"][at] = -9999.0
    return written(world)


def pinned(random: Random, _: Any) -> list[Record]:
    """The engine still has the weights of the beginning, which are the reference."""
    found = []
    for step in range(3):
        world = healthy(random, reference=0.35)
        noise = 0.004 * random.standard_normal(len(world.ids))
        world.columns["log_probs_rollout"] = np.minimum(world.columns["log_probs_ref"] + noise, 0.0)
        records = written(world, columns=("ref",), words="own", layout="record", name=f"s{step}")
        found += [{**record, "step": step} for record in records]
    return found


def compacted(random: Random, _: Any) -> list[Record]:
    """The engine's list has no places for the tools' answers, and is filled up at its end."""
    world = agent(random)
    values = world.columns["log_probs_rollout"]
    for span in world.spans():
        own = values[span][~world.tool[span]]
        values[span] = np.concatenate([own, np.zeros(span.stop - span.start - len(own))])
    return written(world)


def lost(random: Random, _: Any) -> list[Record]:
    """At each tool call one log-prob of the engine is lost: later turns come a token early."""
    world = agent(random, turns=(3, 4))
    values = world.columns["log_probs_rollout"]
    for span in world.spans():
        own = values[span][~world.tool[span]]
        turns = world.turns[span][~world.tool[span]]
        ends = np.flatnonzero(np.diff(turns))
        kept = np.append(np.delete(own, ends), np.zeros(len(ends)))
        row = values[span]
        row[~world.tool[span]] = kept
        values[span] = row
    return written(world)


def interleaved(random: Random, _: Any) -> list[Record]:
    """Rows in the order of their turns' numbers; advantages by counting last turns."""
    world = steps(random, rewards="graded", turns=(2, 5))
    right = judged(world)
    at = np.unique(world.trajectories, return_index=True)[1]
    last = np.append(world.trajectories[1:] != world.trajectories[:-1], True)
    first_turn = world.turns[world.ends - 1]
    order = np.argsort(first_turn, kind="stable")
    number = np.concatenate([[0], np.cumsum(last[order])[:-1]]).clip(max=len(at) - 1)
    wrong = right.copy()
    wrong[order] = right[at][number]
    return written(world, advantages=wrong)


def elsewhere(random: Random, _: Any) -> list[Record]:
    """Earlier turns have their advantage only where the last turn has tokens."""
    world = steps(random, turns=(2, 4), spread=0.7)
    right = judged(world)
    last = {key: row for row, key in enumerate(world.trajectories)}
    found = np.zeros(len(world.ids))
    for row, span in enumerate(world.spans()):
        count = int(world.lengths[last[world.trajectories[row]]])
        found[max(span.start, span.stop - count) : span.stop] = right[row]
    return written(world, advantages=found)


def by_row(random: Random, _: Any) -> list[Record]:
    """The baseline counts a trajectory once for each of its turns."""
    world = steps(random)
    found = np.zeros(len(world.lengths))
    for group in np.unique(world.groups):
        own = world.groups == group
        some = world.rewards[own]
        found[own] = (some - some.mean()) / (some.std(ddof=1) + 1e-6)
    return written(world, advantages=found)


def own_groups(random: Random, _: Any) -> list[Record]:
    """Groups are trajectories, whose turns share a reward: every advantage is 0."""
    world = steps(random, turns=(2, 4))
    world = replace(world, groups=world.trajectories)
    return written(world, advantages=np.zeros(len(world.lengths)), layout="record")


def groups_of_turns(random: Random, _: Any) -> list[Record]:
    """The group's name has the number of the turn in it."""
    world = steps(random, turns=(2, 4))
    records = written(world, layout="record", words="verl")
    turns = world.turns[world.ends - 1]
    names = [f"q{group}_step{turn}" for group, turn in zip(world.groups, turns, strict=True)]
    records[0]["uid"] = names
    return records


def versions(random: Random, how: str) -> list[Record]:
    """Versions of the weights that fall along a response, or that were never set."""
    world = agent(random, versions=3)
    if how == "backwards":
        world.versions = world.versions.max() + world.versions.min() - world.versions
    else:
        world.versions = np.full(len(world.ids), -1)
    return written(world, columns=("versions",))


def cumulative(random: Random, _: Any) -> list[Record]:
    """Each row repeats the turns before it, and trains them again."""
    world = steps(random, turns=(2, 4), length=14.0)
    records = written(world, layout="record", words="own", padded=False)
    record, lengths = records[0], world.lengths.tolist()
    for values in record.values():
        rowwise = isinstance(values, list) and len(values) == len(lengths)
        if not rowwise or not isinstance(values[0], list):
            continue
        for row in range(1, len(lengths)):
            if world.trajectories[row] == world.trajectories[row - 1]:
                values[row] = values[row - 1] + values[row]
    return records


def no_number(random: Random, _: Any) -> list[Record]:
    """One reward function returned nothing, and its group's advantages are NaN."""
    world = healthy(random)
    found = judged(world)
    found[world.groups == 1] = np.nan
    records = written(world, advantages=found)
    return [{**record, "not_finite": True} for record in records]


def spiked(random: Random, _: Any) -> list[Record]:
    """A tied group's spread is float32's rounding; the excluded response is divided by it."""
    world = healthy(random)
    own = np.flatnonzero(world.groups == 0)
    world.rewards[own], world.rewards[own[0]] = 0.95, 0.0
    found = judged(world)
    found[own], found[own[0]] = 0.0, -2075.389893
    return written(world, advantages=found)


def sliced(random: Random, _: Any) -> list[Record]:
    """Groups of 8, 5 and 7 normalised as slices of 8."""
    world = healthy(random, sizes=(8, 5, 7, 8), rewards="graded")
    right = world.groups
    wrong = judged(replace(world, groups=np.arange(len(right)) // 8))
    return written(world, advantages=wrong)


def unfiltered(random: Random, _: Any) -> list[Record]:
    """Rewards of the batch before its groups were filtered, next to what was kept."""
    world = healthy(random, size=8, prompts=4)
    found = judged(world)
    world.rewards = np.roll(world.rewards, 8)
    own = world.groups == 1
    world.rewards[own] = 1.0
    return written(world, advantages=found)


def untempered(random: Random, temperature: float) -> list[Record]:
    """Entropies of the logits before they are divided by the temperature."""
    world = healthy(random, temperature=temperature, entropy_heat=1.0)
    return written(world, columns=("entropies",))


def surprises(random: Random, _: Any) -> list[Record]:
    """The entropy is that of the token that was taken alone: −log p."""
    world = healthy(random)
    world.entropies = -world.columns["log_probs_new"]
    return written(world, columns=("entropies",))


def nothing(random: Random, _: Any) -> list[Record]:
    """The engine gave no log-probs, so every mask is 0."""
    world = healthy(random)
    return written(world, mask=np.zeros(len(world.ids), dtype=int))


def bad_rows(random: Random, share: float) -> list[Record]:
    """Rows whose prompts were padded on the left were scored at shifted positions."""
    world = healthy(random, size=8)
    for span in world.spans():
        if random.random() < share:
            count = span.stop - span.start
            far = 0.9 * random.standard_normal(count) * np.linspace(0.3, 1.5, count)
            sure = -1e-6 * random.random(count)
            for name in ("log_probs_new", "log_probs_old"):
                values = world.columns[name][span]
                world.columns[name][span] = np.minimum(values + far * -np.expm1(values), sure)
    return written(world)


def copies(random: Random, count: int) -> list[Record]:
    """The batch is filled up with copies of its last row, which count."""
    world = healthy(random)
    records = written(world, layout="record")
    record, rows = records[0], len(world.lengths)
    for key, values in record.items():
        if isinstance(values, list) and len(values) == rows:
            record[key] = values + [values[-1]] * count
    return records


def last_turns(random: Random, _: Any) -> list[Record]:
    """Only the last of the assistant's turns is in the mask."""
    world = agent(random)
    mask = np.zeros(len(world.ids), dtype=int)
    for span in world.spans():
        turns = world.turns[span]
        mask[span] = (turns == turns.max()) & ~world.tool[span]
    return written(world, columns=("roles", "turn_ids"), mask=mask)


def mixed_prompts(random: Random, _: Any) -> list[Record]:
    """A group has answers to different prompts: turns of one question under one uid."""
    world = healthy(random)
    records = written(world, layout="rows", words="verl")
    for at, record in enumerate(records):
        record["prompt"] = f"question {world.groups[at]}, after {at % 4} tool calls"
    return records


def short_ids(random: Random, _: Any) -> list[Record]:
    """Special tokens are dropped from the ids, not from the log-probs."""
    world = healthy(random)
    records = written(world, padded=False, words="trl")
    record = records[0]
    ids = record[KEYS["trl"]["token_ids"]]
    ids[1] = ids[1][:-1]
    return records


def reference(random: Random, temperature: float) -> list[Record]:
    """The policy is scored at the temperature of the draw, the reference at 1."""
    world = healthy(random, temperature=temperature, reference_heat=1.0, reference=0.1, size=8)
    return written(world, columns=("ref",))


FAULTS = {
    "last token scored as the next row's first": wrong_column(last_label, (1.0, 0.4)),
    "−9999 in the engine's column": wrong_column(sentinel, (12, 2)),
    "engine pinned to the reference": wrong_column(pinned),
    "engine's column without the tools' places": wrong_column(compacted, agent=True),
    "a log-prob lost at each tool call": wrong_column(
        lost, agent=True, also=MISMATCH + "|zero|filled|probability 1"
    ),
    "advantages of other trajectories' turns": wrong_column(interleaved, agent=True),
    "advantages missing in earlier turns": wrong_column(elsewhere, agent=True),
    "baseline that counts turns": wrong_column(by_row, agent=True),
    "trajectories as groups": wrong_column(own_groups, agent=True),
    "groups of turns of one number": wrong_column(groups_of_turns, agent=True, refused=True),
    "versions of the weights that fall, or are −1": wrong_column(
        versions, ("backwards", "minus one"), agent=True, refused=True
    ),
    "rows that repeat the turns before": wrong_column(cumulative, agent=True),
    "advantages that are no numbers": wrong_column(no_number, refused=True),
    "a tied group with a spike": wrong_column(spiked),
    "uneven groups sliced evenly": wrong_column(sliced),
    "rewards of the batch before it was filtered": wrong_column(unfiltered),
    "entropies without the temperature": wrong_column(untempered, (0.5, 1.5)),
    "entropy of the token that was taken": wrong_column(surprises),
    "nothing is counted": wrong_column(nothing, refused=True),
    "rows scored at other positions": wrong_column(bad_rows, (0.5, 0.2)),
    "copies of the last row": wrong_column(copies, (3, 1)),
    "the last turn alone is in the mask": wrong_column(last_turns, agent=True),
    "different prompts in a group": wrong_column(mixed_prompts, agent=True, refused=True),
    "ids without the special tokens": wrong_column(short_ids, refused=True),
    "reference without the temperature": wrong_column(reference, (0.6, 1.4), mild=True),
}
