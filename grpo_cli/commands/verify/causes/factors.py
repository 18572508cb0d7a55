"""Factors: what everything is multiplied by, the gradient alone, or the loss alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from grpo_cli.commands.verify.causes.case import Case
from grpo_cli.commands.verify.causes.cause import Cause, catalogued
from grpo_cli.commands.verify.causes.denominators import (
    LENGTH_FLAGS,
    LENGTHS,
    batch_count,
    constant_length,
)
from grpo_cli.objective.terms import KL, POLICY
from grpo_cli.terminal.numbers import is_round

# ---- sign and plain factors: of everything, of the gradient alone, of the loss alone ------------


def negative(case: Case) -> Iterator[Cause]:
    """Yields the objective for the loss, of the KL alone where no response has an advantage."""
    if case.gradient is not None or case.loss is not None:
        if not case.breakdown.advantage.any():
            yield catalogued("kl-sign", partial(Case.with_coefficient, name=KL, factor=-1.0))
        made = partial(Case.everything_times, factor=-1.0)
        yield catalogued("loss-sign", made, by_record=True)
        if (kl := case.breakdown.term(KL)) is not None and kl.active:
            yield catalogued("loss-sign.policy", partial(made, only=POLICY), by_record=True)


def separate_factors(case: Case) -> Iterator[Cause]:
    """Yields a factor that only the gradient has, or only the loss."""
    ours, wanted, loss = case.breakdown.gradient, case.gradient, _loss_factor(case)
    square = float(ours @ ours)
    if wanted is None or loss is None or not square:
        return
    gradient = float(ours @ wanted) / square
    if abs(loss - 1.0) <= case.tolerance.rtol or abs(gradient - loss) > 1e-3 * abs(gradient):
        factor = f"the computed one times {gradient:.5g}"
        words = f"only the gradient differs: yours is {factor}, and the loss agrees"
        yield Cause("gradient-factor", words, partial(Case.scaled, loss=1.0, gradient=gradient))
        exact = is_round(loss, within=max(_EXACT, case.rounding))
        if exact:  # else it is fitted to the one number that it explains
            turned = "wrong sign: " if abs(loss + 1.0) <= case.tolerance.rtol else ""
            named = (name for name, value in _stated(case, _ACCUMULATION) if _is_times(loss, value))
            of = "".join(f" ({name}, so perhaps accumulation)" for name in [*named][:1])
            factor = f"the computed one times {loss:.5g}{of}"
            words = f"{turned}only the logged loss differs: yours is {factor}"
            yield Cause("loss-factor", words, partial(Case.scaled, loss=loss, gradient=1.0))
        if exact and abs(gradient - 1.0) > 1e-3:
            words = f"off by constant factors: gradient times {gradient:.5g}, loss times {loss:.5g}"
            yield Cause("factor", words, partial(Case.scaled, loss=loss, gradient=gradient))


_EXACT = 1e-5
"""What float32 leaves of a factor."""


def _is_times(factor: float, value: float) -> bool:
    return value > 1.0 and any(abs(factor - x) <= 1e-4 * x for x in (value, 1.0 / value))


def _loss_factor(case: Case) -> float | None:
    ours = float(case.breakdown.record_objective[0])
    return None if case.loss is None or not ours else case.loss / ours


# ---- factors, where there is only one number to go by -------------------------------------------

_PERHAPS = "off by a factor, perhaps of accumulation"
_SUM = "a sum instead of a mean, or a mean instead of a sum"
_ACCUMULATION = ("gradient_accumulation_steps", "steps_per_generation", "dp_size", "num_processes")
_MICRO_BATCHES, _WHOLE = range(2, 65), range(2, 11)
"""Micro-batches of a step that no record states, and plain factors of a loss."""


def factors(case: Case) -> Iterator[Cause]:
    """Yields factors of the loss that have a name; of a gradient too, only of accumulation."""
    found, room = _loss_factor(case), max(case.tolerance.rtol, case.rounding)
    if found is None:
        return
    alone = case.gradient is None
    stated, counts = [*_stated(case, _ACCUMULATION)], [*_counts(case)] if alone else []
    if alone:
        steps = not any(name == _ACCUMULATION[0] for name, _ in stated)
        yield from _divided_loss(case, found, room, steps=steps)
    named = [("accumulation-missing", _PERHAPS, *each) for each in stated]
    named += [("factor", _SUM, *each) for each in counts]
    for mistake, kind, name, value in (row for row in named if row[3] > 1):
        for factor, verb in ((value, "times"), (1.0 / value, "divided by")):
            for sign, suffix in ((1.0, ""), (-1.0, ", with the wrong sign")):
                if abs(found - sign * factor) <= room * factor:
                    words = f"{kind}: yours is the computed one {verb} {name} = {value:g}{suffix}"
                    yield _factor(mistake, words, sign * factor)
    known = {*np.bincount(case.batch.groups).tolist(), *(x for _, x in (*stated, *counts))}
    for count in _WHOLE if case.is_loss_alone else ():
        if abs(found / count - 1.0) <= room and count not in known:
            words = f"off by a constant factor: yours is the computed loss times {count}"
            yield _factor("factor", words, count)._replace(by_record=True)


def _divided_loss(case: Case, found: float, room: float, *, steps: bool) -> Iterator[Cause]:
    """Yields the constant length and the accumulation steps that a loss is divided by.

    Token sums may be divided by a length that no record states, as Dr. GRPO's code does; one number
    does not tell it from ``steps``, the trainer's settings do.
    """
    is_sum = case.objective.aggregate.name == "token-sum" and np.isnan(constant_length(case))
    tried: list[tuple[str, str, Sequence[int]]]
    tried = [("accumulation-missing", "gradient accumulation of {0}", _MICRO_BATCHES)] * steps
    if is_sum:
        length = f"a constant length of {{0}}, as in Dr. GRPO ({LENGTH_FLAGS})"
        tried = [("constant-length", length, LENGTHS), *tried]
    for mistake, words, counts in tried:
        for count in (one for one in counts if abs(found * one - 1.0) <= room):
            more = f", if your trainer's gradient_accumulation_steps is {count}"
            is_other = is_sum and mistake == "accumulation-missing"
            text = f"loss ÷ {count}: {words.format(count)}{more * is_other}"
            yield _factor(mistake, text, 1.0 / count)


def _factor(mistake: str, words: str, factor: float) -> Cause:
    return Cause(mistake, words, partial(Case.everything_times, factor=factor))


def _stated(case: Case, names: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Yields hyperparameters that the record has, with their numbers."""
    for name in names:
        if isinstance(value := case.record.hyperparameters.get(name), float | int):
            yield name, float(value)


def _counts(case: Case) -> Iterator[tuple[str, float]]:
    yield from _stated(case, ("max_completion_length", "response_length"))
    for of in ("responses", "tokens", "groups"):
        yield batch_count(case, of)
    yield "the denominator", float(case.breakdown.denominator[0])
