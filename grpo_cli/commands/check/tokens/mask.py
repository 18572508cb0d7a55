"""Masks that take everything, or leave holes between tokens."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from grpo_cli.commands.check.finding import Finding, Rule
from grpo_cli.commands.check.record_view import View


def _look(view: View) -> Iterator[Finding]:
    """A mask that takes every token of a response; and one with holes, as tool results leave."""
    if view.mask is None:
        return
    empty = (view.responses.lengths == 0) & (view.widths > 0)
    taken = view.records.sum(empty.astype(np.int64))
    for record in np.flatnonzero(taken).tolist():
        start, count = int(view.records.starts[record]), int(view.counts[record])
        yield Finding(
            "error" if taken[record] == count else "warning",
            f"the mask takes every token of {int(taken[record])} of {count} responses",
            "such responses still count where the aggregation counts responses; drop them if they "
            "should not, or look at how the mask was made",
            {"empty": int(taken[record]), "of": count},
            record=record,
            response=int(np.argmax(empty[start:])),
        )
    yield from _holes(view)


def _holes(view: View) -> Iterator[Finding]:
    edges = np.diff(view.positions) > 1
    inside = np.diff(view.responses.index) == 0
    holes = np.flatnonzero(edges & inside)
    rows = view.responses.index[holes]
    records = view.records.index[rows]
    for record in np.unique(records).tolist():
        own = np.flatnonzero(records == record)
        count = len(np.unique(rows[own]))
        place = view.place(int(holes[own[0]]))
        yield Finding(
            "info",
            f"the mask has holes between tokens in {count:,} of {int(view.counts[record]):,} "
            "responses",
            "right for tool results and other text the policy did not write; wrong otherwise",
            {"responses": count, "of": int(view.counts[record]), "holes": len(own)},
            **(place | {"token": place["token"] + 1}),
        )


RULES = (
    Rule(
        "mask",
        ("error", "warning", "info"),
        "The mask takes all tokens of responses, or has holes.",
        15,
        _look,
    ),
)
