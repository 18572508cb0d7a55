"""Simulates a batch: tokens are drawn, and every policy's log-probs of them computed."""

from __future__ import annotations

import numpy as np

from trials.simulate import contexts, noise, policy, rewards
from trials.simulate.batch import END, Batch
from trials.simulate.policy import F32, F64, I64, Random
from trials.simulate.setup import Setup


def simulate(setup: Setup, random: Random) -> Batch:
    """A batch of a healthy run; of a sick one where a fault changed the setup."""
    groups = _groups(setup, random)
    lengths, finished = _lengths(setup, random, len(groups))
    places = contexts.drawn(random, lengths, groups, setup.text)
    finished &= ~places.looping
    last = np.cumsum(lengths)[finished] - 1
    logits = contexts.logits(setup, random, places, last)
    sampling = setup.sampling
    served = noise.scored(random, logits, setup.engine)
    allowed = None
    if sampling.truncated:
        allowed = policy.kept(served, sampling.temperature, sampling.top_p, sampling.top_k)
    words = policy.sample(random, served, sampling.temperature, allowed)
    words[last] = 0
    ids = contexts.ids(words, places)
    ids[last] = END
    scores = rewards.drawn(random, groups, lengths, setup.rewards)
    judged = rewards.advantages(
        rewards.summed(scores), groups, setup.rewards.given or "group-std", setup.rewards.eps
    )
    columns = _columns(setup, random, logits, served, words, allowed, np.repeat(judged, lengths))
    return Batch(
        lengths,
        groups,
        {name: values.astype(np.float64) for name, values in columns.items()},
        ids,
        scores,
        [random.integers(1000, 50_000, 12).tolist() for _ in range(setup.prompts)],
        mask=_mask(setup, random, lengths),
        advantages=judged if setup.rewards.given else None,
        finished=finished,
    )


def _groups(setup: Setup, random: Random) -> I64:
    sizes = np.full(setup.prompts, setup.group)
    if setup.uneven:
        sizes = sizes - random.integers(0, setup.group // 2, setup.prompts)
    return np.repeat(np.arange(setup.prompts), sizes)


def _lengths(setup: Setup, random: Random, count: int) -> tuple[I64, np.ndarray]:
    text = setup.text
    drawn = np.exp(random.normal(np.log(text.length), text.spread, count)).round().astype(int)
    drawn = np.maximum(drawn, text.shortest)
    return np.minimum(drawn, text.longest), drawn <= text.longest


def _columns(
    setup: Setup,
    random: Random,
    logits: F32,
    served: F32,
    words: I64,
    allowed: object,
    judged: F64,
) -> dict[str, F32]:
    sampling, moves, dump = setup.sampling, setup.moves, setup.dump
    hot = sampling.temperature if sampling.trainer is None else sampling.trainer
    cold = sampling.temperature if sampling.engine is None else sampling.engine
    over = allowed if sampling.trainer_kept else None

    def trained(weights: F32, warm: float = hot) -> F32:
        return policy.taken(noise.scored(random, weights, setup.trainer), words, warm, over)

    old = logits if not moves.stale else noise.updated(random, logits, moves.stale)
    new = old
    if moves.update or moves.rate:
        sharper = 0.3 * moves.update * random.normal()
        new = noise.updated(random, old, moves.update, sharper)
        new = noise.learned(new, words, judged, moves.rate) if moves.rate else new
    current = hot if sampling.current is None else sampling.current
    found = {"log_probs_new": trained(new, current)}
    if dump.old:
        found["log_probs_old"] = found["log_probs_new"] if moves.same_pass else trained(old)
    if dump.ref:
        sharper = -moves.sharper * (1.0 + 0.3 * random.normal())
        found["log_probs_ref"] = trained(noise.updated(random, new, moves.reference, sharper))
    if dump.rollout:
        by = allowed if sampling.engine_kept else None
        found["log_probs_rollout"] = policy.taken(served, words, cold, by)
    if dump.entropies:
        found["entropies"] = policy.entropy(new, hot)
    return found


def _mask(setup: Setup, random: Random, lengths: I64) -> I64 | None:
    """Tool answers between the model's turns are masked."""
    if setup.text.turns < 2:
        return None
    mask = np.ones(int(lengths.sum()), dtype=int)
    for start, length in zip(np.cumsum(lengths) - lengths, lengths, strict=True):
        for turn in range(1, setup.text.turns):
            at = start + int(length * turn / setup.text.turns)
            count = int(random.integers(3, max(4, length // (2 * setup.text.turns))))
            mask[at : min(at + count, start + length - 2)] = 0
    return mask
