"""Mistakes that ``verify`` knows, tried where no convention gives a logged loss."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from grpo_cli.commands.match.answer import Mistaken
from grpo_cli.commands.match.question import LoggedNumber
from grpo_cli.commands.verify.causes.case import Case
from grpo_cli.commands.verify.causes.search import explained
from grpo_cli.commands.verify.compare import Tolerance
from grpo_cli.errors import GrpoError
from grpo_cli.records import Record
from grpo_cli.records.parse.assemble import layout
from grpo_cli.variants.plan import Plan

_MOST = 1 << 16
"""Tokens of records on which mistakes are tried: a second's work."""
_LISTS = ("widths", "rewards", "reward_baselines", "advantages", "tokens", "token_ids", "roles")


def find_mistakes(
    plans: Sequence[Plan], records: Iterable[Record], target: LoggedNumber
) -> tuple[Mistaken, ...]:
    """Returns the mistakes that give the number, of the first plan of which one does.

    Args:
        plans: what the number may have been meant to be, the likeliest first.
        records: the records, which are one batch.
        target: the number.
    """
    record = joined(records)
    if record is None:
        return ()
    record = replace(record, expected={target.name: target.value})
    for plan in plans:
        try:
            with np.errstate(all="ignore"):  # what is tried need not make sense for these records
                case = Case.of(record, replace(plan, batch="record"), Tolerance())
                causes = explained(case).causes
        except GrpoError:
            continue
        if causes:
            return tuple(Mistaken(plan.variant, one.mistake, one.words) for one in causes)
    return ()


def joined(batch: Iterable[Record]) -> Record | None:
    """Returns the records of a batch as one; None where they differ in layout, or are too many."""
    records, tokens = [], 0
    for one in batch:
        records.append(one)
        tokens += sum(one.widths)
        if tokens > _MOST:  # the rest need not be read
            return None
    if not records:
        return None
    first = records[0]
    if any(layout(one) != layout(first) or one.trajectories or one.of_turns for one in records):
        return None
    counts = [max(one.groups, default=-1) + 1 if one.groups else 1 for one in records]
    begin = [0, *accumulate(counts)]
    masks = [b"\1" * sum(one.widths) if one.mask is None else one.mask for one in records]
    lists: dict[str, Any] = {
        name: [value for one in records for value in getattr(one, name)]
        for name in _LISTS
        if all(isinstance(getattr(one, name), list) for one in records)
    }
    if isinstance(first.advantages, bytes):
        by_token: list[Any] = [one.advantages for one in records]
        lists["advantages"] = b"".join(by_token)
    return replace(
        first,
        **lists,
        nested=2,
        shape=None,
        columns={name: b"".join(one.columns[name] for one in records) for name in first.columns},
        mask=b"".join(masks) if any(one.mask is not None for one in records) else None,
        groups=[
            number + start
            for one, start in zip(records, begin, strict=False)
            for number in one.groups or [0] * len(one.widths)
        ],
        group_labels=None,
        versions=None,
    )
