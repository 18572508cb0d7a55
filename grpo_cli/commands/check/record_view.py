"""Records as the rules see them: whatever they say, be it impossible, as flat arrays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.records import Raw, Record

LOG_PROBS = ("log_probs_new", "log_probs_old", "log_probs_ref", "log_probs_rollout")


class View:
    """Consecutive records with the same columns. N tokens that count, R responses, M records.

    Nothing is refused: log-probs may be positive or not finite.
    """

    def __init__(self, records: Sequence[Record], raws: Sequence[Raw]) -> None:
        self.records = records
        self.raws = raws

    @cached_property
    def widths(self) -> I64:
        """[R] tokens of each response as written."""
        return np.array([width for one in self.records for width in one.widths], dtype=np.int64)

    @cached_property
    def mask(self) -> NDArray[np.bool_] | None:
        """[as written] which tokens count; None if all do."""
        if all(one.mask is None for one in self.records):
            return None
        parts = [one.mask or b"\1" * sum(one.widths) for one in self.records]
        return np.frombuffer(b"".join(parts), dtype=np.bool_)

    @cached_property
    def written(self) -> Segments:
        """The tokens of each response as written."""
        return Segments(self.widths)

    @cached_property
    def responses(self) -> Segments:
        """The tokens of each response that count."""
        if self.mask is None:
            return self.written
        return Segments(np.bincount(self.written.index[self.mask], minlength=len(self.widths)))

    @cached_property
    def positions(self) -> I64:
        """[N] each token's index in its response as written."""
        whole = self.written
        places = np.arange(whole.total) - np.repeat(whole.starts, whole.lengths)
        return places if self.mask is None else places[self.mask]

    @cached_property
    def record_of(self) -> I64:
        """[R] the record of each response, among these."""
        return np.repeat(np.arange(len(self.records)), [len(one.widths) for one in self.records])

    def local(self, response: int) -> tuple[int, int]:
        """A response's record and its index there."""
        record = int(self.record_of[response])
        return record, response - int(np.searchsorted(self.record_of, record))

    def place(self, token: int) -> dict[str, int]:
        """Where the token stands, as the fields of a finding."""
        record, response = self.local(int(self.responses.index[token]))
        return {"record": record, "response": response, "token": int(self.positions[token])}

    def has(self, name: str) -> bool:
        """Whether the records have the column themselves."""
        return name in self.records[0].columns and name not in self.records[0].derived

    def key(self, name: str) -> str:
        """What the user calls the column."""
        return self.records[0].names.get(name, name)

    def column(self, name: str) -> F64 | None:
        """[N] the column's values that count, whatever they are."""
        if not self.has(name):
            return None
        whole = np.frombuffer(b"".join([one.columns[name] for one in self.records]))
        return whole if self.mask is None else whole[self.mask]

    @cached_property
    def log_probs(self) -> dict[str, F64]:
        """The columns that can be log-probs: finite and none above 0."""
        found = {}
        for name in LOG_PROBS:
            values = self.column(name)
            if values is not None and np.isfinite(values).all() and values.max(initial=-1.0) <= 0:
                found[name] = values
        return found

    @cached_property
    def pairs(self) -> list[tuple[str, str]]:
        """The columns that belong together, the better witness first."""
        wanted = (
            ("log_probs_new", "log_probs_old"),
            ("log_probs_old", "log_probs_rollout"),
            ("log_probs_new", "log_probs_rollout"),
            ("log_probs_new", "log_probs_ref"),
        )
        found = [pair for pair in wanted if all(one in self.log_probs for one in pair)]
        if ("log_probs_old", "log_probs_rollout") in found:
            found = [pair for pair in found if pair != ("log_probs_new", "log_probs_rollout")]
        return found

    # ---- groups ---------------------------------------------------------------------------

    @cached_property
    def groups(self) -> list[list[int]]:
        """The responses [R] of each group, record by record."""
        found: dict[tuple[int, int], list[int]] = {}
        flat = 0
        for number, record in enumerate(self.records):
            for group in record.groups or [0] * len(record.widths):
                found.setdefault((number, group), []).append(flat)
                flat += 1
        return list(found.values())

    def names_groups(self, record: int) -> bool:
        """Whether a record says which responses belong together."""
        one = self.records[record]
        known = one.names
        return one.shape is not None or "group_ids" in known or "group_size" in known

    @cached_property
    def rewards(self) -> F64 | None:
        """[R] one reward per response, several functions added up."""
        if any(one.rewards is None for one in self.records):
            return None
        rows: list[Any] = [row for one in self.records for row in one.rewards or []]
        return np.array([sum(row) if isinstance(row, list) else row for row in rows])

    @cached_property
    def advantages(self) -> F64 | None:
        """[R] one advantage per response; None where there is none, or one per token."""
        if not all(isinstance(one.advantages, list) for one in self.records):
            return None
        rows: list[Any] = [row for one in self.records for row in one.advantages or []]
        return np.array(rows, dtype=np.float64)

    def words(self, response: int) -> list[Any] | None:
        """The token ids, or else the strings, of a response that count."""
        record, local = self.local(response)
        one = self.records[record]
        rows = one.token_ids or one.tokens
        if rows is None:
            return None
        row: list[Any] = rows[local]
        if self.mask is None:
            return row
        start = int(self.written.starts[response])
        return [word for word, kept in zip(row, self.mask[start:], strict=False) if kept]
