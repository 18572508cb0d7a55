"""Made-up episodes: turns of ids and log-probs, what tools answered, and rewards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from trials.product import Record

Random = np.random.Generator
Ids = list[int]
VOCABULARY, END = 5000, 2
NOISE = 0.01
"""Of the engine's log-probs."""


@dataclass
class Turn:
    """What the policy wrote, the prompt that it saw, and what the tool answered.

    Attributes:
        prompt, ids, tool: token ids.
        old: the trainer's log-probs of ``ids``; ``engine`` the sampler's; ``tool_old`` the
            trainer's of ``tool``.
        number: how the dump numbers it.
        reward: what it earned by itself.
        advantage: what the trainer gave it.
    """

    prompt: Ids
    ids: Ids
    tool: Ids
    old: np.ndarray
    engine: np.ndarray
    tool_old: np.ndarray
    number: int = 0
    reward: float = 0.0
    advantage: float = 0.0


@dataclass
class Episode:
    """One trajectory: its task, its turns, and what it earned in all."""

    group: int
    name: str
    turns: list[Turn]
    reward: float
    thinking: int = 0


@dataclass
class Shape:
    """How episodes are drawn.

    Attributes:
        tasks, attempts: groups, and trajectories of each.
        turns: least and most turns.
        tokens: least and most tokens of a turn.
        tool: least and most tokens of a tool's answer.
        thinking: least and most tokens that the next prompt leaves out.
        graded: rewards between 0 and 1, not only 0 or 1.
    """

    tasks: int = 4
    attempts: int = 6
    turns: tuple[int, int] = (1, 5)
    tokens: tuple[int, int] = (4, 40)
    tool: tuple[int, int] = (3, 30)
    thinking: tuple[int, int] = (0, 0)
    graded: bool = False


def words(random: Random, count: int) -> Ids:
    """Ids by Zipf's law, none of them the end of the turn."""
    return (3 + random.zipf(1.3, count) % (VOCABULARY - 3)).tolist()


def log_probs(random: Random, count: int) -> np.ndarray:
    """Most tokens are nearly sure, some are not."""
    sure = random.random(count) < 0.6
    scale = np.where(sure, 0.02, 1.6)
    return -random.exponential(scale) - 1e-6


def turn(random: Random, shape: Shape, prompt: Ids, *, last: bool) -> Turn:
    ids = [*words(random, int(random.integers(*shape.tokens, endpoint=True))), END]
    tool = [] if last else words(random, int(random.integers(*shape.tool, endpoint=True)))
    old = log_probs(random, len(ids))
    free = -np.expm1(old)
    engine = np.minimum(old + NOISE * free * random.standard_normal(len(ids)), -1e-7)
    return Turn(list(prompt), ids, tool, old, engine, log_probs(random, len(tool)) - 0.4)


def episodes(random: Random, shape: Shape) -> list[Episode]:
    """All trajectories of a batch; rewards differ within each task."""
    found = []
    for group in range(shape.tasks):
        task = words(random, int(random.integers(5, 20)))
        for attempt in range(shape.attempts):
            prompt, turns = list(task), []
            count = int(random.integers(*shape.turns, endpoint=True))
            thinking = int(random.integers(*shape.thinking, endpoint=True))
            for at in range(count):
                turns.append(turn(random, shape, prompt, last=at == count - 1))
                turns[-1].number = at
                kept = turns[-1].ids[min(thinking, len(turns[-1].ids) - 3) if thinking else 0 :]
                prompt = [*prompt, *kept, *turns[-1].tool]
            right = float(random.random() < 0.5) if attempt > 1 else float(attempt)
            reward = round(float(random.random()), 3) if shape.graded else right
            found.append(Episode(group, f"t{group}-{attempt}", turns, reward, thinking))
    return found


def by_group(every: list[Episode]) -> list[list[Episode]]:
    return [[one for one in every if one.group == group] for group in {e.group: 0 for e in every}]


def rounded(values: Any) -> list[float]:
    return [float(np.float32(value)) for value in values]


# ---- credit: what each turn's advantage is -------------------------------------------------------


def over_trajectories(every: list[Episode], random: Random, *, std: bool = True) -> None:
    """Each trajectory counts once; all its turns have its advantage."""
    for group in by_group(every):
        rewards = np.array([one.reward for one in group])
        scale = rewards.std(ddof=1) + 1e-6 if std else 1.0
        for one in group:
            for turn in one.turns:
                turn.reward = one.reward
                turn.advantage = (one.reward - rewards.mean()) / scale


