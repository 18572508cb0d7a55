"""Threads on turns: small batches with what each describes, and the command that answers it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trials.product import Record
from trials.turns.episodes import Random
from trials.turns.faults import FAULTS, planted
from trials.turns.wrong import JOINED, WRONG, mistaken


@dataclass(frozen=True)
class Thread:
    """A thread: its name, what it is about, its batch, the command, and what that says."""

    name: str
    about: str
    made: Callable[[Random], list[Record]]
    command: str
    says: str
    code: str = ""


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

THREADS = (
    Thread(
        "agent-lightning#445",
        "trajectories with more turns weigh more in mean and std (also #444, #462)",
        _fault(_COUNTED, ("wide", True), "lightning"),
        "check",
        "trajectories count once for each of their turns",
        "turns-counted",
    ),
    Thread(
        "agent-lightning#489",
        "all turns of a question's rollouts are one group",
        _example_of_489,
        "check",
        "trajectories count once for each of their turns",
        "turns-counted",
    ),
    Thread(
        "SkyRL#1492",
        "all steps have the masked advantages of the last step (also #1278, #1507)",
        _fault(_UNDER_LAST, (4, "right"), "skyrl"),
        "check",
        "at as many tokens as the last turn",
        "turn-advantages",
    ),
    Thread(
        "ROLL#397",
        "steps are normalised within their own trajectory: all advantages are 0",
        _fault("groups made of turns", "computed", "lightning", turns=(2, 4)),
        "check",
        "whose rewards are equal",
        "turn-groups",
    ),
    Thread(
        "rllm#776",
        "each rollout has a uid of its own, so that no rollouts are compared (also #924)",
        _fault("groups made of turns", "rewards", "lightning", turns=(2, 4)),
        "check",
        "each of 12 groups holds the turns of one trajectory",
        "turn-groups",
    ),
    Thread(
        "slime#1370",
        "the KL of what tools answered adds up in the returns",
        _fault("the KL of tools' tokens in the rewards", 1.0, "token rewards"),
        "check",
        "the KL subtracted there adds up in the returns",
        "turn-rewards",
    ),
    Thread(
        "verl#6392",
        "the outcome is on the last token, which a tool wrote",
        _fault("the outcome on a tool's token", 1.0, "token rewards"),
        "check",
        "tokens that the mask takes away have rewards",
        "turn-rewards",
    ),
    Thread(
        "verl-tool#116",
        "what tools answered is trained where mask_observations is off",
        _fault("tools' tokens count", 1.0, "verl"),
        "check",
        "tokens that the policy did not write are not masked",
        "tool-tokens",
    ),
    Thread(
        "ms-swift#10012",
        "sampled ids are decoded and encoded again between turns",
        _fault("histories encoded again", 0.3, "lightning", tokens=(14, 24)),
        "check",
        "encodes the text of earlier turns with other token ids",
        "turn-prompt",
    ),
    Thread(
        "ms-swift#7838",
        "only the last turn's tokens are in the loss",
        _only_last,
        "verify",
        "only the last turn of each trajectory counts",
    ),
    Thread(
        "slime#1370 in the loss",
        "a loss whose KL term forgets the mask of tools",
        _kl_of_tools,
        "verify",
        "the KL counts the masked tokens that a tool wrote, between those of the policy",
    ),
    Thread(
        "verl#7244",
        "a baseline of each turn's number punishes going on, though all rewards add up alike",
        _stops,
        "eval -v rllm/per_step --beta 0 --level turn --fields trajectory,turn,advantage -f csv",
        "c,0,-0.8660224037948311\nc,1,0.0\n",
    ),
    Thread(
        "verl#7244 with returns",
        "the returns from each turn on are alike: no turn has an advantage",
        _stops,
        "eval -v dr --advantage turn-group-mean --level turn --fields trajectory,turn,advantage "
        "-f csv",
        "c,0,0.0\nc,1,0.0\n",
    ),
    Thread(
        "prime-rl#3138",
        "an attempt at a hard problem is compared with attempts at easy ones and with proposals",
        _proposals,
        "eval -v prime-rl/hierarchical_grpo --level response --fields reward,advantage -f csv",
        "1.0,0.25\n0.0,-0.75\n0.6,0.19999999999999998\n0.0,-0.25\n0.0,-0.25\n0.0,-0.25\n1.0,0.75\n",
    ),
    Thread(
        "prime-rl#3136",
        "in self-play the group's mean is 0 whoever plays, and the first player's edge is credit",
        _games,
        "eval -v prime-rl/rae --level response --fields reward,advantage -f csv",
        "1.0,0.4\n-1.0,-0.4\n1.0,0.4\n-1.0,-0.4\n-1.0,-1.6\n1.0,1.6\n",
    ),
)
