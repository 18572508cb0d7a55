"""Groups of one, and of different sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from grpo_cli.commands.check.finding import Finding, Rule
from grpo_cli.commands.check.record_view import View


def _singleton(view: View) -> Iterator[Finding]:
    """A group of one has no baseline but itself: advantage 0, or NaN with ddof 1.

    Only where the record says what its groups are, or has rewards and a single response; and not
    where advantages are given, which were computed when the group was together.
    """
    if view.advantages_given or not (view.names_groups or view.rewards is not None):
        return
    for group in np.flatnonzero(view.sizes == 1).tolist():
        hint = " (rows that carry a uid: --group-by uid)" if "group_ids" in view.names else ""
        yield Finding(
            "warning",
            "a group of one response: its advantage is 0 or undefined, and frameworks differ",
            "write the responses to one prompt into one record (or with one group id), or "
            f"drop it{hint.replace('uid', view.names.get('group_ids') or 'uid')}",
            {"size": 1},
            **view.at(int(view.first_members[group])),
        )


def sizes(view: View) -> dict[int, Counter[int]]:
    """Record → how many groups of each size it has; groups of one are told apart."""
    records = view.records.index[view.first_members]
    several = view.sizes > 1
    found: dict[int, Counter[int]] = {}
    for record, size in zip(records[several].tolist(), view.sizes[several].tolist(), strict=True):
        found.setdefault(record, Counter())[size] += 1
    return found


def _uneven(view: View) -> Iterator[Finding]:
    """Groups of different sizes in one record."""
    if len(np.unique(view.sizes)) < 2:
        return
    for record, counts in sizes(view).items():
        if len(counts) > 1:
            yield replace(uneven(counts), record=record)


def uneven(counts: Counter[int]) -> Finding:
    """The finding for sizes that differ."""
    said = ", ".join(f"{times} with {size}" for size, times in sorted(counts.items()))
    return Finding(
        "info",
        f"groups of different sizes: {said} responses",
        "fine for exact group statistics, as here; a trainer that reshapes to [-1, G] mixes "
        "groups, or takes the batch for one group, without a word",
        {"sizes": {str(size): times for size, times in sorted(counts.items())}},
    )


UNEVEN = Rule("uneven-groups", ("info",), "Groups of different sizes.", 75, _uneven)

RULES = (
    Rule("singleton-group", ("warning",), "A group of one response.", 74, _singleton),
    UNEVEN,
)
