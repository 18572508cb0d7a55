"""verl's loss aggregation, ``agg_loss``.

A denominator is counted from the data (``None``), or is the whole mini-batch's, as verl's trainers
pass it: ``batch_num_tokens`` or ``global_batch_size``, over ``dp_size`` since DDP averages the
ranks. Counted from the data, responses without a token are left out; ``global_batch_size`` counts
them. A batch without any token gives 0 here, nan in verl.
"""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64, I64
from grpo_cli.hyperparameters import HyperparameterError
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Weights


def token_mean(lengths: I64, *, batch_num_tokens: float | None, dp_size: int) -> Weights:
    """Mean over all tokens: w = 1 / Σᵢ|oᵢ|, or dp_size / batch_num_tokens."""
    ones = np.ones(len(lengths))
    if batch_num_tokens is None:
        return Weights(ones, lengths.astype(np.float64), 1.0 / dp_size, "tokens / dp_size")
    return Weights(ones, None, batch_num_tokens / dp_size, "batch_num_tokens / dp_size")


def token_sum(lengths: I64, *, dp_size: int) -> Weights:
    """Sum over all tokens: w = dp_size."""
    return Weights(np.ones(len(lengths)), None, 1.0 / dp_size, "1 / dp_size")


def seq_mean_token_sum(lengths: I64, *, global_batch_size: float | None, dp_size: int) -> Weights:
    """Mean of the token sums over responses that have tokens, or Σ·dp_size / global_batch_size."""
    return _over_responses(np.ones(len(lengths)), lengths, global_batch_size, dp_size, 1.0, "")


def seq_mean_token_sum_norm(
    lengths: I64,
    *,
    loss_scale_factor: float | None,
    response_length: float | None,
    global_batch_size: float | None,
    dp_size: int,
) -> Weights:
    """``verl/seq-mean-token-sum`` over ``loss_scale_factor``, or else the padded width.

    Raises:
        HyperparameterError: when neither is given; the data have no padded width.
    """
    scale = response_length if loss_scale_factor is None else loss_scale_factor
    of = "response_length" if loss_scale_factor is None else "loss_scale_factor"
    if scale is None:
        raise HyperparameterError(
            "loss_scale_factor", "expected it, or response_length (the padded width); got neither"
        )
    ones = np.ones(len(lengths))
    return _over_responses(ones, lengths, global_batch_size, dp_size, scale, f" × {of}")


def seq_mean_token_mean(lengths: I64, *, global_batch_size: float | None, dp_size: int) -> Weights:
    """Mean of the token means Σₜ/(|oᵢ| + 1e-8) over responses that have tokens."""
    own = 1.0 / (np.maximum(lengths, 1) + 1e-8)
    more = ", each by its own tokens"
    return _over_responses(own, lengths, global_batch_size, dp_size, 1.0, more)


def _over_responses(
    unit: F64, lengths: I64, total: float | None, dp_size: int, scale: float, more: str
) -> Weights:
    if total is None:
        filled = (lengths > 0).astype(np.float64)
        return Weights(unit, filled, scale / dp_size, f"responses with tokens / dp_size{more}")
    return Weights(unit, None, total * scale / dp_size, f"global_batch_size / dp_size{more}")


_RESPONSES = {"global_batch_size": None, "dp_size": 1}

CHOICES = {
    "verl/token-mean": Choice(token_mean, {"batch_num_tokens": None, "dp_size": 1}),
    "verl/token-sum": Choice(token_sum, {"dp_size": 1}, total=True),
    "verl/seq-mean-token-sum": Choice(seq_mean_token_sum, _RESPONSES, total=True),
    "verl/seq-mean-token-sum-norm": Choice(
        seq_mean_token_sum_norm,
        {"loss_scale_factor": None, "response_length": None, **_RESPONSES},
        total=True,
    ),
    "verl/seq-mean-token-mean": Choice(seq_mean_token_mean, _RESPONSES),
}
