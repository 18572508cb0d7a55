"""What a format is: how it is recognised, how it is read, and what it lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from grpo_cli.records.choose.where import Path

Object = dict[str, Any]

COMMON = 3
"""The rank of a format whose keys are those of other records as well."""


class Unit(NamedTuple):
    """An object inside the one of the file that is a record, with its lists of objects.

    Attributes:
        value: the object, with what was lifted from its lists.
        above: the path that leads to it.
        place: the same with numbers, for messages.
    """

    value: Object
    above: Path
    place: str

    def path(self, path: Path) -> Path:
        """A path in the file's object as one in this."""
        above = len(self.above)
        return path[above:] if path[:above] == self.above else path


@dataclass(slots=True, eq=False)
class Translated:
    """A record under canonical names, made from an object of some format.

    Attributes:
        value: the record.
        spelled: its keys → where they stand in the file, as ``Origin`` has it.
        notes: what to print of it, beyond what the format always lacks.
        arrays: whether lists of numbers in it are arrays.
        unit: where it was made from lists of objects.
    """

    value: Object
    spelled: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    arrays: bool = False
    unit: Unit | None = None


@dataclass(frozen=True, eq=False)
class Format:
    """A row of the table of formats.

    Attributes:
        name: what ``--from`` calls it.
        title: whose file it is.
        keys: an object with all the keys of one of these sets may be of this format.
        without: unless it has one of these.
        fits: whether it is, for an object that has such keys.
        read: the object's records.
        together: the record of each of many objects, faster than one by one; None: there is no
            such way.
        lacks: what is not in it and what that makes impossible, a sentence each.
        source: where the field list comes from.
        many: whether one object holds several records.
        arrays: whether ``read`` takes the rows of a tensor as arrays.
        rank: where several fit an object, the lowest is it: 0 for keys that no other format has,
            1 for common ones, 2 for texts, for objects that have nothing else,
            ``COMMON`` for a key that records have as well: there ``fits`` is asked at once.
    """

    name: str
    title: str
    keys: Sequence[frozenset[str]]
    fits: Callable[[Object], bool]
    read: Callable[[Object], Iterator[Translated]]
    lacks: Sequence[str] = ()
    source: str = ""
    many: bool = False
    arrays: bool = False
    together: Callable[[Sequence[Object]], Sequence[Translated]] | None = None
    rank: int = 0
    without: frozenset[str] = frozenset()


def keys(*names: str) -> frozenset[str]:
    """A set of keys."""
    return frozenset(names)


def carried(value: Object, *names: str) -> Object:
    """The fields that go over as they are, where they are there and not null."""
    return {name: value[name] for name in names if value.get(name) is not None}


def below_meta(*names: str) -> dict[str, str]:
    """Where fields that a record has in ``meta`` stand in the file: by their own names."""
    return {f"meta.{name}": name for name in names}


def is_row(value: object) -> bool:
    """Whether it is a list that holds no lists: the tokens of one response."""
    return isinstance(value, list) and not (value and isinstance(value[0], (list, dict)))


def is_rows(value: object) -> bool:
    """Whether it is a list of lists: the tokens of several responses."""
    return isinstance(value, list) and bool(value) and all(isinstance(one, list) for one in value)
