"""What is known of a difference that no cause explains: where it is, and of what kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from grpo_cli.commands.verify.causes.case import Case
from grpo_cli.commands.verify.causes.tokens import first, last

Where = Callable[[Case], NDArray[np.bool_]]


_PLACES: tuple[tuple[str, Where], ...] = (
    ("those of clipped tokens", lambda case: case.breakdown.clip != 0),
    ("those of tokens that are not clipped", lambda case: case.breakdown.clip == 0),
    ("the last of each response", last),
    ("the first of each response", first),
    ("those with A > 0", lambda case: case.breakdown.advantage > 0),
    ("those with A < 0", lambda case: case.breakdown.advantage < 0),
    ("those with ratio above 1", lambda case: case.breakdown.ratio > 1.0),
    ("those with ratio below 1", lambda case: case.breakdown.ratio < 1.0),
)


def pattern(case: Case) -> str:
    """One line, or "" where only a single number is known."""
    wanted, ours = case.gradient, case.breakdown.gradient
    if wanted is None or not len(ours):
        return ""
    wrong = ~case.near(wanted, ours)
    if not wrong.any():
        return "the gradient agrees: only values differ (a constant, or what has no gradient)" + (
            _ratio(case)
        )
    count = int(wrong.sum())
    parts = [f"{count:,} of {len(wrong):,} gradients differ", *_where(case, wrong)]
    parts += _how(case, wrong)
    return ", ".join(parts)


def _ratio(case: Case) -> str:
    ours = float(case.breakdown.record_objective[0])
    if case.loss is None or not ours:
        return ""
    return f", the loss is ours times {case.loss / ours:.5g}"


def _where(case: Case, wrong: NDArray[np.bool_]) -> Iterator[str]:
    responses = case.batch.responses
    rows = np.unique(responses.index[wrong])
    filled = int((responses.lengths > 0).sum())
    if len(rows) < filled:
        some = ", ".join(map(str, rows[:5].tolist())) + (", …" if len(rows) > 5 else "")
        yield f"in response{'' if len(rows) == 1 else 's'} {some}"
    seen = case.near(0.0 * case.breakdown.gradient, case.breakdown.gradient)
    for words, where in _PLACES:
        there = where(case)
        if there.any() and not there.all() and bool((there | ~wrong).all()):
            yield ("exactly " if bool((wrong | ~there | seen).all()) else "only among ") + words
            return


def _how(case: Case, wrong: NDArray[np.bool_]) -> Iterator[str]:
    """Whether one factor makes the wrong ones right."""
    assert case.gradient is not None
    wanted, ours = case.gradient[wrong], case.breakdown.gradient[wrong]
    if not np.abs(wanted).max() > case.quiet:
        yield "where 0 is expected"
        return
    square = float(ours @ ours)
    if not square:
        yield "where ours are 0"
        return
    factor = float(ours @ wanted) / square
    if case.near(factor * ours, wanted).all():
        yield f"by a constant factor: expected is ours times {factor:.5g}"
