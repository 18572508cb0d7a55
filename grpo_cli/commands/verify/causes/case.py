"""A record that differs, what it expects, and what can be tried on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Batch, Segments
from grpo_cli.commands.verify.compare import (
    NOISE_OF_SUMS,
    Column,
    Tolerance,
    as_written,
    column_of,
    deciding,
    digits_of,
)
from grpo_cli.commands.verify.expected import read_expectations
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.errors import GrpoError
from grpo_cli.hyperparameters import HyperparameterError, Value
from grpo_cli.mistakes import mistakes, worded
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.choice import Bound, Choice
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.pipeline import evaluate
from grpo_cli.objective.results import Weights
from grpo_cli.objective.terms import Term
from grpo_cli.records import Record, assemble
from grpo_cli.terminal.numbers import is_round
from grpo_cli.variants import bind
from grpo_cli.variants.plan import Plan

REST, LONE = 0.1, 1e-3
"""How much of what is to be explained a cause may leave, and of a lone number."""
TYPED = 8
"""A number of no more digits than these was rounded to them."""


@dataclass(frozen=True, eq=False)
class Case:
    """One record that differs.

    Attributes:
        record: the record.
        breakdown: what it evaluates to.
        columns: everything that it expects and that the objective has.
        tolerance: when two numbers agree.
    """

    record: Record
    breakdown: Breakdown
    columns: Sequence[Column]
    tolerance: Tolerance

    @classmethod
    def of(cls, record: Record, plan: Plan, tolerance: Tolerance) -> Case:
        """Evaluates a record, which is a batch of its own.

        Raises:
            InputError: where it cannot be evaluated, or what it expects cannot be read.
        """
        wanted, _ = read_expectations(record)
        breakdown = Chunk.of([record]).run(Evaluator(plan).evaluate)
        columns = [column_of([record], [each], breakdown, tolerance.decimals) for each in wanted]
        known = [column for column in columns if column is not None and not column.absent[0]]
        return cls(record, breakdown, deciding(known), tolerance)

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
    def gradient_column(self) -> Column | None:
        """The expected gradient per token; None where it is not given."""
        for column in self.columns:
            is_gradient = column.key in ("gradient", "loss_gradient")
            per_token = column.expectation.level == "token"
            if is_gradient and per_token and np.isfinite(column.values).all():
                return column
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
    def mask(self) -> NDArray[np.bool_]:
        """[N as written] which tokens count."""
        if self.record.mask is None:
            return np.ones(self.written.total, dtype=np.bool_)
        return np.frombuffer(self.record.mask, dtype=np.bool_)

    @cached_property
    def written(self) -> Segments:
        """The tokens as written, cut into responses."""
        return Segments(np.array(self.record.widths, dtype=np.int64))

    @cached_property
    def unpadded(self) -> I64:
        """[R] tokens of each response as written, less the masked ones that repeat at its end."""
        ids, widths = self.record.token_ids, self.written.lengths.copy()
        values = self.record.columns.get("log_probs_new")
        if (ids is None and values is None) or not self.is_masked:
            return widths
        column = np.array([x for row in ids for x in row]) if ids else np.frombuffer(values or b"")
        for row in np.flatnonzero(widths).tolist():
            start, end = int(self.written.starts[row]), int(self.written.starts[row] + widths[row])
            own = column[start:end]
            kept = self.mask[start:end] | (own != own[-1])
            run = int(np.argmax(kept[::-1])) if kept.any() else 0 if own[-1] else len(own)
            widths[row] -= run if run > 1 or (ids is None and own[-1] == 0.0) else 0
        return widths

    @property
    def accumulations(self) -> dict[str, float]:
        """By what a mean is divided besides: nothing, or the accumulation steps."""
        steps = self.record.hyperparameters.get("gradient_accumulation_steps")
        more = {" / accumulation steps": float(steps)} if isinstance(steps, int | float) else {}
        return {"": 1.0} | {words: number for words, number in more.items() if number > 1.0}

    @cached_property
    def loss(self) -> float | None:
        """The objective J that is expected; None where it is not given."""
        for column in self.columns:
            if column.key in ("loss", "objective") and np.isfinite(column.values[0]):
                value = float(column.values[0])
                return value if column.key == "objective" else -value
        return None

    @cached_property
    def quiet(self) -> float:
        """What a gradient is no larger than where it is 0 but for rounding."""
        return 1e-4 * float(np.abs(self.breakdown.gradient).max(initial=0.0))

    def near(self, found: F64, expected: F64) -> NDArray[np.bool_]:
        """Which gradients agree, on the scale of the largest expected, but for their rounding."""
        size, column = float(np.abs(expected).max(initial=0.0)), self.gradient_column
        rounded = column is not None and column.slack is not None
        slack = column.slack[self.mask] if rounded else 0.0  # type: ignore[union-attr,index]
        return np.abs(found - expected) <= max(self.tolerance.rtol, 1e-6) * size + slack

    @cached_property
    def agreeing_gradients(self) -> NDArray[np.bool_]:
        """[N] the tokens whose gradient is as expected."""
        assert self.gradient is not None
        return self.near(self.gradient, self.breakdown.gradient)

    @cached_property
    def own_misfit(self) -> float:
        """How far off the record's own evaluation is."""
        return self._misfit(self.breakdown)

    def misfit(self, again: Breakdown) -> float:
        """The relative tolerance that another evaluation needs; infinite where it does not agree.

        It has to leave at most a tenth of what is to be explained; a thousandth of it where only
        a loss is recorded, since many mistakes come near to any one number.
        """
        found = self._misfit(again)
        rest = LONE if self.has_one_number and not self.rounding else REST
        return found if found <= rest * self.own_misfit else np.inf

    @cached_property
    def is_loss_alone(self) -> bool:
        """Whether one number is all that is expected."""
        return len(self.columns) == 1 and self.columns[0].expectation.level == "record"

    @cached_property
    def has_one_number(self) -> bool:
        """Whether one number is all that differs: what agrees says nothing about a mistake."""
        wrong = [each for each in self.columns if not self.tolerance.agree(each, each.found).all()]
        return len(wrong) == 1 and wrong[0].expectation.level == "record"

    def agrees_but_for_loss(self, again: Breakdown) -> bool:
        """Whether another evaluation has what the record expects of more than one number."""
        others = [each for each in self.columns if each.expectation.level != "record"]
        founds = ((each, self._found(each, again)) for each in others)
        return all(x is not None and self._agree(each, x) for each, x in founds)

    @cached_property
    def loss_room(self) -> float:
        """What a loss that was written with few digits leaves open; 0 where it has many."""
        digits, places = digits_of(self.loss or 0.0)
        return 0.5 * 10.0**-places if self.loss and digits <= TYPED else 0.0

    @property
    def rounding(self) -> float:
        """It as a relative tolerance."""
        size = abs(self.loss or 0.0) + NOISE_OF_SUMS * float(self.breakdown.record_scale[0])
        return self.loss_room / size if size else 0.0

    def _misfit(self, again: Breakdown) -> float:
        most = 0.0
        for column in self.in_order:
            found = self._found(column, again)
            if found is None or not (again is self.breakdown or self._agree(column, found)):
                return np.inf
            most = max(most, self.tolerance.misfit(column, found))
        return most

    @cached_property
    def in_order(self) -> Sequence[Column]:
        """The columns, those that are cheap to evaluate first."""
        return sorted(self.columns, key=lambda column: len(column.values))

    def _agree(self, column: Column, found: F64) -> bool:
        if self.is_loss_alone and abs(float(found[0] - column.values[0])) <= self.loss_room:
            return True
        return bool(self.tolerance.agree(column, found).all())

    def _found(self, column: Column, again: Breakdown) -> F64 | None:
        """What another evaluation has in the place of a column; None where it has no such thing."""
        found = column.expectation.evaluated(again)
        if found is None or (column.expectation.level == "record" and np.isnan(found).any()):
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

    # ---- other evaluations --------------------------------------------------------------------

    def evaluated(self, batch: Batch | None = None, /, **stages: Bound | None) -> Breakdown:
        """The record with other data, or with other stages."""
        objective = replace(self.objective, **stages) if stages else self.objective  # type: ignore[arg-type]
        return evaluate(self.batch if batch is None else batch, objective)

    def with_columns(self, **columns: Any) -> Breakdown:
        """The record with other columns in its batch."""
        return self.evaluated(replace(self.batch, **columns))

    def weighted(self, policy: F64, kl: F64 | None = None, batch: Batch | None = None) -> Breakdown:
        """The record with other weights of its tokens, [N], and of those of the KL."""
        own = None if kl is None else _weighing(kl)
        return self.evaluated(batch, aggregate=_weighing(policy), kl_aggregate=own)

    def with_record(self, **changed: Any) -> Breakdown:
        """The record with other columns, or another mask, as written."""
        return self.evaluated(assemble([replace(self.record, **changed)]))

    def with_terms(self, change: Callable[[Term], Term]) -> Breakdown:
        """The record's evaluation with its terms changed."""
        return replace(self.breakdown, terms=tuple(map(change, self.breakdown.terms)))

    def with_coefficient(self, name: str, factor: float) -> Breakdown:
        """The record's evaluation with the coefficient of a term, by name, times a factor."""
        return self.with_terms(
            lambda term: (
                term._replace(coefficient=factor * term.coefficient) if term.name == name else term
            )
        )

    def counted(self, term: Term, times: F64) -> Term:
        """A term with each token counted so many times, [N]; its denominator stays."""
        values, slope = term.values * times, None if term.slope is None else term.slope * times
        return term._replace(values=values, sums=self.batch.responses.sum(values), slope=slope)

    def with_advantages(self, advantages: F64) -> Breakdown:
        """The record with other advantages, [R] or [N]."""
        per_token = len(advantages) != self.batch.responses.count
        batch = replace(
            self.batch,
            advantages=None if per_token else advantages,
            token_advantages=advantages if per_token else None,
        )
        return self.evaluated(batch, advantage=_GIVEN)

    @cached_property
    def without_policy(self) -> Breakdown:
        """The record with all advantages 0: what is left is the KL."""
        return self.with_advantages(np.zeros(self.batch.responses.count))

    @property
    def has_unused_reference(self) -> bool:
        """Whether there is a reference, and the objective has no KL to it."""
        return self.batch.log_probs_ref is not None and not self.objective.beta

    @cached_property
    def policy_gradient(self) -> F64:
        """[N] the part of the gradient that the policy term has."""
        return self.breakdown.gradient - self.without_policy.gradient

    @cached_property
    def unit_slopes(self) -> tuple[F64, F64]:
        """[N] the policy term's part of the gradient where every A is 1, and where it is −1."""
        silent, ones = self.without_policy.gradient, np.ones(self.batch.responses.count)
        return self.with_advantages(ones).gradient - silent, self.with_advantages(
            -ones
        ).gradient - silent

    @cached_property
    def statistics(self) -> dict[tuple[str, ...], Any]:
        """Statistics of the rewards that were computed, by name."""
        return {}

    @cached_property
    def effective_advantages(self) -> F64 | None:
        """[R] the advantage that explains each response's gradient; NaN where none can be solved.

        Every surrogate of the family is proportional to A on either side of 0, so the gradient with
        A = 1 and with A = −1 says what any A gives. None where a response is explained by no A.
        """
        wanted, a = self.expected_policy_gradient, self.breakdown.response_advantage
        if wanted is None or a is None or self.gradient is None:
            return None
        responses = self.batch.responses
        noise = self.tolerance.rtol * float(np.abs(self.gradient).max(initial=0.0))
        solved, left = np.full(responses.count, np.nan), np.full(responses.count, np.inf)
        for sign, slope in zip((1.0, -1.0), self.unit_slopes, strict=True):
            square = responses.sum(slope * slope)
            size = responses.sum(slope * wanted) / np.where(square > 0, square, 1.0)
            misfit = np.abs(wanted - responses.spread(size) * slope)
            parts = np.split(misfit, responses.starts[1:])
            worst = np.array([part.max(initial=0.0) for part in parts])
            better = (size >= 0) & (square > 0) & (worst < left)
            solved, left = np.where(better, sign * size, solved), np.where(better, worst, left)
        filled = responses.lengths > 0
        return solved if (left[filled & np.isfinite(left)] <= 3.0 * noise).all() else None

    @cached_property
    def other_advantages(self) -> bool:
        """Whether an advantage per response may give the gradient that is expected.

        Not where the policy term is |A| times what it is for A = ±1, and no multiple of either
        comes near the gradient of a response: whatever is in its place, it is not the advantage.
        """
        own, wanted = self.breakdown.response_advantage, self.expected_policy_gradient
        read = {*self.objective.correction.choice.columns, *self.objective.aggregate.choice.columns}
        if own is None or wanted is None or self.objective.kl_in_reward:
            return True
        if read & {"advantage", "response_advantage"}:
            return True
        gain, loss = self.unit_slopes
        each = self.batch.responses.spread(own)
        if not np.allclose(
            np.where(each > 0, gain, -loss) * each, self.policy_gradient, rtol=1e-6, atol=1e-12
        ):
            return True
        fits = self._multiple(wanted, gain) | self._multiple(wanted, loss)
        return bool(fits.all())

    @cached_property
    def other_weights(self) -> bool:
        """Whether weights of responses may: the gradient of each is a multiple of ours then."""
        if self.gradient is None or self.objective.kl_aggregate is not None:
            return True
        return bool(self._multiple(self.gradient, self.breakdown.gradient).all())

    def _multiple(self, wanted: F64, slope: F64) -> NDArray[np.bool_]:
        """[R] whether a response's numbers may be a multiple of others, as far as any agree.

        Where any multiple is off by δ at most, the one of least squares is by √T·δ.
        """
        responses = self.batch.responses
        square = responses.sum(slope * slope)
        size = responses.sum(slope * wanted) / np.where(square > 0, square, 1.0)
        off = np.abs(wanted - responses.spread(size) * slope)
        room = 4.0 * self._room * responses.spread(np.sqrt(responses.lengths))
        return responses.sum((~(off <= room)).astype(np.int64)) == 0

    @cached_property
    def _room(self) -> float:
        """How far off a gradient is at most that agrees."""
        column = self.gradient_column
        assert column is not None
        top = float(np.abs(column.values).max(initial=0.0))
        slack = 0.0 if column.slack is None else float(np.max(column.slack, initial=0.0))
        absolute = float(np.max(self.tolerance.absolute(column), initial=0.0))
        return absolute + self.tolerance.rtol * top + slack

    @cached_property
    def expected_policy_gradient(self) -> F64 | None:
        """[N] what is expected of it, if the KL is right."""
        if self.gradient is None:
            return None
        return self.gradient - self.without_policy.gradient


