"""Faults of dumps that a column shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from trials.product import KEYS, Record
from trials.strangers.dumps import agent, healthy, judged, steps_without_reference, written
from trials.strangers.world import END, Random, World, bfloat16
from trials.tape import Array

TRAINER = ("log_probs_new", "log_probs_old")


def _rolled(random: Random, world: World, span: slice, by: int) -> None:
    """The trainer scores, at each place of the span, the token ``by`` places on."""
    behind = -np.abs(random.normal(3.0, 2.0, min(by, span.stop - span.start)))
    for name in TRAINER:
        values = world.columns[name][span]
        world.columns[name][span] = np.append(values[by:], behind)


def shifted(random: Random, how: str) -> list[Record]:
    """All rows, or those of one micro-batch of four."""
    world = healthy(random)
    for row, span in enumerate(world.spans()):
        if how == "all" or 4 <= row < 8:
            _rolled(random, world, span, 1)
    return written(world)


def padded_apart(random: Random, _: Any) -> list[Record]:
    """Each row is moved by the padding of its own prompt."""
    world = healthy(random)
    for span in world.spans():
        _rolled(random, world, span, int(random.integers(0, 7)))
    return written(world)


def short(random: Random, how: tuple[int, float]) -> list[Record]:
    """The engine returned fewer log-probs than tokens; 0.0 fills up."""
    world = healthy(random)
    count, share = how
    for span in world.spans():
        if random.random() < share:
            world.columns["log_probs_rollout"][span.stop - count : span.stop] = 0.0
    return written(world)


def certain(random: Random, least: float) -> list[Record]:
    """The engine says 0 for every token of more than this probability."""
    world = healthy(random)
    values = world.columns["log_probs_rollout"]
    values[values > np.log(least)] = 0.0
    return written(world)


def reordered(random: Random, column: str) -> list[Record]:
    """One column is of the rows in another order."""
    world = healthy(random)
    values = world.columns[column] if column != "entropies" else world.entropies
    rows = [np.array(row) for row in world.split(values.copy())]
    for span, row in zip(world.spans(), random.permutation(len(rows)), strict=True):
        found = np.zeros(span.stop - span.start)
        found[: len(rows[row])] = rows[row][: len(found)]
        values[span] = found
    return written(world, columns=("entropies",) if column == "entropies" else ())


def left_behind(random: Random, _: Any) -> list[Record]:
    """Rows and their groups are shuffled; rewards and advantages keep the old order."""
    world = healthy(random, size=8, rewards="graded")
    found = judged(world)
    order = random.permutation(len(world.lengths))
    return written(replace(world, groups=world.groups[order]), layout="record", advantages=found)


def ends_masked(random: Random, how: str) -> list[Record]:
    """The mask is where ids are not the padding's, which is the end of text."""
    world = agent(random) if how == "turns" else healthy(random)
    mask = (~world.tool & (world.ids != END)).astype(int)
    return written(world, mask=mask)


def closed(random: Random, _: Any) -> list[Record]:
    """Rows that were cut are closed by an end of text that nothing sampled."""
    world = healthy(random, length=70.0, longest=75)
    at = world.ends[~world.finished] - 1
    world.ids[at] = END
    world.columns["log_probs_rollout"][at] = 0.0
    for name in TRAINER:
        world.columns[name][at] = -np.abs(random.normal(6.0, 2.0, len(at)))
    return written(world)


def adapter_twice(random: Random, _: Any) -> list[Record]:
    """From the second step on, the engine has the adapter twice."""
    found = []
    for step in range(3):
        world = healthy(random, engine=1.0 if step else 0.02)
        records = written(world, words="own", layout="record", name=f"s{step}")
        found += [{**record, "step": step} for record in records]
    return found


def above_zero(random: Random, share: float) -> list[Record]:
    """Logits and their logsumexp are subtracted in bfloat16."""
    world = healthy(random)
    for name in TRAINER:
        values = world.columns[name]
        hit = (values > -0.01) & (random.random(len(values)) < share)
        values[hit] = random.choice([0.03125, 0.0625, 0.125], int(hit.sum()))
    return written(world)


