"""Batches of trainers' own shapes that nothing is wrong with; any error or warning is false."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from trials.product import Record
from trials.strangers.dumps import agent, healthy, judged, written
from trials.strangers.losses import Recipe, normalised
from trials.strangers.world import Random, World, bfloat16
from trials.tape import Array

Clean = Callable[[Random], list[Record]]


def _spread(world: World, values: Array) -> Array:
    return np.repeat(values, world.lengths)


def _coarse_engine(random: Random) -> list[Record]:
    """The engine's log-probs are kept in bfloat16 (THUDM/slime#892)."""
    world = healthy(random)
    world.columns["log_probs_rollout"] = bfloat16(world.columns["log_probs_rollout"]).astype(float)
    return written(world)


def _not_numbers(random: Random) -> list[Record]:
    """The reference is NaN where the mask is 0 (NovaSky-AI/SkyRL#1633)."""
    world = agent(random)
    world.columns["log_probs_ref"][world.tool] = np.nan
    records = written(world, columns=("ref",), padded=True)
    return [{**record, "not_finite": True} for record in records]


def _masked_rows(random: Random) -> list[Record]:
    """The batch is filled up by rows with a mask of 0 (NovaSky-AI/SkyRL#1811)."""
    world = healthy(random)
    records = written(world, layout="record", words="own", padded=True)
    record, rows = records[0], len(world.lengths)
    record.setdefault("mask", [[1] * int(length) for length in world.lengths])
    for key, values in record.items():
        if isinstance(values, list) and len(values) == rows:
            last = [0] * len(values[-1]) if key == "mask" else values[-1]
            record[key] = [*values, last, last]
    return records


def _scaled(random: Random) -> list[Record]:
    """Advantages divided by the tokens of the mini-batch (NovaSky-AI/SkyRL#1296)."""
    world = healthy(random, size=8)
    return written(world, advantages=judged(world) / len(world.ids))


def _penalised_spans(random: Random) -> list[Record]:
    """Malformed tool calls have an advantage of −1 (NVIDIA-NeMo/RL#2656)."""
    world = agent(random)
    found = _spread(world, judged(world))
    for span in list(world.spans())[::5]:
        found[span.start : span.start + 8] = -1.0
    return written(world, advantages=found)


def _kl_in_advantages(random: Random) -> list[Record]:
    """Tokens that drifted more than others lose advantage (NovaSky-AI/SkyRL#1262)."""
    world = healthy(random)
    kl = world.columns["log_probs_old"] - world.columns["log_probs_ref"]
    found = _spread(world, judged(world)) + 0.05 * (kl.mean() - kl)
    return written(world, columns=("ref",), advantages=found)


def _holes(random: Random) -> list[Record]:
    """Tokens that the engine's ratio rejects are out of the mask (verl-project/verl#3984)."""
    world = healthy(random, engine=0.05)
    far = np.abs(world.columns["log_probs_old"] - world.columns["log_probs_rollout"]) > 0.05
    return written(world, mask=(~far).astype(int))


def _discarded(random: Random) -> list[Record]:
    """Trajectories with retokenised turns have a mask of 0 (rllm-org/rllm#272)."""
    world = agent(random)
    kept = np.arange(len(world.lengths)) % 6 != 3
    return written(world, mask=(~world.tool & _spread(world, kept)).astype(int))


def _critic(random: Random) -> list[Record]:
    """GAE over the tokens that count (radixark/miles#1827)."""
    world = agent(random)
    values = _spread(world, 0.4 * world.rewards + 0.3) + 0.1 * random.standard_normal(
        len(world.ids)
    )
    found = np.where(world.tool, 0.0, _spread(world, world.rewards) - values)
    return written(world, advantages=found, extra={"values": np.round(values, 5)})


def _whitened(random: Random) -> list[Record]:
    """REINFORCE++ with a baseline: whitened over tokens (verl-project/verl#228)."""
    world = healthy(random, rewards="graded")
    plain = _spread(world, normalised(world.rewards, world.groups, Recipe(std=False)))
    found = (plain - plain.mean()) / plain.std()
    return written(world, advantages=found[world.ends - 1])