_GIVEN = bind("advantage", "given")


def _weighing(tokens: F64) -> Bound:
    def aggregate(responses: Segments) -> Weights:
        return Weights(np.ones(responses.count), None, 1.0, "solved", tokens)

    return Bound("solved", Choice(aggregate), {})


def tapped(own: Bound, change: Callable[[Any], Any]) -> Bound:
    """Returns a stage with its outcome changed."""

    @wraps(own.choice.function)
    def changed(*columns: Any, **values: Any) -> Any:
        return change(own.choice.function(*columns, **values))

    return Bound(own.name, Choice(changed, own.choice.defaults), own.values)


class Cause(NamedTuple):
    """A mistake as it was made in a record.

    Attributes:
        mistake: its name in the catalogue.
        words: what it is called here, with the numbers that it has.
        evaluate: gives what the record gives with it.
        of: the stage, where that is another one than the catalogue says.
        equal: whether it only says what the record equals, which many mistakes may.
        for_all: whether it is named only if it explains all records that differ.
        adds_to: the words of simpler mistakes, to each of which it adds something.
    """

    mistake: str
    words: str
    evaluate: Callable[[Case], Breakdown]
    of: str = ""
    equal: bool = False
    for_all: bool = False
    adds_to: tuple[str, ...] = ()

    @property
    def stage(self) -> str:
        """The stage that it belongs to."""
        return self.of or mistakes()[self.mistake].stage

    @property
    def is_common(self) -> bool:
        """Whether the catalogue has the mistake as a usual one; another choice is not in it."""
        return bool(self.mistake) and mistakes()[self.mistake].common


