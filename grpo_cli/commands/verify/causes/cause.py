"""A mistake as it was made in a record, and how the sources of causes make one."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial, wraps
from typing import Any, NamedTuple, Protocol

import numpy as np

from grpo_cli.commands.solving import roundest
from grpo_cli.commands.verify.causes.case import Case
from grpo_cli.errors import GrpoError
from grpo_cli.hyperparameters import HyperparameterError, Value
from grpo_cli.mistakes import mistakes, worded
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.choice import Bound, Choice
from grpo_cli.terminal.numbers import is_round


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
        unnamed: whether it is a number that was solved for and that nobody types.
        least: how many records it has to explain to be named.
    """

    mistake: str
    words: str
    evaluate: Callable[[Case], Breakdown]
    of: str = ""
    equal: bool = False
    for_all: bool = False
    adds_to: tuple[str, ...] = ()
    by_record: bool = False
    unnamed: bool = False
    least: int = 1

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


def other_value(
    name: str, value: float, meant: float, own: Collection[str], *, called: str = ""
) -> str:
    """Another value of a hyperparameter, with the flag that sets it if it is one of ``own``."""
    flag = f" (-p {name}={value:.4g})" if name in own else ""
    return f"{called or name} {value:.4g} instead of {meant:g}{flag}"


def bound_to(name: str, choice: Choice, known: Mapping[str, Value]) -> Bound | None:
    """Binds a choice to hyperparameters and its defaults; None where one of them is unknown."""
    known = {**choice.defaults, **known}
    if not {*choice.hyperparameters} <= known.keys():
        return None
    try:
        return Bound(name, choice, {each: known[each] for each in choice.hyperparameters})
    except (TypeError, HyperparameterError):
        return None


# ---- a number that a mistake has, solved for -----------------------------------------------------


class Family(Protocol):
    """What a record gives with a mistake that has this number."""

    def __call__(self, case: Case, number: float) -> Breakdown: ...  # noqa: D102


_STEPS = 8


def roundest_near(number: float, room: float = 1e-5) -> float:
    """Returns the number of the fewest digits within a relative ``room`` of another."""
    return roundest(*sorted((number * (1.0 - room), number * (1.0 + room))))


def parametric(
    case: Case, mistake: str, words: str, family: Family, start: float = 1.0
) -> Iterator[Cause]:
    """Yields the mistake with the number that explains the gradient best, if any comes near.

    Args:
        case: the record.
        mistake: its name in the catalogue.
        words: what it is called, with ``{}`` for the number.
        family: evaluates it.
        start: where to begin; 1 means no mistake.
    """
    number = _fitted(case, family, start)
    if number is None or abs(number - 1.0) <= 1e-4:
        return
    for value in dict.fromkeys((roundest_near(number, 2e-5), number)):
        made = partial(family, number=value)
        yield Cause(mistake, words.format(f"{value:.5g}"), made, equal=not is_typed(value))


def _fitted(case: Case, family: Family, start: float) -> float | None:
    """Gauss and Newton's steps on the one number; None where they lead nowhere."""
    wanted = case.gradient
    if wanted is None or not len(wanted):
        return None
    number, left = start, math.inf
    for step in range(_STEPS):
        here = family(case, number).gradient
        off = wanted - here
        size = float(off @ off)
        slope = (family(case, number * (1.0 + 1e-6)).gradient - here) / (number * 1e-6)
        square = float(slope @ slope)
        if not square or not np.isfinite(size + square) or (step > 1 and size > 0.5 * left):
            break
        left, change = size, float(off @ slope) / square
        if abs(change) <= 1e-9 * abs(number):
            break
        number += max(-0.5 * abs(number), min(0.5 * abs(number), change))
    return number if left <= 1e-6 * float(wanted @ wanted) else None
