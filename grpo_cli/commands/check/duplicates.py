"""Rows, records and groups that occur twice."""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Iterator

import numpy as np

from grpo_cli.commands.check.finding import Finding
from grpo_cli.commands.check.record_view import View

_CHANCE = math.log(1e-6)
_MEMORY = 100_000
"""Rows remembered, so that memory stays flat on files of any size."""


class Seen:
    """The rows of all records so far, as digests; the oldest are forgotten.

    Two samples are equal with probability e^L, L being the log-prob of the response, so a row
    that occurs again is a copy where that is below 1e-6 (short, sure answers are not): all of its
    log-prob columns are equal to the last bit.
    """

    def __init__(self) -> None:
        self._rows: OrderedDict[bytes, str] = OrderedDict()
        self._groups: OrderedDict[tuple[str, object], str] = OrderedDict()

    def rows(self, view: View, name: str) -> Iterator[Finding]:
        """The copies among the rows of one record; ``name`` is what it is called."""
        columns = view.log_probs
        if "log_probs_new" not in columns:
            return
        totals = view.responses.sum(columns["log_probs_new"])
        copies: list[tuple[int, str]] = []
        for response in np.flatnonzero(totals < _CHANCE).tolist():
            start = int(view.responses.starts[response])
            end = start + int(view.responses.lengths[response])
            digest = hashlib.blake2b(digest_size=12)
            for column in columns.values():
                digest.update(column[start:end].tobytes())
            key = digest.digest()
            where = f"record {name}, response {view.local(response)[1]}"
            if key in self._rows:
                copies.append((response, self._rows[key]))
            self._remember(self._rows, key, where)
        if copies:
            response, first = copies[0]
            yield Finding(
                "duplicate",
                "warning",
                f"{len(copies)} of {view.responses.count} responses occur already, the first of "
                f"them in {first}: all log-probs are equal to the last bit",
                "copies weigh double; look at how the batch was gathered (repeat, padding to a "
                "multiple of the workers, a file read twice)",
                {"responses": len(copies), "of": view.responses.count, "first": first},
                response=view.local(response)[1],
            )

    def groups(self, view: View, name: str) -> Iterator[Finding]:
        """A group id that another record had, where groups of one show that it was torn apart."""
        record = view.records[0]
        if record.group_labels is None or any(len(members) > 1 for members in view.groups):
            return
        step = str(view.raws[0].value.get("step"))
        again = [one for one in record.group_labels if (step, one) in self._groups]
        for label in record.group_labels:
            self._remember(self._groups, (step, label), name)
        if again:
            yield Finding(
                "duplicate",
                "warning",
                f"group {again[0]!r} is in record {self._groups[(step, again[0])]} and others too: "
                "a group never spans records here",
                "write the responses of a group into one record, so that they share a baseline",
                {"groups": len(again)},
            )

    @staticmethod
    def _remember(memory: OrderedDict, key: object, value: str) -> None:  # type: ignore[type-arg]
        memory.setdefault(key, value)
        if len(memory) > _MEMORY:
            memory.popitem(last=False)
