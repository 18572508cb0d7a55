"""Log-probs that stand for missing ones: 0.0, one value in each response, a limit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.check.pair import Pair
from grpo_cli.commands.check.record_view import View
from grpo_cli.commands.check.rule import Finding, rule
from grpo_cli.commands.check.rules.padding import edges

_DOUBT = -0.3
_BELOW, _IMPOSSIBLE = -50.0, -1000.0
_FILLER_TOKENS = 3
_LONG, _FLAT = 8, 3
"""Tokens of a response that do not all have one log-prob, and responses that show it."""
_TURNED = 0.3
_FILLER_TIMES = 3.0
_RARE = -4.0
_CERTAIN_SHARE = 0.97


_FLOOR_TOKENS, _FLOOR_SHARE, _HIGHEST_FLOOR = 10, 0.02, -0.5
_DISTINCT, _LOWER = 0.5, 0.6


@rule("filler")
def find_constants(view: View) -> Iterator[Finding]:
    """Finds columns that are one value in each response, or that were clamped."""
    if view.log_probs:
        yield from _find_flat_columns(view)
        yield from _find_floors(view)


def _find_floors(view: View) -> Iterator[Finding]:
    """Yields columns that were clamped: many tokens have the lowest value, hardly any the next.

    At 3 of 5 of these tokens another column is lower, and half of the other tokens have a value
    of their own: rounding has as many at the next value.
    """
    tokens, some = view.record_tokens, view.tokens > 0
    if len(view.log_probs) < 2 or not some.any():
        return
    lowest = np.full(len(some), np.nan)
    for name, column in view.log_probs.items():
        lowest[some] = np.minimum.reduceat(column, tokens.starts[some])
        low = column == tokens.spread(lowest)
        count = view.count(low)
        hit = (count >= np.maximum(_FLOOR_TOKENS, _FLOOR_SHARE * view.tokens)) & (
            lowest < _HIGHEST_FLOOR
        )
        for record in np.flatnonzero(hit).tolist():
            part, value = view.tokens_of(record), lowest[record]
            own, others = low[part], {one: view.log_probs[one][part] for one in view.log_probs}
            kinds, many = np.unique(column[part][~own], return_counts=True)
            lower = {one: np.count_nonzero(other[own] < value) for one, other in others.items()}
            other = max(lower, key=lambda one: lower[one])
            varied = len(kinds) > _DISTINCT * many.sum() and 2 * many[:1].sum() <= count[record]
            if varied and lower[other] > _LOWER * count[record]:
                numbers = {"tokens": count[record], "of": len(own), "lower": lower[other]}
                yield Finding(
                    {"column": name, "value": value} | numbers,
                    **view.first_token(record, low),
                    kind="floor",
                    words={"name": view.key(name), "other": view.key(other)},
                )


def _find_flat_columns(view: View) -> Iterator[Finding]:
    """Yields columns with one log-prob in every long response where another has many.

    An engine that samples at temperature 0 has 0.0 there; a reference with 0.0 was not computed.
    """
    rows, long = view.responses, view.lengths >= _LONG
    begin = rows.starts[long]
    columns = view.log_probs.values()
    if not any((np.diff(column[[begin, begin + 1]], axis=0) == 0.0).any() for column in columns):
        return
    inside = np.diff(rows.index) == 0
    constant = {
        name: np.bincount(rows.index[1:][inside & (np.diff(column) != 0.0)], minlength=rows.count)
        == 0
        for name, column in view.log_probs.items()
        if len(column)
    }
    count = view.count_rows(long)
    varied = np.logical_or.reduce([~one for one in constant.values()] or [~long])
    for name, one in constant.items():
        zero = view.columns[name][edges(rows, end=False)] == 0.0
        hit = long & one & varied & (~zero if name != "log_probs_ref" else True)
        flat = (count >= _FLAT) & (view.count_rows(hit) == count)
        for record in np.flatnonzero(flat).tolist():
            evidence = {"column": name, "responses": count[record]}
            kind = "reference" if zero[view.rows_of(record)].all() else "flat"
            yield Finding(evidence, record, kind=kind, words={"name": view.key(name)})


@rule("filler", "pair")
def find_fillers(pair: Pair) -> Iterator[Finding]:
    """Finds values of 0.0, or one value below −50, in one column where the other has another.

    0.0 says that the token was certain, so another engine cannot give it less than e^−0.3: of two
    noisy columns that takes an error of 15 nats in a logit. Displaced and unrelated columns have
    such tokens too, so the columns must agree elsewhere: the median difference at 0.0 is three
    times the 95 % quantile at the other tokens. No model gives −100 at a few tokens, equal to the
    last bit, or below −1000 at any. Training may lead from or to certain tokens, so that 0.0 of a
    reference is a filler only where a whole response has it.
    """
    columns = (pair.first, pair.second)
    for at in (1, 0):
        values, other = columns[at], columns[1 - at]
        low, counts = np.unique(values[values < _BELOW], return_counts=True)
        fillers = low[(counts >= _FILLER_TOKENS) | (low < _IMPOSSIBLE)].tolist()[:8]
        for value in (0.0, *fillers):
            hit = (values == value) & (other < _DOUBT if value == 0.0 else other > value / 2.0)
            if pair.to_reference and value == 0.0:
                rows = pair.view.responses
                hit &= rows.spread((pair.view.count_tokens(values != 0.0) == 0) & (at == 1))
            every, least = pair.count(hit), 1 if value < _IMPOSSIBLE else _FILLER_TOKENS
            for sample in np.flatnonzero(every >= least).tolist():
                part = pair.tokens(sample)
                filled = value < 0.0 or pair.to_reference
                filled = filled or np.mean(values[part] == value) >= _CERTAIN_SHARE
                if not filled and not _agree_elsewhere(
                    pair.size[part], hit[part], values[part], other[part]
                ):
                    continue
                counted = {"tokens": every[sample], "of": part.stop - part.start}
                yield Finding(
                    {"column": pair.keys[at], "value": value} | counted,
                    **pair.view.place(part.start + int(np.argmax(hit[part]))),
                    kind="zero" if value == 0.0 else "value",
                    words={"other": pair.keys[1 - at]},
                )


def _agree_elsewhere(size: F64, hit: NDArray[np.bool_], values: F64, other: F64) -> bool:
    """Returns whether the columns agree except at the tokens that are 0.0 in one of them."""
    rest, usual = size[~hit], other[~hit]
    if len(rest) and np.median(other[hit]) < min(_RARE, float(np.quantile(usual, 0.05))):
        return False  # tokens that the other column finds impossible
    turned = np.count_nonzero((other == 0.0) & (values < _DOUBT))
    if turned > _TURNED * np.count_nonzero(hit):
        return False  # of other tokens, in both columns
    near = float(np.quantile(rest, 0.95)) if len(rest) else 0.0
    return float(np.median(size[hit])) > _FILLER_TIMES * near
