"""The answer of ``verify``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grpo_cli.commands.answer import Answer


@dataclass(frozen=True)
class Difference(Answer):
    """Where a record first differs from what it expects, and why."""

    key: str
    stage: str
    response: int | None
    token: int | None
    expected: float
    got: float
    differing: int
    of: int
    cause: str | None
    causes: Sequence[str]
    stages: Sequence[str]
    pattern: str | None


@dataclass(frozen=True)
class MetricDifference(Answer):
    """A metric that differs, which decides nothing beside a loss."""

    key: str
    expected: float
    got: float


@dataclass(frozen=True)
class Verdict(Answer):
    """What became of a record that expects something."""

    id: str | int | float
    source: str
    line: int | None
    agrees: bool
    variant: str
    signature: str
    compared: Sequence[str]
    ignored: Sequence[str]
    first: Difference | None
    also: Sequence[str]
    metrics: Sequence[MetricDifference]
    rounded: Mapping[str, str]


@dataclass(frozen=True)
class Verified(Answer):
    """What ``verify`` returns."""

    agrees: bool
    rtol: float
    atol: float | None
    verified: int
    differing: int
    without_expected: int
    metrics_differ: Mapping[str, int]
    undefined: int
    records: Sequence[Verdict]
