"""Where the parts of a record that was made from something else stand in the file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from grpo_cli.errors import InputError

_LIKE = re.compile(r"\(as (\S+) has\)")
_PLACE = re.compile(r"([^\[\]]+)((?:\[\d+\])*)")


class Row(NamedTuple):
    """One response's own object: its line, what stands before paths in it, its number there."""

    line: int | None
    prefix: str
    number: int


class Origin(NamedTuple):
    """What to say instead of a place in a record that the user never wrote.

    Attributes:
        spelled: key of the record → what stands in the file, where ``{r}`` and ``{t}`` are the
            indexes of the response and the token, and ``{}`` says that the response has none.
            Without them indexes stay behind it.
        rows: where each response stands, where they were put together from several objects.
    """

    spelled: Mapping[str, str]
    rows: tuple[Row, ...] | None = None

    def place(self, error: InputError, prefix: str) -> None:
        """Rewrites the path of an error, and its line where responses have lines of their own."""
        found = _PLACE.fullmatch(error.path.removeprefix(prefix))
        if found is None:
            return
        error.message = _LIKE.sub(lambda like: f"(as {self._reworded(like[1])} has)", error.message)
        key, indexes = found[1], _indexes(found[2])
        if self.rows is not None and indexes and indexes[0] < len(self.rows):
            row = self.rows[indexes[0]]
            error.line, prefix, indexes[0] = row.line, row.prefix, row.number
        error.path = prefix + self._spell(key, indexes)

    def _reworded(self, place: str) -> str:
        """Another place that a message names."""
        found = _PLACE.fullmatch(place)
        return place if found is None else self._spell(found[1], _indexes(found[2]))

    def _spell(self, key: str, indexes: list[int]) -> str:
        base, dot, rest = key.partition(".")
        template = self.spelled.get(base, base)
        # Where rows were put together, the line says which response it is.
        used = 2 if "{t}" in template else int("{" in template or self.rows is not None)
        if len(indexes) < 2:
            template = template.partition("[{t}]")[0]
        if not indexes:
            template = template.partition("[{r}]")[0]
        for name, number in zip("rt", indexes, strict=False):
            template = template.replace("{" + name + "}", str(number))
        return (
            template.replace("{}", "") + dot + rest + "".join(f"[{one}]" for one in indexes[used:])
        )


def _indexes(brackets: str) -> list[int]:
    return [int(one) for one in brackets[1:-1].split("][")] if brackets else []
