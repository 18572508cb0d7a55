"""Made-up episodes: turns of ids and log-probs, what tools answered, and rewards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Random = np.random.Generator
Ids = list[int]
VOCABULARY, END = 5000, 2


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
        noise: of the engine's log-probs.
        graded: rewards between 0 and 1, not only 0 or 1.
    """

    tasks: int = 4
    attempts: int = 6
    turns: tuple[int, int] = (1, 5)
    tokens: tuple[int, int] = (4, 40)
    tool: tuple[int, int] = (3, 30)
    thinking: tuple[int, int] = (0, 0)
    noise: float = 0.01
    graded: bool = False
    change: Callable[[list[Episode], Random], None] = field(default=lambda *_: None)


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
    engine = np.minimum(old + shape.noise * free * random.standard_normal(len(ids)), -1e-7)
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
    shape.change(found, random)
    return found


def by_group(every: list[Episode]) -> list[list[Episode]]:
    return [[one for one in every if one.group == group] for group in {e.group: 0 for e in every}]


def rounded(values: Any) -> list[float]:
    return [float(np.float32(value)) for value in values]
