"""The extra ``fast``: the numbers of plain records from text into buffers, with no list in between.

simdjson decodes a line and hands out each column as float64 bytes. What is served has the bits that
``orjson`` and ``fast.pack`` give; whatever is unusual, every fault included, is left to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from grpo_cli.errors import InputError
from grpo_cli.records.fast import LOG_PROBS, Packed, Unusual, numbered
from grpo_cli.records.fields import GROUPS, MASKS, read_fields
from grpo_cli.records.formats import candidates

_LONGEST = 1 << 26
"""Bytes of a line; the decoder's memory grows with it."""
_DEEPEST = 500
"""Brackets of a kind in what is not read; orjson and simdjson give up at about 1,000, each its own
way."""
_PATIENCE = 63
"""Chunks at most that pass after one that could not be served."""


class Served(NamedTuple):
    """Records that were packed as they were decoded.

    Attributes:
        keys: those of the first; the others have the same.
        packed: their columns.
        shown: of each record, what a report shows beside its numbers, by the record's own keys.
    """

    keys: tuple[str, ...]
    packed: Packed
    shown: list[dict[str, Any]]


class _Plan(NamedTuple):
    """What is taken from records with the same keys, all by the keys as written.

    Attributes:
        names: canonical name → as written.
        columns: of the token columns: the name, the key, the kind of its numbers; log_probs_new
            is the first.
        scores: of numbers of responses: the name and the key.
        unread: what is not looked at.
    """

    names: dict[str, str]
    columns: tuple[tuple[str, str, str], ...]
    scores: tuple[tuple[str, str], ...]
    unread: tuple[str, ...]


_KINDS = {**dict.fromkeys(LOG_PROBS, "d"), "mask": "i", "token_ids": "i"}
_SCORES = ("rewards", "advantages")


@lru_cache(maxsize=256)
def _plan(keys: tuple[str, ...]) -> _Plan:
    """What to take from records with these keys.

    Raises:
        Unusual: where one of them is not served.
    """
    both_masks = MASKS[0] in keys and MASKS[1] in keys
    if len(set(keys)) < len(keys) or GROUPS in keys or both_masks or candidates(keys):
        raise Unusual
    try:
        fields = read_fields(dict.fromkeys(keys, 0))
    except InputError:
        raise Unusual from None
    names = {name: key for name, key in fields.names.items() if name != "expected"}
    if fields.hyperparameters or "log_probs_new" not in names:
        raise Unusual
    if not names.keys() <= {*_KINDS, *_SCORES, "group_ids", "id"}:
        raise Unusual
    return _Plan(
        names,
        tuple((name, names[name], kind) for name, kind in _KINDS.items() if name in names),
        tuple((name, names[name]) for name in _SCORES if name in names),
        tuple(key for key in keys if key not in names.values()),
    )


