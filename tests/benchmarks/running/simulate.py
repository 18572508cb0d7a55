"""A run: a policy that learns from the rewards of what it samples, step by step, and its faults.

Nothing about a metric is drawn: tokens are sampled from the engine's policy, rewarded by the words
in them, and the policy's table moves by the gradient of that. A fault changes ``Conditions``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Flags = NDArray[np.bool_]
Random = np.random.Generator

PROMPTS, QUARTERS, WORDS = 6, 4, 24
CONTEXTS = PROMPTS * QUARTERS
"""A context is a kind of prompt and the quarter of the longest response that a token is in."""
_HALVINGS = 30


def log_softmax(logits: F64) -> F64:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def entropies(log_probs: F64) -> F64:
    """[C] the entropy of each context."""
    return -(np.exp(log_probs) * log_probs).sum(axis=-1)


def divergence(policy: F64, reference: F64) -> float:
    """The mean over contexts of KL(policy ‖ reference), both as log-probs."""
    return float((np.exp(policy) * (policy - reference)).sum(axis=-1).mean())


def sample(random: Random, log_probs: F64, contexts: I64) -> I64:
    """[N] a word for each token, from the policy of its context."""
    rises = np.cumsum(np.exp(log_probs), axis=1)[contexts]
    drawn = random.random(len(contexts))[:, None] * rises[:, -1:]
    return (drawn > rises).sum(axis=1)


def solve(function: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    """Where an increasing function takes a value; an end of the range where it does not."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if function(middle) < wanted else (low, middle)
    return (low + high) / 2.0


def sharpened(logits: F64, entropy: float) -> F64:
    """The logits at the temperature at which the mean entropy is this."""
    inverse = solve(
        lambda power: -float(entropies(log_softmax(np.exp(power) * logits)).mean()),
        -entropy,
        -3.0,
        6.0,
    )
    return np.exp(inverse) * logits


def moved(logits: F64, towards: F64, reference: F64, kl: float) -> F64:
    """The logits moved along a direction until the KL to the reference is this."""
    far = solve(
        lambda size: divergence(log_softmax(logits + size * towards), reference), kl, 0.0, 40.0
    )
    return logits + far * towards


def correlated(random: Random, count: int, correlation: float, *, heavy: bool) -> F64:
    """[n] AR(1) noise of standard deviation 1, normal or from a t with 3 degrees of freedom."""
    fresh = random.standard_t(3, count) / np.sqrt(3.0) if heavy else random.standard_normal(count)
    values = fresh.copy()
    for at in range(1, count):
        values[at] = correlation * values[at - 1] + np.sqrt(1.0 - correlation**2) * fresh[at]
    return values


# ---- the run -------------------------------------------------------------------------------------


STEPS = 120
GROUPS, SIZE = 8, 4
ROWS = GROUPS * SIZE
ENTROPY = 2.15
CHANNELS = ("length", "hardness", "engine", "sharpness", "judge", "rate")


@dataclass(frozen=True)
class Conditions:
    """What holds at a step; the defaults are those of a healthy run.

    Attributes:
        rate: a factor of the learning rate.
        kl, entropy: factors of what these were at the onset; None: as learnt.
        reference_kl: the reference is moved until the KL is this factor of what it was.
        engine_noise: a factor of the engine's error.
        engine_temperature: the engine's, where the trainer scores at 1.
        lag: how many steps the engine's weights are behind.
        dead: the share of groups that are made equal.
        cut: the share of responses that run into the longest length.
        loops: the share of responses that repeat themselves.
        length, longest: factors of the mean length, and of the longest one.
        pays_length: how much a response of the longest length is paid for that.
        reward: what a reward becomes.
        judge: how much of the reward the words decide; below 0 the wrong ones are paid.
        hardness: added to how hard the prompts are, in logits.
        poisoned, not_a_number: a log-prob that makes a ratio or a KL of 10¹¹, or NaN.
    """

    rate: float = 1.0
    kl: float | None = None
    entropy: float | None = None
    reference_kl: float | None = None
    engine_noise: float = 1.0
    engine_temperature: float = 1.0
    lag: int = 0
    dead: float = 0.0
    cut: float = 0.0
    loops: float = 0.0
    length: float = 1.0
    longest: float = 1.0
    pays_length: float = 0.0
    reward: Callable[[F64], F64] | None = None
    judge: float = 1.0
    hardness: float = 0.0
    poisoned: bool = False
    not_a_number: bool = False


HEALTHY = Conditions()
Change = Callable[[int, "World"], Conditions]
"""Steps since the onset (0 at it) → what holds then."""


