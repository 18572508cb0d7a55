"""Softmax policies over Zipf logits, and what two engines make of them.

A position of a text is mostly sure (one word fits) and sometimes a fork. So the logit of the word
of rank k is c − a·ln k, with a sharpness ``a`` of its own for every position: high for the sure
ones, 0.9 to 3 at forks. The level c is about 18, as logits of language models are, because that is
what the rounding to bfloat16 acts on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Random = np.random.Generator

WORDS = 192
"""Words of the vocabulary; as many as log-probs need to look like a language model's."""


@dataclass(frozen=True)
class Sharpness:
    """How sure the policy is: the share of sure positions, and the range of ``a`` on either side.

    The defaults give a mean entropy of about 0.5 nats, three tokens of four above 0.95, and
    log-probs of exactly 0.0 (in float32) at one token in seven.
    """

    sure: float = 0.72
    sure_from: float = 4.0
    sure_to: float = 30.0
    fork_from: float = 0.9
    fork_to: float = 3.0


def positions(random: Random, count: int, sharpness: Sharpness) -> F32:
    """[N, V] logits, the words in the order of their rank."""
    sure = random.random(count) < sharpness.sure
    low = np.where(sure, sharpness.sure_from, sharpness.fork_from)
    high = np.where(sure, sharpness.sure_to, sharpness.fork_to)
    slope = low + (high - low) * random.random(count)
    ranks = np.log(np.arange(1, WORDS + 1))
    level = random.normal(18.0, 2.0, count)
    uneven = random.normal(0.0, 0.3, (count, WORDS))
    return (level[:, None] - slope[:, None] * ranks + uneven).astype(np.float32)


def kept(logits: F32, temperature: float, top_p: float, top_k: int) -> NDArray[np.bool_]:
    """[N, V] the words that top-p and top-k leave, of the tempered policy."""
    order = np.argsort(-logits, axis=1, kind="stable")
    probs = np.exp(log_softmax(np.take_along_axis(logits, order, 1) / temperature))
    before = np.cumsum(probs, axis=1) - probs
    fits = (before < top_p) & (np.arange(WORDS) < top_k)
    fits[:, 0] = True
    back = np.empty_like(fits)
    np.put_along_axis(back, order, fits, 1)
    return back


def sample(random: Random, logits: F32, temperature: float, allowed: object = None) -> I64:
    """[N] the rank of the word drawn at each position (Gumbel's trick)."""
    noisy = logits / np.float32(temperature) + random.gumbel(size=logits.shape)
    return np.argmax(noisy if allowed is None else np.where(allowed, noisy, -np.inf), axis=1)


def log_softmax(logits: F32) -> F32:
    """[N, V] in float32, as trainers and engines compute it."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True, dtype=np.float32))


def taken(logits: F32, words: I64, temperature: float = 1.0, allowed: object = None) -> F32:
    """[N] the log-prob of the words, over all words or over those allowed."""
    tempered = logits / np.float32(temperature)
    if allowed is not None:
        drawn = np.zeros(logits.shape, dtype=bool)
        drawn[np.arange(len(words)), words] = True
        tempered = np.where(allowed | drawn, tempered, np.float32(-1e30))
    picked = log_softmax(tempered)[np.arange(len(words)), words]
    return np.minimum(picked, np.float32(0.0))


def entropy(logits: F32, temperature: float = 1.0) -> F32:
    """[N] in nats."""
    log_probs = log_softmax(logits / np.float32(temperature))
    return -(np.exp(log_probs) * log_probs).sum(axis=1)


# ---- precision and updates -----------------------------------------------------------------------


def bfloat16(values: F32) -> F32:
    """Rounded to 8 bits of mantissa, to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded & np.uint32(0xFFFF0000)).view(np.float32)


@dataclass(frozen=True)
class Engine:
    """The arithmetic of one engine.

    Attributes:
        spread: standard deviation of the noise on each logit, from the layers below.
        rounds: whether the logits themselves are bfloat16.
        routed: the share of positions that other experts answer.
        routed_spread: the scale of the noise there (Student's t with 3 degrees of freedom).
    """

    spread: float = 0.03
    rounds: bool = True
    routed: float = 0.0
    routed_spread: float = 0.0


