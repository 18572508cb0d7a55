"""Batches of a made-up language model: logits at every token, and every policy's log-prob of it.

Each token has logits over a small vocabulary. The engine samples from its own, slightly different
logits; the trainer scores the sampled token with the weights before the update, after it, and with
the reference's. So ratios, entropies and mismatches have the relations that real ones have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray
Random = np.random.Generator
END, PAD, WORDS = 151_645, 151_643, 40


@dataclass(frozen=True)
class Spec:
    """What a run is like.

    Attributes:
        prompts, size: groups and trajectories in each; ``sizes`` names uneven ones.
        length, spread, shortest, longest: tokens of a turn; at ``longest`` it is cut.
        turns: the least and most turns of a trajectory; ``tools``: tokens of a tool's answer.
        rows: whether each turn is a row of its own, without the tools.
        temperature: of the draw and of every column.
        sure: the share of tokens with one likely word, of probability about 1 − e^−``surety``.
        engine, trainer: spread of the noise of their logits.
        update, reference: how far the new policy and the reference are from the old one; at an
            update of 0 the new log-probs are the old ones to the last bit.
        rewards: "binary", "graded".
        engine_heat: the temperature of the engine's column, where it is another.
    """

    prompts: int = 4
    size: int = 8
    sizes: tuple[int, ...] = ()
    length: float = 60.0
    spread: float = 0.5
    shortest: int = 4
    longest: int = 260
    turns: tuple[int, int] = (1, 1)
    tools: tuple[int, int] = (5, 18)
    rows: bool = False
    temperature: float = 1.0
    sure: float = 0.6
    surety: float = 9.0
    engine: float = 0.02
    trainer: float = 0.015
    update: float = 0.08
    reference: float = 0.25
    rewards: str = "binary"
    engine_heat: float | None = None


@dataclass
class World:
    """A batch: R rows, N tokens one after the other.

    Attributes:
        lengths, groups, trajectories, finished: [R].
        turns: [N] the number of each token's turn in its trajectory.
        tool: [N] whether a tool wrote the token.
        columns: name → [N]; entropies: [N] of the new policy.
        ids: [N]; prompts: token ids of each group's prompt.
        rewards: [R], that of the trajectory.
    """

    spec: Spec
    random: Random
    lengths: Array
    groups: Array
    trajectories: Array
    finished: Array
    turns: Array
    tool: Array
    columns: dict[str, Array]
    entropies: Array
    ids: Array
    prompts: list[list[int]]
    rewards: Array

    @property
    def ends(self) -> Array:
        return np.cumsum(self.lengths)

    def spans(self) -> Iterator[slice]:
        for start, end in zip((self.ends - self.lengths).tolist(), self.ends.tolist(), strict=True):
            yield slice(start, end)

    def split(self, values: Array) -> list[list[Any]]:
        return [values[span].tolist() for span in self.spans()]


def bfloat16(values: Array) -> Array:
    """Rounded to 8 bits of mantissa, to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded & np.uint32(0xFFFF0000)).view(np.float32)


def log_softmax(logits: Array) -> Array:
    top = logits.max(axis=1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))


