"""Columns and masks that were changed on the way to the loss: shifted, rounded, scaled, ignored."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, Segments
from grpo_cli.commands.verify.causes.case import Case, Cause, tapped
from grpo_cli.commands.verify.causes.choices import scaled_ratio
from grpo_cli.commands.verify.causes.clips import effective_log_ratio
from grpo_cli.commands.verify.causes.solving import parametric
from grpo_cli.commands.verify.compare import HALF, to_half
from grpo_cli.objective.breakdown import Breakdown

Flags = NDArray[np.bool_]
Change = Callable[[F64, Segments], F64]
"""A column as written, and its responses → the column as it was read."""

_NAMES = {
    "log_probs_new": "the new",
    "log_probs_old": "the old",
    "log_probs_ref": "the reference's",
    "log_probs_rollout": "the engine's",
}


def _read(case: Case) -> dict[str, str]:
    """Column → what it is called, of those that the objective reads."""
    objective, given = case.objective, case.record.columns
    needless = set() if objective.beta else {"log_probs_ref"}
    if objective.correction.choice.absent and not objective.ratio.name.startswith("rollout"):
        needless.add("log_probs_rollout")
    return {key: name for key, name in _NAMES.items() if key in given and key not in needless}


def _replaced(case: Case, columns: tuple[str, ...], change: Change) -> Breakdown:
    given = {name: np.frombuffer(case.record.columns[name]) for name in columns}
    made = {name: change(values, case.written).tobytes() for name, values in given.items()}
    return case.with_record(columns={**case.record.columns, **made})


def _shifted(values: F64, written: Segments, by: int, fill: str) -> F64:
    """Each token's value is its neighbour's; at the edge 0, its own, or the next response's."""
    moved, lengths = np.roll(values, by), written.spread(written.lengths)
    edge = written.positions == (0 if by > 0 else lengths - 1)
    if fill == "rolled":  # as rows that are padded to the longest: that one takes in its other end
        edge &= lengths < lengths.max(initial=0)
    if fill in ("wrapped", "rolled"):
        start = written.spread(written.starts)
        moved = values[start + (written.positions - by) % np.maximum(lengths, 1)]
        edge &= fill == "rolled"
    return np.where(edge, values if fill == "repeated" else 0.0, moved)


def _from_row_before(values: F64, written: Segments) -> F64:
    if len(set(written.lengths.tolist())) != 1:
        raise ValueError("rows of unequal lengths")
    return np.roll(values, int(written.lengths[0]))


_NEIGHBOUR = "are shifted by one token: each token has the value of the {} one"
CHANGES: tuple[tuple[str, str, Change], ...] = (
    *(
        ("log-probs-rounded", f"were rounded to {kind}", lambda x, _, kind=kind: to_half(x, kind))
        for kind in HALF
    ),
    *(
        ("log-probs-shifted", _NEIGHBOUR.format(where), partial(_shifted, by=by, fill=fill))
        for by, where in ((1, "previous"), (-1, "next"))
        for fill in ("zero", "repeated", "wrapped", "rolled")
    ),
    *(
        (
            "packed-boundary",
            f"{_NEIGHBOUR.format(where)}, across responses",
            lambda x, _, by=by: np.roll(x, by),
        )
        for by, where in ((1, "previous"), (-1, "next"))
    ),
    ("zero-filled", "are 0: they are missing and were filled", lambda x, _: np.zeros_like(x)),
    ("log-probs-shifted", "are those of the previous response", _from_row_before),
)
"""What happened to a column of log-probs."""


def columns(case: Case) -> Iterator[Cause]:
    """Yields columns of log-probs that were shifted, rounded or emptied; all rounded at last."""
    read = _read(case)
    for mistake, words, change in CHANGES:
        names = [*read] if mistake == "log-probs-rounded" else [*read][1:]
        for column in names:
            sentence = f"{read[column]} log-probs {words}"
            yield Cause(mistake, sentence, partial(_replaced, columns=(column,), change=change))
        if mistake == "log-probs-rounded" and len(names) > 1:
            made = partial(_replaced, columns=tuple(names), change=change)
            yield Cause(mistake, f"all log-probs {words}", made)


