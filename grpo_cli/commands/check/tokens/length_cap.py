"""Responses that were cut, not finished."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from grpo_cli.commands.check.finding import Finding, Rule
from grpo_cli.commands.check.record_view import View
from grpo_cli.records.fields import read_fields
from grpo_cli.records.parse.settings import read_settings


def _look(view: View) -> Iterator[Finding]:
    """Many responses of exactly the greatest length: they were cut, not finished.

    At least 3 and a tenth of the responses, while the others differ; or 1 and a tenth where the
    record names its max_completion_length and that is the length.
    """
    lengths = view.responses.lengths
    longest = np.maximum.reduceat(lengths, view.records.starts)
    hits = view.records.sum((lengths == view.records.spread(longest)).astype(np.int64))
    fields = read_fields(view.values[0])
    settable = bool(fields.hyperparameters) or "hyperparameters" in fields.names
    likely = (longest >= 2) & (hits >= 0.1 * view.counts) & (settable | (hits >= 3))
    for record in np.flatnonzero(likely).tolist():
        settings = read_settings(view.values[record], fields) if settable else {}
        count, length = int(hits[record]), int(longest[record])
        named = settings.get("max_completion_length") == length
        if not named and (count < 3 or count == view.counts[record]):
            continue
        yield Finding(
            "info",
            f"{count} of {int(view.counts[record])} responses have exactly the greatest length, "
            f"{length}" + (" (max_completion_length)" if named else ""),
            "cut responses are rewarded as if finished: raise the limit, mask them "
            "(mask_truncated_completions, overlong filtering), or shape their reward",
            {
                "responses": count,
                "of": int(view.counts[record]),
                "length": length,
                "named": named,
            },
            record=record,
        )


RULES = (
    Rule(
        "length-cap",
        ("info",),
        "Many responses have exactly the greatest length.",
        120,
        _look,
        about="truncation",
        better="max_completion_length",
        partly="by equal lengths",
    ),
)
