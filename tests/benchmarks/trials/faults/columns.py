"""Faults of log-probs: of whole columns, and of the two engines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trials.faults.fault import plant
from trials.simulate.batch import Batch
from trials.simulate.policy import F64, Random
from trials.simulate.setup import Sampling, Setup

# ---- columns that are filled, foreign, random, displaced, not log-probs at all -------------------


_WITHOUT = ("second-epoch", "functions", "small-model", "first-pass")
_WITH = ("vllm", "recomputed", "stale")


def _old(batch: Batch) -> F64:
    return batch.columns["log_probs_old"]


def _filled(batch: Batch, strength: tuple[float, float], random: Random) -> Batch:
    """A share of log_probs_old has a filler: missing log-probs became 0.0, −100 or −9999."""
    share, filler = strength
    _old(batch)[random.random(len(batch.ids)) < share] = filler
    return batch


def _foreign(batch: Batch, strength: float, random: Random) -> Batch:
    """log_probs_old of other responses (the batch was reordered, the column was not)."""
    mixed = batch.copy()
    rows = np.flatnonzero(random.random(len(batch.lengths)) < strength)
    spans = list(batch.spans())
    for row, other in zip(rows, np.roll(rows, 1), strict=True):
        source = _old(batch)[spans[other]]
        count = int(batch.lengths[row])
        _old(mixed)[spans[row]] = np.resize(source, count) if len(source) else 0.0
    return mixed


def _random(batch: Batch, strength: str, random: Random) -> Batch:
    """log_probs_old of an untrained head, or uniform noise: unrelated to new."""
    count = len(batch.ids)
    noise = -random.gamma(2.0, 0.5, count) if strength == "like" else -5.26 * random.random(count)
    batch.columns["log_probs_old"] = np.asarray(noise)
    return batch


def _rollout_filled(batch: Batch, strength: float, random: Random) -> Batch:
    hit = random.random(len(batch.ids)) < strength
    batch.columns["log_probs_rollout"][hit] = 0.0
    return batch


def _displaced(batch: Batch, strength: tuple[str, int, float], random: Random) -> Batch:
    """A column one token early or late, in a share of the responses."""
    column, lag, share = strength
    values = batch.columns[column]
    for span in batch.spans():
        if random.random() < share:
            values[span] = np.roll(values[span], lag)
    return batch


def _probabilities(batch: Batch, strength: str, random: Random) -> Batch:
    for name, values in batch.columns.items():
        if name != "entropies":
            batch.columns[name] = np.exp(values) if strength == "p" else -values
    return batch


def _negative(batch: Batch, strength: float, random: Random) -> Batch:
    """Entropies below 0, as where a filler of 1.0 was taken for a log-prob (trl#6121)."""
    hit = random.random(len(batch.ids)) < strength
    batch.columns["entropies"][hit] = -1.0
    return batch


COLUMNS = {
    "old zero-filled": plant(((1.0, 0.0), (0.2, 0.0), (0.05, 0.0)), _WITHOUT, edit=_filled),
    "filler in old": plant(
        ((1.0, -100.0), (0.05, -100.0), (0.05, -9999.0)), _WITHOUT, edit=_filled
    ),
    "old foreign": plant((1.0, 0.5), _WITHOUT, edit=_foreign),
    "old random": plant(("like", "uniform"), _WITHOUT, edit=_random),
    "rollout filled with 0.0": plant((0.05, 0.2, 1.0), _WITH, edit=_rollout_filled),
    "displaced by one": plant(
        tuple(
            (column, lag, share)
            for column in ("log_probs_rollout", "log_probs_old")
            for lag, share in ((1, 1.0), (-1, 1.0), (1, 0.25))
        ),
        _WITH,
        edit=_displaced,
    ),
    "not log-probs": plant(("p", "−log p"), ("vllm", "second-epoch"), edit=_probabilities),
    "negative entropies": plant((0.02, 0.2, 1.0), ("recomputed", "shaped"), edit=_negative),
}


# ---- the two engines: temperature, truncation, bias, drift, outliers -----------------------------


_BOTH = ("vllm", "recomputed", "float8", "stale")
_TEMPERATURES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.05, 1.1, 1.2, 1.3, 1.5)
_CLEAR = tuple(value for value in _TEMPERATURES if not 0.9 < value < 1.1)


def _raw_engine(setup: Setup, strength: float) -> Setup:
    """vLLM's default logprobs_mode is raw_logprobs: as if the temperature were 1."""
    return replace(setup, sampling=Sampling(temperature=strength, engine=1.0))


def _raw_trainer(setup: Setup, strength: float) -> Setup:
    """The trainer forgets to divide its logits."""
    return replace(setup, sampling=Sampling(temperature=strength, trainer=1.0))


