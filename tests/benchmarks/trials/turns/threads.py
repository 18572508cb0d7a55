"""Threads on turns: small batches with what each describes, and the command that answers it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trials.product import Record, rows
from trials.turns.episodes import Random
from trials.turns.faults import FAULTS, planted
from trials.turns.wrong import JOINED, WRONG, mistaken


@dataclass(frozen=True)
class Thread:
    """A thread: its name, what it is about, the command, what that says, and the batch."""

    name: str
    about: str
    command: str
    says: str
    code: str
    made: Callable[[Random], list[Record]]


SMALL = {"tasks": 3, "attempts": 4, "tokens": (5, 12), "tool": (3, 6)}


def _fault(name: str, strength: Any, kind: str, **shape: Any) -> Callable[[Random], list[Record]]:
    fault = next(one for one in FAULTS if one.name == name)

    def made(random: Random) -> list[Record]:
        drawn = {**SMALL, **fault.shape(strength), **shape}
        small = type(fault)(**{**vars(fault), "shape": lambda _: drawn})
        return planted(small, strength, kind, random, "")

    return made


def _example_of_489(random: Random) -> list[Record]:
    """Four rollouts of one question with 2, 1, 2 and 1 turns, of which two are right; and so on."""
    rollouts = [[(1.0, 2), (0.0, 1), (1.0, 2), (0.0, 1)], [(1.0, 3), (0.0, 1), (0.0, 1), (0.0, 2)]]
    rows = [
        (group, f"rollout {group}.{number}", reward)
        for group, every in enumerate(rollouts)
        for number, (reward, turns) in enumerate(every)
        for _ in range(turns)
    ]
    rewards = np.array([reward for _, _, reward in rows])
    groups = np.array([group for group, _, _ in rows])
    advantages = np.zeros(len(rows))
    for group in (0, 1):
        own = rewards[groups == group]
        advantages[groups == group] = (own - own.mean()) / (own.std(ddof=1) + 1e-6)
    record = {
        "log_probs": [(-random.exponential(0.5, 6)).tolist() for _ in rows],
        "uid": groups.tolist(),
        "rollout_id_list": [name for _, name, _ in rows],
        "rewards": rewards.tolist(),
        "advantages": advantages.tolist(),
    }
    return [record]


def _only_last(random: Random) -> list[Record]:
    wrong = next(one for one in WRONG if one.name == "last alone")
    return [mistaken(wrong, JOINED, random, "")]


def _kl_of_tools(random: Random) -> list[Record]:
    wrong = next(one for one in WRONG if one.name == "tools' KL")
    return [mistaken(wrong, JOINED, random, "")]


def _record(draw: Random, rewards: list[float], **more: Any) -> list[Record]:
    """Responses of three tokens each, whose weights moved a little."""
    engine = -draw.exponential(0.5, (len(rewards), 3)) - 0.01
    new = np.minimum(engine + draw.normal(0.0, 0.02, engine.shape), -1e-3)
    columns = {"log_probs_new": new, "log_probs_rollout": engine, "log_probs_old": engine}
    return [{name: one.tolist() for name, one in columns.items()} | {"rewards": rewards} | more]


def _stops(draw: Random) -> list[Record]:
    """Four trajectories of equal sums: two end with turn 0, two go on for the same reward."""
    names, turn_rewards = ["a", "b", "c", "c", "d", "d"], [1.0, 1.0, 0.5, 0.5, 0.5, 0.5]
    return _record(draw, [1.0] * 6, trajectory_ids=names, turn_rewards=turn_rewards)


def _proposals(draw: Random) -> list[Record]:
    """Two proposed problems, an easy and a hard one, of four attempts each."""
    states = ["proposer", *["easy"] * 4, "proposer", *["hard"] * 4]
    rewards = [0.2, 1.0, 1.0, 1.0, 0.0, 0.6, 0.0, 0.0, 0.0, 1.0]
    return _record(draw, rewards, state_ids=states)


def _games(draw: Random) -> list[Record]:
    """Three games of two players, whose rewards add up to 0; the first player wins 80 %."""
    rewards = [1.0, -1.0, 1.0, -1.0, -1.0, 1.0]
    return _record(draw, rewards, reward_baselines=[0.6, -0.6] * 3)


_COUNTED = "trajectories counted once per turn"
_UNDER_LAST = "advantages under the last turn's mask"

_MADE = {
    "agent-lightning#445": _fault(_COUNTED, ("wide", True), "lightning"),
    "agent-lightning#489": _example_of_489,
    "SkyRL#1492": _fault(_UNDER_LAST, (4, "right"), "skyrl"),
    "ROLL#397": _fault("groups made of turns", "computed", "lightning", turns=(2, 4)),
    "rllm#776": _fault("groups made of turns", "rewards", "lightning", turns=(2, 4)),
    "slime#1370": _fault("the KL of tools' tokens in the rewards", 1.0, "token rewards"),
    "verl#6392": _fault("the outcome on a tool's token", 1.0, "token rewards"),
    "verl-tool#116": _fault("tools' tokens count", 1.0, "verl"),
    "ms-swift#10012": _fault("histories encoded again", 0.3, "lightning", tokens=(14, 24)),
    "ms-swift#7838": _only_last,
    "slime#1370 in the loss": _kl_of_tools,
    "verl#7244": _stops,
    "verl#7244 with returns": _stops,
    "prime-rl#3138": _proposals,
    "prime-rl#3136": _games,
}

THREADS = [
    Thread(**row | {"says": row["says"].replace(r"\n", "\n")}, made=_MADE[row["name"]])
    for row in rows(__file__, "threads.csv")
]
