"""Where the parts of a record that was made from something else stand in the file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from grpo_cli.errors import InputError

_PLACE = re.compile(r"([^\[\]]+)((?:\[\d+\])*)")


@dataclass(frozen=True, slots=True)
class Row:
    """One response's own object: its line, what stands before paths in it, its number there."""

    line: int | None
    prefix: str
    index: int


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """What to say instead of a place in a record that the user never wrote.

    Attributes:
        spelled: key of the record → what stands in the file, where ``{r}`` and ``{t}`` are the
            indexes of the response and the token. Without them indexes stay behind it.
        rows: where each response stands, where they were put together from several objects.
    """

    spelled: Mapping[str, str]
    rows: tuple[Row, ...] | None = None

    def place(self, error: InputError, prefix: str) -> None:
        """Rewrites the path of an error, and its line where responses have lines of their own."""
        found = _PLACE.fullmatch(error.path.removeprefix(prefix))
        if found is None:
            return
        key, brackets = found[1], found[2]
        indexes = [int(one) for one in brackets[1:-1].split("][")] if brackets else []
        if self.rows is not None and indexes and indexes[0] < len(self.rows):
            row = self.rows[indexes[0]]
            error.line, prefix, indexes[0] = row.line, row.prefix, row.index
        error.path = prefix + self._spell(key, indexes)

    def _spell(self, key: str, indexes: list[int]) -> str:
        base, dot, rest = key.partition(".")
        template = self.spelled.get(base, base)
        if "{t}" in template and len(indexes) < 2:
            template = template.partition("[{t}]")[0]
        if "{r}" in template and not indexes:
            template = template.partition("[{r}]")[0]
        used = ("{r}" in template or "{t}" in template) + ("{t}" in template)
        numbers = dict(zip("rt", indexes, strict=False))
        for name, number in numbers.items():
            template = template.replace("{" + name + "}", str(number))
        if used == 0 and self.rows is not None:
            used = 1  # the row's own line says which response
        return template + dot + rest + "".join(f"[{one}]" for one in indexes[used:])
