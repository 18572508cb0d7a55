"""The answer of ``compare``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from grpo_cli.commands.answer import Answer, what_was_counted
from grpo_cli.commands.eval.run import SUMMED
from grpo_cli.commands.frames import Array, Frames, columns_of
from grpo_cli.terminal.numbers import counted


@dataclass(frozen=True)
class ComparedVariant(Answer):
    """A variant's totals of a batch, and the cosine of its gradient with the first variant's.

    ``batch`` has the fields that name the batch, whose keys precede the others in JSON.
    """

    variant: str
    signature: str
    objective: float
    loss: float
    policy: float
    kl: float | None
    clip_fraction: float | None
    clip_fraction_low: float | None
    clip_fraction_high: float | None
    ratio_mean: float | None
    gradient_norm: float | None
    cosine: float | None
    longest_quarter: float | None
    longest_quarter_tokens: float | None
    positive_advantage: float | None
    negative_advantage: float | None
    denominator: float | None
    denominator_of: str
    batch: Mapping[str, Any] = field(default_factory=dict)

    def fields(self) -> dict[str, Any]:
        """The fields by their JSON keys."""
        named = super().fields()
        return {**named.pop("batch"), **named}


NAMES = tuple(one.name for one in fields(ComparedVariant) if one.name != "batch")


@dataclass(frozen=True)
class FamilyDifference(Answer):
    """How other variants of a family differ from the first: in which values, at which stages."""

    variants: Sequence[str]
    hyperparameters: Mapping[str, Sequence[Any]]
    stages: Sequence[str]


@dataclass(frozen=True)
class Replaced(Answer):
    """A variant's hyperparameters that the records replace: its own value, and the records'."""

    variant: str
    hyperparameters: Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Unserved(Answer):
    """A variant that the data cannot serve.

    Attributes:
        variant: its name.
        reason: why.
        missing: the column or the setting that it lacks.
        place: the first record without it.
        advice: what would help.
    """

    variant: str
    reason: str
    missing: str | None
    place: str | None
    advice: str | None


@dataclass(frozen=True)
class Compared(Frames, Answer):
    """The answer of ``compare``."""

    variants: Sequence[ComparedVariant]
    differences: Sequence[FamilyDifference]
    replaced: Sequence[Replaced]
    skipped: Sequence[Unserved]
    records: int
    groups: int
    responses: int
    tokens: int

    @property
    def headline(self) -> str:
        """What was compared."""
        skipped = f"; skipped {', '.join(one.variant for one in self.skipped)}" * bool(self.skipped)
        variants, counts = counted(len(self.variants), "variant"), what_was_counted(vars(self))
        return f"Compared({variants} on {counts}{skipped})"

    def table(self) -> list[dict[str, Any]]:
        """The variants' numbers, the most asked for first."""
        rows = [one.fields() for one in self.variants]
        names = [*(one.batch if (one := next(iter(self.variants), None)) else ()), *_FIRST]
        return [
            {n: row[n] for n in dict.fromkeys([*names, *row]) if n != "objective"} for row in rows
        ]

    def columns(self) -> dict[str, Array]:
        """The variants' rows as arrays by name; a number that is unknown is NaN."""
        return columns_of([one.fields() for one in self.variants])


_FIRST = (
    "variant",
    "loss",
    "policy",
    "kl",
    "clip_fraction",
    "ratio_mean",
    "gradient_norm",
    "cosine",
)


def sum_notes(answer: Compared) -> dict[str, None]:
    """That totals are sums over records, where these are of no one batch."""
    return {SUMMED: None} if any(one.denominator is None for one in answer.variants) else {}
