"""Responses that end in a loop."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from grpo_cli.commands.check.finding import Finding, Rule
from grpo_cli.commands.check.record_view import View
from grpo_cli.commands.check.tokens.edges import runs

_LONGEST = 8
_LEAST, _TIMES = 16, 4


def _look(view: View) -> Iterator[Finding]:
    """A response ends in one phrase over and over: at least 16 tokens, at least 4 times.

    Phrases of 2 to 8 tokens, told by their ids; and of 1 where it is no padding.
    """
    ids = view.counted_ids
    if ids is None:
        return
    rows = view.responses
    places = np.arange(rows.total) - rows.spread(rows.starts)
    best = np.zeros(rows.count, dtype=np.int64)
    period = np.zeros(rows.count, dtype=np.int64)
    for step in range(1, _LONGEST + 1):
        same = np.zeros(len(ids), dtype=np.bool_)
        same[step:] = ids[step:] == ids[:-step]
        same &= places >= step
        length = runs(rows, same, end=True) + step
        found = (length >= np.maximum(_LEAST, _TIMES * step)) & (best == 0)
        best, period = np.where(found, length, best), np.where(found, step, period)
    looping = view.records.sum((best > 0).astype(np.int64))
    for record in np.flatnonzero(looping).tolist():
        start, count = int(view.records.starts[record]), int(view.counts[record])
        row = start + int(np.argmax(best[start : start + count]))
        yield Finding(
            "info",
            f"{int(looping[record])} of {count} responses end in a loop, one phrase of "
            f"{int(period[row])} tokens repeated over {int(best[row])}: degenerate repetition",
            "no padding, but no text either: it is sampled surely, fills the length and gets the "
            "reward of a cut response; stop generation at it, or penalise it",
            {"responses": int(looping[record]), "of": count, "longest": int(best[row])},
            **view.at(row),
        )


RULES = (
    Rule(
        "repetition",
        ("info",),
        "Responses end in a loop of one phrase.",
        110,
        _look,
        yields=True,
        about="padding, ends and loops by id",
        needs=("token_ids|tokens",),
    ),
)
