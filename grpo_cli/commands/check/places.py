"""Where a record stands, in few words."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """Where a record stands.

    Attributes:
        name: its id, or else its number.
        source: the file as the user named it.
        line: its 1-based line, if it has one.
        number: its 0-based number in the file.
        claims: the settings by which it says that it is on policy; empty if it does not.
    """

    name: str | int | float
    source: str
    line: int | None
    number: int
    claims: str = ""