def leaking(random: Random, _: Any) -> list[Record]:
    """Rows are packed by four; all but the first attend to the rows before them."""
    world = healthy(random)
    for row, span in enumerate(world.spans()):
        if row % 4:
            count = span.stop - span.start
            far = 1.2 * random.standard_normal(count) * np.linspace(1.5, 0.3, count)
            sure = -1e-6 * random.random(count)
            for name in TRAINER:
                values = world.columns[name][span]
                values = values - 0.2 * np.abs(far) + far * -np.expm1(values)
                world.columns[name][span] = np.minimum(values, sure)
    return written(world)


def retokenised(random: Random, share: float) -> list[Record]:
    """From some place in a turn on, the trainer scores other tokens than were sampled."""
    world = agent(random, length=24.0)
    for span in world.spans():
        for turn in np.unique(world.turns[span]):
            own = np.flatnonzero(~world.tool[span] & (world.turns[span] == turn)) + span.start
            if random.random() < share and len(own) > 6:
                start = int(own[int(random.integers(1, len(own) - 4))])
                _rolled(random, world, slice(start, int(own[-1]) + 1), 1)
    return written(world)


def empty_ids(random: Random, _: Any) -> list[Record]:
    """The ids are all 0."""
    world = healthy(random)
    world.ids[:] = 0
    return written(world)


def strided(random: Random, _: Any) -> list[Record]:
    """Names of groups are repeated as a whole, responses one after the other."""
    world = healthy(random, size=8, prompts=4, rewards="graded")
    found = judged(world)
    records = written(world, layout="record", words="verl", advantages=found)
    records[0]["uid"] = [f"q{row % 4}" for row in range(len(world.lengths))]
    return records


def untempered(random: Random, temperature: float) -> list[Record]:
    """The engine's log-probs are those before the temperature."""
    return written(healthy(random, temperature=temperature, engine_heat=1.0, size=8))


def no_reference(random: Random, _: Any) -> list[Record]:
    """The reference's log-probs are zeros."""
    world = healthy(random)
    world.columns["log_probs_ref"][:] = 0.0
    return written(world, columns=("ref",))


def no_reward(random: Random, _: Any) -> list[Record]:
    """The reward function finds no answer, ever."""
    found = []
    for step in range(3):
        world = healthy(random)
        world.rewards = np.zeros(len(world.rewards))
        records = written(world, words="own", layout="record", name=f"s{step}")
        found += [{**record, "step": step} for record in records]
    return found


def copied(random: Random, share: float) -> list[Record]:
    """The engine's seed is fixed: responses of a group are copies of its first."""
    world = healthy(random, size=8)
    records = written(world, layout="record", words="own", padded=False)
    record, rows = records[0], len(world.lengths)
    for row in range(rows):
        if row % 8 and random.random() < share:
            for values in record.values():
                if isinstance(values, list) and len(values) == rows:
                    values[row] = values[row - row % 8]
    return records


def tools_counted(random: Random, how: str) -> list[Record]:
    """The tools' answers are in the mask."""
    world = agent(random)
    mask = np.ones(len(world.ids), dtype=int)
    return written(world, mask=mask, columns=("roles",) if how == "roles" else (), padded=True)


def coarse(random: Random, column: str) -> list[Record]:
    """One of two passes with the same weights has its logits in bfloat16."""
    world = healthy(random, update=0.0, trainer=0.0)
    world.columns[column] = bfloat16(world.columns[column]).astype(float)
    return written(world)


def expanded(random: Random, _: Any) -> list[Record]:
    """The engine counts an image as 16 tokens, the tokenizer as one."""
    world = healthy(random)
    records = written(world, padded=False, words="trl", layout="record")
    values = records[0][KEYS["trl"]["log_probs_rollout"]]
    values[2] = [-0.5] * 15 + values[2]
    return records


def summed(random: Random, _: Any) -> list[Record]:
    """Every token has the log-prob of its whole response."""
    world = healthy(random)
    for name in TRAINER:
        for span in world.spans():
            world.columns[name][span] = world.columns[name][span].sum()
    return written(world)


def own_reference(random: Random, _: Any) -> list[Record]:
    """The adapter is not switched off for the reference."""
    return steps_without_reference(random, 3)


def expanded_advantages(random: Random, _: Any) -> list[Record]:
    """Advantages are repeated by lengths with padding, for columns without it."""
    world = healthy(random, rewards="graded")
    wide: Array = np.repeat(judged(world), world.lengths + 3)
    return written(world, advantages=wide[: len(world.ids)])