@dataclass
class StepRows:
    """What a trainer would write of one step; arrays of tokens are flat."""

    step: int
    lengths: I64
    ids: I64
    rewards: F64
    finished: Flags
    columns: dict[str, F64]


@dataclass
class World:
    """What differs from run to run, and is drawn once.

    Attributes:
        onset: the first step at which the fault holds.
        noise: an autocorrelated series of each channel, normal or with heavy tails.
        ratios: whether a step is several updates, so that new differs from old.
    """

    random: Random
    onset: int
    noise: dict[str, F64]
    ratios: bool
    rate: float
    pull: float
    length: float
    longest: int
    engine_noise: float
    hardness: F64
    good: Flags
    start: F64
    stray: F64


def world(random: Random) -> World:
    """A run's constants, from its generator."""
    correlation, heavy = float(random.choice([0.0, 0.3, 0.6])), bool(random.random() < 0.5)
    noise = {
        name: correlated(random, STEPS, correlation, heavy=heavy).clip(-8.0, 8.0)
        for name in CHANNELS
    }
    start = sharpened(random.normal(size=(CONTEXTS, WORDS)), ENTROPY * random.uniform(0.85, 1.1))
    stray = random.normal(size=(CONTEXTS, WORDS))
    found = World(
        random,
        int(random.integers(50, 71)),
        noise,
        bool(random.random() < 0.7),
        rate=float(np.exp(random.normal(np.log(1.2), 0.3))),
        pull=float(random.choice([0.0, 0.01, 0.02])),
        length=float(random.uniform(13.0, 18.0)),
        longest=36,
        engine_noise=float(np.exp(random.normal(np.log(0.006), 0.5))),
        hardness=random.normal(-0.2, 1.2, PROMPTS),
        good=random.random((PROMPTS, WORDS)) < 0.4,
        start=start,
        stray=stray,
    )
    random.normal(size=(CONTEXTS, WORDS))  # drawn by kinds that are gone: seeds keep their runs
    return found


def simulate(
    random: Random, change: Change | None, *, steady: bool = False
) -> tuple[World, list[StepRows]]:
    """The steps of a run; healthy all the way without a change.

    Args:
        random: what the run's constants are drawn by, and all else.
        change: what happens from the onset on.
        steady: whether that is the first step.
    """
    fixed = world(random)
    if steady:
        fixed = replace(fixed, onset=0)
    reference = log_softmax(fixed.start)
    learnt, before = fixed.start.copy(), [fixed.start]
    at_onset, found = (0.0, 0.0), list[StepRows]()
    for step in range(STEPS):
        since = step - fixed.onset
        now = change(since, fixed) if change and since >= 0 else HEALTHY
        if since <= 0:
            policy = log_softmax(learnt)
            at_onset = divergence(policy, reference), float(entropies(policy).mean())
        logits = learnt * (1.0 + 0.015 * fixed.noise["sharpness"][step])
        if now.entropy is not None:
            logits = sharpened(logits, now.entropy * at_onset[1])
        if now.kl is not None:
            logits = moved(learnt, fixed.stray, reference, now.kl * at_onset[0])
        referred = reference
        if now.reference_kl is not None:
            referred = _nearer(log_softmax(logits), reference, now.reference_kl * at_onset[0])
        rows, slope = _step(fixed, now, step, logits, referred, before)
        rate = fixed.rate * now.rate * np.exp(0.15 * fixed.noise["rate"][step])
        update = rate * slope
        learnt = learnt + update - fixed.pull * (learnt - fixed.start)
        before.append(logits)
        _score_update(rows, fixed, logits, update)
        _plant(rows, now, fixed)
        found.append(rows)
    return fixed, found


def _nearer(policy: F64, reference: F64, kl: float) -> F64:
    """A reference between the policy and the former one, at this KL from the policy."""
    low, high = 0.0, 1.0
    for _ in range(25):
        share = (low + high) / 2.0
        mixed = log_softmax(policy + share * (reference - policy))
        low, high = (share, high) if divergence(policy, mixed) < kl else (low, share)
    return log_softmax(policy + low * (reference - policy))


