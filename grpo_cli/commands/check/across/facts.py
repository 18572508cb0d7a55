"""What is kept of records to compare them with others: digests, labels and sizes."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import I64
from grpo_cli.commands.check.groups.sizes import sizes
from grpo_cli.commands.check.places import Place
from grpo_cli.commands.check.record_view import View

_CHANCE = math.log(1e-6)
_ODD = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)


@dataclass
class Facts:
    """Of the records of one view.

    Attributes:
        places: [M] where they stand.
        counts: [M] their responses.
        rows: [k] responses that chance repeats less than once in a million.
        records: [k] the record of each.
        digests: [k] of all log-probs of each.
        labels: (record, step, label) of groups of one response.
        given: whether advantages are given.
        label_key: what the user calls the labels.
        sizes: size of groups → how many, of records whose groups are all of that size.
        first: size → the first such record.
    """

    places: list[Place]
    counts: list[int]
    rows: list[int]
    records: list[int]
    digests: list[int]
    labels: list[tuple[int, str, Any]]
    given: bool
    label_key: str
    sizes: Counter[int]
    first: dict[int, Place]


def facts(view: View) -> Facts:
    """What is to be kept of a view."""
    rows = _telling(view)
    digests = _digests(view)[rows] if len(rows) else rows
    records = view.records.index[rows]
    starts = view.records.starts[records]
    counted, first = _sizes(view)
    return Facts(
        list(view.places),
        view.counts.tolist(),
        (rows - starts).tolist(),
        records.tolist(),
        digests.tolist(),
        list(_labels(view)),
        view.advantages_given,
        view.names.get("group_ids", ""),
        counted,
        first,
    )


def _telling(view: View) -> I64:
    """[k] the responses so unlikely that one that occurs again is a copy.

    Two samples are equal with probability e^L, L being the log-prob of the response, so a row
    that occurs again is a copy where that is below 1e-6 (short, sure answers are not).
    """
    new = view.column("log_probs_new")
    if new is None:
        return np.zeros(0, dtype=np.int64)
    with np.errstate(invalid="ignore"):
        found: I64 = np.flatnonzero(view.responses.sum(new) < _CHANCE)
    return found


def _digests(view: View) -> NDArray[np.uint64]:
    """[R] 64 bits of all log-probs of each response, bit by bit, in order.

    Each number is multiplied by odd ones, its place added, and folded (as splitmix64 does); the
    sum over a response, modulo 2⁶⁴, is the same for equal rows only, but for one pair in 10¹⁹.
    """
    places = np.arange(view.responses.total) - view.responses.spread(view.responses.starts)
    at = (places.astype(np.uint64) + np.uint64(1)) * np.uint64(_ODD[0])
    total = np.zeros(view.responses.count, dtype=np.uint64)
    for number, column in enumerate(view.log_probs.values()):
        bits = np.ascontiguousarray(column).view(np.uint64) + at
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(_ODD[1])
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(_ODD[2])
        bits ^= bits >> np.uint64(31)
        total = total * np.uint64(_ODD[0]) + view.responses.sum(bits) + np.uint64(number)
    return total


def _labels(view: View) -> list[tuple[int, str, Any]]:
    """The labels of groups in records all of whose groups have one response."""
    key = view.names.get("group_ids")
    if not key or not view.values:
        return []
    single = np.ones(len(view.counts), dtype=np.bool_)
    np.logical_and.at(single, view.records.index[view.first_members], view.sizes == 1)
    found = []
    for record in np.flatnonzero(single).tolist():
        value = view.values[record]
        labels = value[key]
        for label in dict.fromkeys(labels) if isinstance(labels, list) else [labels]:
            found.append((record, str(value.get("step")), label))
    return found


def _sizes(view: View) -> tuple[Counter[int], dict[int, Place]]:
    counted: Counter[int] = Counter()
    first: dict[int, Place] = {}
    several = np.unique(view.sizes[view.sizes > 1])
    if len(several) == 1:
        of = np.unique(view.records.index[view.first_members[view.sizes > 1]])
        size = int(several[0])
        counted[size] = int(np.count_nonzero(view.sizes == size))
        first[size] = view.places[int(of[0])]
        return counted, first
    for record, own in sizes(view).items():
        if len(own) == 1:
            ((size, times),) = own.items()
            counted[size] += times
            first.setdefault(size, view.places[record])
    return counted, first
