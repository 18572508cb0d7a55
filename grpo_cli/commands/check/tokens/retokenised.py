"""Ids that were trained, and are not those that were sampled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grpo_cli.commands.check.finding import Finding, Rule
from grpo_cli.commands.check.record_view import View

_KEYS = (
    "sampled_token_ids",
    "sampled_ids",
    "rollout_token_ids",
    "generated_token_ids",
    "engine_token_ids",
)
"""What dumps call the ids that the engine sampled, beside those that are trained."""


def _look(view: View) -> Iterator[Finding]:
    """A response's ids differ from those that the engine says it sampled, both in one record.

    Text that is decoded and encoded again, between an agent's turns or by a chat template, may
    come back as other tokens; the engine's log-probs are not of these.
    """
    if not view.values or "token_ids" not in view.names or view.ids is None:
        return
    key = next((key for key in _KEYS if any(key in value for value in view.values)), None)
    if key is None:
        return
    for record, value in enumerate(view.values):
        rows = value.get(key)
        if isinstance(rows, list) and len(rows) == view.counts[record]:
            yield from _of_record(view, record, rows, key)


def _of_record(view: View, record: int, rows: list[Any], key: str) -> Iterator[Finding]:
    assert view.ids is not None
    first = int(view.records.starts[record])
    differing = []
    for row, sampled in enumerate(rows):
        start = int(view.written.starts[first + row])
        trained = view.ids[start : start + int(view.widths[first + row])].tolist()
        pairs = zip(trained, sampled, strict=False)
        at = next((place for place, (one, other) in enumerate(pairs) if one != other), None)
        if at is not None:
            differing.append((row, at))
    if differing:
        row, at = differing[0]
        yield Finding(
            "error",
            f"the trained token ids ({view.key('token_ids')}) of {len(differing)} of {len(rows)} "
            f"responses are not those that were sampled ({key}), here from token {at} on",
            "keep the ids that the engine gave and never encode its text again: log-probs belong "
            "to ids, not to text",
            {"responses": len(differing), "of": len(rows), "key": key},
            record=record,
            response=row,
            token=at,
        )


RULES = (
    Rule(
        "retokenised",
        ("error",),
        "The ids that are trained are not those that were sampled.",
        28,
        _look,
        explains=True,
        about="retokenised ids",
        needs=("token_ids",),
        beside="|".join(_KEYS),
    ),
)