FLOAT32 = Engine(spread=2e-6, rounds=False)
BFLOAT16 = Engine()
FLOAT8 = Engine(spread=0.12)
EXPERTS = Engine(spread=0.03, routed=0.04, routed_spread=0.3)


def scored(random: Random, logits: F32, engine: Engine) -> F32:
    """[N, V] the logits as an engine computes them."""
    noise = random.standard_normal(logits.shape, dtype=np.float32) * np.float32(engine.spread)
    if engine.routed:
        rows = random.random(len(logits)) < engine.routed
        scale = np.minimum(np.abs(random.standard_t(3, int(rows.sum()))), 8.0)
        more = random.standard_normal((int(rows.sum()), logits.shape[1]), dtype=np.float32)
        noise[rows] += (engine.routed_spread * scale[:, None] * more).astype(np.float32)
    return bfloat16(logits + noise) if engine.rounds else logits + noise


def updated(random: Random, logits: F32, size: float, sharper: float = 0.0) -> F32:
    """[N, V] after an update: a random direction in logit space, and a little sharper or flatter.

    Sure words hardly move, since their log-prob cannot: the log ratios are those of forks.
    """
    moved = logits + np.float32(size) * random.standard_normal(logits.shape, dtype=np.float32)
    top = moved.max(axis=1, keepdims=True)
    return top + (moved - top) * np.float32(1.0 + sharper)


def learned(logits: F32, words: np.ndarray, advantage: F64, rate: float) -> F32:
    """[N, V] after a step on these very tokens: Δz = rate·A·(1 − p) on the word that was taken."""
    rows = np.arange(len(words))
    tempered = logits - logits.max(axis=1, keepdims=True)
    probs = np.exp(tempered) / np.exp(tempered).sum(axis=1, keepdims=True)
    step = (rate * advantage[:, None] * -probs).astype(np.float32)
    step[rows, words] += (rate * advantage).astype(np.float32)
    return logits + step


