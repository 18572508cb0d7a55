"""What the rounding of a record's log-probs leaves open of its loss."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from grpo_cli.batch import F64, Segments
from grpo_cli.commands.verify.compare import half_steps, precisions
from grpo_cli.objective.breakdown import Breakdown

_COLUMNS = ("log_probs_new", "log_probs_old", "log_probs_ref")
_DECIMALS = range(3, 8)
"""Of log-probs that were rounded: fewer may have been typed, more are as good as float32."""
_SIGMAS = 3.0
_FLOAT32 = 2.0**-23
"""What float32 leaves of the sizes that a loss is made of."""


def log_prob_formats(values: F64, records: Segments) -> list[str]:
    """[M] the format that all numbers of a record were rounded to; "" where none is known.

    It is "4 decimals", "bfloat16", "float16" or "float32".
    """
    found = precisions(values, records.lengths)
    exact = {f"{places} decimals": np.round(values, places) == values for places in _DECIMALS}
    exact["float32"] = values.astype(np.float32) == values
    for form, held in exact.items():
        lost = records.sum(~held) > 0
        found = [name or ("" if no else form) for name, no in zip(found, lost, strict=True)]
    return found


def loss_rooms(breakdown: Breakdown) -> F64:
    """[M] by how much the loss of each record may be off, since its log-probs were rounded.

    It is three standard deviations of Σ slope·error, with errors spread evenly over half a unit of
    the last decimal; the slopes by π_old and by the reference are no larger than by π_θ. A column
    that is coarser than another was so in training: what writes a record rounds them all.
    """
    records, each = breakdown.batch.record_tokens, _columns(breakdown)
    if not each:
        return np.zeros(records.count)
    steps = np.min([_steps(log_prob_formats(x, records), x, records) for x in each], axis=0)
    squares = len(each) * records.sum((breakdown.gradient * steps) ** 2) / 3.0
    rounded = _SIGMAS * np.sqrt(squares) + _FLOAT32 * breakdown.record_scale
    return np.where(records.sum(steps) > 0.0, rounded, 0.0)


def _columns(breakdown: Breakdown) -> list[F64]:
    found = (getattr(breakdown.batch, name) for name in _COLUMNS)
    return [values for values in found if values is not None]


def _steps(formats: Sequence[str], values: F64, records: Segments) -> F64:
    """[N] how far each log-prob may be from what it was rounded from."""
    parts = zip(formats, np.split(values, records.starts[1:]), strict=True)
    return np.concatenate([half_steps(form, part) for form, part in parts])
