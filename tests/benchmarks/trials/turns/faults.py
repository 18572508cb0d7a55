"""Faults of turns, planted in clean batches at graded strengths."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np

from trials.product import Record, lines, table
from trials.turns.kinds import (
    NAMES,
    Episode,
    Kind,
    Random,
    by_group,
    drawn,
    log_probs,
    rounded,
    words,
)

Strength = Any
Edit = Callable[[list[Episode], Strength, Random], None]
After = Callable[[Record, list[Episode], Strength, Random], None]


@dataclass(frozen=True)
class Fault:
    """One mistake: a row of ``faults.json``, and what makes it.

    Attributes:
        row: its name in the catalogue.
        name: what it is called in the report.
        strengths: how strong; from ``sure`` on it must be named.
        kinds: the clean kinds that it is planted in, one after the other.
        codes: the findings that name it.
        edit: changes episodes, before they are written.
        after: changes the record.
        shapes: how episodes are drawn, by strength.
    """

    row: str
    name: str
    strengths: tuple[Strength, ...]
    kinds: tuple[str, ...]
    codes: tuple[str, ...]
    edit: Edit | None = None
    after: After | None = None
    shapes: tuple[dict[str, Any], ...] = ()
    sure: tuple[Strength, ...] | None = None


def planted(fault: Fault, strength: Strength, kind: str, random: Random, name: str) -> list[Record]:
    """A batch with the fault; another one is drawn where it changes no number."""
    base: Kind = NAMES[kind]
    shape = fault.shapes[fault.strengths.index(strength)] if fault.shapes else {}
    while True:
        every = drawn(base, random, **shape)
        before = base.write(deepcopy(every), deepcopy(random))
        if fault.edit:
            fault.edit(every, strength, random)
        record = base.write(every, random)
        if fault.after:
            fault.after(record, every, strength, random)
        if lines([record]) != lines([before]):
            return [record | {"id": name}]


# ---- statistics ----------------------------------------------------------------------------------


def _per_turn(every: list[Episode], strength: Strength, random: Random) -> None:
    """Mean and std over all turns of a task, each with its trajectory's reward."""
    for group in by_group(every):
        turns = [(one, turn) for one in group for turn in one.turns]
        rewards = np.array([one.reward for one, _ in turns])
        scale = rewards.std(ddof=1) + 1e-6 if strength[1] else 1.0
        for one, turn in turns:
            turn.advantage = (one.reward - rewards.mean()) / scale


def _own_groups(record: Record, every: list[Episode], strength: Strength, random: Random) -> None:
    """Groups are trajectories; advantages are over them, where there are any."""
    record["group_ids"] = list(record["trajectory_ids"])
    if "advantages" in record and strength == "computed":
        record["advantages"] = [0.0] * len(record["group_ids"])
    elif strength == "rewards":
        record.pop("advantages", None)


# ---- advantages on other tokens ------------------------------------------------------------------


def _last_mask(record: Record, every: list[Episode], strength: Strength, random: Random) -> None:
    """Each turn has the last turn's masked tensor, aligned to the right or to the left."""
    rows: list[list[float]] = []
    for one in every:
        own = len(one.turns[-1].ids)
        for turn in one.turns:
            size, kept = len(turn.ids), min(own, len(turn.ids))
            row = np.zeros(size)
            row[slice(size - kept, size) if strength[1] == "right" else slice(0, kept)] = (
                turn.advantage
            )
            rows.append(rounded(row))
    record["advantages"] = rows


# ---- rewards -------------------------------------------------------------------------------------


def _penalised(record: Record, every: list[Episode], strength: Strength, random: Random) -> None:
    """The KL of all tokens is taken off the rewards, of tools' too."""
    for mask, rewards in zip(record["mask"], record["token_rewards"], strict=True):
        for at in range(len(rewards)):
            if mask[at] or random.random() < strength:
                rewards[at] -= 0.05 * float(abs(random.normal()))


def _on_tool(record: Record, every: list[Episode], strength: Strength, random: Random) -> None:
    """Trajectories that end with a tool's answer have their reward on its last token."""
    for at, one in enumerate(every):
        if random.random() >= strength:
            continue
        more = words(random, 6)
        for key, values in record.items():
            if key in ("log_probs_new",):
                values[at] += log_probs(random, 6).tolist()
            elif key in ("log_probs_rollout", "advantages") and isinstance(values[at], list):
                values[at] += [0.0] * 6
            elif key == "mask":
                values[at] += [0] * 6
            elif key == "token_ids":
                values[at] += more
            elif key == "token_rewards":
                values[at] += [0.0] * 5 + [one.reward or 0.5]
                values[at][-7] = 0.0


# ---- tokens of tools -----------------------------------------------------------------------------


def _trained(record: Record, every: list[Episode], strength: Strength, random: Random) -> None:
    """The mask of some responses has ones for tools' tokens."""
    several = [at for at, one in enumerate(every) if len(one.turns) > 1]
    chosen = several if strength == 1.0 else [at for at in several if random.random() < strength]
    for at in chosen or several[:1]:
        record["mask"][at] = [1] * len(record["mask"][at])
    if all(all(row) for row in record["mask"]):
        del record["mask"]


# ---- prompts and missing turns -------------------------------------------------------------------


def _again(record: Record, every: list[Episode], strength: Strength, random: Random) -> None:
    """Some prompts have the turns before encoded again: two tokens become one, or another two."""
    at = -1
    for one in every:
        for turn, before in zip(one.turns, [None, *one.turns[:-1]], strict=True):
            at += 1
            if before is None or len(before.ids) < 14 or random.random() >= strength:
                continue
            prompt, first = list(turn.prompt), len(before.prompt) + 1
            if random.random() < 0.5:
                prompt[first : first + 2] = words(random, 1)
            else:
                prompt[first] = prompt[first] + 1
            record["prompt_ids"][at] = prompt


def _missing(every: list[Episode], strength: Strength, random: Random) -> None:
    """Some trajectories lose a turn, not their last."""
    several = [one for one in every if len(one.turns) > 2]
    count = max(1, round(strength[0] * len(every)))
    for one in [several[at] for at in random.permutation(len(several))[:count].tolist()]:
        at = 0 if strength[1] == "first" else int(random.integers(1, len(one.turns) - 1))
        del one.turns[at]


EDITS: dict[str, Edit] = {
    "trajectories counted once per turn": _per_turn,
    "turns missing": _missing,
}
"""Faults that change episodes, before they are written."""
AFTER: dict[str, After] = {
    "groups made of turns": _own_groups,
    "advantages under the last turn's mask": _last_mask,
    "the KL of tools' tokens in the rewards": _penalised,
    "the outcome on a tool's token": _on_tool,
    "tools' tokens count": _trained,
    "tools' tokens count, known by their text": _trained,
    "histories encoded again": _again,
}
"""Faults that change the record."""

FAULTS = [
    Fault(**row, edit=EDITS.get(row["name"]), after=AFTER.get(row["name"]))
    for row in table(__file__, "faults.json")
]
