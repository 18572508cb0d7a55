"""Rows of a table → a Batch, column by column, without a Python list in between.

It agrees bit for bit with what ``cells``, ``fast`` and ``parse`` make of the rows one by one.
Whatever is unusual, every fault included, raises ``Unusual`` and is left to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from grpo_cli.batch import F64, I64, Batch, Segments
from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import KNOWN, Value
from grpo_cli.records.fast import LOG_PROBS, PLAIN, Mask, Unusual, batch_of, numbered
from grpo_cli.records.fields import ACTION, GROUPS, Fields, canonical_name, read_fields
from grpo_cli.records.formats.translate import is_plain
from grpo_cli.records.parse.assemble import grouped
from grpo_cli.records.parse.settings import read_settings
from grpo_cli.records.tables.cells import JSON, as_json, depth, is_list
from grpo_cli.records.tables.files import package
from grpo_cli.records.tables.stretches import Stretch


class Columns:
    """The columns of plain rows: M records, R responses, N tokens.

    Args:
        pa: pyarrow.
        rows: what was read.

    Attributes:
        rows: the same.
        json: what each row has in its column of JSON; None where there is no such column.
        fields: what the keys of all rows mean.
        settings: the hyperparameters that all of them share.
        batch: the numbers, without masked tokens.

    Raises:
        Unusual: where a row has to be looked at.
    """

    def __init__(self, pa: Any, rows: Stretch) -> None:
        if rows.faults or (rows.bounds is not None and not rows.kind.single):
            raise Unusual
        self._pa, self._single = pa, rows.kind.single
        self.rows = rows
        self.json = _objects(rows.batch) if JSON in rows.batch.schema.names else None
        self.fields, self.settings = self._meaning()
        self.batch = self._laid()

    @property
    def advantages_given(self) -> bool:
        """Whether the rows give advantages themselves."""
        return "advantages" in self.fields.names

    def _meaning(self) -> tuple[Fields, Mapping[str, Value]]:
        """What the keys of all rows mean, and their hyperparameters."""
        shared: dict[str, Any] = dict.fromkeys(self._present(), 0)
        if self.json is not None:
            shared |= _in_common(self.json, shared)
        if not is_plain(tuple(shared)):
            raise Unusual
        try:
            fields = read_fields(shared)
            settings = read_settings(shared, fields)
        except InputError:
            raise Unusual from None
        if not fields.names.keys() <= PLAIN or "log_probs_new" not in fields.names:
            raise Unusual
        return fields, settings

    def _present(self) -> Iterator[str]:
        """The columns that all rows have; a known one that only some have is unusual."""
        batch = self.rows.batch
        for key in self.rows.kind.keys:
            at = batch.schema.get_field_index(key)
            nulls = batch.column(at).null_count if at >= 0 else 0
            if nulls == 0:
                yield key
            elif nulls < batch.num_rows and (canonical_name(key) or key == ACTION):
                raise Unusual

    # ---- numbers ------------------------------------------------------------------------------

    def _laid(self) -> Batch:
        names = self.fields.names
        mask = self._mask() if "mask" in names else None
        columns = {name: self._kept(name, mask) for name in LOG_PROBS if name in names}
        self._check_words()
        by_token = "advantages" in names and self._is_by_token()
        given = "advantages" in names and not by_token
        scores = {
            "rewards": self._scores("rewards") if "rewards" in names else None,
            "advantages": self._scores("advantages") if given else None,
            "token_advantages": self._kept("advantages", mask) if by_token else None,
        }
        groups = grouped(self._groups(), self.counts)
        made = batch_of(self.counts, self.widths, mask, columns, scores, groups)
        if made is None:
            raise Unusual
        return made

    def column(self, name: str) -> Any:
        """A column under its canonical name."""
        key = self.fields.names[name]
        if canonical_name(key) != name and self._single:
            raise Unusual  # by such a name it is not known for a column of one response
        found = self.rows.batch.column(self.rows.batch.schema.get_field_index(key))
        return found.storage if isinstance(found, self._pa.ExtensionArray) else found

    def _is_by_token(self) -> bool:
        """Whether each token has an advantage; of one response a list may mean either."""
        levels = depth(self._pa, self.column("advantages").type)
        if levels and self._single:
            raise Unusual
        return levels == 2

    @cached_property
    def _outer(self) -> tuple[I64, Any]:
        """[M] the responses of each record, and the column of their tokens."""
        column = self.column("log_probs_new")
        if self._single:
            bounds = self.rows.bounds
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

    def _kept(self, name: str, mask: Mask | None) -> F64:
        """The numbers of a token column that count."""
        flat = self._tokens(name)
        if not self._are_numbers(flat.type):
            raise Unusual
        numbers: F64 = flat.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
        return numbers if mask is None else numbers[mask]  # a null is NaN in it

    def _are_numbers(self, kind: Any) -> bool:
        types = self._pa.types
        return bool(types.is_floating(kind) or types.is_integer(kind))

    def _mask(self) -> Mask | None:
        flat = self._tokens("mask")
        known = self._are_numbers(flat.type) or self._pa.types.is_boolean(flat.type)
        if flat.null_count or not known:
            raise Unusual
        bits = flat.to_numpy(zero_copy_only=False)
        mask: Mask = bits != 0
        if not (mask == bits).all():
            raise Unusual
        return None if mask.all() else mask

    def _scores(self, name: str) -> F64:
        """[R] one number per response."""
        column = self.column(name)
        if not self._single:
            counts, column = self._lists(column)
            self._must_equal(counts, self.counts)
        if column.null_count or not self._are_numbers(column.type):
            raise Unusual
        found: F64 = column.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
        return found

    def _check_words(self) -> None:
        types = self._pa.types
        for name in ("tokens", "token_ids"):
            if name in self.fields.names:
                flat = self._tokens(name)
                text = types.is_string(flat.type) or types.is_large_string(flat.type)
                fits = text if name == "tokens" else types.is_integer(flat.type)
                if flat.null_count or not fits:
                    raise Unusual

    # ---- groups -------------------------------------------------------------------------------

    @cached_property
    def labels(self) -> Any:
        """[R] what the responses' groups are called; None where they say nothing of it."""
        if "group_ids" not in self.fields.names:
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

    def _groups(self) -> list[list[int] | None]:
        """For each record the dense numbers of its responses' groups; None for a single one."""
        count = len(self.counts)
        if self.labels is None or len(self.labels) == count:
            return [None] * count
        labels = self.labels.to_numpy(zero_copy_only=False)
        records = Segments(self.counts)
        if np.array_equal(labels, records.spread(labels[records.starts])):
            return [None] * count
        if self.rows.bounds is not None and not self.rows.kind.by:
            raise Unusual  # rows that are a group by their number alone
        return [numbered(part) for part in self.by_record(labels.tolist())]

    def by_record(self, values: list[Any]) -> Iterator[list[Any]]:
        """[R] of something, cut into records."""
        ends = np.cumsum(self.counts).tolist()
        return (values[begin:end] for begin, end in pairwise([0, *ends]))


def columns_of(stretch: Stretch) -> Columns | None:
    """The columns of a stretch; None where its rows have to be looked at one by one."""
    try:
        return Columns(package(), stretch)
    except Unusual:
        return None


def _objects(batch: Any) -> list[dict[str, Any]]:
    """What each row has in its column of JSON."""
    texts = batch.column(batch.schema.get_field_index(JSON))
    try:
        return [{} if text is None else as_json(text) for text in texts.to_pylist()]
    except (InputError, ValueError):
        raise Unusual from None


def _in_common(objects: list[dict[str, Any]], columns: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that all objects have; an id of its own, and hyperparameters that are the same."""
    first = objects[0]
    if any(one.keys() != first.keys() for one in objects[1:]) or first.keys() & columns.keys():
        raise Unusual
    for key in first:
        name = canonical_name(key)
        if key in KNOWN or name == "hyperparameters":
            wanted = repr(first[key])  # True is not 1, nor 1.0
            if any(repr(one[key]) != wanted for one in objects):
                raise Unusual
        elif name not in (None, "id") or key in (ACTION, GROUPS):
            raise Unusual
        if name is not None and any(one[key] is None for one in objects):
            raise Unusual
    return first
