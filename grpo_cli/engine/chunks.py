"""Cuts a stream of records into stretches that can be evaluated together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, groupby
from typing import Any

from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import Value
from grpo_cli.records import Handful, Packed, Raw, Record, headers, layout, pack
from grpo_cli.records.fields import GROUPS, Fields, read_fields
from grpo_cli.records.parse.settings import read_settings

CHUNK_BYTES = 1 << 22
"""Text evaluated together, some 65,000 tokens of three columns: enough that numpy's overhead is
small, few enough that memory is."""
CHUNK_TOKENS = 16_384
CHUNK_PRINTED = 4096
"""Records whose rows are made together: a row takes some kilobytes until it is text."""

Shared = tuple[Fields, Mapping[str, Value]]


@dataclass(slots=True)
class Stretch:
    """Decoded records that follow each other with the same keys and hyperparameters.

    Attributes:
        raws: the records; those that were packed have no value any more.
        shared: what their keys mean, and their hyperparameters; None where nobody knows.
        packed: their columns, piece by piece; None where they are unusual or faulty.
        headers: what a report shows of them beside their numbers; empty where none is wanted.
        size: about how many bytes of text they were.
    """

    raws: list[Raw]
    shared: Shared | None
    packed: list[Packed] | None
    headers: list[Record]
    size: int

    @property
    def is_full(self) -> bool:
        """Whether it should be evaluated before more is added."""
        return self.size >= CHUNK_BYTES or len(self.headers) >= CHUNK_PRINTED

    def takes(self, part: Stretch) -> bool:
        """Whether it can be evaluated together with what follows it."""
        return part.packed is not None and part.shared == self.shared and not self.is_full

    def join(self, part: Stretch) -> None:
        """Appends packed records of the same kind."""
        assert self.packed is not None
        assert part.packed is not None
        self.raws += part.raws
        self.packed += part.packed
        self.headers += part.headers
        self.size += part.size


def stretches(handfuls: Iterable[Handful], *, with_headers: bool) -> Iterator[Stretch | InputError]:
    """Packs records as they are decoded, and puts together what can be evaluated together."""
    whole: Stretch | None = None
    for part in chain.from_iterable(_parts(few, with_headers=with_headers) for few in handfuls):
        if whole is not None and isinstance(part, Stretch) and whole.takes(part):
            whole.join(part)
            continue
        if whole is not None:
            yield whole
        whole = None
        if isinstance(part, Stretch) and part.packed is not None:
            whole = part
        else:
            yield part
    if whole is not None:
        yield whole


def _parts(few: Handful, *, with_headers: bool) -> Iterator[Stretch | InputError]:
    """Stretches of what is alike in a handful."""
    known = None if few.keys is None else _known(few.keys)
    if known is not None:
        yield _packed(few.items, known, with_headers=with_headers)
        return
    for shared, items in groupby(few.items, _shared):
        if shared is not None:
            yield _packed(list(items), shared, with_headers=with_headers)
            continue
        for item in items:
            yield Stretch([item], None, None, [], item.size) if isinstance(item, Raw) else item


def _packed(raws: list[Any], shared: Shared, *, with_headers: bool) -> Stretch:
    packed = pack([raw.value for raw in raws])
    size = sum([raw.size for raw in raws])
    if packed is None:
        return Stretch(raws, shared, None, [], size)
    shown = headers(raws) if with_headers else []
    for raw in raws:
        if raw.text is not None:
            raw.value = None
    return Stretch(raws, shared, [packed], shown, size)


def chunks(items: Iterable[Record | InputError]) -> Iterator[list[Record] | InputError]:
    """Checked records that follow each other in one layout."""
    group: list[Record] = []
    key: object = None
    room = 0
    for item in items:
        own = None if isinstance(item, InputError) else layout(item)
        if group and (room <= 0 or own != key):
            yield group
            group = []
        if isinstance(item, InputError):
            yield item
            continue
        if not group:
            key, room = own, CHUNK_TOKENS
        group.append(item)
        room -= sum(item.widths)
    if group:
        yield group


def _shared(raw: Raw | InputError) -> Shared | None:
    """What the records of a stretch share; None for one that nothing can be said of yet."""
    if isinstance(raw, InputError) or not isinstance(raw.value, dict):
        return None
    if None not in raw.value.values():
        known = _known(tuple(raw.value))
        if known is not None:
            return known
    try:
        fields = read_fields(raw.value)
        return fields, read_settings(raw.value, fields)
    except InputError:
        return None


@lru_cache(maxsize=64)
def _known(keys: tuple[str, ...]) -> Shared | None:
    """The same for records without nulls, where their keys alone say it: most records."""
    if GROUPS in keys:
        return None
    try:
        fields = read_fields(dict.fromkeys(keys, 0))
    except InputError:
        return None
    own = fields.hyperparameters or "hyperparameters" in fields.names
    return None if own else (fields, read_settings({}, fields))
