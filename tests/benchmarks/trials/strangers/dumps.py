"""Records of a batch as trainers of agents and of single answers dump them, for ``check``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from trials.product import KEYS, Record
from trials.strangers.world import PAD, Array, Random, Spec, World, drawn


def healthy(random: Random, **more: Any) -> World:
    """A batch of a run that somebody may have."""
    spec = Spec(
        prompts=int(random.integers(3, 6)),
        size=int(random.choice([4, 8])),
        length=float(random.uniform(35, 90)),
        engine=float(random.uniform(0.01, 0.03)),
        trainer=float(random.choice([0.0, 0.015])),
        update=float(random.choice([0.0, 0.05, 0.12])),
        reference=float(random.uniform(0.1, 0.3)),
        sure=float(random.uniform(0.5, 0.7)),
        rewards=str(random.choice(["binary", "graded"])),
    )
    return drawn(random, replace(spec, **more))


def agent(random: Random, **more: Any) -> World:
    """A batch of an agent with tools: a trajectory is a response with several turns."""
    turns = {"turns": (2, 4), "length": float(random.uniform(14, 26)), "spread": 0.4}
    return healthy(random, **{**turns, **more})


def judged(world: World, *, std: bool = True) -> Array:
    """[R] advantages in which each trajectory of a group counts once."""
    found = np.zeros(len(world.lengths))
    at = np.unique(world.trajectories, return_index=True)[1]
    for group in np.unique(world.groups):
        once = world.rewards[at][world.groups[at] == group]
        scale = once.std(ddof=1) + 1e-6 if std and len(once) > 1 else 1.0
        own = world.groups == group
        found[own] = (world.rewards[own] - once.mean()) / scale
    return found.astype(np.float32).astype(float)


def written(
    world: World,
    *,
    layout: str | None = None,
    words: str | None = None,
    columns: tuple[str, ...] = (),
    advantages: Array | None = None,
    mask: Array | None = None,
    extra: dict[str, Array] | None = None,
    name: str = "step-0",
    padded: bool | None = None,
) -> list[Record]:
    """The records.

    Args:
        layout: "record" (all groups), "group" (a record a group).
        words: whose keys: "own", "trl", "verl".
        columns: "ref", "entropies", "roles".
        advantages: [R], or [N] for one a token.
        mask: [N] where it is not that of the tools; extra: further columns [N].
    """
    random = world.random
    words = words or str(random.choice(["own", "trl", "verl"]))
    layout = layout or str(random.choice(["record", "group"]))
    keys = KEYS[words]
    mask = (~world.tool).astype(int) if mask is None else mask
    if padded is None:
        padded = bool(random.random() < 0.4)
    rows = np.arange(len(world.lengths))
    parts = {
        "record": [rows],
        "group": [rows[world.groups == group] for group in np.unique(world.groups)],
    }[layout]
    flat: dict[str, tuple[Array, Any]] = {
        column: (values, 0.0)
        for column, values in world.columns.items()
        if column != "log_probs_ref" or "ref" in columns
    }
    flat["token_ids"] = (world.ids, PAD)
    if padded or mask.min() == 0:
        flat["mask"] = (mask, 0)
    if "entropies" in columns:
        flat["entropies"] = (world.entropies.astype(np.float32).astype(float), 0.0)
    if "roles" in columns:
        flat["roles"] = (np.where(world.tool, "tool", "assistant"), "padding")
    flat |= {key: (values, 0.0) for key, values in (extra or {}).items()}
    if advantages is not None and len(advantages) == len(world.ids) != len(rows):
        flat["advantages"] = (advantages, 0.0)
        advantages = None
    split = {column: (world.split(values), pad) for column, (values, pad) in flat.items()}
    found = []
    for at, part in enumerate(parts):
        record: Record = {"id": f"{name}/{at}"}
        width = max(int(world.lengths[row]) for row in part) + 2
        for column, (values, pad) in split.items():
            own = [list(values[row]) for row in part]
            if padded:
                own = [row + [pad] * (width - len(row)) for row in own]
            record[keys.get(column, column)] = own
        record["rewards"] = world.rewards[part].tolist()
        if advantages is not None:
            record["advantages"] = advantages[part].tolist()
        groups = [f"q{group}" for group in world.groups[part]]
        if layout == "record":
            record[keys.get("group_ids", "group_ids")] = groups
        found.append(record)
    return found


def steps_without_reference(random: Random, count: int) -> list[Record]:
    """Records of some steps in which the reference is the policy itself."""
    found = []
    for step in range(count):
        world = healthy(random, update=0.1)
        world.columns["log_probs_ref"] = world.columns["log_probs_new"].copy()
        records = written(world, columns=("ref",), layout="record", words="own", name=f"s{step}")
        found += [{**record, "step": step} for record in records]
    return found
