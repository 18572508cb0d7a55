"""Faults of the two engines: temperature, truncation, bias, drift, outliers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trials.faults.fault import Fault
from trials.simulate.batch import Batch
from trials.simulate.policy import F64, Random
from trials.simulate.setup import Sampling, Setup

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


LAST_TOKEN = (
    r"last token|boundar|packed|final token|end of (the|each|every) (response|row|sequence)"
)
_TEMPERATURE = r"temperature|sharper|flatter"
_TOP = r"top.?[pk]\b|nucleus|renormalis|kept mass|mass (that was )?kept|truncat|constant-log-ratio"
_WEIGHT = r"mean (importance |rollout )?weight|weights?.*mean|one.?sided|\bbias|lies? (above|below)"

ENGINES = (
    Fault("temperature, engine raw", _TEMPERATURES, _BOTH, _TEMPERATURE, _raw_engine, sure=_CLEAR),
    Fault(
        "temperature, trainer raw", _TEMPERATURES, _BOTH, _TEMPERATURE, _raw_trainer, sure=_CLEAR
    ),
    Fault(
        "new alone at another temperature",
        _TEMPERATURES,
        ("first-pass", "second-epoch", "functions"),
        _TEMPERATURE,
        _raw_current,
        sure=tuple(value for value in _TEMPERATURES if not 0.8 < value < 1.2),
    ),
    Fault("top-p mass", (0.99, 0.95, 0.9, 0.8), _BOTH, _TOP, _nucleus, sure=(0.95, 0.9, 0.8)),
    Fault("top-k mass", (50, 20, 5), _BOTH, _TOP, _top_k, sure=(20, 5)),
    Fault("mean weight not 1", (0.01, 0.03, 0.1, 0.3), _BOTH, _WEIGHT, edit=_bias, sure=(0.1, 0.3)),
    Fault("one-sided errors", (0.1, 0.3, 1.0), _BOTH, _WEIGHT, edit=_one_sided, sure=(0.3, 1.0)),
    Fault(
        "drift with the position",
        (0.2, 0.5, 1.0, 3.0),
        ("vllm", "recomputed"),
        r"position|grows|drift|with the length|later tokens|further",
        edit=_drift,
        sure=(1.0, 3.0),
    ),
    Fault(
        "outlier tokens",
        (1, 3, 10),
        ("vllm", "recomputed", "tempered"),
        r"outlier|\bworst\b|single tokens?|few tokens|of [\d,]+ tokens differ|at token",
        edit=_outliers,
    ),
    Fault(
        "packed boundary",
        (0.5, 1.0),
        ("vllm", "recomputed", "many-groups"),
        LAST_TOKEN,
        edit=last_foreign,
    ),
    Fault(
        "log base",
        tuple((c, b) for c in ("log_probs_rollout", "log_probs_old") for b in (2.0, 10.0)),
        ("vllm", "recomputed", "tempered"),
        r"log-base|base (2|10)\b",
        edit=_base,
    ),
)
