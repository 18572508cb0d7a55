"""Tokens and responses that do not count, or count twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.verify.causes.case import Case, Cause
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.terms import KL, Term

Picked = NDArray[np.bool_]
Pick = Callable[[Case], Picked]
"""Returns [N] which tokens of a record."""

_TIMES = ((0.0, "dropped (gradient 0)"), (2.0, "doubled"))


def last(case: Case) -> Picked:
    """[N] the last token of every response."""
    responses = case.batch.responses
    picked = np.zeros(responses.total, dtype=bool)
    picked[(responses.starts + responses.lengths - 1)[responses.lengths > 0]] = True
    return picked


def first(case: Case) -> Picked:
    """[N] the first token of every response."""
    responses = case.batch.responses
    picked = np.zeros(responses.total, dtype=bool)
    picked[responses.starts[responses.lengths > 0]] = True
    return picked


def edges(case: Case) -> Iterator[Cause]:
    """Yields the last or the first token of every response, dropped or doubled."""
    if not case.batch.responses.total:
        return
    for pick, where in ((last, "last"), (first, "first")):
        for times, suffix in _TIMES:
            words = f"the {where} token of every response is {suffix}"
            yield Cause("edge-token", words, partial(_times, pick=pick, times=times))


def _times(case: Case, pick: Pick, times: float) -> Breakdown:
    """Counts some tokens otherwise, in value and in gradient; the denominators stay."""
    weight, objective = np.where(pick(case), times, 1.0), case.objective
    if objective.ratio.choice.per_response and objective.correction.choice.absent:
        # the gradient of a token's part goes to all tokens of its response
        term = case.breakdown.term(KL)
        own = case.batch.responses.spread(case.breakdown.term_weight(term)) if term else None
        kl = own if own is None else weight * own
        return case.weighted(weight * case.breakdown.token_weight, kl)

    def counted(term: Term) -> Term:
        values = term.values * weight
        slope = None if term.slope is None else term.slope * weight
        return term._replace(values=values, sums=case.batch.responses.sum(values), slope=slope)

    return case.with_terms(counted)


# ---- solved for in the gradient -----------------------------------------------------------------


def solved_tokens(case: Case) -> Iterator[Cause]:
    """Yields tokens whose gradient is 0, or twice what it should be, while the others are right."""
    wanted, ours = case.gradient, case.breakdown.gradient
    if wanted is None:
        return
    wrong = ~case.near(wanted, ours)
    some = wrong.any() and not (wrong | (np.abs(ours) <= case.quiet)).all()
    for times, suffix in _TIMES:
        if some and case.near(wanted, np.where(wrong, times, 1.0) * ours).all():
            picked = _with_silent(case, wrong)
            equal = not times and _may_be_advantages(case, picked)
            yield _cause(_words(case, picked, suffix), picked, times)._replace(equal=equal)
            if not np.array_equal(picked, wrong):
                yield _cause(_words(case, wrong, suffix), wrong, times)
    if not wrong.any():
        yield from _silent(case)


def _may_be_advantages(case: Case, picked: Picked) -> bool:
    """Whether these are responses whose advantage may be 0: several, or alone in their group."""
    rows = np.unique(case.batch.responses.index[picked])
    if case.batch.rewards is None or case.objective.advantage.choice.given or case.objective.beta:
        return False
    lone = np.bincount(case.batch.groups)[case.batch.groups[rows]] == 1
    return len(rows) > 1 or bool(lone.all())


def _cause(words: str, picked: Picked, times: float) -> Cause:
    def pick(case: Case) -> Picked:
        if len(picked) != case.batch.responses.total:
            raise ValueError("these tokens belong to another record")
        return picked

    lost = "response-lost" if words.startswith("response") else "token-lost"
    return Cause(lost, words, partial(_times, pick=pick, times=times))


def _with_silent(case: Case, wrong: Picked) -> Picked:
    """Adds the tokens without gradient of responses whose other tokens are all wrong."""
    responses = case.batch.responses
    seen = np.abs(case.breakdown.gradient) > case.quiet
    whole = (responses.sum((seen & ~wrong).astype(int)) == 0) & (
        responses.sum(wrong.astype(int)) > 0
    )
    picked: Picked = wrong | (responses.spread(whole) & ~seen)
    return picked


def _silent(case: Case) -> Iterator[Cause]:
    """Yields tokens and responses without gradient (clipped) that add nothing, or double."""
    if case.loss is None:
        return
    responses, parts = case.batch.responses, case.breakdown.contribution
    silent = np.abs(case.breakdown.gradient) <= case.quiet
    whole = (responses.lengths > 0) & (responses.sum((~silent).astype(int)) == 0)
    for times, suffix in _TIMES:
        for row in np.flatnonzero(whole & _explains(case, responses.sum(parts), times)):
            picked = responses.index == row
            yield _cause(_words(case, picked, suffix), picked, times)
        fits = np.flatnonzero(silent & _explains(case, parts, times))
        if len(fits):
            picked = np.arange(len(parts)) == fits[0]
            words = _words(case, picked, suffix)
            if len(fits) > 1:
                words += (
                    f", or another of the {len(fits)} tokens without gradient that have the "
                    "same contribution"
                )
            yield _cause(words, picked, times)


def _explains(case: Case, parts: F64, times: float) -> Picked:
    """Whether counting a part of the loss so many times explains what it is off by."""
    assert case.loss is not None
    off = case.loss - float(case.breakdown.record_objective[0])
    size = max(abs(case.loss), 1e-3 * float(np.abs(case.breakdown.contribution).sum()))
    near: Picked = np.abs((times - 1.0) * parts - off) <= case.tolerance.rtol * size
    return near


def _words(case: Case, picked: Picked, suffix: str) -> str:
    responses = case.batch.responses
    rows = np.unique(responses.index[picked])
    of_rows = responses.spread(np.isin(np.arange(responses.count), rows))
    count = int(picked.sum())
    if np.array_equal(picked, of_rows):
        names = ", ".join(map(str, rows[:5].tolist())) + (", …" if len(rows) > 5 else "")
        what = f"response {names} is" if len(rows) == 1 else f"responses {names} are"
        return f"{what} {suffix}: {count} of {responses.total} tokens"
    at = int(np.argmax(picked))
    row = int(responses.index[at])
    inside = at - int(responses.starts[row])
    if inside == responses.lengths[row] - 1:
        place = f"the last token of response {row}"
    else:
        positions = case.batch.positions
        place = f"token {inside if positions is None else int(positions[at])} of response {row}"
    verb = "token is" if count == 1 else "tokens are"
    place = f"{'the first is ' if count > 1 else ''}{place}"
    return f"{count} of {responses.total} {verb} {suffix}: {place}"
