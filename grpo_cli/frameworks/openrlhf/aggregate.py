"""Denominators of OpenRLHF, slime, AReaL and open-instruct that no paper has.

The 1e-8 that OpenRLHF and NeMo-RL add to their counts is left out: it moves the ninth digit.
"""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.objective.aggregate.result import Weights, per_token
from grpo_cli.objective.choice import Choice


def nonempty_response_mean(lengths: I64) -> Weights:
    """OpenRLHF's sequence mean: ``response-mean`` over the responses that have tokens at all."""
    counts = (lengths > 0).astype(np.float64)
    return Weights(per_token(lengths), counts, 1.0, "responses with tokens, each by its own tokens")


def slime_token_mean(lengths: I64) -> Weights:
    """``--calculate-per-token-loss`` of slime: ``token-mean``; an empty response counts as 1."""
    counts = np.maximum(lengths, 1).astype(np.float64)
    return Weights(np.ones(len(lengths)), counts, 1.0, "tokens, and 1 per response without any")


def areal_token_mean(lengths: I64, responses: Segments, records: Segments) -> Weights:
    """AReaL's: the mean over a record's kept tokens, records weighted by all of their tokens.

    A record stands for a micro-batch. The two counts differ only where a correction takes tokens
    out of the denominator, as ``areal/m2po`` does; without one it is ``token-mean``.

    Args:
        lengths: [R] tokens that the correction kept.
        responses: has [R] all of their tokens.
        records: cuts the responses into records.
    """
    whole = responses.lengths.astype(np.float64)
    share: F64 = records.sum(whole) / np.maximum(records.sum(lengths), 1)
    unit = np.repeat(share, records.lengths)
    return Weights(unit, whole, 1.0, "tokens that each record kept, records by all their tokens")


def constant(lengths: I64, *, loss_denominator: float) -> Weights:
    """open-instruct's ``--loss_denominator N``: the sum over all tokens, over a constant."""
    return Weights(np.ones(len(lengths)), None, loss_denominator, "loss_denominator")


CHOICES = {
    "openrlhf/response-mean": Choice(nonempty_response_mean),
    "slime/token-mean": Choice(slime_token_mean),
    "areal/token-mean": Choice(areal_token_mean),
    "open-instruct/constant": Choice(constant),
}
ALIASES: dict[str, str] = {}