def centred(every: list[Episode], random: Random) -> None:
    over_trajectories(every, random, std=False)


def leave_one_out(every: list[Episode], random: Random) -> None:
    for group in by_group(every):
        rewards = np.array([one.reward for one in group])
        for one in group:
            for turn in one.turns:
                turn.reward = one.reward
                others = (rewards.sum() - one.reward) / (len(rewards) - 1)
                turn.advantage = one.reward - others


def outcome_last(every: list[Episode], random: Random) -> None:
    """The reward is on the last turn; all turns have the trajectory's advantage."""
    over_trajectories(every, random)
    for one in every:
        for turn in one.turns[:-1]:
            turn.reward = 0.0


def last_turn_only(every: list[Episode], random: Random) -> None:
    """Only the last turn is rewarded, and learns."""
    outcome_last(every, random)
    for one in every:
        for turn in one.turns[:-1]:
            turn.advantage = 0.0


def by_turn(every: list[Episode], random: Random) -> None:
    """MT-GRPO: rewards of each turn are normalised over the group's turns of that number."""
    for one in every:
        for turn in one.turns:
            turn.reward = round(float(random.random()), 2)
        one.turns[-1].reward += one.reward
    for group in by_group(every):
        for at in range(max(len(one.turns) for one in group)):
            turns = [one.turns[at] for one in group if len(one.turns) > at]
            rewards = np.array([turn.reward for turn in turns])
            for turn in turns:
                turn.advantage = (turn.reward - rewards.mean()) / (rewards.std() + 1e-6)


def discounted(every: list[Episode], random: Random) -> None:
    """Returns to go of rewards by turn, whitened over the batch."""
    by_turn(every, random)
    for one in every:
        running = 0.0
        for turn in reversed(one.turns):
            running = turn.reward + 0.9 * running
            turn.advantage = running
    values = np.array([turn.advantage for one in every for turn in one.turns])
    for one in every:
        for turn in one.turns:
            turn.advantage = (turn.advantage - values.mean()) / (values.std() + 1e-8)


def over_turns_on_purpose(every: list[Episode], random: Random) -> None:
    """Kevin: each turn is a sample with a reward of its own; all of a task's are compared."""
    by_turn(every, random)
    for group in by_group(every):
        turns = [turn for one in group for turn in one.turns]
        rewards = np.array([turn.reward for turn in turns])
        for turn in turns:
            turn.advantage = (turn.reward - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)


def episode_and_step(every: list[Episode], random: Random) -> None:
    """GiGPO: the trajectory's advantage, and that of the step among those of one state."""
    over_trajectories(every, random)
    for one in every:
        for turn in one.turns:
            turn.advantage += float(random.normal()) * (random.random() < 0.5)


def format_first(every: list[Episode], random: Random) -> None:
    """A first turn earns a little for its format, the last the outcome, which is seldom there."""
    for one in every:
        one.reward *= float(random.random() < 0.4)
    by_turn(every, random)
    for one in every:
        for turn in one.turns:
            turn.reward = 0.0
        one.turns[-1].reward = one.reward
        one.turns[0].reward += 0.1 * float(random.random() < 0.8)


def running_baseline(every: list[Episode], random: Random) -> None:
    """RAE: one attempt of each task, less a mean of the rewards before."""
    for one in every:
        for turn in one.turns:
            turn.reward = one.reward
            turn.advantage = one.reward - 0.4


# ---- layouts -------------------------------------------------------------------------------------

Write = Callable[[list[Episode], Random], Record]


def rows(every: list[Episode], random: Random, *parts: str) -> Record:
    """One response a turn, joined by ids; ``parts`` says which columns there are."""
    turns = [(one, turn) for one in every for turn in one.turns]
    found: Record = {
        "log_probs_new": [rounded(turn.old) for _, turn in turns],
        "group_ids": [one.group for one, _ in turns],
        "trajectory_ids": [one.name for one, _ in turns],
        "rewards": [turn.reward for _, turn in turns],
    }
    if "advantages" in parts:
        found["advantages"] = rounded(turn.advantage for _, turn in turns)
    if "by token" in parts:
        found["advantages"] = [rounded([turn.advantage] * len(turn.ids)) for _, turn in turns]
    if "engine" in parts:
        found["log_probs_rollout"] = [rounded(turn.engine) for _, turn in turns]
    if "ids" in parts:
        found["token_ids"] = [turn.ids for _, turn in turns]
        found["prompt_ids"] = [turn.prompt for _, turn in turns]
    if "numbers" in parts:
        found["turn_ids"] = [[turn.number] * len(turn.ids) for _, turn in turns]
    return found


