"""What a field of a row is, and what a row can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

Level = Literal["batch", "record", "trajectory", "response", "turn", "token"]
LEVELS: tuple[Level, ...] = get_args(Level)
Kind = Literal["number", "whole", "text", "any"]


class Field(NamedTuple):
    """One field of a level.

    Attributes:
        name: what it is called in every format and flag.
        read: its values: one for each row of the level in a ``Source``, or the one of ``Totals``.
        spare: when a narrow terminal goes without it: the greatest first; 0: never.
        usual: a table leaves the column out where all its values are this one.
        hidden: whether a table shows it only where it is asked for.
        kind: what its values are; ``any``: what the user's data have.
    """

    name: str
    read: Callable[[Any], Any]
    spare: int = 0
    usual: object = ...
    hidden: bool = False
    kind: Kind = "number"