# ---- everything that a run has -------------------------------------------------------------------


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn, and over what either side normalises.

    Attributes:
        temperature, top_p, top_k: of the draw.
        engine, trainer: the temperature that either divides its logits by (None: the draw's).
        current: the same of log_probs_new alone (None: the trainer's).
        trainer_kept: whether the trainer normalises over the words that were kept.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 10_000
    engine: float | None = None
    trainer: float | None = None
    current: float | None = None
    trainer_kept: bool = True

    @property
    def truncated(self) -> bool:
        return self.top_p < 1.0 or self.top_k < 10_000


@dataclass(frozen=True)
class Moves:
    """How far the policies are apart, as spreads of a random direction in logit space.

    Attributes:
        stale: from the weights that sampled to those of log_probs_old.
        update: from old to new, over all steps so far; 0 for the same weights.
        rate: of the steps on these very tokens (later epochs over one batch).
        reference: from the reference to new; ``sharper`` besides.
        same_pass: log_probs_new is log_probs_old to the last bit (one forward pass).
    """

    stale: float = 0.0
    update: float = 0.0
    rate: float = 0.0
    reference: float = 0.1
    sharper: float = 0.02
    same_pass: bool = True


@dataclass(frozen=True)
class Rewards:
    """What is rewarded, and the advantages.

    Attributes:
        kind: "binary", "continuous", "functions", "shaped" or "solved".
        given: the advantages in the dump: "", "group-std", "group-mean".
        eps: added to the std.
        written: whether the rewards are in the dump.
    """

    kind: str = "binary"
    given: str = ""
    eps: float = 1e-4
    written: bool = True


@dataclass(frozen=True)
class Text:
    """What the responses look like.

    Attributes:
        length, spread: median and log-spread of their lengths.
        shortest, longest: bounds; ``longest`` cuts a response, which then has no end of text.
        turns: of the model, between which a tool answers (its tokens are masked).
        beginning: tokens at the beginning that the responses of a group share, most of them sure.
        runs: stretches of one token in each response.
        repeats: tokens at the end of a response that repeat a phrase (a loop, not padding).
        looping: the share of responses that end so, and have no end of text.
    """

    length: float = 90.0
    spread: float = 0.5
    shortest: int = 6
    longest: int = 400
    turns: int = 1
    beginning: int = 0
    runs: int = 0
    repeats: int = 0
    looping: float = 0.0


@dataclass(frozen=True)
class Dump:
    """What is written, and how.

    Attributes:
        words: whose names the keys have: "own", "trl" or "verl".
        old, ref, rollout, entropies, ids, strings: which columns there are.
        layout: "record" (all groups in one), "group" (a record a group), "micro" (micro-batches
            of shuffled rows), "rows" (a record a response).
        micro: rows of a micro-batch.
        padding: "" (ragged), "right" or "left", with a mask.
    """

    words: str = "own"
    old: bool = True
    ref: bool = False
    rollout: bool = False
    entropies: bool = False
    ids: bool = False
    strings: bool = False
    layout: str = "record"
    micro: int = 4
    padding: str = ""


@dataclass(frozen=True)
class Setup:
    """A run: how many prompts and responses to each, and all of the above."""

    prompts: int = 2
    group: int = 8
    uneven: bool = False
    sharpness: Sharpness = field(default_factory=Sharpness)
    sampling: Sampling = field(default_factory=Sampling)
    engine: Engine = BFLOAT16
    trainer: Engine = BFLOAT16
    moves: Moves = field(default_factory=Moves)
    rewards: Rewards = field(default_factory=Rewards)
    text: Text = field(default_factory=Text)
    dump: Dump = field(default_factory=Dump)


# ---- contexts ------------------------------------------------------------------------------------


_ORDINARY, _BEGINNING, _RUN, _LOOP = 60, 100, 10_000, 20_000


@dataclass(frozen=True)
class Contexts:
    """[N] contexts; [N] sharpness where the context decides it, else 0; [R] rows that loop."""

    names: I64
    slopes: np.ndarray
    looping: np.ndarray


def contexts_of(random: Random, lengths: I64, groups: I64, text: Text) -> Contexts:
    """The contexts of a batch."""
    names = random.integers(0, _ORDINARY, int(lengths.sum()))
    slopes = np.zeros(len(names))
    looping = random.random(len(lengths)) < text.looping
    start = 0
    for row, length in enumerate(lengths.tolist()):
        count = min(text.beginning, length - 1)
        places = np.arange(count)
        names[start : start + count] = _BEGINNING + 100 * groups[row] + places
        slopes[start : start + count] = 3.5 + (places * 37 % 11)
        for _ in range(text.runs):
            _repeat(names, slopes, start, length, random, row)
        if looping[row]:
            tail = slice(start + length - min(text.repeats, length - 2), start + length)
            steps = np.arange(tail.stop - tail.start)
            names[tail] = _LOOP + 3 * row + steps % 3
            slopes[tail] = np.linspace(5.0, 24.0, len(steps))
        start += length
    return Contexts(names, slopes, looping)


def _repeat(
    names: I64, slopes: np.ndarray, start: int, length: int, random: Random, row: int
) -> None:
    """A run of 4 to 12 equal tokens, now and then the last thing before the end of text."""
    count = int(random.integers(4, 13))
    if length < count + 3:
        return
    last = length - count - 1
    at = start + (last if random.random() < 0.2 else int(random.integers(0, last + 1)))
    names[at : at + count] = _RUN + row
    slopes[at : at + count] = np.linspace(4.0, 22.0, count)


def logits_of(setup: Setup, random: Random, contexts: Contexts, ends: I64) -> F32:
    """[N, V]; the end of text is likely where a response ends (``ends``: of those that do)."""
    made = positions(random, len(contexts.names), setup.sharpness)
    slope = -np.log(np.arange(1, WORDS + 1))
    fixed = np.flatnonzero(contexts.slopes)
    made[fixed] = (18.0 + contexts.slopes[fixed, None] * slope).astype(np.float32)
    sure = np.where(random.random(len(ends)) < 0.7, 6.0, 2.5)
    made[ends] = (18.0 + sure[:, None] * slope).astype(np.float32)
    return made


def ids_of(words: I64, contexts: Contexts) -> I64:
    """[N] token ids; the word of rank k of one context is the same token wherever it stands."""
    return 1_000 + (words * 613 + contexts.names * 7_919) % 120_000
