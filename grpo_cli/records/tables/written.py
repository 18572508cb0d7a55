"""The columns of a table as they were written: numbers by token and by response."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from grpo_cli.batch import F64, I64
from grpo_cli.records.fields import canonical_name
from grpo_cli.records.packed import Mask, Unusual
from grpo_cli.records.tables.cells import depth, is_list
from grpo_cli.records.tables.stretches import Stretch


class Written:
    """Columns under their canonical names; M records, R responses, N tokens as written.

    Args:
        pa: pyarrow.
        stretch: the rows.
        names: canonical name → that of the column.

    Raises:
        Unusual: from any method, where a row has to be looked at.
    """

    def __init__(self, pa: Any, stretch: Stretch, names: Mapping[str, str]) -> None:
        self._pa, self._names, self._single = pa, names, stretch.kind.single
        self._batch, self._bounds = stretch.batch, stretch.bounds

    def column(self, name: str) -> Any:
        """A column under its canonical name."""
        key = self._names[name]
        if canonical_name(key) != name and self._single:
            raise Unusual  # by such a name it is not known for a column of one response
        found = self._batch.column(self._batch.schema.get_field_index(key))
        return found.storage if isinstance(found, self._pa.ExtensionArray) else found

    def is_by_token(self) -> bool:
        """Whether each token has one; what a list of one response means is not known here."""
        return depth(self._pa, self.column("advantages").type) == 2

    @cached_property
    def _outer(self) -> tuple[I64, Any]:
        """[M] the responses of each record, and the column of their tokens."""
        column = self.column("log_probs_new")
        if self._single:
            bounds = self._bounds
            counts = np.ones(len(column), np.int64) if bounds is None else np.diff(bounds)
            return counts, column
        counts, inner = self._lists(column)
        if not counts.all():
            raise Unusual
        return counts, inner

    @property
    def counts(self) -> I64:
        """[M] the responses of each record."""
        return self._outer[0]

    @cached_property
    def widths(self) -> I64:
        """[R] the tokens of each response, as written."""
        return self._lists(self._outer[1])[0]

    def _lists(self, column: Any) -> tuple[I64, Any]:
        """How long each list is, and what is in them, one after the other."""
        if not is_list(self._pa, column.type) or column.null_count:
            raise Unusual
        offsets = column.offsets.to_numpy()
        start, end = int(offsets[0]), int(offsets[-1])
        return np.diff(offsets).astype(np.int64), column.values.slice(start, end - start)

    def _tokens(self, name: str) -> Any:
        """[N] a token column, nested as the first one is."""
        column = self.column(name)
        if not self._single:
            counts, column = self._lists(column)
            self._must_equal(counts, self.counts)
        widths, flat = self._lists(column)
        self._must_equal(widths, self.widths)
        return flat

    def _must_equal(self, lengths: I64, wanted: I64) -> None:
        if not np.array_equal(lengths, wanted):
            raise Unusual

    def numbers(self, name: str) -> F64:
        """[N] a token column; NaN in the place of a null."""
        flat = self._tokens(name)
        if not self._are_numbers(flat.type):
            raise Unusual
        found: F64 = flat.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
        return found

    def _are_numbers(self, kind: Any) -> bool:
        types = self._pa.types
        return bool(types.is_floating(kind) or types.is_integer(kind))

    def mask(self) -> Mask | None:
        """[N] which tokens count; None: all."""
        flat = self._tokens("mask")
        known = self._are_numbers(flat.type) or self._pa.types.is_boolean(flat.type)
        if flat.null_count or not known:
            raise Unusual
        bits = flat.to_numpy(zero_copy_only=False)
        mask: Mask = bits != 0
        if not (mask == bits).all():
            raise Unusual
        return None if mask.all() else mask

    def scores(self, name: str) -> F64:
        """[R] one number per response."""
        column = self.column(name)
        if not self._single:
            counts, column = self._lists(column)
            self._must_equal(counts, self.counts)
        if column.null_count or not self._are_numbers(column.type):
            raise Unusual
        found: F64 = column.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
        return found

    def check_words(self) -> None:
        """Raises ``Unusual`` where tokens are no text, or their ids no integers."""
        types = self._pa.types
        for name in ("tokens", "token_ids"):
            if name in self._names:
                flat = self._tokens(name)
                text = types.is_string(flat.type) or types.is_large_string(flat.type)
                fits = text if name == "tokens" else types.is_integer(flat.type)
                if flat.null_count or not fits:
                    raise Unusual

    @cached_property
    def labels(self) -> Any:
        """[R] what the responses' groups are called; None where they say nothing of it."""
        if "group_ids" not in self._names:
            return None
        column = self.column("group_ids")
        if not self._single:
            counts, column = self._lists(column)
            self._must_equal(counts, self.counts)
        types, kind = self._pa.types, column.type
        text = types.is_string(kind) or types.is_large_string(kind)
        if column.null_count or not (text or types.is_integer(kind)):
            raise Unusual
        return column

    def by_record(self, values: list[Any]) -> Iterator[list[Any]]:
        """[R] of something, cut into records."""
        ends = np.cumsum(self.counts).tolist()
        return (values[begin:end] for begin, end in pairwise([0, *ends]))
