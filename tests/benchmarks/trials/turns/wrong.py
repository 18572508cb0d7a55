"""Wrong implementations of GRPO on agents' batches: what they would have computed.

The loss and its gradient are written down here in numpy, by definition: group std (ddof 1), clip
0.2, k3 with β 0.04, the mean over responses of their means over tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trials.product import Record
from trials.product import rows as table_rows
from trials.turns.kinds import (
    Episode,
    Kind,
    Random,
    Shape,
    by_turn,
    drawn,
    joined,
    over_trajectories,
    rows,
)

Rows = list[np.ndarray]
BETA, EPSILON = 0.04, 0.2


@dataclass
class Parts:
    """What a loss is made of, each a list of arrays over the tokens as written.

    Attributes:
        advantages: by token.
        policy, penalised: which tokens the policy term and the KL sum over.
        lengths: what each response is divided by.
    """

    advantages: Rows
    policy: Rows
    penalised: Rows
    lengths: np.ndarray


def expected(record: Record, parts: Parts) -> dict[str, Any]:
    """The loss and its gradient with these parts."""
    loss, gradient = 0.0, []
    columns = (record[f"log_probs_{name}"] for name in ("new", "old", "ref"))
    for row, three in enumerate(zip(*columns, strict=True)):
        new, old, ref = map(np.array, three)
        scale = 0.0 if not parts.lengths[row] else 1.0 / parts.lengths[row] / len(parts.lengths)
        a, ratio = parts.advantages[row], np.exp(new - old)
        bounded = np.clip(ratio, 1.0 - EPSILON, 1.0 + EPSILON)
        surrogate = np.minimum(ratio * a, bounded * a)
        slope = np.where(ratio * a <= bounded * a, ratio * a, 0.0)
        away = ref - new
        kl, kl_slope = np.exp(away) - away - 1.0, 1.0 - np.exp(away)
        own, kept = parts.policy[row], parts.penalised[row]
        loss -= scale * float((own * surrogate - BETA * kept * kl).sum())
        gradient.append((-scale * (own * slope - BETA * kept * kl_slope)).tolist())
    return {"loss": loss, "loss_gradient": gradient}


def standardised(rewards: np.ndarray, groups: list[Any]) -> np.ndarray:
    found = np.zeros(len(rewards))
    for group in set(groups):
        at = np.array([one == group for one in groups])
        std = rewards[at].std(ddof=1) if at.sum() > 1 else 0.0
        found[at] = (rewards[at] - rewards[at].mean()) / (std + 1e-8) if std else 0.0
    return found


def right(record: Record) -> Parts:
    """As GRPO has it: each response is a sample of its group; given advantages win."""
    masks = record.get("mask") or [[1] * len(row) for row in record["log_probs_new"]]
    kept = [np.array(row, dtype=float) for row in masks]
    given = record.get("advantages")
    if given is None:
        given = standardised(np.array(record["rewards"]), record["group_ids"]).tolist()
    each = [np.zeros(len(row)) + np.array(a) for row, a in zip(kept, given, strict=True)]
    return Parts(each, kept, kept, np.array([row.sum() for row in kept]))


def batch(kind: Kind, random: Random) -> tuple[Record, list[Episode]]:
    """A batch one step off its old policy, with a reference."""
    every = drawn(kind, random)
    record = kind.write(every, random)
    new = [np.array(row) for row in record["log_probs_new"]]
    for name, noise in (("old", 0.15), ("ref", 0.3)):
        moved = [
            np.minimum(row * np.exp(noise * random.normal(size=len(row))), -1e-9) for row in new
        ]
        record[f"log_probs_{name}"] = [row.tolist() for row in moved]
    return record, every


# ---- mistakes ------------------------------------------------------------------------------------


def _turns(record: Record, every: list[Episode]) -> list[list[tuple[int, np.ndarray]]]:
    """Trajectory → turn → its row, and its tokens there."""
    found, row = [], -1
    for one in every:
        own, at, separate = [], 0, "trajectory_ids" in record
        row += not separate
        for turn in one.turns:
            row, at = (row + 1, 0) if separate else (row, at)
            own.append((row, np.arange(at, at + len(turn.ids))))
            at += len(turn.ids) + len(turn.tool)
        found.append(own)
    return found


def counted_once(record: Record, every: list[Episode], parts: Parts) -> None:
    once = standardised(np.array([one.reward for one in every]), [one.group for one in every])
    for own, value in zip(_turns(record, every), once, strict=True):
        for row, at in own:
            parts.advantages[row][at] = value


def own_group(record: Record, every: list[Episode], parts: Parts) -> None:
    own = standardised(np.array(record["rewards"]), record["trajectory_ids"])
    for row, value in enumerate(own):
        parts.advantages[row][:] = value


def neighbour(by: int) -> Callable[..., None]:
    def change(record: Record, every: list[Episode], parts: Parts) -> None:
        before = [row.copy() for row in parts.advantages]
        for own in _turns(record, every):
            for number, (row, at) in enumerate(own):
                other, there = own[min(max(number + by, 0), len(own) - 1)]
                parts.advantages[row][at] = before[other][there[0]]

    return change


def under_last(side: str) -> Callable[..., None]:
    def change(record: Record, every: list[Episode], parts: Parts) -> None:
        for own in _turns(record, every):
            length = len(own[-1][1])
            for row, at in own:
                lost = at[: max(len(at) - length, 0)] if side == "right" else at[length:]
                parts.advantages[row][lost] = 0.0

    return change


def only(which: int, *, masked: bool) -> Callable[..., None]:
    def change(record: Record, every: list[Episode], parts: Parts) -> None:
        for own in _turns(record, every):
            for row, at in own[:-1] if which else own[1:]:
                for column in (parts.policy, parts.penalised) if masked else (parts.advantages,):
                    column[row][at] = 0.0
        if masked:
            parts.lengths = np.array([row.sum() for row in parts.policy])

    return change


def tools_penalised(record: Record, every: list[Episode], parts: Parts) -> None:
    parts.penalised = [row.copy() for row in parts.policy]
    for row, one in enumerate(every):
        written = len(parts.policy[row]) - len(one.turns[-1].tool)
        parts.penalised[row][:written] = 1.0


SHAPE = Shape(turns=(2, 4), tokens=(4, 12), tool=(3, 8), tasks=3, attempts=4, graded=True)
ROWS = Kind("rows", over_trajectories, rows, (), SHAPE)
BY_TURN = Kind("rows by turn", by_turn, rows, (), SHAPE)
ROWS_GIVEN = Kind("rows given", by_turn, rows, ("by token",), SHAPE)
JOINED = Kind("joined", over_trajectories, joined, ("numbers",), SHAPE)
JOINED_GIVEN = Kind("joined given", by_turn, joined, ("by token",), SHAPE)


@dataclass(frozen=True)
class Wrong:
    """A wrong implementation: a row of ``wrong.csv``.

    Attributes:
        row: its name in the catalogue.
        name: what it is called in the report.
        kinds: batches of this file that it is tried on, one after the other.
        does: an expression for what changes the parts of the loss.
        said: a regular expression on what ``verify`` must say.
    """

    row: str
    name: str
    kinds: str
    does: str
    said: str

    @property
    def tried_on(self) -> list[Kind]:
        return [globals()[name] for name in self.kinds.split()]


WRONG = [Wrong(**row) for row in table_rows(__file__, "wrong.csv")]


def mistaken(wrong: Wrong | None, kind: Kind, random: Random, name: str) -> Record:
    """A record of a batch with what a wrong implementation gives; a right one for None."""
    record, every = batch(kind, random)
    parts = right(record)
    if wrong is not None:
        parts.advantages = [row.copy() for row in parts.advantages]
        parts.policy = [row.copy() for row in parts.policy]
        parts.penalised = [row.copy() for row in parts.policy]
        eval(wrong.does)(record, every, parts)
    return record | {"id": name, "expected": expected(record, parts)}
