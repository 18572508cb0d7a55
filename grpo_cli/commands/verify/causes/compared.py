"""Records that differ, what they expect, and how far another evaluation is from that."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from grpo_cli.batch import F64, I64, Batch, Segments
from grpo_cli.commands.verify.compare import (
    NOISE_OF_SUMS,
    Column,
    Tolerance,
    as_written,
    column_of,
    deciding,
    digits_of,
    half_steps,
    precisions,
)
from grpo_cli.commands.verify.expected import Expectation, Flags
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.objective import Objective
from grpo_cli.records import Record
from grpo_cli.variants.plan import Plan

REST, LONE = 0.1, 1e-3
"""How much of what is to be explained a cause may leave, and of a lone number."""
TYPED = 8
"""A number of no more digits than these was rounded to them."""


@dataclass(frozen=True, eq=False)
class Compared:
    """Records of one kind that differ from what they expect, and how far another evaluation is off.

    Attributes:
        records: the records. Whatever is one number below is the first record's.
        breakdown: what they evaluate to.
        columns: everything that they expect and that the objective has.
        tolerance: when two numbers agree.
        of_rounded: whether a loss may be off by what the rounding of the log-probs leaves open.
    """

    records: Sequence[Record]
    breakdown: Breakdown
    columns: Sequence[Column]
    tolerance: Tolerance
    of_rounded: bool = False

    @classmethod
    def of(
        cls,
        records: Sequence[Record],
        wanted: Sequence[Sequence[Expectation]],
        plan: Plan,
        tolerance: Tolerance,
    ) -> Self:
        """Evaluates records of one layout, each of which is a batch of its own.

        Args:
            records: the records.
            wanted: what each of them expects.
            plan: what they are evaluated as.
            tolerance: when two numbers agree.

        Raises:
            InputError: where they cannot be evaluated.
            ValueError: where they expect other things.
        """
        kinds = {tuple(each.kind for each in one) for one in wanted}
        chunk = Chunk.of(records)
        if len(records) > 1:
            names = [name for name in COUNTS if name in records[0].hyperparameters]
            varied = {name: [one.hyperparameters[name] for one in records] for name in names}
            chunk = replace(chunk, varied={name: np.array(x) for name, x in varied.items()})
        breakdown = chunk.run(Evaluator(plan).evaluate)
        each = zip(*wanted, strict=len(kinds) == 1)
        columns = [column_of(records, some, breakdown) for some in each]
        known = [column for column in columns if column is not None and not column.absent.all()]
        if len(kinds) > 1 or any(column.absent.any() for column in known):
            raise ValueError("records expect other things")
        return cls(records, breakdown, deciding(known), tolerance)

    @property
    def record(self) -> Record:
        """The record."""
        return self.records[0]

    @property
    def batch(self) -> Batch:
        """The record's columns."""
        return self.breakdown.batch

    def column(self, name: str) -> F64:
        """A column of the batch, by name.

        Raises:
            ValueError: where the record has none.
        """
        found: F64 | None = getattr(self.batch, name)
        if found is None:
            raise ValueError(f"there are no {name}")
        return found

    @property
    def objective(self) -> Objective:
        """What it was evaluated as."""
        return self.breakdown.objective

    @cached_property
    def key(self) -> Hashable:
        """The stages and their values: an answer to other ones would be worded otherwise."""
        return tuple(
            (stage, bound.name, *(one for one in bound.values.items() if one[0] not in COUNTS))
            for stage, bound in self.objective.stages.items()
        )

    @cached_property
    def gradient_column(self) -> Column | None:
        """The expected gradient per token; None where it is not given, or not finite."""
        for column in self.columns:
            is_gradient = column.key in ("gradient", "loss_gradient")
            if is_gradient and column.expectation.level == "token":
                return column if np.isfinite(column.values).all() else None
        return None

    @cached_property
    def written_gradient(self) -> F64 | None:
        """[N as written] ∂J/∂(log π_θ) as expected at every token, masked or not."""
        column = self.gradient_column
        if column is None:
            return None
        return column.values if column.key == "gradient" else -column.values

    @cached_property
    def gradient(self) -> F64 | None:
        """[N] it at every token that counts."""
        written = self.written_gradient
        return written if written is None else written[self.mask]

    @property
    def mask(self) -> Flags:
        """[N as written] which tokens count."""
        if not self.is_masked:
            return np.ones(self.written.total, dtype=np.bool_)
        return np.frombuffer(b"".join(one.mask or b"" for one in self.records), dtype=np.bool_)

    @cached_property
    def written(self) -> Segments:
        """The tokens as written, cut into responses."""
        return Segments(np.array([n for one in self.records for n in one.widths], dtype=np.int64))

    @cached_property
    def counts(self) -> F64:
        """[3, M] the groups, responses and tokens of each record."""
        edges = self.batch.edges(range(len(self.records) + 1))
        return np.diff(edges)[1:].astype(np.float64)

    @cached_property
    def unpadded(self) -> I64:
        """[R] tokens of each response as written, less the masked ones that repeat at its end."""
        return np.concatenate([_unpadded(one) for one in self.records])

    @cached_property
    def losses(self) -> F64:
        """[M] the objective J that is expected; NaN where it is not given."""
        found = np.full(len(self.records), np.nan)
        for column in self.columns:
            if column.key in ("loss", "objective"):
                values = column.values if column.key == "objective" else -column.values
                found = np.where(np.isnan(found) & np.isfinite(values), values, found)
        return found

    @cached_property
    def loss(self) -> float | None:
        """The objective J that is expected; None where it is not given."""
        value = float(self.losses[0])
        return None if np.isnan(value) else value

    @cached_property
    def quiet(self) -> float:
        """What a gradient is no larger than where it is 0 but for rounding."""
        return 1e-4 * float(np.abs(self.breakdown.gradient).max(initial=0.0))

    def loud(self, gradient: F64, times: float = 1.0) -> Flags:
        """[N] the gradients that are larger than so many times what is 0 but for rounding."""
        found: Flags = np.abs(gradient) > times * self.quiet
        return found

    def near(self, found: F64, expected: F64) -> Flags:
        """[N] which gradients agree, on the scale of the largest, but for their rounding."""
        allowed: F64 | float = max(self.tolerance.rtol, 1e-6) * np.abs(expected).max(initial=0.0)
        column = self.gradient_column
        if column is not None and column.slack is not None:
            allowed = allowed + column.slack[self.mask]
        near: Flags = np.abs(found - expected) <= allowed
        return near

    @cached_property
    def agreeing_gradients(self) -> Flags:
        """[N] the tokens whose gradient is as expected."""
        assert self.gradient is not None
        return self.near(self.gradient, self.breakdown.gradient)

    def misfits(self, again: Breakdown) -> F64:
        """[M] the relative tolerance that another evaluation needs; infinite where it disagrees.

        It has to leave at most a tenth of what is to be explained; a thousandth of it where only
        a loss is recorded, since many mistakes come near to any one number, or what its rounding
        leaves open.
        """
        most = np.zeros(len(self.records))
        for column in self.in_order:
            found = self._found(column, again)
            agree = None if found is None else self._agree(column, found)
            if found is None or agree is None or not agree.any():
                return np.full_like(most, np.inf)
            most = np.where(agree, np.maximum(most, self._needs(column, found)), np.inf)
        own, rounding = self._own_misfits, self.roundings
        rest = REST * own
        lone = np.where(own <= rounding, rounding, np.clip(rounding, LONE * own, rest))
        rest = np.where(self._have_one_number & (self._digit_rooms == 0.0), lone, rest)
        return np.where(most <= rest, most, np.inf)

    def misfit(self, again: Breakdown) -> float:
        """It of the one record."""
        return float(self.misfits(again)[0])

    @cached_property
    def _own_misfits(self) -> F64:
        """[M] how far off the records' own evaluations are."""
        own = np.zeros(len(self.records))
        for column in self.columns:
            found = self._found(column, self.breakdown)
            own = np.maximum(own, np.inf if found is None else self._needs(column, found))
        return own

    def _needs(self, column: Column, found: F64) -> F64:
        """[M] the relative tolerance that a column needs; infinite where a sum is unknown."""
        needs = column.worst(self.tolerance.needs(column, found))
        return np.where(np.isnan(found), np.inf, needs) if column.is_by_record else needs

    @cached_property
    def is_loss_alone(self) -> bool:
        """Whether one number is all that is expected."""
        return len(self.columns) == 1 and self.columns[0].is_by_record

    @property
    def has_one_number(self) -> bool:
        """Whether one number is all that differs: what agrees says nothing about a mistake."""
        return bool(self._have_one_number[0])

    @cached_property
    def _have_one_number(self) -> Flags:
        """[M] it of each record."""
        agree = self.tolerance.agree
        wrong = np.array([each.worst(~agree(each, each.found)) for each in self.columns])
        numbers = wrong[[column.is_by_record for column in self.columns]]
        have: Flags = (wrong.sum(axis=0) == 1.0) & (numbers.sum(axis=0) == 1.0)
        return have

    def agrees_but_for_loss(self, again: Breakdown) -> bool:
        """Whether another evaluation has what the record expects of more than one number."""
        others = [each for each in self.columns if not each.is_by_record]
        founds = ((each, self._found(each, again)) for each in others)
        return all(x is not None and self._agree(each, x)[0] for each, x in founds)

    @cached_property
    def rounded(self) -> Self:
        """The records with the room that the rounding of their log-probs leaves open."""
        return self if self.of_rounded else replace(self, of_rounded=True)

    @property
    def is_rounded(self) -> bool:
        """Whether the rounding of the log-probs leaves more of a lone loss open than its digits."""
        return self.rounded.loss_room > float(self._digit_rooms[0])

    @property
    def loss_room(self) -> float:
        """By how much a rounded loss may be off; 0 where it has many digits."""
        return float(self._loss_rooms[0])

    @cached_property
    def _loss_rooms(self) -> F64:
        """[M] it of each record."""
        of_inputs = loss_rooms(self.breakdown) if self.of_rounded and self.is_loss_alone else 0.0
        return self._digit_rooms + of_inputs

    @property
    def rooms_off(self) -> float:
        """How many times its room a lone loss is off."""
        off = abs(float(self.breakdown.record_objective[0]) - float(self.losses[0]))
        return off / self.loss_room if self.loss_room else np.inf

    @cached_property
    def _digit_rooms(self) -> F64:
        """[M] by how much the digits of a loss leave it open."""
        return np.array([_room(value) for value in self.losses.tolist()])

    @property
    def rounding(self) -> float:
        """It as a relative tolerance."""
        return float(self.roundings[0])

    @cached_property
    def roundings(self) -> F64:
        """[M] it of each record."""
        size = np.abs(np.nan_to_num(self.losses)) + NOISE_OF_SUMS * self.breakdown.record_scale
        return self._loss_rooms / np.where(size > 0.0, size, 1.0)

    @cached_property
    def in_order(self) -> Sequence[Column]:
        """The columns, those that are cheap to evaluate first."""
        return sorted(self.columns, key=lambda column: len(column.values))

    def _agree(self, column: Column, found: F64) -> Flags:
        """[M] whether all numbers of a column agree, or a lone loss is within its room."""
        agree: Flags = column.worst(~self.tolerance.agree(column, found)) == 0.0
        if self.is_loss_alone:
            agree |= np.abs(found - column.values) <= self._loss_rooms
        return agree

    def _found(self, column: Column, again: Breakdown) -> F64 | None:
        """What another evaluation has in the place of a column; None where it has no such thing."""
        found = column.expectation.evaluated(again)
        if found is None:
            return None
        masked = self.is_masked or again.batch.responses.total < self.written.total
        if column.expectation.level == "token" and masked:
            fill = 0.0 if column.expectation.stage == "gradient" else np.inf
            found = as_written(found, again.batch, self.written, fill)
            found = found if column.written is not None else found[self.mask]
        return found if len(found) == len(column.values) else None

    @property
    def is_masked(self) -> bool:
        """Whether the record has a mask."""
        return self.record.mask is not None


