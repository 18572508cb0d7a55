"""The answer of ``compare``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import isclose
from typing import Any

from grpo_cli.commands.answer import Answer, what_was_counted
from grpo_cli.commands.eval.run import SUMMED
from grpo_cli.commands.frames import Array, Frames, columns_of
from grpo_cli.terminal.numbers import counted, shown_among


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
    """A variant that cannot be evaluated on the data.

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
        """Which variants agree, or what was compared."""
        skipped = f"; skipped {', '.join(one.variant for one in self.skipped)}" * bool(self.skipped)
        variants = counted(len({one.variant for one in self.variants}), "variant")
        batches = len({tuple(one.batch.values()) for one in self.variants})
        each = f"{batches} batches of " if batches > 1 else ""
        counts = f"{variants} on {each}{what_was_counted(vars(self))}"
        return f"{self.verdict or counts}{skipped}"

    @property
    def verdict(self) -> str:
        """Which variants agree in loss and gradient, and how far the losses of the others are.

        "" of one variant, and of several batches.
        """
        rows = self.variants
        if len(rows) < 2 or any(one.batch for one in rows):
            return ""
        groups = agreeing(rows)
        if len(groups) == 1:
            every = "both" if len(rows) == 2 else f"all {len(rows)}"
            return f"{every} variants {_agreeing(rows)}: loss {_loss(rows[0])}"
        firsts = sorted((each[0] for each in groups), key=lambda one: one.loss)
        low, high = firsts[0], firsts[-1]
        if len(rows) == 2:
            one, other = rows
            losses = f"losses {_loss(one)} and {_loss(other)}, {_difference(one, other)}"
            return f"{one.variant} and {other.variant} differ: {losses}"
        alike = sorted((each for each in groups if len(each) > 1), key=len, reverse=True)
        parts = [
            f"{_listed([one.variant for one in each])} {_agreeing(each)}"
            for each in alike[:_GROUPS]
        ]
        if len(alike) > _GROUPS:
            parts.append(f"{counted(len(alike) - _GROUPS, 'more group')} of variants agree")
        if len(rows) > LISTED or not alike:
            parts = [f"{len(rows)} variants give {len(groups)} different results"]
        parts.append(f"losses from {_loss(low)} ({low.variant}) to {_loss(high)} ({high.variant})")
        return "; ".join(parts)

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


SAME = 1e-4
"""Relative: what is equal in single precision, as for ``verify``."""
_ROUNDING = 1e-9
"""Of the gradient's norm: a smaller difference of losses is what is left of terms that cancel."""
LISTED, _GROUPS, _NAMED = 12, 2, 4
"""Variants with a row each, of which the verdict names groups; how many, and how many of each."""


def agreeing(rows: Sequence[ComparedVariant]) -> list[list[ComparedVariant]]:
    """The variants in groups of one loss and gradient: more than ``LISTED`` have a row a group."""
    groups: list[list[ComparedVariant]] = []
    for row in rows:
        same = next((group for group in groups if _agree(group[0], row)), None)
        if same is None:
            groups.append([row])
        else:
            same.append(row)
    return groups


def _agree(one: ComparedVariant, other: ComparedVariant) -> bool:
    """Whether two variants have one loss and one gradient."""
    norm = one.gradient_norm or 0.0
    pairs = (one.gradient_norm, other.gradient_norm), (one.cosine, other.cosine)
    alike = all(
        mine == yours
        or (mine is not None and yours is not None and isclose(mine, yours, rel_tol=SAME))
        for mine, yours in pairs
    )
    return alike and isclose(one.loss, other.loss, rel_tol=SAME, abs_tol=_ROUNDING * norm)


def _agreeing(rows: Sequence[ComparedVariant]) -> str:
    """How variants of one loss and one gradient agree: their digits may differ."""
    return "agree" if len({*map(_loss, rows)}) == 1 else f"agree within {SAME:.2%}"


def _difference(one: ComparedVariant, other: ComparedVariant) -> str:
    """How far two losses are from each other, in words; rounding counts as 0."""
    gap = abs(one.loss - other.loss)
    rounding = gap <= _ROUNDING * (one.gradient_norm or 0.0)
    percent = 0.0 if rounding else 100.0 * gap / max(abs(one.loss), abs(other.loss))
    if percent > 100.0:
        return "of opposite signs"
    # of large ones too no power of ten
    return f"a difference of {float(f'{percent:.2g}'):g}% of the larger"


def _loss(row: ComparedVariant) -> str:
    return shown_among(row.loss, row.gradient_norm)


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _NAMED
    if rest > 1:
        return f"{', '.join(names[:_NAMED])} and {rest} others"
    return f"{', '.join(names[:-1])} and {names[-1]}"


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


def in_order(rows: Sequence[ComparedVariant], by: str | None) -> Sequence[ComparedVariant]:
    """The rows by a column, the least first and unknown values last; as they are without one."""
    if by is None:
        return rows
    return sorted(rows, key=lambda row: (getattr(row, by) is None, getattr(row, by) or 0))


def sum_notes(answer: Compared) -> dict[str, None]:
    """That totals are sums over records, where these are of no one batch."""
    return {SUMMED: None} if any(one.denominator is None for one in answer.variants) else {}
