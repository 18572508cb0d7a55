"""A record that differs, what it expects, and what can be tried on it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, wraps
from typing import Any, NamedTuple

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
)
from grpo_cli.commands.verify.expected import Expectation, Flags
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
    """A record that differs; or several of one kind, for causes that work record by record.

    Attributes:
        records: the records. Whatever is one number below is the first record's.
        breakdown: what they evaluate to.
        columns: everything that they expect and that the objective has.
        tolerance: when two numbers agree.
    """

    records: Sequence[Record]
    breakdown: Breakdown
    columns: Sequence[Column]
    tolerance: Tolerance

    @classmethod
    def of(
        cls,
        records: Sequence[Record],
        wanted: Sequence[Sequence[Expectation]],
        plan: Plan,
        tolerance: Tolerance,
    ) -> Case:
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
            chunk = replace(chunk, varied=_varied(records))
        breakdown = chunk.run(Evaluator(plan).evaluate)
        each = zip(*wanted, strict=len(kinds) == 1)
        columns = [column_of(records, some, breakdown, tolerance.decimals) for some in each]
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
        """By what a mean is divided in addition: nothing, or the accumulation steps."""
        steps = self.record.hyperparameters.get("gradient_accumulation_steps")
        more = {" / accumulation steps": float(steps)} if isinstance(steps, int | float) else {}
        return {"": 1.0} | {words: number for words, number in more.items() if number > 1.0}

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

    def near(self, found: F64, expected: F64) -> Flags:
        """Which gradients agree, on the scale of the largest expected, but for their rounding."""
        size, column = float(np.abs(expected).max(initial=0.0)), self.gradient_column
        rounded = column is not None and column.slack is not None
        slack = column.slack[self.mask] if rounded else 0.0  # type: ignore[union-attr,index]
        return np.abs(found - expected) <= max(self.tolerance.rtol, 1e-6) * size + slack

    @cached_property
    def agreeing_gradients(self) -> Flags:
        """[N] the tokens whose gradient is as expected."""
        assert self.gradient is not None
        return self.near(self.gradient, self.breakdown.gradient)

    def misfits(self, again: Breakdown) -> F64:
        """[M] the relative tolerance that another evaluation needs; infinite where it disagrees.

        It has to leave at most a tenth of what is to be explained; a thousandth of it where only
        a loss is recorded, since many mistakes come near to any one number.
        """
        most = np.zeros(len(self.records))
        for column in self.in_order:
            found = self._found(column, again)
            agree = None if found is None else self._agree(column, found)
            if found is None or agree is None or not agree.any():
                return np.full_like(most, np.inf)
            most = np.where(agree, np.maximum(most, self._needs(column, found)), np.inf)
        rest = np.where(self._have_one_number & (self._roundings == 0.0), LONE, REST)
        return np.where(most <= rest * self._own_misfits, most, np.inf)

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

    @property
    def loss_room(self) -> float:
        """By how much a rounded loss may be off; 0 where it has many digits."""
        return float(self._loss_rooms[0])

    @cached_property
    def _loss_rooms(self) -> F64:
        """[M] it of each record."""
        return np.array([_room(value) for value in self.losses.tolist()])

    @property
    def rounding(self) -> float:
        """It as a relative tolerance."""
        return float(self._roundings[0])

    @cached_property
    def _roundings(self) -> F64:
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

    def by_record(self, number: Callable[[Case], float]) -> F64 | float:
        """A number of the record; of several [R] that of each one's responses."""
        if len(self.records) == 1:
            return number(self)
        numbers, batch, weight = [], self.batch, self.breakdown.correction
        cuts = batch.cuts(range(len(self.records) + 1))
        for one, cut in zip(self.records, cuts, strict=True):
            own = Batch(  # all that is read, and the record
                Segments(batch.responses.lengths[cut.responses]),
                Segments(np.array(cut.counts[2:3])),
                batch.groups[cut.responses] - cut.groups.start,
                cut.counts[1],
                rewards=None if batch.rewards is None else batch.rewards[cut.responses],
            )
            rejected = None if weight is None else weight[cut.tokens]
            alone = replace(self.breakdown, batch=own, correction=rejected)
            numbers.append(number(Case([one], alone, (), self.tolerance)))
        return self.batch.records.spread(np.array(numbers))

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

    def _multiple(self, wanted: F64, slope: F64) -> Flags:
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
COUNTS = ("num_items_in_batch", "batch_num_tokens")
"""They differ from record to record of one run, and are in no answer."""


def _varied(records: Sequence[Record]) -> dict[str, F64]:
    """The counts of records that have them."""
    names = [name for name in COUNTS if name in records[0].hyperparameters]
    return {name: np.array([one.hyperparameters[name] for one in records]) for name in names}


def _room(loss: float) -> float:
    """By how much a loss of so many digits may be off."""
    digits, places = digits_of(loss) if np.isfinite(loss) else (TYPED + 1, 0)
    return 0.5 * 10.0**-places if loss and digits <= TYPED else 0.0


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
        by_record: whether it can be evaluated for several records at once.
    """

    mistake: str
    words: str
    evaluate: Callable[[Case], Breakdown]
    of: str = ""
    equal: bool = False
    for_all: bool = False
    adds_to: tuple[str, ...] = ()
    by_record: bool = False

    def misfit(self, case: Case, losses: list[float] | None = None) -> float:
        """How far off a record is with this mistake; infinite where it does not agree.

        Args:
            case: the record.
            losses: gets the objective that the mistake gives.
        """
        try:
            again = self.evaluate(case)
            if losses is not None and case.agrees_but_for_loss(again):
                losses.append(float(again.record_objective[0]))
            return case.misfit(again)
        except IMPOSSIBLE:
            return np.inf  # the record cannot be read so

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
    by_record: bool = False,
) -> Cause:
    """A mistake that the catalogue has the words for; ``adds_to`` is the key of a simpler one."""
    mistake, words = worded(key)
    simpler = (worded(adds_to)[1],) if adds_to else ()
    return Cause(mistake, words, evaluate, of, adds_to=simpler, by_record=by_record)


def swapped(mistake: str, stage: str, words: str, bound: Bound) -> Cause:
    """A mistake that is another choice at a stage."""
    stages = {stage: bound, "kl_aggregate": None} if stage == "aggregate" else {stage: bound}
    return Cause(mistake, words, partial(Case.evaluated, **stages), stage, by_record=True)


def bound_to(name: str, choice: Choice, known: Mapping[str, Value]) -> Bound | None:
    """Binds a choice to hyperparameters and its defaults; None where one of them is unknown."""
    known = {**choice.defaults, **known}
    if not {*choice.hyperparameters} <= known.keys():
        return None
    try:
        return Bound(name, choice, {each: known[each] for each in choice.hyperparameters})
    except (TypeError, HyperparameterError):
        return None
