"""ms-swift's REAL, for which a response without tokens is a bad one, and its FIPO."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.arithmetic.suffix_sums import suffix_sums
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Surrogate
from grpo_cli.objective.surrogate.coupled import of_labels
from grpo_cli.objective.surrogate.future import USUAL, decay, influenced, moved_tokens


def real(
    log_ratio: F64, advantage: F64, responses: Segments, groups: Groups, *, real_tau: float
) -> Surrogate:
    """``real`` where a response whose every token is masked is bad, with s̄ = 0.

    So it adds e⁰ = 1 to the bad ones of its group, and makes a group valid that is all good else.

    Args:
        log_ratio: [N] log ρ, at any level.
        advantage: [N] A, of which only the sign counts.
        responses: cuts the tokens into responses.
        groups: which responses answer the same prompt.
        real_tau: τ > 0.
    """
    good = responses.mean(advantage) > 0
    return of_labels(log_ratio, good, ~good, responses, groups, real_tau)


def fipo(
    ratio: F64,
    advantage: F64,
    token_log_ratio: F64,
    responses: Segments,
    positions: I64 | None = None,
    *,
    epsilon_low: float,
    epsilon_high: float,
    delta: float | None,
    dual_clip: float | None,
    fipo_decay_rate: float,
    fipo_clip_low: float,
    fipo_clip_high: float,
    fipo_safety_threshold: float,
) -> Surrogate:
    """``fipo`` where masked tokens inside a response count in the distance k − t.

    Args:
        ratio, advantage, token_log_ratio, responses: as for ``fipo``.
        positions: [N] each token's index in its response, masked ones counted; None: none masked.
        epsilon_low, epsilon_high, delta, dual_clip: as for ``clip``.
        fipo_decay_rate, fipo_clip_low, fipo_clip_high, fipo_safety_threshold: as for ``fipo``.
    """
    moved = moved_tokens(ratio, token_log_ratio, delta)
    return influenced(
        ratio,
        advantage,
        _over_positions(moved, responses, positions, decay(fipo_decay_rate)),
        epsilon_low=epsilon_low,
        epsilon_high=epsilon_high,
        delta=delta,
        dual_clip=dual_clip,
        fipo_clip_low=fipo_clip_low,
        fipo_clip_high=fipo_clip_high,
        fipo_safety_threshold=fipo_safety_threshold,
    )


def _over_positions(
    values: F64, responses: Segments, positions: I64 | None, discount: float
) -> F64:
    """[N] ``suffix_sums`` with 0 for the masked tokens between those that are there."""
    if positions is None:
        return suffix_sums(values, responses, discount)
    lengths = np.zeros(responses.count, np.int64)
    np.maximum.at(lengths, responses.index, positions + 1)
    columns = Segments(lengths)
    places = columns.starts[responses.index] + positions
    spread = np.zeros(columns.total)
    spread[places] = values
    return suffix_sums(spread, columns, discount)[places]


CHOICES = {
    "ms-swift/real": Choice(real, {"real_tau": 0.5}),
    "ms-swift/fipo": Choice(fipo, USUAL),
}