def _raw_current(setup: Setup, strength: float) -> Setup:
    """Only the pass with gradients forgets; no engine's log-probs in the dump.

    Between 0.8 and 1.2 an update that sharpens or flattens the policy does as much.
    """
    moves = replace(setup.moves, same_pass=False)
    sampling = Sampling(temperature=strength, current=1.0)
    return replace(setup, sampling=sampling, moves=moves)


def _nucleus(setup: Setup, strength: float) -> Setup:
    """The engine normalises over the kept words, the trainer over all of them (trl#6789)."""
    return replace(setup, sampling=Sampling(top_p=strength, trainer_kept=False))


def _top_k(setup: Setup, strength: int) -> Setup:
    return replace(setup, sampling=Sampling(top_k=strength, trainer_kept=False))


def _trained(batch: Batch) -> F64:
    return batch.columns.get("log_probs_old", batch.columns["log_probs_new"])


def _shifted_by(batch: Batch, change: F64) -> Batch:
    """The engine's log-probs moved; a sure word can hardly move, so by 1 − p."""
    trained = _trained(batch)
    moved = batch.columns["log_probs_rollout"] + change * (1.0 - np.exp(trained))
    batch.columns["log_probs_rollout"] = np.minimum(moved, 0.0)
    return batch


def _bias(batch: Batch, strength: float, random: Random) -> Batch:
    """Every log-prob of the engine is too high: a normaliser that lacks part of the words."""
    return _shifted_by(batch, np.full(len(batch.ids), strength))


def _one_sided(batch: Batch, strength: float, random: Random) -> Batch:
    """Errors of one sign only, at some tokens: a penalty on words that occurred already."""
    hit = random.random(len(batch.ids)) < 0.3
    return _shifted_by(batch, np.where(hit, -strength * random.random(len(batch.ids)), 0.0))


def _drift(batch: Batch, strength: float, random: Random) -> Batch:
    """Positions are off (left padding without position_ids): the error grows with the place."""
    share = batch.places / 200.0
    return _shifted_by(batch, strength * share * random.normal(size=len(batch.ids)))


def _outliers(batch: Batch, strength: int, random: Random) -> Batch:
    """A few tokens that the engines see quite differently."""
    at = random.choice(len(batch.ids), strength, replace=False)
    batch.columns["log_probs_rollout"][at] -= random.uniform(4.0, 9.0, strength)
    return batch


def last_foreign(batch: Batch, strength: float, random: Random) -> Batch:
    """The label of each packed sequence's last token is the next one's first (verl#6564)."""
    rows = random.random(len(batch.lengths)) < strength
    ends = batch.ends[rows] - 1
    foreign = -random.gamma(16.0, 0.75, len(ends))
    for name in ("log_probs_new", "log_probs_old"):
        if name in batch.columns:
            batch.columns[name][ends] = foreign
    return batch


def _base(batch: Batch, strength: tuple[str, float], random: Random) -> Batch:
    column, base = strength
    batch.columns[column] = batch.columns[column] / np.log(base)
    return batch


ENGINES = {
    "temperature, engine raw": plant(_TEMPERATURES, _BOTH, change=_raw_engine, sure=_CLEAR),
    "temperature, trainer raw": plant(_TEMPERATURES, _BOTH, change=_raw_trainer, sure=_CLEAR),
    "new alone at another temperature": plant(
        _TEMPERATURES,
        ("first-pass", "second-epoch", "functions"),
        change=_raw_current,
        sure=tuple(value for value in _TEMPERATURES if not 0.8 < value < 1.2),
    ),
    "top-p mass": plant((0.99, 0.95, 0.9, 0.8), _BOTH, change=_nucleus, sure=(0.95, 0.9, 0.8)),
    "top-k mass": plant((50, 20, 5), _BOTH, change=_top_k, sure=(20, 5)),
    "mean weight not 1": plant((0.01, 0.03, 0.1, 0.3), _BOTH, edit=_bias, sure=(0.1, 0.3)),
    "one-sided errors": plant((0.1, 0.3, 1.0), _BOTH, edit=_one_sided, sure=(0.3, 1.0)),
    "drift with the position": plant(
        (0.2, 0.5, 1.0, 3.0), ("vllm", "recomputed"), edit=_drift, sure=(1.0, 3.0)
    ),
    "outlier tokens": plant((1, 3, 10), ("vllm", "recomputed", "tempered"), edit=_outliers),
    "packed boundary": plant((0.5, 1.0), ("vllm", "recomputed", "many-groups"), edit=last_foreign),
    "log base": plant(
        tuple((c, b) for c in ("log_probs_rollout", "log_probs_old") for b in (2.0, 10.0)),
        ("vllm", "recomputed", "tempered"),
        edit=_base,
    ),
}
