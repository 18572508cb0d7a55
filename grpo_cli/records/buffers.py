"""The extra ``fast``: the numbers of plain records from text into buffers, with no list in between.

simdjson decodes a line and hands out each column as float64 bytes. What is served has the bits that
``orjson`` and ``fast.pack`` give; whatever is unusual, every fault included, is left to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from grpo_cli.errors import InputError
from grpo_cli.records.fast import LOG_PROBS, Packed, Unusual, numbered
from grpo_cli.records.fields import GROUPS, MASKS, read_fields
from grpo_cli.records.formats import candidates

Beside = Callable[[str], bool]
"""Whether what stands under a key is wanted beside the numbers."""

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
        shown: key → of each record, what a report shows beside its numbers.
    """

    keys: tuple[str, ...]
    packed: Packed
    shown: dict[str, Sequence[Any]]


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
_IDS = {str, int, float, bool}


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

    def __init__(self, keys: tuple[str, ...], beside: Beside | None) -> None:
        self.keys = keys
        self.plan = plan = _plan(keys)
        self.counts: list[int] = []
        self.widths: list[int] = []
        self.parts: dict[str, list[Any]] = {name: [] for name, *_ in (*plan.columns, *plan.scores)}
        self._columns = [(key, kind, self.parts[name].append) for name, key, kind in plan.columns]
        self._scores = [(key, self.parts[name].append) for name, key in plan.scores]
        self.ids: list[Any] = []
        self.labels: list[list[Any]] = []
        self._beside = beside
        self.said: dict[str, list[Any]] = {
            key: [] for key in plan.unread if beside is not None and beside(key)
        }
        self._in_unread = 0

    def add(self, record: Any) -> None:
        """Takes what it wants from a decoded object, none of which may live on."""
        if len(record) != len(self.keys):
            raise Unusual
        widths: list[int] | None = None
        for key, kind, append in self._columns:
            rows = record[key]
            lengths = list(map(len, rows))
            if widths is None:
                widths = lengths
            elif lengths != widths:
                raise Unusual
            append(rows.as_buffer(of_type=kind))
        assert widths is not None
        count = len(widths)
        for key, append in self._scores:
            row = record[key]
            if len(row) != count:
                raise Unusual
            append(row.as_buffer(of_type="d"))
        self.counts.append(count)
        self.widths += widths
        self._add_words(record)

    def _add_words(self, record: Any) -> None:
        plan = self.plan
        if "id" in plan.names:
            self.ids.append(record["id"])
        if "group_ids" in plan.names:
            self.labels.append(record[plan.names["group_ids"]].as_list())
        for key in plan.unread:
            value = record[key]
            self._in_unread += _brackets(value)
            if key in self.said:
                self.said[key].append(_apart(value))

    def check_words(self) -> None:
        """Refuses ids and labels that are no such thing."""
        labels = list(chain.from_iterable(self.labels))
        known = set(map(type, self.ids)) <= _IDS and set(map(type, labels)) <= {str, int}
        if not known or (self.labels and list(map(len, self.labels)) != self.counts):
            raise Unusual
        self._in_unread += len(self.labels) + sum(map(_brackets, chain(self.ids, labels)))

    @property
    def shown(self) -> dict[str, Sequence[Any]]:
        """What a report shows beside numbers."""
        found: dict[str, Sequence[Any]] = {"id": self.ids} if self.ids else {}
        found |= {self.plan.names["group_ids"]: self.labels} if self.labels else {}
        if self._beside is not None and "token_ids" in self.plan.names:
            found[self.plan.names["token_ids"]] = [*self._first_ids()]
        return found | self.said

    def _first_ids(self) -> Iterator[list[list[int]]]:
        """The token ids of each record's first response."""
        at = 0
        for data, count in zip(self.parts["token_ids"], self.counts, strict=True):
            yield [np.frombuffer(data, np.int64, self.widths[at]).tolist()]
            at += count

    @property
    def brackets(self) -> int:
        """How many opening brackets the text has, if no list is in another where none should be."""
        plan, records = self.plan, len(self.counts)
        nested = len(plan.columns) * (records + sum(self.counts))
        in_keys = sum(key.count("[") for key in self.keys)
        return nested + records * (len(plan.scores) + in_keys) + self._in_unread

    def packed(self) -> Packed:
        """The columns."""
        if not all(self.counts):
            raise Unusual
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
            groups=list(map(numbered, self.labels)) or [None] * len(self.counts),
        )


def _apart(value: Any) -> Any:
    """A value that holds on to nothing of what it was decoded from."""
    if value is None or isinstance(value, str | int | float):
        return value
    return value.as_dict() if hasattr(value, "as_dict") else value.as_list()


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

    def served(self, texts: Sequence[bytes], beside: Beside | None = None) -> Served | None:
        """The records of lines; None where one of them has to be looked at by others.

        Args:
            texts: the lines.
            beside: which values that no objective reads are shown as well; the token ids of each
                record's first response are then, too.
        """
        if self._pause:
            self._pause -= 1
            return None
        try:
            served = self._serve(texts, beside)
        except _REFUSED:
            self._parser = self._make()  # what failed may still hold on to the old one
            self._pause = self._next_pause
            self._next_pause = min(2 * self._next_pause + 1, _PATIENCE)
            return None
        self._next_pause = 0
        return served

    def _serve(self, texts: Sequence[bytes], beside: Beside | None) -> Served:
        table: _Table | None = None
        for text in texts:
            if not text.startswith(b"{") or len(text) > _LONGEST:
                raise Unusual  # simdjson would skip a byte order mark
            table = self._add(table, text, beside)
        if table is None:
            raise Unusual
        table.check_words()
        _check(texts[0] if len(texts) == 1 else b"".join(texts), table.brackets)
        return Served(table.keys, table.packed(), table.shown)

    def _add(self, table: _Table | None, text: bytes, beside: Beside | None) -> _Table:
        record = self._parser.parse(text)
        table = _Table(tuple(record), beside) if table is None else table
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
