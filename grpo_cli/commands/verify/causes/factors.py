"""Sign and plain factors: of everything, of the gradient alone, of the loss alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from grpo_cli.commands.verify.causes.case import Case, Cause, round_number
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.terms import Term


def negative(case: Case) -> Iterator[Cause]:
    """The objective for the loss."""
    if case.gradient is not None or case.loss is not None:
        words = "wrong sign: it is the negative (loss = −objective)"
        yield Cause("loss", words, partial(everything, factor=-1.0))


def everything(case: Case, factor: float) -> Breakdown:
    """J, and with it its gradient, times a factor."""
    weights = {id(term.weights): term.weights for term in case.breakdown.terms}
    scaled = {key: one._replace(numerator=factor * one.numerator) for key, one in weights.items()}
    terms = tuple(t._replace(weights=scaled[id(t.weights)]) for t in case.breakdown.terms)
    return replace(case.breakdown, terms=terms)


def apart(case: Case) -> Iterator[Cause]:
    """A factor that only the gradient has, or only the loss."""
    gradient, loss = _of_gradient(case), _of_loss(case)
    if gradient is None or loss is None:
        return
    if abs(loss - 1.0) <= case.tolerance.rtol or abs(gradient - loss) > 1e-3 * abs(gradient):
        words = f"only the gradient: it is ours times {gradient:.5g}, the loss is right"
        yield Cause("aggregate", words, partial(_scaled, loss=1.0, gradient=gradient))
        if round_number(loss):  # else it is fitted to the one number that it explains
            turned = "wrong sign of " if abs(loss + 1.0) <= case.tolerance.rtol else ""
            words = f"{turned}only the loss as logged: it is ours times {loss:.5g}"
            yield Cause("loss", words, partial(_scaled, loss=loss, gradient=1.0))
        if round_number(loss) and abs(gradient - 1.0) > 1e-3:
            words = f"off by constant factors: gradient times {gradient:.5g}, loss {loss:.5g}"
            yield Cause("aggregate", words, partial(_scaled, loss=loss, gradient=gradient))


def _of_gradient(case: Case) -> float | None:
    ours, wanted = case.breakdown.gradient, case.gradient
    square = float(ours @ ours)
    return None if wanted is None or not square else float(ours @ wanted) / square


def _of_loss(case: Case) -> float | None:
    ours = float(case.breakdown.record_objective[0])
    return None if case.loss is None or not ours else case.loss / ours


def _scaled(case: Case, loss: float, gradient: float) -> Breakdown:
    def scaled(term: Term) -> Term:
        slope = None if term.slope is None else gradient * term.slope
        return term._replace(values=loss * term.values, sums=loss * term.sums, slope=slope)

    return replace(case.breakdown, terms=tuple(map(scaled, case.breakdown.terms)))


# ---- where there is only one number to go by ----------------------------------------------------

_ACCUMULATION = ("gradient_accumulation_steps", "steps_per_generation", "dp_size", "num_processes")


def known(case: Case) -> Iterator[Cause]:
    """A factor that has a name; of a gradient too, only that of accumulation."""
    found = _of_loss(case)
    if found is None:
        return
    for name, value in _known(case):
        if value <= 1 or (case.gradient is not None and name not in _ACCUMULATION):
            continue
        for factor, said in ((value, "times"), (1.0 / value, "divided by")):
            for sign, also in ((1.0, ""), (-1.0, ", and of the wrong sign")):
                if abs(found - sign * factor) <= case.tolerance.rtol * factor:
                    words = f"{_kind(name)}: expected is ours {said} {name} = {value:g}{also}"
                    yield Cause("aggregate", words, partial(everything, factor=sign * factor))


def whole(case: Case) -> Iterator[Cause]:
    """A whole factor without a name, of a loss without its gradient."""
    found = _of_loss(case)
    if found is None or case.gradient is not None or abs(found) < 1.5:
        return
    if abs(found - round(found)) <= case.tolerance.rtol * abs(found):
        words = f"off by a whole factor: expected is ours times {round(found)}"
        yield Cause("aggregate", words, partial(everything, factor=found))


def _known(case: Case) -> Iterator[tuple[str, float]]:
    for name in (*_ACCUMULATION, "max_completion_length", "response_length"):
        value = case.record.hyperparameters.get(name)
        if isinstance(value, float | int):
            yield name, float(value)
    batch = case.batch
    yield "the number of responses", float(batch.responses.count)
    yield "the number of tokens", float(batch.responses.total)
    yield "the number of groups", float(batch.group_count)
    yield "the denominator", float(case.breakdown.denominator[0])


def _kind(name: str) -> str:
    if name in _ACCUMULATION:
        return "off by the accumulation factor"
    return "a sum where a mean is meant, or a mean where a sum is meant"