def drawn(random: Random, spec: Spec) -> World:
    plan = _plan(random, spec)
    count = len(plan["tool"])
    logits = _logits(random, spec, count, plan["last"])
    # Lists before this one drew more: so seeds keep their batches.
    random.standard_normal((count, WORDS))
    random.random(count)
    served = logits + spec.engine * random.standard_normal((count, WORDS))
    hot = spec.temperature
    heat = np.where(plan["tool"], 3.5, hot)[:, None]
    words = np.argmax(served / heat + random.gumbel(size=(count, WORDS)), axis=1)
    words[plan["last"]] = 0
    at = np.arange(count)

    def taken(scores: Array, heat: float) -> Array:
        found = log_softmax(scores / heat)[at, words]
        return np.minimum(found, 0.0).astype(np.float32).astype(float)

    def scored(scores: Array) -> Array:
        return taken(scores + spec.trainer * random.standard_normal((count, WORDS)), hot)

    old = scored(logits)
    moved = logits + spec.update * random.standard_normal((count, WORDS))
    columns = {
        "log_probs_new": scored(moved) if spec.update else old.copy(),
        "log_probs_old": old,
        "log_probs_ref": scored(logits + spec.reference * random.standard_normal((count, WORDS))),
        "log_probs_rollout": np.where(plan["tool"], 0.0, taken(served, spec.engine_heat or hot)),
    }
    sure = log_softmax(moved / hot)
    ids = (random.integers(300, 90_000, count) * 7 + words * 1_009) % 150_000
    ids[plan["last"]] = END
    return World(
        spec=spec,
        random=random,
        lengths=plan["lengths"],
        groups=plan["groups"],
        trajectories=plan["trajectories"],
        finished=plan["finished"],
        turns=plan["turns"],
        tool=plan["tool"],
        columns=columns,
        entropies=-(np.exp(sure) * sure).sum(axis=1),
        ids=ids,
        prompts=[
            random.integers(300, 90_000, 14).tolist() for _ in range(plan["groups"].max() + 1)
        ],
        rewards=_rewards(random, spec, plan),
    )


def _plan(random: Random, spec: Spec) -> dict[str, Array]:
    """Who writes which token: rows of turns, and tools between them."""
    sizes = spec.sizes or (spec.size,) * spec.prompts
    of = np.repeat(np.arange(len(sizes)), sizes)
    lengths, groups, trajectories, finished = [], [], [], []
    turns: list[int] = []
    tool: list[bool] = []
    last: list[int] = []
    for number, group in enumerate(of):
        count = int(random.integers(spec.turns[0], spec.turns[1] + 1))
        start = len(tool)
        for turn in range(count):
            size = round(float(np.exp(random.normal(np.log(spec.length), spec.spread))))
            done = size < spec.longest
            size = min(max(size, spec.shortest), spec.longest)
            tool += [False] * size
            turns += [turn] * size
            if done:
                last.append(len(tool) - 1)
            if turn + 1 < count and not spec.rows:
                answer = int(random.integers(*spec.tools))
                tool += [True] * answer
                turns += [turn] * answer
            if spec.rows or turn + 1 == count:
                lengths.append(len(tool) - start)
                groups.append(group)
                trajectories.append(number)
                finished.append(done)
                start = len(tool)
    return {
        "lengths": np.array(lengths),
        "groups": np.array(groups),
        "trajectories": np.array(trajectories),
        "finished": np.array(finished),
        "turns": np.array(turns),
        "tool": np.array(tool),
        "last": np.array(last, dtype=int),
    }


def _logits(random: Random, spec: Spec, count: int, last: Array) -> Array:
    logits = 0.9 * random.standard_normal((count, WORDS))
    likely = random.integers(1, WORDS, count)
    sure = random.random(count) < spec.sure
    boost = np.where(sure, random.normal(spec.surety, 2.5, count), random.uniform(1.0, 5.5, count))
    logits[np.arange(count), likely] += np.maximum(boost, 0.5)
    logits[last] = 0.9 * random.standard_normal((len(last), WORDS))
    logits[last, 0] += random.normal(spec.surety, 2.0, len(last)).clip(3.0)
    return logits


def _rewards(random: Random, spec: Spec, plan: dict[str, Array]) -> Array:
    of, first = np.unique(plan["trajectories"], return_index=True)
    groups = plan["groups"][first]
    found = np.zeros(len(of))
    for group in np.unique(groups):
        own = np.flatnonzero(groups == group)
        if spec.rewards == "binary":
            found[own] = random.random(len(own)) < random.uniform(0.25, 0.75)
            if len(own) > 1 and np.ptp(found[own]) == 0:
                found[own[int(random.integers(len(own)))]] = 1.0 - found[own[0]]
        else:
            found[own] = np.round(random.normal(0.4, 0.35, len(own)), 3)
    return found[plan["trajectories"]]
