"""The answer of ``match`` as Python users get it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grpo_cli.commands.answer import Answer


@dataclass(frozen=True)
class Convention(Answer):
    """A convention: what it is, what it gives, and the command that gives that."""

    signature: str
    value: float
    difference: float
    command: str
    variants: Sequence[str]
    factor: float
    factor_meaning: str | None
    sign_flipped: bool
    same: Sequence[str]
    bits: float
    hits_expected: float | None
    would_need: Mapping[str, float]
    any_from: Mapping[str, float]


@dataclass(frozen=True)
class Released(Answer):
    """What the rows give as they stand: the nearest, and the one that the records name."""

    tried: int
    nearest: Convention | None
    recorded: Convention | None


@dataclass(frozen=True)
class Matched(Answer):
    """What ``match`` returns."""

    target: float
    target_of: str
    tolerance: float
    rtol: float | None
    targets: Mapping[str, float]
    questions: Sequence[int]
    matches: Sequence[Convention]
    ambiguous: bool
    match_count: int
    chance_hits: float
    by_chance: bool
    reproduced: bool
    tell_apart: Sequence[str]
    nearest: Sequence[Convention]
    tried: int
    released: Released
    not_tried: Mapping[str, str]
