"""Columns and masks that were changed on the way to the loss: shifted, rounded, scaled, ignored."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from grpo_cli.batch import F64, Segments
from grpo_cli.commands.verify.causes.case import Case
from grpo_cli.commands.verify.causes.cause import Cause, catalogued, parametric, tapped
from grpo_cli.commands.verify.causes.choices import scaled_ratio
from grpo_cli.commands.verify.compare import HALF, to_half
from grpo_cli.objective.breakdown import Breakdown

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
    """Each token's value is its neighbour's; at the edge 0 or its own."""
    moved, lengths = np.roll(values, by), written.spread(written.lengths)
    edge = written.positions == (0 if by > 0 else lengths - 1)
    return np.where(edge, values if fill == "repeated" else 0.0, moved)


_NEIGHBOUR = "are shifted by one token: each token has the value of the {} one"
_WAYS = ((1, _NEIGHBOUR.format("previous")), (-1, _NEIGHBOUR.format("next")))
CHANGES: tuple[tuple[str, str, Change], ...] = (
    *(
        ("log-probs-rounded", f"were rounded to {kind}", lambda x, _, kind=kind: to_half(x, kind))
        for kind in HALF
    ),
    *(
        ("log-probs-shifted", words, partial(_shifted, by=by, fill=fill))
        for by, words in _WAYS
        for fill in ("zero", "repeated")
    ),
    *(
        ("packed-boundary", f"{words}, across responses", lambda x, _, by=by: np.roll(x, by))
        for by, words in _WAYS
    ),
    ("zero-filled", "are 0: they are missing and were filled", lambda x, _: np.zeros_like(x)),
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


# ---- scaled: another temperature, another base ---------------------------------------------------

_BASES: Mapping[str, float] = {
    "ratio-base.two": math.log(2.0),
    "ratio-base.bits": 1.0 / math.log(2.0),
    "ratio-base.ten": math.log(10.0),
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
        for key, number in _BASES.items():
            cause = catalogued(key, partial(_rescaled, number=number, names=names))
            yield cause
            in_ratio = partial(_in_ratio, number=number)
            yield cause._replace(words=f"{cause.words}, only in the ratio", evaluate=in_ratio)


def _in_ratio(case: Case, number: float) -> Breakdown:
    power = partial(scaled_ratio, by=number)
    return case.evaluated(None, ratio=tapped(case.objective.ratio, power))


_STARTS = (1.0, 0.75, 1.3)
"""Factors to begin with: from afar a clip may lead nowhere."""


def temperatures(case: Case) -> Iterator[Cause]:
    """Yields one column of log-probs at another temperature, solved for."""
    for column, name in _read(case).items():
        words = (
            f"{name} log-probs are scaled by {{}}: they have another temperature than "
            "the other columns"
        )
        family = partial(_rescaled, names=(column,))
        for start in _STARTS:
            yield from parametric(case, "log-probs-scaled", words, family, start)