def _rloo(random: Random) -> list[Record]:
    """The reward that is judged has a KL taken off, the one dumped has not (trl#2575)."""
    world = healthy(random, size=8)
    kl = world.columns["log_probs_old"] - world.columns["log_probs_ref"]
    sums = np.array([sum(row) for row in world.split(kl)])
    net = replace(world, rewards=world.rewards - 0.02 * sums)
    return written(world, columns=("ref",), advantages=judged(net, std=False) * 8 / 7)


def _second_epoch(random: Random) -> list[Record]:
    """The second step trains on the same responses again (huggingface/trl#3725)."""
    world = healthy(random, update=0.0, trainer=0.0)
    found = written(world, words="own", layout="record", padded=False, name="s0")
    moved = world.columns["log_probs_new"] + 0.05 * random.standard_normal(len(world.ids)) * (
        -np.expm1(world.columns["log_probs_new"])
    )
    world.columns["log_probs_new"] = np.minimum(moved, 0.0)
    found += written(world, words="own", layout="record", padded=False, name="s1")
    return [{**record, "step": step} for step, record in enumerate(found)]


def _two_functions(random: Random) -> list[Record]:
    """GDPO: two rewards, each normalised in its group (huggingface/trl#4785)."""
    world = healthy(random, size=8)
    both = np.stack([world.rewards, np.round(random.random(len(world.rewards)), 2)], axis=1)
    parts = [normalised(both[:, at], world.groups, Recipe(eps=1e-4)) for at in range(2)]
    total = parts[0] + parts[1]
    world.rewards = both
    return written(world, advantages=total / (total.std(ddof=1) + 1e-4))


def _sixteen(random: Random) -> list[Record]:
    """Dynamic sampling keeps groups of 16 that do not tie (NovaSky-AI/SkyRL#130)."""
    world = healthy(random, size=16, prompts=3, length=40.0)
    return written(world, advantages=judged(world))


def _overlong(random: Random) -> list[Record]:
    """Rewards with DAPO's soft punishment of length (OpenRLHF/OpenRLHF#1091)."""
    world = healthy(random, size=8, length=70.0, longest=140)
    soft = np.clip((100.0 - world.lengths) / 40.0, -1.0, 0.0)
    world.rewards = 2.0 * world.rewards - 1.0 + soft
    return written(world, advantages=judged(world))


def _cut(random: Random) -> list[Record]:
    """Most responses reach the limit (huggingface/trl#3248)."""
    return written(healthy(random, length=220.0, spread=0.3, longest=200, prompts=3, size=4))


def _bypass(random: Random) -> list[Record]:
    """The engine's log-probs are taken for the old ones (verl-project/verl#4070)."""
    world = healthy(random, engine=0.03, update=0.1)
    world.columns["log_probs_old"] = world.columns["log_probs_rollout"].copy()
    return written(world)


def _bitwise(random: Random) -> list[Record]:
    """Trainer and engine agree to five digits (verl-project/verl#6280)."""
    return written(healthy(random, engine=1e-5, trainer=0.0))


def _first_step(random: Random) -> list[Record]:
    """Before the first update, policy, old policy and reference are one (trl#3120)."""
    world = healthy(random, update=0.0, trainer=0.0)
    world.columns["log_probs_ref"] = world.columns["log_probs_new"].copy()
    return written(world, columns=("ref",))


def _distilled(random: Random) -> list[Record]:
    """On-policy distillation: no rewards, the teacher in the advantages (THUDM/slime#2085)."""
    world = healthy(random, reference=1.0)
    world.rewards = np.zeros(len(world.rewards))
    found = world.columns["log_probs_ref"] - world.columns["log_probs_old"]
    return written(world, columns=("ref",), advantages=found)


CLEAN: dict[str, Clean] = {
    "engine in bfloat16": _coarse_engine,
    "NaN where masked": _not_numbers,
    "rows with a mask of 0": _masked_rows,
    "advantages over the tokens": _scaled,
    "penalised spans": _penalised_spans,
    "KL in the advantages": _kl_in_advantages,
    "rejected tokens": _holes,
    "discarded trajectories": _discarded,
    "critic": _critic,
    "whitened over tokens": _whitened,
    "RLOO with a KL": _rloo,
    "second epoch": _second_epoch,
    "two reward functions": _two_functions,
    "groups of 16": _sixteen,
    "overlong punishment": _overlong,
    "most cut": _cut,
    "engine's log-probs as the old ones": _bypass,
    "equal to five digits": _bitwise,
    "before the first update": _first_step,
    "distillation": _distilled,
}