class _Table:
    """The records of a chunk, column by column, while they are decoded."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self.keys = keys
        self.plan = plan = _plan(keys)
        self.counts: list[int] = []
        self.widths: list[int] = []
        self.parts: dict[str, list[Any]] = {name: [] for name, *_ in (*plan.columns, *plan.scores)}
        self.groups: list[list[int] | None] = []
        self.shown: list[dict[str, Any]] = []
        self._other_brackets = 0

    def add(self, record: Any) -> None:
        """Takes what it wants from a decoded object, none of which may live on."""
        plan, parts = self.plan, self.parts
        if len(record) != len(self.keys):
            raise Unusual
        widths: list[int] = []
        for name, key, kind in plan.columns:
            rows = record[key]
            lengths = list(map(len, rows))
            widths = widths or lengths
            if lengths != widths or not lengths:
                raise Unusual
            parts[name].append(rows.as_buffer(of_type=kind))
        for name, key in plan.scores:
            row = record[key]
            if len(row) != len(widths):
                raise Unusual
            parts[name].append(row.as_buffer(of_type="d"))
        self.counts.append(len(widths))
        self.widths += widths
        self.shown.append(self._read_words(record, len(widths)))
        for key in plan.unread:
            self._other_brackets += _brackets(record[key])

    def _read_words(self, record: Any, count: int) -> dict[str, Any]:
        names, shown = self.plan.names, {}
        labels = None
        if "id" in names:
            shown["id"] = record["id"]
            if not isinstance(shown["id"], str | int | float):
                raise Unusual
            self._other_brackets += _brackets(shown["id"])
        if "group_ids" in names:
            labels = shown[names["group_ids"]] = record[names["group_ids"]].as_list()
            if len(labels) != count or not set(map(type, labels)) <= {str, int}:
                raise Unusual
            self._other_brackets += 1 + sum(map(_brackets, labels))
        self.groups.append(None if labels is None else numbered(labels))
        return shown

    @property
    def brackets(self) -> int:
        """How many opening brackets the text has, if no list is in another where none should be."""
        plan, records = self.plan, len(self.counts)
        nested = len(plan.columns) * (records + sum(self.counts))
        in_keys = sum(key.count("[") for key in self.keys)
        return nested + records * (len(plan.scores) + in_keys) + self._other_brackets

    def packed(self) -> Packed:
        """The columns."""
        tokens, responses = sum(self.widths), sum(self.counts)
        sizes = {name: tokens for name, *_ in self.plan.columns}
        sizes |= {name: responses for name, _ in self.plan.scores}
        data: dict[str, Any] = {name: b"".join(parts) for name, parts in self.parts.items()}
        if any(len(data[name]) != 8 * size for name, size in sizes.items()):
            raise Unusual
        return Packed(
            counts=self.counts,
            widths=self.widths,
            columns={name: data[name] for name in LOG_PROBS if name in data},
            mask=_mask(data["mask"]) if "mask" in data else None,
            rewards=data.get("rewards"),
            advantages=data.get("advantages"),
            token_advantages=None,
            groups=self.groups,
        )


def _brackets(value: Any) -> int:
    """Opening brackets in the text of a value."""
    if isinstance(value, str):
        return value.count("[")
    if value is None or isinstance(value, int | float):
        return 0
    text: bytes = value.mini
    count = text.count(b"[")
    if count > _DEEPEST or text.count(b"{") > _DEEPEST:
        raise Unusual
    return count


def _mask(data: bytes) -> bytes | None:
    bits = np.frombuffer(data, dtype=np.int64)
    if (bits >> 1).any():
        raise Unusual
    mask = bits.astype(np.uint8).tobytes()
    return mask if b"\0" in mask else None


_REFUSED = (
    Unusual,
    AttributeError,  # of a number or a string that should be a list
    LookupError,
    MemoryError,
    RuntimeError,  # an integer of more than 64 bits
    TypeError,
    ValueError,
)


class Decoder:
    """Decodes lines chunk by chunk; tries less and less often while that is in vain.

    Args:
        parser: makes a parser of simdjson.
    """

    def __init__(self, parser: Callable[[], Any]) -> None:
        self._make = parser
        self._parser = parser()
        self._pause = self._next_pause = 0

    def served(self, texts: Sequence[bytes]) -> Served | None:
        """The records of lines; None where one of them has to be looked at by others."""
        if self._pause:
            self._pause -= 1
            return None
        try:
            served = self._serve(texts)
        except _REFUSED:
            self._parser = self._make()  # what failed may still hold on to the old one
            self._pause = self._next_pause
            self._next_pause = min(2 * self._next_pause + 1, _PATIENCE)
            return None
        self._next_pause = 0
        return served

    def _serve(self, texts: Sequence[bytes]) -> Served:
        table: _Table | None = None
        for text in texts:
            if not text.startswith(b"{") or len(text) > _LONGEST:
                raise Unusual  # simdjson would skip a byte order mark
            table = self._add(table, text)
        if table is None:
            raise Unusual
        _check(texts[0] if len(texts) == 1 else b"".join(texts), table.brackets)
        return Served(table.keys, table.packed(), table.shown)

    def _add(self, table: _Table | None, text: bytes) -> _Table:
        record = self._parser.parse(text)
        table = _Table(tuple(record)) if table is None else table
        table.add(record)
        return table


def _check(text: bytes, brackets: int) -> None:
    """Refuses lists in lists, which buffers do not show, and what two decoders may read unlike."""
    if np.count_nonzero(np.frombuffer(text, dtype=np.uint8) == ord("[")) != brackets:
        raise Unusual
    if b"\\" in text and b"\\u" in text:
        raise Unusual


@cache
def decoder() -> Decoder | None:
    """This process's; None where the extra is not installed."""
    try:
        import simdjson
    except ImportError:
        return None
    return Decoder(simdjson.Parser)