def joined(every: list[Episode], random: Random, *parts: str) -> Record:
    """One response a trajectory, with what the tools answered between its turns."""
    found: Record = {
        "log_probs_new": [_spread(one, lambda t: t.old, lambda t: t.tool_old) for one in every],
        "mask": [
            _spread(one, lambda t: [1] * len(t.ids), lambda t: [0] * len(t.tool)) for one in every
        ],
        "group_ids": [one.group for one in every],
        "rewards": [one.reward for one in every],
    }
    if "advantages" in parts:
        found["advantages"] = rounded(one.turns[0].advantage for one in every)
    if "by token" in parts:
        found["advantages"] = [_constant(one, lambda t: t.advantage) for one in every]
    if "engine" in parts:
        found["log_probs_rollout"] = [
            _spread(one, lambda t: t.engine, lambda t: [0.0] * len(t.tool)) for one in every
        ]
    if "ids" in parts:
        found["token_ids"] = [_spread(one, lambda t: t.ids, lambda t: t.tool) for one in every]
    if "numbers" in parts:
        found["turn_ids"] = [
            _spread(one, lambda t: [t.number] * len(t.ids), lambda t: [t.number] * len(t.tool))
            for one in every
        ]
    if "turn rewards" in parts:
        found["turn_rewards"] = [[turn.reward for turn in one.turns] for one in every]
    if "token rewards" in parts:
        found["token_rewards"] = [
            _spread(
                one, lambda t: [0.0] * (len(t.ids) - 1) + [t.reward], lambda t: [0.0] * len(t.tool)
            )
            for one in every
        ]
    if "roles" in parts:
        found["roles"] = [
            _spread(one, lambda t: ["assistant"] * len(t.ids), lambda t: ["tool"] * len(t.tool))
            for one in every
        ]
    if "text" in parts:
        found["tokens"] = [
            _spread(one, lambda t: [f"w{i}" for i in t.ids], lambda t: _tagged(t.tool))
            for one in every
        ]
    return found


def _tagged(tool: list[int]) -> list[str]:
    middle = [f"w{i}" for i in tool[2:]]
    return (
        ["<tool_response>", *middle, "</tool_response>"]
        if len(tool) > 1
        else [f"w{i}" for i in tool]
    )


def _spread(one: Episode, own: Callable[[Turn], Any], tool: Callable[[Turn], Any]) -> list[Any]:
    every: list[Any] = []
    for turn in one.turns:
        every += [*own(turn), *tool(turn)]
    return [float(np.float32(v)) if isinstance(v, float) else v for v in every]


def _constant(one: Episode, value: Callable[[Turn], float]) -> list[float]:
    return _spread(one, lambda t: [value(t)] * len(t.ids), lambda t: [0.0] * len(t.tool))


def gae(every: list[Episode], random: Random) -> Record:
    """Advantages that differ from token to token."""
    found = joined(every, random, "numbers", "engine")
    found["advantages"] = [random.normal(size=len(row)).tolist() for row in found["mask"]]
    return found


def segments(every: list[Episode], random: Random) -> Record:
    """Advantages of segments that are cut where the policy was unsure, not between turns."""
    found = joined(every, random, "numbers")
    rows = []
    for mask in found["mask"]:
        cuts = np.sort(random.integers(1, max(len(mask), 2), 2))
        rows.append(np.repeat(random.normal(size=3), np.diff([0, *cuts, len(mask)])).tolist())
    found["advantages"] = rows
    return found


def echo(every: list[Episode], random: Random) -> Record:
    """Tools' tokens are trained on purpose."""
    found = joined(every, random, "roles", "advantages")
    found["mask"] = [[1] * len(row) for row in found["mask"]]
    return found | {"framework": {"name": "prime-rl", "algorithm": "echo"}}


def subsampled(every: list[Episode], random: Random) -> Record:
    """Half of all turns are trained, drawn at random."""
    for one in every:
        kept = [turn for turn in one.turns if random.random() < 0.5]
        one.turns = kept or one.turns[-1:]
    return rows(every, random, "advantages", "numbers")