def exchanged(case: Case) -> Iterator[Cause]:
    """Yields log-probs of one policy that are read for those of another."""
    for into, name in _read(case).items():
        for source, other in _NAMES.items():
            if into in ("log_probs_new", "log_probs_old", source):
                continue  # the ratio to another policy has a cause of its own
            if getattr(case.batch, source) is None:
                continue
            made = partial(_exchanged, into=into, source=source)
            yield Cause("columns-exchanged", f"{other} log-probs are read for {name} ones", made)


def _exchanged(case: Case, into: str, source: str) -> Breakdown:
    return case.with_columns(**{into: getattr(case.batch, source)})


# ---- scaled: another temperature, another base ---------------------------------------------------

_BASES: Mapping[str, float] = {
    "log-probs in base 2: 2^x instead of e^x": math.log(2.0),
    "log-probs converted from base 2, although they are natural": 1.0 / math.log(2.0),
    "log-probs in base 10: 10^x instead of e^x": math.log(10.0),
}


def _rescaled(case: Case, number: float, names: tuple[str, ...]) -> Breakdown:
    """Multiplies columns; the gradient by the new log-probs has their factor."""
    made = {name: number * getattr(case.batch, name) for name in names}
    again = case.with_columns(**made)
    if "log_probs_new" not in names:
        return again
    terms = (
        term._replace(slope=None if term.slope is None else number * term.slope)
        for term in again.terms
    )
    return replace(again, terms=tuple(terms))


def bases(case: Case) -> Iterator[Cause]:
    """Yields log-probs of another base, in all columns alike."""
    names = tuple(name for name in _NAMES if getattr(case.batch, name) is not None)
    if "log_probs_new" in names:
        for words, number in _BASES.items():
            yield Cause("ratio-base", words, partial(_rescaled, number=number, names=names))
            yield Cause(
                "ratio-base", f"{words}, only in the ratio", partial(_in_ratio, number=number)
            )


def _in_ratio(case: Case, number: float) -> Breakdown:
    power = partial(scaled_ratio, by=number)
    return case.evaluated(None, ratio=tapped(case.objective.ratio, power))


def temperatures(case: Case) -> Iterator[Cause]:
    """Yields one column of log-probs at another temperature, solved for."""
    for column, name in _read(case).items():
        words = (
            f"{name} log-probs are scaled by {{}}: they have another temperature than "
            "the other columns"
        )
        family = partial(_rescaled, names=(column,))
        start = 1.0 if column == "log_probs_ref" else _scale_of(case, column)
        if start is not None:
            yield from parametric(case, "log-probs-scaled", words, family, start)


def _scale_of(case: Case, column: str) -> float | None:
    """Reads the factor of a column off the ratios that the gradients have; None where none fits.

    With f on the old log-probs log ρ = θ − f·o; with f on the new ones the gradient is
    f·e^(f·θ − o), so that differences between tokens say f.
    """
    new, old, seen = case.batch.log_probs_new, case.batch.log_probs_old, effective_log_ratio(case)
    if new is None or old is None or seen is None:
        return None
    if case.objective.ratio.choice.per_response:
        means = case.batch.responses.mean
        new, old, seen = means(new), means(old), means(seen)
    known = np.isfinite(seen)
    new, old, seen = new[known], old[known], seen[known]
    if len(seen) < 4:
        return None
    if column == "log_probs_old":
        each = (new - seen) / np.where(old == 0.0, np.nan, old)
    else:
        order = np.argsort(new)
        half = len(order) // 2
        low, high = order[:half], order[-half:]
        step = new[high] - new[low]
        each = ((seen + old)[high] - (seen + old)[low]) / np.where(step == 0.0, np.nan, step)
    factor = float(np.nanmedian(each))
    near = np.abs(each - factor) <= 0.1 * abs(factor)  # a KL moves them a little
    return factor if factor > 0.0 and near.mean() > 0.5 else None
