"""How messages say where something is, in the file as it was written, and what came instead."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from grpo_cli.errors import InputError

_LONGEST = 40
QUOTED = " (a value in quotes; write it without them)"
_IN_QUOTES = re.compile(
    r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|true|false|nan|[+-]?inf", re.IGNORECASE
)
_INTEGERS = 10**17  # beyond these, digits say less than an exponent


def got(value: object) -> str:
    """A value as a message shows it: ``null``, ``NaN``, ``0.5``, ``"abc"``, ``a list``."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else str(value).removesuffix(".0")
    if isinstance(value, str):
        text = value if len(value) <= _LONGEST else value[:_LONGEST] + "…"
        advice = ""
        if value.startswith(("tensor(", "array(")):
            advice = " (a tensor as it is printed; dump its .tolist())"
        elif value.startswith("[") and value.endswith("]"):
            advice = " (a list in a string; dump the list itself)"
        elif _IN_QUOTES.fullmatch(value):
            advice = QUOTED
        return orjson.dumps(text).decode() + advice
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    if isinstance(value, int) and abs(value) >= _INTEGERS:
        return got(as_float(value))
    return str(value)


class PathInside(NamedTuple):
    """Keys that lead to a value in an object.

    Attributes:
        keys: one or more.
        lists: how many lists each key leads into, before the next key.
    """

    keys: tuple[str, ...]
    lists: tuple[int, ...]

    def __str__(self) -> str:
        """The path as --map takes it."""
        return ".".join(self.keys)

    @property
    def in_list(self) -> bool:
        """Whether it leads through a list of objects."""
        return any(self.lists[:-1])

    @property
    def name(self) -> str:
        """What the value is called: its key, and the one before if no list is between them."""
        between = len(self.keys) > 1 and not self.lists[-2]
        return ".".join(self.keys[-2:] if between else self.keys[-1:])


def paths_inside(
    record: Mapping[str, Any], keys: tuple[str, ...] = (), lists: tuple[int, ...] = ()
) -> Iterator[PathInside]:
    """Yields the paths of lists, and of all that the first object of a list has."""
    for key, held in record.items():
        first, depth = first_inside(held)
        path = PathInside((*keys, key), (*lists, depth))
        if isinstance(first, Mapping):
            yield from paths_inside(first, *path)
        elif depth or path.in_list:
            yield path


def first_inside(value: Any) -> tuple[Any, int]:
    """What is in nested lists, in the first of each that has something, and how many they are."""
    depth = 0
    while isinstance(value, list):
        filled = (
            one for one in value if one is not None and not (isinstance(one, list) and not one)
        )
        value, depth = next(filled, None), depth + 1
    return value, depth


def first_names(names: Sequence[object], most: int = 8) -> str:
    """The first names or numbers between commas; ``…`` for the others."""
    return ", ".join(map(str, names[:most])) + (", …" if len(names) > most else "")


def as_float(value: int | float) -> float:
    """The nearest float; an infinite one for an integer beyond them all."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def count(number: int, word: str) -> str:
    """``1 response``, ``3 responses``."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def index(flat: int, nested: int, widths: Sequence[int], shape: Sequence[int] | None) -> str:
    """The place of the element with a flat index, as the user nested it: ``[3][17]``.

    Args:
        flat: index into the elements of all responses, one response after the other.
        nested: 1, 2 or 3 levels of lists.
        widths: [R] elements of each response as written.
        shape: the number of responses of each group, for 3 levels.
    """
    if nested == 1:
        return f"[{flat}]"
    row = 0
    while flat >= widths[row]:
        flat -= widths[row]
        row += 1
    return f"{response(row, shape)}[{flat}]"


def response(row: int, shape: Sequence[int] | None) -> str:
    """The place of a response: ``[3]``, or ``[0][3]`` where groups are nested."""
    if shape is None:
        return f"[{row}]"
    group = 0
    while row >= shape[group]:
        row -= shape[group]
        group += 1
    return f"[{group}][{row}]"


_LIKE = re.compile(r"\(as (\S+) has\)")
_PLACE = re.compile(r"([^\[\]]+)((?:\[\d+\])*)")


class Origin(NamedTuple):
    """Places in the file, for places in a record that the user never wrote.

    Attributes:
        spelled: key of the record → the key in the file, where ``{r}`` and ``{t}`` are the
            indexes of the response and the token, and ``{}`` says that the response has none.
            Without them indexes stay behind it.
        rows: the line of each response's own object, what is put before paths in it, and the
            response's number there, if they were put together from several objects.
    """

    spelled: Mapping[str, str]
    rows: Sequence[tuple[int | None, str, int]] | None = None

    def place(self, error: InputError, prefix: str) -> None:
        """Rewrites the path of an error, and its line where responses have lines of their own."""
        found = _PLACE.fullmatch(error.path.removeprefix(prefix))
        if found is None:
            return

        def reword(like: re.Match[str]) -> str:
            other = _PLACE.fullmatch(like[1])
            place = like[1] if other is None else self._spell(other[1], _indexes(other[2]))
            return f"(as {place} has)"

        error.message = _LIKE.sub(reword, error.message)
        key, indexes = found[1], _indexes(found[2])
        if self.rows is not None and indexes and indexes[0] < len(self.rows):
            error.line, prefix, indexes[0] = self.rows[indexes[0]]
        error.path = prefix + self._spell(key, indexes)

    def _spell(self, key: str, indexes: list[int]) -> str:
        base, dot, rest = key.partition(".")
        template = self.spelled.get(base, base)
        # Where rows were put together, the line says which response it is.
        used = 2 if "{t}" in template else int("{" in template or self.rows is not None)
        for at, name in enumerate(("[{r}]", "[{t}]")):
            template = template.replace(name, f"[{indexes[at]}]" if at < len(indexes) else "")
        return (
            template.replace("{}", "") + dot + rest + "".join(f"[{one}]" for one in indexes[used:])
        )


def _indexes(brackets: str) -> list[int]:
    return [int(one) for one in brackets[1:-1].split("][")] if brackets else []
