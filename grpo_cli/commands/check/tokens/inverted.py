"""A mask whose ones and zeros are exchanged."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from grpo_cli.commands.check.finding import Finding, Rule
from grpo_cli.commands.check.record_view import LOG_PROBS, View

_LEAST = 12
"""Tokens that count and are all exactly 0.0; sure words are, but not so many and no other."""


def _look(view: View) -> Iterator[Finding]:
    """What counts is padding, exactly 0.0 in every column, and what does not count is not."""
    columns = [view.columns[name] for name in LOG_PROBS if view.has(name)]
    if view.mask is None or not columns:
        return
    zero = np.logical_and.reduce([column == 0.0 for column in columns])
    kept = _per_record(view, view.mask)
    filled = _per_record(view, view.mask & zero)
    taken = _per_record(view, ~view.mask)
    empty = _per_record(view, ~view.mask & zero)
    bad = (kept >= _LEAST) & (filled == kept) & (taken >= _LEAST) & (2 * empty < taken)
    for record in np.flatnonzero(bad).tolist():
        yield Finding(
            "error",
            f"the mask is inverted: all {int(kept[record]):,} tokens that count have log-probs of "
            f"0.0, and {int(taken[record] - empty[record]):,} of {int(taken[record]):,} that do "
            "not count have others",
            f"dump 1 − {view.key('mask')}: 1 is a token that counts",
            {"counted": int(kept[record]), "masked": int(taken[record])},
            record=record,
        )


def _per_record(view: View, tokens: np.ndarray) -> np.ndarray:
    return view.records.sum(view.written.sum(tokens.astype(np.int64)))


RULES = (
    Rule(
        "inverted-mask",
        ("error",),
        "The mask has 1 for padding and 0 for tokens.",
        8,
        _look,
        explains=True,
    ),
)
