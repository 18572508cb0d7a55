"""The signature: one line, made from the bound stages that ran, naming all that changes a number.

``dapo|adv:group-std[ddof=1,eps=1e-08,min=0]|ratio:token|…|agg:token-mean|batch:input|v:0.1.0``
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

from grpo_cli.hyperparameters import Value

MIXED = "mixed"
"""Marks a value that differs between the records of a batch."""


class Part(NamedTuple):
    """One piece: ``key:name[value=…]``; the variant's own name has no key."""

    key: str
    name: str
    values: tuple[tuple[str, Value], ...] = ()


Parts = tuple[Part, ...]


def line(parts: Parts) -> str:
    """The pieces as text, in their order."""
    return "|".join(map(_text, parts))


_PIECE = re.compile(r"\|(\w+):((?:\[[^]]*\]|[^|])*)")
_IDLE = re.compile(r".*\[(beta|entropy_coef)=0[,\]].*")


def choices_in(text: str) -> dict[str, str]:
    """Key → what ``line`` wrote of it; ``none`` for a term times 0."""
    return {key: _IDLE.sub("none", choice) for key, choice in _PIECE.findall(text)}


def common(found: Collection[Parts]) -> Parts:
    """The pieces of several objectives as one; what differs reads ``mixed``."""
    return tuple(_common(pieces) for pieces in zip(*found, strict=True))


def _common(pieces: tuple[Part, ...]) -> Part:
    first = pieces[0]
    if len({piece.name for piece in pieces}) > 1:
        return Part(first.key, MIXED)
    found = [dict(piece.values) for piece in pieces]
    names = dict.fromkeys(name for values in found for name in values)
    columns = [(name, [values.get(name) for values in found]) for name in names]
    shared = tuple(
        (name, own[0] if own.count(own[0]) == len(own) else MIXED) for name, own in columns
    )
    return Part(first.key, first.name, shared)


def _text(part: Part) -> str:
    head = f"{part.key}:{part.name}" if part.key else part.name
    inside = ",".join(
        f"{short(name)}={plain(value)}" for name, value in part.values if value is not None
    )
    return f"{head}[{inside}]" if inside else head


def setting(name: str, value: Value) -> str:
    """A hyperparameter and its value, in words."""
    return f"several {name}" if value == MIXED else f"{name} {plain(value)}"


_PREFIXES = ("epsilon_", "std_", "kl_")


def short(name: str) -> str:
    """A hyperparameter's name inside its own stage."""
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name


def plain(value: Value) -> str:
    """A value by ``repr``; a whole number without its ``.0``, and ``none`` for None."""
    if value is None:
        return "none"
    if isinstance(value, float):
        whole = value.is_integer() and abs(value) < 2**53
        return repr(int(value)) if whole else repr(value)
    return str(value)
