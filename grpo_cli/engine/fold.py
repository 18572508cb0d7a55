"""One fold, wherever it runs: pieces of the input → what each comes to → all of it merged.

A command says what a piece comes to (a function of its records) and how the results of pieces that
follow each other merge. Whether this process does it, others, or a cluster, is the reader's
business (``Reader.map``). What needs statistics of the whole input is a fold before the fold.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pickle import PickleBuffer
from typing import Any, Generic, NamedTuple, TypeVar

from grpo_cli.errors import InputError
from grpo_cli.records import DecodedChunk, Piece, Raw, Reading
from grpo_cli.records.choose.batches import steps_in
from grpo_cli.records.fields import fields_of, read_fields
from grpo_cli.records.translate import Notices
from grpo_cli.records.unread import Unread, candidates, look
from grpo_cli.variants.trainer import named_row

_LARGE = 1 << 16  # bytes of a text that are worth a call of the system


class Pieces(list[Any]):
    """Output in order, whose large texts go to another process from where they lie in memory."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _pieces, ([_lying(one) if protocol >= 5 else one for one in self],)


def _lying(piece: Any) -> Any:
    large = isinstance(piece, bytes) and len(piece) >= _LARGE
    return PickleBuffer(piece) if large else piece


def _pieces(received: list[Any]) -> Pieces:
    """Pieces of what came, which some engines hand over as views of their own memory."""
    return Pieces(bytes(one) if isinstance(one, memoryview) else one for one in received)


@dataclass
class Told:
    """What there is to tell of some input once.

    Attributes:
        notices: sentences, and the line that first gave rise to each.
        named: the row that its first object names, "" for none; None where it has no object.
        steps: a field that says steps → the steps of the records.
        unread: the keys that hold a column which nothing reads.
        group_key: the key under which that object says its group, "" for none.
    """

    notices: Notices = field(default_factory=dict)
    named: str | None = None
    steps: dict[str, set[Any]] = field(default_factory=dict)
    unread: Unread = field(default_factory=Unread)
    group_key: str = ""

    def merge(self, later: Told) -> None:
        """Adds what there is to tell of the input that follows."""
        self.notices |= later.notices
        self._add_steps(later.steps)
        self.unread.merge(later.unread)
        if self.named is None:
            self.named, self.group_key = later.named, later.group_key

    def stop(self, line: int | None, path: str = "") -> None:
        """Forgets what lies behind a line, at which work on one file stopped.

        Args:
            line: the line; None in a document.
            path: what the error there says the place of.
        """
        if line is not None:
            behind = [said for said, at in self.notices.items() if at is not None and at > line]
            for said in behind:
                del self.notices[said]
        self.unread.stop(line, path)

    @property
    def sentences(self) -> Notices:
        """All of them: the notices, and one on the keys that nothing reads."""
        return self.notices | self.unread.note()

    def heard(
        self, decoded: Iterable[DecodedChunk], used: Container[str] = ()
    ) -> Iterator[DecodedChunk]:
        """The same objects; what the first of them, and of each set of keys, says is kept.

        Args:
            decoded: objects in order.
            used: keys that flags read.
        """
        for few in decoded:
            if self.named is None:
                self.named, self.group_key = _named(few), _group_key(few)
            self._add_unread(few, used)
            self._add_steps(steps_in(few))
            yield few

    def _add_steps(self, found: Mapping[str, set[Any]]) -> None:
        for name, steps in found.items():
            self.steps.setdefault(name, set()).update(steps)

    def _add_unread(self, few: DecodedChunk, used: Container[str]) -> None:
        if few.columns is not None:
            keys = few.columns.keys
            if _unread(keys) and not self.unread.has(keys):
                self._look(keys, few.columns.first_row(), used)
        elif few.keys is not None:
            if _unread(few.keys) and not self.unread.has(few.keys):
                self._look(few.keys, few.items[0], used)
        else:
            for raw in few.items:
                if isinstance(raw, Raw) and isinstance(raw.row, dict):
                    keys = tuple(raw.row)
                    if _unread(keys) and not self.unread.has(keys):
                        self._look(keys, raw, used)

    def _look(
        self, keys: tuple[str, ...], raw: Raw | InputError | None, used: Container[str]
    ) -> None:
        if not isinstance(raw, Raw):
            return
        try:
            fields = read_fields(raw.row)
        except InputError:
            return  # told where it is read
        unread = [key for key in candidates(fields.unknown) if key not in used]
        found = look(raw.row, fields.names, unread, fields.misnamed, raw.line)
        self.unread.add(keys, found)


def _unread(keys: tuple[str, ...]) -> bool:
    """Whether there are any that no part reads."""
    fields = fields_of(keys)
    return fields is not None and bool(candidates(fields.unknown))


def _named(few: DecodedChunk) -> str:
    if few.keys is not None and "framework" not in few.keys:
        return ""
    first = few.items[0]
    return (named_row(first.value) if isinstance(first, Raw) else None) or ""


def _group_key(few: DecodedChunk) -> str:
    if few.keys is not None:
        fields = fields_of(few.keys)
        return "" if fields is None else fields.names.get("group_ids", "")
    value = getattr(few.items[0], "value", None)
    if not isinstance(value, dict):
        return ""
    try:
        return read_fields(value).names.get("group_ids", "")
    except InputError:
        return ""


T = TypeVar("T")


class Bundle(NamedTuple):
    """Small pieces that follow each other, to be worked on as one."""

    pieces: tuple[Piece, ...]

    @property
    def source(self) -> str:
        """The file of the first."""
        return self.pieces[0].source

    @property
    def line(self) -> int:
        """The 1-based number of its first line."""
        return self.pieces[0].line

    @property
    def size(self) -> int:
        """Bytes of all."""
        return sum(piece.size for piece in self.pieces)


def bundled(pieces: Iterable[Piece], size: int) -> Iterator[Bundle]:
    """The pieces, small ones together: so many as have half of ``size`` bytes."""
    waiting: list[Piece] = []
    room = size // 2
    for piece in pieces:
        waiting.append(piece)
        room -= piece.size
        if room <= 0:
            yield Bundle(tuple(waiting))
            waiting, room = [], size // 2
    if waiting:
        yield Bundle(tuple(waiting))


@dataclass(frozen=True)
class OnPiece(Generic[T]):
    """What is done with each piece, as a function that travels between processes."""

    work: Callable[[Iterable[DecodedChunk]], T]
    reading: Reading
    by_columns: bool

    def __call__(self, piece: Piece | Bundle) -> tuple[T, Told]:
        """What a piece comes to, and what is to be told of it once."""
        return self.all_of(piece.pieces if isinstance(piece, Bundle) else (piece,))

    def all_of(self, pieces: Iterable[Piece]) -> tuple[T, Told]:
        """What pieces that follow each other come to as one."""
        told = Told()
        decoded = (
            self.reading.decoded(piece, told.notices, by_columns=self.by_columns)
            for piece in pieces
        )
        result = self.work(told.heard(chain.from_iterable(decoded), self.reading.fields))
        if (error := getattr(result, "error", None)) is not None:  # an evaluation's
            told.stop(error.line, error.path)
        return result, told
