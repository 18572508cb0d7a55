"""Denominators, solved for: what each response's tokens weigh, and what that is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.verify.causes.case import Case, Cause
from grpo_cli.commands.verify.causes.factors import everything
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.choice import Bound, Choice
from grpo_cli.objective.results import Weights
from grpo_cli.records import Record

Numerator = Callable[[Case], F64]
Divisor = Callable[[Case], float]


def _one(case: Case) -> F64:
    return np.ones(case.batch.responses.count)


def _lengths(case: Case) -> F64:
    return np.maximum(case.batch.responses.lengths, 1).astype(np.float64)


def _written(case: Case) -> F64:
    return np.maximum(np.array(case.record.widths), 1).astype(np.float64)


# how a response's weight goes with its length → the numerator, and what is counted then
_FORMS: Mapping[str, Numerator] = {
    "": _one,
    "its response's tokens": lambda case: 1.0 / _lengths(case),
    "its response's tokens as written, masked ones too": lambda case: 1.0 / _written(case),
    "its length as a factor": _lengths,
    "the root of its length": lambda case: 1.0 / np.sqrt(_lengths(case)),
}


def _constant(case: Case) -> float:
    values = case.record.hyperparameters
    known = values.get("max_completion_length", values.get("response_length"))
    own = case.objective.aggregate.values.get("max_completion_length")
    value = own if known is None else known
    return float(value) if isinstance(value, int | float) else np.nan


def _items(case: Case) -> float:
    value = case.record.hyperparameters.get("num_items_in_batch")
    return float(value) if isinstance(value, int | float) else np.nan


def _count(case: Case) -> float:
    return float(case.batch.responses.count)


def _with_cut(case: Case) -> float:
    """The tokens that count, and those of responses of which none does, their padding aside."""
    cut = np.flatnonzero(case.batch.responses.lengths == 0).tolist()
    more = sum(_unpadded(case.record, at) for at in cut)
    return float(case.batch.responses.total + more) if cut else np.nan


def _unpadded(record: Record, at: int) -> int:
    """Tokens of a response without what is repeated at its end; all, where no ids are told."""
    ids = [] if record.token_ids is None else record.token_ids[at]
    if len(ids) < 2 or ids[-1] != ids[-2]:
        return record.widths[at]
    return next((end for end in range(len(ids), 0, -1) if ids[end - 1] != ids[-1]), 0)


# what tokens of equal weight are divided by
_EQUAL: tuple[tuple[str, Divisor], ...] = (
    ("1 (sum over tokens: no denominator)", lambda _: 1.0),
    (
        "the number of tokens (token-mean over this micro-batch, its local count)",
        lambda case: float(case.batch.responses.total),
    ),
    ("the number of responses (token-sum: sum over tokens, mean over responses)", _count),
    (
        "responses × max_completion_length (token-sum-norm: a constant length)",
        lambda case: _count(case) * _constant(case),
    ),
    (
        "responses × the longest response (mean over padded positions, the width)",
        lambda case: _count(case) * max(case.record.widths, default=0),
    ),
    (
        "the tokens as written, masked ones too (the mask is not in the denominator)",
        lambda case: float(sum(case.record.widths)),
    ),
    (
        "the tokens with those of responses that are masked whole (truncated ones count still)",
        _with_cut,
    ),
    ("num_items_in_batch", _items),
    ("max_completion_length alone", _constant),
    ("the number of groups", lambda case: float(case.batch.group_count)),
)
# what tokens that are divided by a length of their own are divided by beside it
_MEANS: tuple[tuple[str, Divisor], ...] = (
    ("the number of responses (response-mean: mean over responses of each one's)", _count),
    ("responses − 1 (B − 1)", lambda case: _count(case) - 1.0),
    ("1 (a sum over responses)", lambda _: 1.0),
    ("the number of groups", lambda case: float(case.batch.group_count)),
)


def denominators(case: Case, *, unnamed: bool = True) -> Iterator[Cause]:
    """The weights that explain the gradient, and their names; as numbers where they have none."""
    factor = _factors(case)
    if factor is None:
        return
    told = np.isfinite(factor)
    weight = case.breakdown.weight * np.where(told, factor, 1.0)
    if np.allclose(factor[told], 1.0, rtol=1e-4):
        return
    fitting: dict[str, float] = {}
    for form, shape in _shapes(case).items():
        scale = weight[told] / shape[told]
        if np.allclose(scale, scale[0], rtol=3e-4, atol=0.0):
            fitting[form] = 1.0 / float(np.median(scale))
    named = [form for form, divisor in fitting.items() if any(_named(case, form, divisor))]
    for form in named or (fitting if unnamed else ()):
        yield from _causes(case, form, fitting[form], factor[told])


def _shapes(case: Case) -> Mapping[str, F64]:
    """How weights may go with lengths: those that are the same here once, by the simpler name."""
    shapes: dict[str, F64] = {}
    for form, numerator in _FORMS.items():
        shape = numerator(case)
        if not any(np.array_equal(shape, other) for other in shapes.values()):
            shapes[form] = shape
    return shapes


def _causes(case: Case, form: str, divisor: float, factor: F64) -> Iterator[Cause]:
    """The weights under every name that their denominator has here, else as a number."""
    numerator = _FORMS[form]
    meant = f"where {case.breakdown.counted} are meant"
    names = [*_named(case, form, divisor)]
    for name, of in names:
        by = f"{form} × " if form and "length" not in form else ""
        words = f"{_kind(factor)}denominator: each token is divided by {by}{name}, {meant}"
        yield Cause("aggregate", words, partial(_with, numerator=numerator, divisor=of))
    if names:
        return
    usual = float(np.median(factor))
    if abs(factor - usual).max() <= 3e-4 * abs(usual):
        words = f"off by a constant factor: expected is ours times {usual:.6g}"
        yield Cause("aggregate", words, partial(everything, factor=usual))
    else:
        words = f"denominator: tokens weigh by {form or 'the same'}, over {divisor:.6g}, {meant}"
        of = partial(_fixed, divisor=divisor)
        yield Cause("aggregate", words, partial(_with, numerator=numerator, divisor=of))


def _fixed(_: Case, divisor: float) -> float:
    return divisor


def _factors(case: Case) -> F64 | None:
    """[R] what each response's gradient is multiplied by; None where that does not explain it."""
    wanted, ours, responses = case.gradient, case.breakdown.gradient, case.batch.responses
    if wanted is None or not responses.total:
        return None
    square = responses.sum(ours * ours)
    told = square > (case.quiet**2) * np.maximum(responses.lengths, 1)
    if not told.any():
        return None
    factor = np.where(told, responses.sum(ours * wanted) / np.where(told, square, 1.0), np.nan)
    usual = float(np.nanmedian(factor))  # of those that tell nothing
    explained = responses.spread(np.where(told, factor, usual)) * ours
    return factor if case.near(explained, wanted).all() else None


def _kind(factor: F64) -> str:
    return "a sum where a mean is meant, or another " if factor.min() > 2.0 else "another "


def _named(case: Case, form: str, divisor: float) -> Iterator[tuple[str, Divisor]]:
    """Every count that it is, since some are the same on some records."""
    told = False
    for steps, said in ((False, ""), (True, " × the accumulation steps")):
        for name, of in _MEANS if form else _EQUAL:
            count = partial(_counted, of=of, steps=steps)
            if abs(count(case) - divisor) <= 3e-4 * divisor:
                told = True
                yield name + said, count
        if told:
            return


def _counted(case: Case, of: Divisor, *, steps: bool) -> float:
    accumulated = case.record.hyperparameters.get("gradient_accumulation_steps") or 1
    assert isinstance(accumulated, int | float)
    return of(case) * accumulated if steps else of(case)


def _with(case: Case, numerator: Numerator, divisor: Divisor) -> Breakdown:
    shape, by = numerator(case), divisor(case)

    def aggregate() -> Weights:
        return Weights(shape, None, by, "solved")

    return case.evaluated(aggregate=Bound("solved", Choice(aggregate), {}), kl_aggregate=None)