def _step(
    fixed: World, now: Conditions, step: int, logits: F64, reference: F64, before: list[F64]
) -> tuple[StepRows, F64]:
    """What is sampled and scored, and the slope of the rewards over the table."""
    random = fixed.random
    kinds = random.integers(0, PROMPTS, GROUPS)
    prompts = np.repeat(kinds, SIZE)
    lengths, finished = _lengths(fixed, now, step, prompts)
    owners = np.repeat(np.arange(ROWS), lengths)
    places = np.arange(len(owners)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    quarters = np.minimum(places * QUARTERS // fixed.longest, QUARTERS - 1)
    contexts = prompts[owners] * QUARTERS + quarters
    policy = log_softmax(logits)
    served = before[max(len(before) - 1 - now.lag, 0)] if now.lag else logits
    size = fixed.engine_noise * now.engine_noise * np.exp(0.2 * fixed.noise["engine"][step])
    engine = log_softmax(
        (served + size * random.standard_t(4, served.shape)) / now.engine_temperature
    )
    ids = sample(random, engine, contexts)
    random.random(ROWS)  # likewise
    sure = _loop(ids, now.loops, lengths, places, random)
    taken = {
        "log_probs_old": policy[contexts, ids],
        "log_probs_ref": reference[contexts, ids],
        "log_probs_rollout": np.minimum(engine[contexts, ids], -1e-7),
        "entropies": entropies(policy)[contexts],
    }
    for name, values in taken.items():
        values[sure] = 0.15 * values[sure] if name != "log_probs_ref" else 0.3 * values[sure]
    rewards = _rewards(fixed, now, step, prompts, owners, ids, lengths)
    advantages = _advantages(rewards)
    slope = np.zeros_like(logits)
    weights = advantages[owners]
    np.add.at(slope, (contexts, ids), weights)
    by_context = np.bincount(contexts, weights, CONTEXTS)
    slope -= by_context[:, None] * np.exp(policy)
    slope /= np.maximum(np.bincount(contexts, minlength=CONTEXTS), 12)[:, None]
    rows = StepRows(step, lengths, ids, rewards, finished, taken)
    rows.columns["contexts"] = contexts
    rows.columns["sure"] = sure
    return rows, slope


def _lengths(fixed: World, now: Conditions, step: int, prompts: I64) -> tuple[I64, Flags]:
    random = fixed.random
    middle = np.log(fixed.length * now.length) + 0.06 * fixed.noise["length"][step]
    drawn = np.exp(random.normal(middle + 0.04 * (prompts - 2.5), 0.35)).round().astype(int)
    longest = max(int(fixed.longest * now.longest), 2)
    finished = (drawn <= longest) & (random.random(ROWS) >= now.cut)
    return np.where(finished, np.clip(drawn, 2, longest), longest), finished


def _loop(ids: I64, share: float, lengths: I64, places: I64, random: Random) -> Flags:
    """Makes a share of the responses repeat three words; which tokens that are."""
    looping = np.repeat(random.random(len(lengths)) < share, lengths) & (places >= 3)
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    source = starts + places % 3
    ids[looping] = ids[source[looping]]
    return looping


def _rewards(
    fixed: World,
    now: Conditions,
    step: int,
    prompts: I64,
    owners: I64,
    ids: I64,
    lengths: I64,
) -> F64:
    """0 or 1 by the words of a response, and what else is paid."""
    random = fixed.random
    good = np.bincount(owners, fixed.good[prompts[owners], ids], ROWS) / lengths
    hard = fixed.hardness[prompts] + now.hardness + 0.15 * fixed.noise["hardness"][step]
    chance = 1.0 / (1.0 + np.exp(-(5.0 * now.judge * (good - 0.4) + hard)))
    rewards = (random.random(ROWS) < chance).astype(float)
    dead = np.repeat(random.random(GROUPS) < now.dead, SIZE)
    rewards[dead] = np.repeat(rewards[::SIZE], SIZE)[dead]
    rewards = rewards + now.pays_length * lengths / fixed.longest
    return now.reward(rewards) if now.reward else rewards


def _advantages(rewards: F64) -> F64:
    grouped = rewards.reshape(GROUPS, SIZE)
    centred = grouped - grouped.mean(axis=1, keepdims=True)
    return (centred / (grouped.std(axis=1, ddof=1, keepdims=True) + 1e-4)).ravel()


def _score_update(rows: StepRows, fixed: World, logits: F64, update: F64) -> None:
    """The log-probs when the loss is computed: old ones, or those in the midst of the update."""
    contexts, sure = rows.columns.pop("contexts"), rows.columns.pop("sure")
    if not fixed.ratios:
        rows.columns["log_probs_new"] = rows.columns["log_probs_old"].copy()
        return
    half = log_softmax(logits + 0.5 * update)[contexts, rows.ids]
    rows.columns["log_probs_new"] = np.where(sure, 0.15 * half, half)


def _plant(rows: StepRows, now: Conditions, fixed: World) -> None:
    if now.poisoned:
        losing = np.repeat(_advantages(rows.rewards) < 0, rows.lengths)
        at = int(np.flatnonzero(losing)[0]) if losing.any() else 0
        wrong, far = rows.columns, fixed.random.uniform(27.0, 30.0)
        if fixed.ratios:
            wrong["log_probs_old"][at] = wrong["log_probs_new"][at] - far
        else:
            wrong["log_probs_new"][at] = wrong["log_probs_ref"][at] - far
    if now.not_a_number:
        at = int(fixed.random.integers(0, len(rows.ids)))
        rows.columns["log_probs_new"][at] = np.nan


def conditions(**values: Any) -> Conditions:
    """The conditions of a healthy run, but for these."""
    return replace(HEALTHY, **values)


# ---- what trainers write of it -------------------------------------------------------------------


LOG_PROBS = ("log_probs_new", "log_probs_old", "log_probs_ref", "log_probs_rollout")
_TRL = ("per_token_logps", "old_per_token_logps", "ref_per_token_logps", "sampling_per_token_logps")
_VERL = ("log_probs", "old_log_probs", "ref_log_prob", "rollout_log_probs")


def _split(values: F64, lengths: Any) -> list[F64]:
    return np.split(values, np.cumsum(lengths)[:-1])


def _columns(rows: StepRows, names: tuple[str, ...], *, ratios: bool) -> dict[str, list[F64]]:
    """Rows of every column by the framework's names; without old where it is new."""
    found = {}
    for ours, theirs in zip(LOG_PROBS, names, strict=True):
        if ours != "log_probs_old" or ratios:
            found[theirs] = _split(np.minimum(rows.columns[ours], 0.0).round(6), rows.lengths)
    found["entropies"] = _split(rows.columns["entropies"].round(5), rows.lengths)
    return found


def _plain(rows: StepRows, ratios: bool) -> Iterator[dict[str, Any]]:
    """A record a group."""
    columns = _columns(rows, LOG_PROBS, ratios=ratios)
    ids = _split(rows.ids, rows.lengths)
    for group in range(GROUPS):
        part = slice(group * SIZE, (group + 1) * SIZE)
        yield {
            "step": rows.step,
            "id": f"{rows.step}/{group}",
            "rewards": rows.rewards[part].tolist(),
            "token_ids": [row.tolist() for row in ids[part]],
            "finish_reasons": ["stop" if one else "length" for one in rows.finished[part]],
            **{name: [row.tolist() for row in value[part]] for name, value in columns.items()},
        }


def _trl(rows: StepRows, ratios: bool) -> Iterator[dict[str, Any]]:
    """A record a step, padded, with a mask."""
    width = int(rows.lengths.max())

    def padded(values: list[F64], fill: float) -> list[list[float]]:
        return [[*row.tolist(), *[fill] * (width - len(row))] for row in values]

    ids = _split(rows.ids, rows.lengths)
    yield {
        "step": rows.step,
        "rewards": rows.rewards.tolist(),
        "group_size": SIZE,
        "completion_ids": padded(ids, 0),
        "completion_mask": padded([np.ones(len(row), int) for row in ids], 0),
        "truncated": (~rows.finished).tolist(),
        **{name: padded(value, 0.0) for name, value in _columns(rows, _TRL, ratios=ratios).items()},
    }


def _verl(rows: StepRows, ratios: bool) -> Iterator[dict[str, Any]]:
    """A row a response."""
    columns = _columns(rows, _VERL, ratios=ratios)
    ids = _split(rows.ids, rows.lengths)
    for at in range(len(rows.lengths)):
        yield {
            "global_step": rows.step,
            "uid": f"{rows.step}-{at // SIZE}",
            "score": float(rows.rewards[at]),
            "response_ids": ids[at].tolist(),
            "finish_reason": "stop" if rows.finished[at] else "length",
            **{name: value[at].tolist() for name, value in columns.items()},
        }


SHAPES: dict[str, Callable[[StepRows, bool], Iterator[dict[str, Any]]]] = {
    "plain": _plain,
    "trl": _trl,
    "verl": _verl,
}


def lines(rows: StepRows, shape: str, *, ratios: bool) -> bytes:
    """A step as JSON lines; NaN as Python writes it."""
    sound = all(np.isfinite(values).all() for values in rows.columns.values())
    write = orjson.dumps if sound else lambda value: json.dumps(value).encode()
    records = SHAPES[shape](rows, ratios)
    return b"".join(write(record) + b"\n" for record in records)
