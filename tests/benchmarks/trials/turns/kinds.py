"""Made-up episodes: turns of ids and log-probs, what tools answered, and rewards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trials.product import Record
from trials.product import rows as table_rows

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
    there = [COLUMNS[part] for part in COLUMNS if part in (*ALWAYS, *parts)]
    return {key: [row(one) for one in every] for key, row in there}


Row = Callable[[Episode], Any]
Values = Callable[[Turn], Any]


def _tagged(tool: list[int]) -> list[str]:
    middle = [f"w{i}" for i in tool[2:]]
    return (
        ["<tool_response>", *middle, "</tool_response>"]
        if len(tool) > 1
        else [f"w{i}" for i in tool]
    )


def _spread(own: Values, tool: Values) -> Row:
    """The values of a turn, and of what the tool answered, turn after turn."""

    def row(one: Episode) -> list[Any]:
        every: list[Any] = []
        for turn in one.turns:
            every += [*own(turn), *tool(turn)]
        return [float(np.float32(v)) if isinstance(v, float) else v for v in every]

    return row


def _zeros(turn: Turn) -> list[float]:
    return [0.0] * len(turn.tool)


ALWAYS = ("log-probs", "mask", "groups", "rewards")
COLUMNS: dict[str, tuple[str, Row]] = {
    "log-probs": ("log_probs_new", _spread(lambda t: t.old, lambda t: t.tool_old)),
    "mask": ("mask", _spread(lambda t: [1] * len(t.ids), lambda t: [0] * len(t.tool))),
    "groups": ("group_ids", lambda one: one.group),
    "rewards": ("rewards", lambda one: one.reward),
    "advantages": ("advantages", lambda one: float(np.float32(one.turns[0].advantage))),
    "by token": ("advantages", _spread(lambda t: [t.advantage] * len(t.ids), _zeros)),
    "engine": ("log_probs_rollout", _spread(lambda t: t.engine, _zeros)),
    "ids": ("token_ids", _spread(lambda t: t.ids, lambda t: t.tool)),
    "numbers": (
        "turn_ids",
        _spread(lambda t: [t.number] * len(t.ids), lambda t: [t.number] * len(t.tool)),
    ),
    "turn rewards": ("turn_rewards", lambda one: [turn.reward for turn in one.turns]),
    "token rewards": (
        "token_rewards",
        _spread(lambda t: [0.0] * (len(t.ids) - 1) + [t.reward], _zeros),
    ),
    "roles": (
        "roles",
        _spread(lambda t: ["assistant"] * len(t.ids), lambda t: ["tool"] * len(t.tool)),
    ),
    "text": ("tokens", _spread(lambda t: [f"w{i}" for i in t.ids], lambda t: _tagged(t.tool))),
}
"""What a response may have: its key, and its values."""


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


@dataclass(frozen=True)
class Kind:
    """A clean kind: how its episodes are drawn, credited and written.

    Attributes:
        name: of the kind.
        credit: gives turns their rewards and advantages.
        layout: writes episodes as a record, with ``parts``: the columns that there are.
        shape: how episodes are drawn.
    """

    name: str
    credit: Callable[[list[Episode], Random], None]
    layout: Callable[..., Record]
    parts: tuple[str, ...]
    shape: Shape

    def write(self, every: list[Episode], random: Random) -> Record:
        return self.layout(every, random, *self.parts)


def _kind(row: dict[str, str]) -> Kind:
    credit, layout, shape = (eval(row[name], globals()) for name in ("credit", "layout", "shape"))
    return Kind(row["name"], credit, layout, tuple(filter(None, row["parts"].split(", "))), shape)


KINDS = [_kind(row) for row in table_rows(__file__, "kinds.csv")]
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