COUNTS = ("num_items_in_batch", "batch_num_tokens")
"""They differ from record to record of one run, and are in no answer."""


def _unpadded(record: Record) -> I64:
    """[R] it of a record."""
    ids, values = record.token_ids, record.columns.get("log_probs_new")
    written = Segments(np.array(record.widths, dtype=np.int64))
    widths = written.lengths.copy()
    if record.mask is None or (ids is None and values is None):
        return widths
    mask = np.frombuffer(record.mask, dtype=np.bool_)
    column = np.array([x for row in ids for x in row]) if ids else np.frombuffer(values or b"")
    for row in np.flatnonzero(widths).tolist():
        start, end = int(written.starts[row]), int(written.starts[row] + widths[row])
        own = column[start:end]
        kept = mask[start:end] | (own != own[-1])
        run = int(np.argmax(kept[::-1])) if kept.any() else 0 if own[-1] else len(own)
        widths[row] -= run if run > 1 or (ids is None and own[-1] == 0.0) else 0
    return widths


def _room(loss: float) -> float:
    """By how much a loss of so many digits may be off."""
    digits, places = digits_of(loss) if np.isfinite(loss) else (TYPED + 1, 0)
    return 0.5 * 10.0**-places if loss and digits <= TYPED else 0.0


# ---- what the rounding of log-probs leaves open of a loss ----------------------------------------

