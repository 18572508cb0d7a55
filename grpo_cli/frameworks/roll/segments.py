"""ROLL's segments: the runs of tokens of a response between those that the mask takes out."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Ratio

TINY = 1e-8  # what ROLL adds to a count of tokens


def segments(responses: Segments, positions: I64 | None) -> Segments:
    """The segments of all responses, one after another.

    Args:
        responses: cuts the tokens into responses.
        positions: [N] each token's place among all, masked ones included; None: nothing is masked.
    """
    if positions is None:
        return responses
    first = np.zeros(responses.total, np.bool_)
    first[responses.starts[responses.lengths > 0]] = True
    first[1:] |= np.diff(positions) != 1
    starts = np.flatnonzero(first)
    return Segments(np.diff(np.append(starts, responses.total)))


def means(values: F64, cut: Segments) -> F64:
    """[N] the mean over each token's segment, Σ/(n + 1e-8)."""
    return cut.spread(cut.sum(values) / (cut.lengths + TINY))


def segment(token_log_ratio: F64, responses: Segments, positions: I64 | None = None) -> Ratio:
    """The geometric mean of ρ over the token's segment, a run without masked tokens between.

    A turn of a conversation is a segment where the tool's tokens are masked. The gradient flows
    through the mean.

    Args:
        token_log_ratio: [N] log π_θ − log π_old, nats.
        responses: cuts the tokens into responses.
        positions: [N] each token's place, masked ones included; None: nothing is masked, so that
            a response is one segment.

    References:
        ROLL 8eb27cc2, ``ratio_type: segment`` of its agentic pipeline.
    """
    cut = segments(responses, positions)
    log_ratio = means(token_log_ratio, cut)
    return Ratio(log_ratio, np.exp(log_ratio), lambda slope: means(slope, cut))


CHOICES = {"roll/segment": Choice(segment)}
