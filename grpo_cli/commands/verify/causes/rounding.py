"""What the rounding of a record's log-probs leaves open of its loss."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64, Segments
from grpo_cli.commands.verify.compare import half_steps, precisions
from grpo_cli.objective.breakdown import Breakdown

_COLUMNS = ("log_probs_new", "log_probs_old", "log_probs_ref")
_DECIMALS = range(3, 8)
"""Of log-probs that were rounded: fewer may have been typed, more are as good as float32."""
_SIGMAS = 3.0
ROUNDED = "the loss differs by no more than the rounding"
"""How the words begin for a difference that no mistake needs to explain."""
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
    the last decimal; the slopes by π_old and by the reference are no larger than by π_θ.
    """
    batch, records = breakdown.batch, breakdown.batch.record_tokens
    squares, is_rounded = np.zeros(records.count), np.zeros(records.count, dtype=np.bool_)
    for values in (getattr(batch, name) for name in _COLUMNS):
        if values is None:
            continue
        formats = log_prob_formats(values, records)
        is_rounded |= [form != "" for form in formats]
        parts = zip(formats, np.split(values, records.starts[1:]), strict=True)
        steps = np.concatenate([half_steps(form, part) for form, part in parts])
        squares += records.sum((breakdown.gradient * steps) ** 2) / 3.0
    rounded = _SIGMAS * np.sqrt(squares) + _FLOAT32 * breakdown.record_scale
    return np.where(is_rounded, rounded, 0.0)


def coarsest_format(breakdown: Breakdown) -> str:
    """The format of one record's log-probs that leaves the most open."""
    batch = breakdown.batch
    columns = [x for x in (getattr(batch, name) for name in _COLUMNS) if x is not None]
    found = {log_prob_formats(x, batch.record_tokens)[0]: float(x.mean()) for x in columns}
    return max(found, key=lambda form: half_steps(form, np.array([found[form]]))[0])
