"""How files are read: in which format, under which names, which rows, and which go together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, islice, repeat
from typing import Any

from grpo_cli.errors import InputError, Listing
from grpo_cli.records.choose import where
from grpo_cli.records.choose.grouping import (
    Grouping,
    Items,
    batch_of,
    cut_between_groups,
    group_rows,
    merge_groups,
    split_block,
)
from grpo_cli.records.choose.where import Condition, Missing, Path, hashable, look_up, spelled
from grpo_cli.records.formats.texts import NoLogProbsError
from grpo_cli.records.formats.unipo import header_of, with_header
from grpo_cli.records.objects import decode, decoded
from grpo_cli.records.open.blocks import Block, Range, Source, Span, cut, first_line, ranges, spans
from grpo_cli.records.open.remote import is_remote
from grpo_cli.records.open.streams import BLOCK, is_whole
from grpo_cli.records.record import (
    DecodedChunk,
    Decoding,
    Raw,
    always,
    in_chunks,
    one_by_one,
    only_element,
)
from grpo_cli.records.tables import pieces as tables
from grpo_cli.records.tables.files import Rows
from grpo_cli.records.translate import Mapped, Notices, format_of, translated, worth_a_look

Piece = Block | Span | Rows

_NAMING = (b'"id"', b'"custom_id"', b'"prompts"')
"""Keys that records have their ids from, in any format."""


@dataclass(frozen=True)
class Reading:
    """How the bytes of files become records. It travels between processes.

    Attributes:
        format: the only format that objects may be of; None: recognised by their content.
        mapped: canonical name → the place that is read instead.
        where: what an object must hold to be read.
        grouping: how rows of one response go together; None: an object is a record.
        record: the id or number of the only record that is read.
        group: the id of the only group that is read.
        batch: the fields that say which batch a record belongs to, where ``--batch`` names some.
        unpack: bytes that a packed file may unpack to; None: by its size.
        decoding: decodes lines, and parts of binary files.
    """

    format: str | None = None
    mapped: Mapped = ()
    where: tuple[Condition, ...] = ()
    grouping: Grouping | None = None
    record: str | None = None
    group: str | None = None
    batch: tuple[Path, ...] = ()
    unpack: int | None = field(default=None, compare=False)
    decoding: Decoding = field(default=always, compare=False)

    @property
    def selects(self) -> bool:
        """Whether it may leave records out."""
        return bool(self.where or self.record is not None or self.group is not None)

    def pieces(
        self, source: str | Source, size: int = BLOCK, *, as_spans: bool = False
    ) -> Iterator[Piece]:
        """Cuts a file into pieces that can be read in any process."""
        source = Source.of(source) if isinstance(source, str) else source
        rows = tables.slices(source, whole=self.grouping is not None, most=self.unpack)
        if rows is not None:
            return rows
        if self.grouping is not None:
            return self._groups(source, size)
        small = is_whole(source.head) and len(source.head) <= size
        if as_spans and not small and not is_remote(source.path):
            first = first_line(source)
            if first is not None and not header_of(first):
                return spans(source, size)
        return with_header(cut(source, size, self.unpack))

    def ranges(self, source: Source, size: int) -> list[Range] | list[Rows] | None:
        """Cuts a file for workers that read it from anywhere; None where it cannot be cut."""
        if self.grouping is not None:
            return None
        rows = tables.slices(source, whole=False, most=self.unpack)
        if rows is not None:
            return list(rows)
        first = first_line(source)
        return None if first is None or header_of(first) else ranges(source, size)

    @property
    def fields(self) -> frozenset[str]:
        """The fields that it names itself: those of --where, --group-by and --map."""
        paths = [path for _, path in self.mapped]
        paths += [*self._by, *chain.from_iterable(one.paths for one in self.where)]
        return frozenset(str(path[0]) for path in paths)

    def decoded(self, piece: Piece, notices: Notices) -> Iterator[DecodedChunk]:
        """The records of a piece; an error in the place of one that cannot be read."""
        if self != PLAIN or isinstance(piece, Rows):
            return in_chunks(self._chosen(piece, notices))
        return self._canonical(decoded(piece, None, self.decoding), notices)

    def _canonical(
        self, chunks: Iterable[DecodedChunk], notices: Notices
    ) -> Iterator[DecodedChunk]:
        """Records under canonical names: as they are, where their keys say that they are so."""
        for chunk in chunks:
            if _is_canonical(chunk, notices):
                yield chunk
            else:
                yield from in_chunks(translated(chunk.items, None, (), notices))

    def raws(self, piece: Piece, notices: Notices) -> Items:
        """The records of a piece, one by one."""
        return one_by_one(self.decoded(piece, notices))

    def _chosen(self, piece: Piece, notices: Notices) -> Items:
        if self.grouping is not None and isinstance(piece, Block) and piece.groups is not None:
            groups = split_block(
                piece, lambda one: self._read(decoded(one, None, self.decoding), notices)
            )
            return self._selected(merge_groups(groups, self.grouping, piece.source))
        if isinstance(piece, Rows):
            return self.made_of(tables.decoded(piece, self.decoding), piece.source, notices)
        by_text = bool(self.where) or (self.record is not None and self.grouping is None)
        chunks = decoded(piece, self._is_wanted if by_text else None, self.decoding)
        return self.made_of(chunks, piece.source, notices)

    def made_of(self, chunks: Iterable[DecodedChunk], source: str, notices: Notices) -> Items:
        """The records that objects of a source are."""
        found = self._read(chunks, notices)
        if self.grouping is not None:
            rows = ((one.line, one) for one in found)
            groups = group_rows(rows, lambda one: getattr(one, "key", None), self.grouping)
            found = merge_groups(groups, self.grouping, source)
        return self._selected(found)

    def nothing(self, beginning: Iterable[Raw | InputError]) -> InputError:
        """The error where no record is left; ``beginning``: the first objects of the input."""
        if not self.selects:
            return InputError("no records: only headers or empty tables")
        flags = ["--where"] if self.where else []
        flags += [f"--record {self.record}"] if self.record is not None else []
        flags += [f"--group {self.group}"] if self.group is not None else []
        items = iter(beginning)
        first = [*islice(items, where.LOOKED_AT)]
        raws = [raw for raw in first if isinstance(raw, Raw)]
        if where.ASKED in self.where and raws:
            raise Listing(where.fields_of(raws))
        rest = 0 if self.record is None else sum(1 for _ in islice(items, where.COUNTED))
        count = len(first) + rest if rest < where.COUNTED else None
        there = where.hint(raws, self.where, self.record, self.group, count)
        return InputError(f"no record matches {' and '.join(flags)}{there}")

    @property
    def everything(self) -> Reading:
        """This reading without ``--where``, ``--record`` and ``--group``."""
        return replace(self, where=(), record=None, group=None)

    def _is_wanted(self, text: bytes, line: int) -> bool:
        """False for a line that its text rules out."""
        if self.where and where.refuted(self.where, text):
            return False
        if self.record is None or self.grouping is not None or b"\\u" in text:
            return True
        return any(key in text for key in _NAMING) or str(line - 1) == self.record

    def _read(self, chunks: Iterable[DecodedChunk], notices: Notices) -> Items:
        as_they_are = not (self.format or self.mapped or self.batch)
        for chunk in chunks:
            if as_they_are and _is_canonical(chunk, notices) and self._give_keys(chunk):
                raws: Any = chunk.items  # no error has keys
                passing = (raw for raw in raws if where.passes(self.where, raw.value))
                yield from passing if self.where else raws
            elif self.where or self.grouping is not None or self.batch:
                for raw in chunk.items:
                    yield from self._read_one(raw, notices)
            else:
                yield from translated(chunk.items, self.format, self.mapped, notices)

    def _read_one(self, raw: Raw | InputError, notices: Notices) -> Items:
        many = False
        if self.where and isinstance(raw, Raw) and isinstance(raw.value, dict):
            found = format_of(raw.plain(), None)
            many = found is not None and found.many
        if isinstance(raw, Raw) and not many and not where.passes(self.where, raw.value):
            return
        for one in translated((raw,), self.format, self.mapped, notices):
            if isinstance(raw, Raw) and isinstance(one, Raw | NoLogProbsError):
                if many and isinstance(one, Raw) and not where.passes(self.where, one.value):
                    continue
                try:
                    one.key = self._key(raw, one if isinstance(one, Raw) else raw)
                    if isinstance(one, Raw):
                        one.batch = batch_of(raw, one, self.batch) if self.batch else None
                except InputError as error:
                    yield error
                    continue
            yield one

    def _groups(self, source: Source, size: int) -> Iterator[Block]:
        """Blocks that end where a group ends."""
        assert self.grouping is not None
        blocks = with_header(cut(source, size, self.unpack))
        first = next(blocks)
        if first.document:
            yield first
            return
        if self._holds_groups(first):
            texts = list(chain(first.lines, chain.from_iterable(one.lines for one in blocks)))
            yield Block(source.name, first.line, texts)
            return
        lines = (line for block in chain((first,), blocks) for line in self._numbered(block))
        groups = group_rows(lines, lambda line: self._key_of_text(line[1]), self.grouping)
        yield from cut_between_groups(source.name, groups, size)

    def _holds_groups(self, block: Block) -> bool:
        """Whether a line holds records of several groups: the groups are no lines, then."""
        for _, (_, text) in self._numbered(block):
            with suppress(InputError):
                made = self._in_line(text)
                return len({one.key for one in made if isinstance(one, Raw)}) > 1
        return False

    def _in_line(self, text: bytes) -> Items:
        return self._read_one(Raw(decode(text), "", None, "", 0), {})

    def _numbered(self, block: Block) -> Iterator[tuple[int, tuple[int, bytes]]]:
        """The lines that are read, each with its number."""
        for number, text in enumerate(block.lines, block.line):
            if not text or text.isspace() or (self.where and not self._is_wanted(text, number)):
                continue
            with suppress(InputError):  # which is reported where the line is read
                if self.where and not where.passes(self.where, decode(text)):
                    continue
            yield number, (number, text)

    def _key_of_text(self, text: bytes) -> Any:
        """The key of a line's group, without decoding it where that can be; None if it has none."""
        assert self.grouping is not None
        try:
            parts = [where.scalars(text, path) for path in self.grouping.by]
        except ValueError:
            parts = []
        if parts and all(len(one) == 1 for one in parts):
            return tuple(hashable(one[0]) for one in parts)
        with suppress(InputError):
            return getattr(next(self._in_line(text), None), "key", None)
        return None

    def _give_keys(self, chunk: DecodedChunk) -> bool:
        """Gives rows of the same keys what they are grouped by; False where that may be missing."""
        names = [path[0] for path in self._by]
        if any(len(path) > 1 for path in self._by) or not {*names} <= {*(chunk.keys or ())}:
            return False
        raws: Any = chunk.items if self.grouping is not None else ()  # no error has keys
        columns = [[raw.value[name] for raw in raws] for name in names]
        if raws and raws[0].arrays:
            columns = [[*map(only_element, cells)] for cells in columns]
        if not all({*map(type, cells)} <= {str, int} for cells in columns):
            return False
        keys = zip(*columns, strict=True) if columns else repeat((), len(raws))
        for raw, key in zip(raws, keys, strict=True):
            raw.key = key
        return True

    def _key(self, raw: Raw, made: Raw) -> Any:
        """The key in the object as written, or as translated; None if there is none."""
        for value in (raw.value, made.value):
            try:
                found = [look_up(value, path) for path in self._by]
                return tuple([hashable(only_element(one) if raw.arrays else one) for one in found])
            except Missing:
                continue
            except InputError as error:
                error.source, error.line = raw.source, raw.line
                error.path = raw.prefix + ",".join(map(spelled, self._by))
                raise
        return None

    @property
    def _by(self) -> tuple[Path, ...]:
        return () if self.grouping is None else self.grouping.by

    def _selected(self, found: Items) -> Items:
        return found if self.record is None and self.group is None else self._only(found)

    def _only(self, found: Items) -> Items:
        for raw in found:
            if isinstance(raw, InputError) or not isinstance(raw.value, dict):
                yield raw
                continue
            if self.record is not None and not where.is_record(raw, self.record):
                continue
            if self.group is None:
                yield raw
                continue
            try:
                value = where.only_group(raw.plain(), self.group)
            except InputError:
                yield raw  # parsing says what is wrong with it
                continue
            if value is raw.value:
                yield raw
            elif value is not None:
                yield replace(raw, kept=value, again=None, arrays=False)


def _is_canonical(chunk: DecodedChunk, notices: Notices) -> bool:
    """Whether all of a chunk are records under canonical names, as their common keys say."""
    if chunk.keys is None:
        return False
    raws = [one for one in chunk.items if isinstance(one, Raw)]
    return len(raws) == len(chunk.items) and not worth_a_look(raws, notices)


PLAIN = Reading()
"""Files as they are."""
