"""Faults of whole columns: filled, foreign, random, displaced, not log-probs at all."""

from __future__ import annotations

import numpy as np

from trials.faults.fault import Fault
from trials.simulate.batch import Batch
from trials.simulate.policy import F64, Random

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


_UNRELATED = (
    r"correlat|unrelated|foreign|random|not of the same|another (policy|response|batch)|do not go "
    r"together|no relation|agrees? (no )?better"
)

COLUMNS = (
    Fault(
        "old zero-filled",
        ((1.0, 0.0), (0.2, 0.0), (0.05, 0.0)),
        _WITHOUT,
        r"\b0\.0|zero|filled|filler",
        edit=_filled,
    ),
    Fault(
        "filler in old",
        ((1.0, -100.0), (0.05, -100.0), (0.05, -9999.0)),
        _WITHOUT,
        r"filled|filler|-100\b|−100\b|9999|extreme-ratio",
        edit=_filled,
    ),
    Fault("old foreign", (1.0, 0.5), _WITHOUT, _UNRELATED, edit=_foreign),
    Fault("old random", ("like", "uniform"), _WITHOUT, _UNRELATED, edit=_random),
    Fault(
        "rollout filled with 0.0",
        (0.05, 0.2, 1.0),
        _WITH,
        r"\b0\.0|zero|filled|missing",
        edit=_rollout_filled,
    ),
    Fault(
        "displaced by one",
        tuple(
            (column, lag, share)
            for column in ("log_probs_rollout", "log_probs_old")
            for lag, share in ((1, 1.0), (-1, 1.0), (1, 0.25))
        ),
        _WITH,
        r"shift|displac|align|off by one|(next|previous) token",
        edit=_displaced,
    ),
    Fault(
        "not log-probs",
        ("p", "−log p"),
        ("vllm", "second-epoch"),
        r"probabilit|above 0|−log p|negative log",
        edit=_probabilities,
    ),
    Fault(
        "negative entropies",
        (0.02, 0.2, 1.0),
        ("recomputed", "shaped"),
        r"entrop.*(negative|below 0|< 0)|negative entrop",
        edit=_negative,
    ),
)
