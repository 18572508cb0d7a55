"""ROLL's ``train_infer_correction``: a weight, and a filter, by what trainer and engine differ."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.frameworks.roll.segments import TINY, means, segments
from grpo_cli.hyperparameters import Value
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Correction


def train_infer(
    log_probs_old: F64,
    log_probs_rollout: F64,
    responses: Segments,
    positions: I64 | None = None,
    *,
    is_weight_type: str | None,
    is_high: float | None,
    filter_agg: str | None,
    ratio_low: float | None,
    ratio_high: float | None,
    diff_low: float | None,
    diff_high: float | None,
) -> Correction:
    """Weighs with min(ratio, is_high), and keeps what is within the bounds of the filter.

    At each granularity there is a ratio and a difference of probabilities π_old − π_rollout: of the
    token; segment and geometric, exp of the mean log ratio and the mean difference over the token's
    segment or response; sequence, exp of the sum and the sum. The filter drops a token where the
    ratio or the difference of ``filter_agg`` is out of bounds. What it drops leaves every
    denominator, as where ROLL filters in its pipeline; where its workers do so
    (enable_old_logprobs_recompute false) it leaves that of its own response alone. ROLL's
    token-mean does not mask what it adds up: there a filter changes the denominator and no term,
    which is not reproduced. One filter: ROLL takes a list of them.

    Args:
        log_probs_old, log_probs_rollout: [N] the trainer's and the engine's, nats.
        responses: cuts the tokens into responses.
        positions: [N] each token's place, masked ones included; None: nothing is masked.
        is_weight_type: the weight's granularity; None: 1.
        is_high: its cap, ROLL's upper_bound; None: none.
        filter_agg: the filter's granularity, ROLL's agg_type; None: no filter.
        ratio_low, ratio_high: its bounds on the ratio; None: none.
        diff_low, diff_high: its bounds on the difference; None: none.

    References:
        ROLL 8eb27cc2, utils/train_infer_corrections.py.
    """
    log_ratio = log_probs_old - log_probs_rollout
    weight = np.ones(len(log_ratio))
    if is_weight_type is not None:
        ratio = np.exp(_at(log_ratio, is_weight_type, responses, positions))
        weight = np.minimum(ratio, np.inf if is_high is None else is_high)
    if filter_agg is None:
        return Correction(weight)
    ratio = np.exp(_at(log_ratio, filter_agg, responses, positions))
    moved = np.exp(log_probs_old) - np.exp(log_probs_rollout)
    difference = _at(moved, filter_agg, responses, positions)
    kept = _within(ratio, ratio_low, ratio_high) & _within(difference, diff_low, diff_high)
    return Correction(np.where(kept, weight, 0.0), kept.astype(np.float64), kept)


def _at(values: F64, level: str, responses: Segments, positions: I64 | None) -> F64:
    """[N] the values at a granularity."""
    if level == "token":
        return values
    if level == "sequence":
        return responses.spread(responses.sum(values))
    if level == "segment":
        return means(values, segments(responses, positions))
    return responses.spread(responses.sum(values) / (responses.lengths + TINY))


def _within(values: F64, low: float | None, high: float | None) -> NDArray[np.bool_]:
    least, most = -np.inf if low is None else low, np.inf if high is None else high
    return (values >= least) & (values <= most)


_USUAL: dict[str, Value] = {
    "is_weight_type": None,
    "is_high": None,
    "filter_agg": None,
    "ratio_low": None,
    "ratio_high": None,
    "diff_low": None,
    "diff_high": None,
}

CHOICES = {"roll/train-infer": Choice(train_infer, _USUAL)}
ALIASES = {"roll/train_infer_correction": "roll/train-infer"}