_LOG_PROBS = ("log_probs_new", "log_probs_old", "log_probs_ref")
_DECIMALS = range(3, 8)
"""Of log-probs that were rounded: fewer may have been typed, more are as good as float32."""
_SIGMAS = 3.0
_OF_FLOAT32 = 2.0**-23
"""What float32 leaves of the sizes that a loss is made of."""


def log_prob_formats(values: F64, records: Segments) -> list[str]:
    """[M] the format that all numbers of a record were rounded to; "" where none is known.

    It is "4 decimals", "bfloat16", "float16" or "float32".
    """
    found = precisions(values, records.lengths)
    exact = {f"{places} decimals": np.round(values, places) == values for places in _DECIMALS}
    exact["float32"] = values.astype(np.float32) == values
    for form, held in exact.items():
        lost = records.sum(~held) > 0
        found = [name or ("" if no else form) for name, no in zip(found, lost, strict=True)]
    return found


def loss_rooms(breakdown: Breakdown) -> F64:
    """[M] by how much the loss of each record may be off, since its log-probs were rounded.

    It is three standard deviations of Σ slope·error, with errors spread evenly over half a unit of
    the last decimal; the slopes by π_old and by the reference are no larger than by π_θ. A column
    that is coarser than another was so in training: what writes a record rounds them all, and the
    advantages too.
    """
    batch = breakdown.batch
    records, each = batch.record_tokens, _log_probs(breakdown)
    if not each:
        return np.zeros(records.count)
    steps = np.min([_half_steps(log_prob_formats(x, records), x, records) for x in each], axis=0)
    squares = len(each) * records.sum((breakdown.gradient * steps) ** 2) / 3.0
    if batch.advantages is not None:
        squares += batch.records.sum(_by_advantages(breakdown, steps) ** 2) / 3.0
    rounded = _SIGMAS * np.sqrt(squares) + _OF_FLOAT32 * breakdown.record_scale
    return np.where(records.sum(steps) > 0.0, rounded, 0.0)


def _by_advantages(breakdown: Breakdown, steps: F64) -> F64:
    """[R] by how much half a unit of each advantage moves J; 0 where these have more digits."""
    batch, given = breakdown.batch, breakdown.advantage
    found = np.zeros(len(given))
    np.divide(steps * breakdown.token_weight * breakdown.surrogate, given, found, where=given != 0)
    unit = 2.0 * np.where(steps > 0.0, steps, 1.0)
    found[np.abs(given - unit * np.rint(given / unit)) > 1e-3 * unit] = 0.0
    return batch.responses.sum(found)


def _log_probs(breakdown: Breakdown) -> list[F64]:
    found = (getattr(breakdown.batch, name) for name in _LOG_PROBS)
    return [values for values in found if values is not None]


def _half_steps(formats: Sequence[str], values: F64, records: Segments) -> F64:
    """[N] how far each log-prob may be from what it was rounded from."""
    parts = zip(formats, np.split(values, records.starts[1:]), strict=True)
    return np.concatenate([half_steps(form, part) for form, part in parts])