IMPOSSIBLE = (GrpoError, ArithmeticError, LookupError, TypeError, ValueError)
"""What says that a mistake cannot have been made on a record."""

STRICT = "GRPO_STRICT"
"""The variable with which a test that fails ends the command; without it only its own answer."""

Source = Callable[[Case], Iterator[Cause]]


def is_typed(value: float, digits: int = 4) -> bool:
    """Whether somebody may have typed a number of so many digits, or what it is one over.

    A number that was solved for explains what it was solved from, whatever the mistake is: where
    nobody would type it, it only says what the record equals.
    """
    over = 1.0 / value if value else 0.0
    near = (
        abs(x - float(f"{x:{of}}")) <= 3e-5 * abs(x)
        for x, of in ((value, f".{digits}g"), (over, ".2g"))
    )
    return is_round(value) or any(near)


def on_top(case: Case, first: Cause, second: Cause) -> Breakdown:
    """What the record gives with two mistakes, the second made in what the first gives."""
    return second.evaluate(replace(case, breakdown=first.evaluate(case)))


def catalogued(
    key: str,
    evaluate: Callable[[Case], Breakdown],
    of: str = "",
    *,
    adds_to: str = "",
) -> Cause:
    """A mistake that the catalogue has the words for; ``adds_to`` is the key of a simpler one."""
    mistake, words = worded(key)
    simpler = (worded(adds_to)[1],) if adds_to else ()
    return Cause(mistake, words, evaluate, of, adds_to=simpler)


def swapped(mistake: str, stage: str, words: str, bound: Bound) -> Cause:
    """A mistake that is another choice at a stage."""
    stages = {stage: bound, "kl_aggregate": None} if stage == "aggregate" else {stage: bound}
    return Cause(mistake, words, lambda case: case.evaluated(None, **stages), stage)


def bound_to(name: str, choice: Choice, known: Mapping[str, Value]) -> Bound | None:
    """Binds a choice to hyperparameters and its defaults; None where one of them is unknown."""
    known = {**choice.defaults, **known}
    if not {*choice.hyperparameters} <= known.keys():
        return None
    try:
        return Bound(name, choice, {each: known[each] for each in choice.hyperparameters})
    except (TypeError, HyperparameterError):
        return None