def messages(every: list[Episode], random: Random) -> Record:
    """Turns are numbered as messages: tools' answers count, of which a turn may have several."""
    for one in every:
        at = int(random.integers(1, 3))
        for turn in one.turns:
            turn.number = at
            at += 1 + int(random.integers(1, 4))
    return rows(every, random, "advantages", "numbers")


def shuffled(every: list[Episode], random: Random) -> Record:
    """Rows in any order, with their turns' numbers."""
    found = rows(every, random, "advantages", "numbers", "ids")
    order = random.permutation(len(found["rewards"])).tolist()
    return {key: [column[at] for at in order] for key, column in found.items()}


def alone(every: list[Episode], random: Random) -> Record:
    """One trajectory a record, its turns as rows; groups were made elsewhere."""
    found = rows(every[:1], random, "advantages", "numbers")
    return {key: column for key, column in found.items() if key != "group_ids"}


def _with(layout: Callable[..., Record], *parts: str) -> Write:
    return lambda every, random: layout(every, random, *parts)


@dataclass(frozen=True)
class Kind:
    """A clean kind: how its episodes are drawn, credited and written."""

    name: str
    credit: Callable[[list[Episode], Random], None]
    write: Write
    shape: Shape = field(default_factory=Shape)


KINDS = (
    Kind("trl", over_trajectories, _with(joined, "advantages", "ids")),
    Kind("trl text", over_trajectories, _with(joined, "advantages", "text")),
    Kind("verl", over_trajectories, _with(joined, "by token", "engine", "ids")),
    Kind("areal", discounted, _with(joined, "by token", "numbers", "turn rewards", "engine")),
    Kind("mt-grpo", by_turn, _with(joined, "by token", "numbers", "turn rewards")),
    Kind("mt-grpo holes", by_turn, _with(joined, "by token")),
    Kind("token rewards", outcome_last, _with(joined, "token rewards", "advantages", "engine")),
    Kind("steps rewarded", discounted, _with(joined, "token rewards", "by token")),
    Kind("format first", format_first, _with(joined, "turn rewards", "numbers")),
    Kind("roles", over_trajectories, _with(joined, "roles", "advantages", "engine")),
    Kind("gae", over_trajectories, gae),
    Kind("segments", over_trajectories, segments, Shape(turns=(3, 6))),
    Kind("echo", over_trajectories, echo),
    Kind("lightning", over_trajectories, _with(rows, "advantages", "ids")),
    Kind("centred", centred, _with(rows, "advantages", "engine", "numbers")),
    Kind("leave one out", leave_one_out, _with(rows, "advantages"), Shape(graded=True)),
    Kind("skyrl", outcome_last, _with(rows, "by token", "engine")),
    Kind("last turn only", last_turn_only, _with(rows, "advantages", "numbers")),
    Kind("gigpo", episode_and_step, _with(rows, "advantages", "numbers")),
    Kind("roll", discounted, _with(rows, "advantages")),
    Kind("kevin", over_turns_on_purpose, _with(rows, "advantages", "ids")),
    Kind("rewards alone", over_trajectories, _with(rows, "ids")),
    Kind(
        "thinking left out",
        over_trajectories,
        _with(rows, "advantages", "ids"),
        Shape(thinking=(10, 30), tokens=(34, 60), turns=(2, 5)),
    ),
    Kind("subsampled", over_trajectories, subsampled),
    Kind("messages", over_trajectories, messages),
    Kind(
        "long",
        over_trajectories,
        _with(rows, "advantages", "numbers", "engine"),
        Shape(turns=(6, 14), tasks=2, attempts=4),
    ),
    Kind("alike", over_trajectories, _with(rows, "advantages", "numbers"), Shape(turns=(3, 3))),
    Kind("rae", running_baseline, _with(rows, "advantages", "numbers"), Shape(tasks=8, attempts=1)),
    Kind("shuffled", over_trajectories, shuffled),
    Kind("alone", over_trajectories, alone, Shape(turns=(2, 6))),
    Kind("graded", over_trajectories, _with(rows, "advantages", "ids"), Shape(graded=True)),
)
"""Clean kinds, after what frameworks and papers write."""

NAMES = {kind.name: kind for kind in KINDS}


def drawn(kind: Kind, random: Random, **shape: Any) -> list[Episode]:
    """Credited episodes of a kind."""
    every = episodes(random, replace(kind.shape, **shape))
    kind.credit(every, random)
    return every


def dumped(kind: Kind, random: Random, name: str) -> list[Record]:
    """A clean batch."""
    return [kind.write(drawn(kind, random), random) | {"id": name}]
