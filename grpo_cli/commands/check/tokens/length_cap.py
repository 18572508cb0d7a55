"""Responses that were cut, not finished."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from grpo_cli.commands.check.finding import Finding, Rule
from grpo_cli.commands.check.record_view import View
from grpo_cli.commands.trend.said import ENDINGS, cut_off
from grpo_cli.records.fields import read_fields
from grpo_cli.records.parse.settings import read_settings

_ADVICE = (
    "cut responses are rewarded as if finished: raise the limit, mask them "
    "(mask_truncated_completions, overlong filtering), or shape their reward"
)


def _look(view: View) -> Iterator[Finding]:
    """Many responses of exactly the greatest length: they were cut, not finished.

    At least 3 and a tenth of the responses, while the others differ; or 1 and a tenth where the
    record names its max_completion_length and that is the length. A record that says itself how its
    responses ended (finish_reasons, truncated) is told of those that were cut, and of no others.
    """
    told = [cut_off(value) for value in view.values]
    yield from _said(told)
    lengths = view.responses.lengths
    longest = np.maximum.reduceat(lengths, view.records.starts)
    hits = view.records.sum((lengths == view.records.spread(longest)).astype(np.int64))
    fields = read_fields(view.values[0])
    settable = bool(fields.hyperparameters) or "hyperparameters" in fields.names
    silent = np.array([one is None for one in told], dtype=np.bool_)
    likely = silent & (longest >= 2) & (hits >= 0.1 * view.counts)
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
            _ADVICE,
            {
                "responses": count,
                "of": int(view.counts[record]),
                "length": length,
                "named": named,
            },
            record=record,
        )


def _said(told: Sequence[list[bool] | None]) -> Iterator[Finding]:
    for record, endings in enumerate(told):
        if endings and any(endings):
            yield Finding(
                "info",
                f"{sum(endings)} of {len(endings)} responses were cut, as the record says itself",
                _ADVICE,
                {"responses": sum(endings), "of": len(endings), "named": True},
                record=record,
            )


RULES = (
    Rule(
        "length-cap",
        ("info",),
        "Responses were cut: the record says so, or many have exactly the greatest length.",
        120,
        _look,
        about="truncation",
        better="|".join(("max_completion_length", *ENDINGS)),
        partly="by equal lengths",
    ),
)
