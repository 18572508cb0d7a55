"""Two columns that are not of the same tokens: displaced, drifting or unrelated."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.commands.check.pair import Pair
from grpo_cli.commands.check.rule import Finding, rule
from grpo_cli.commands.check.tokens import count_marked

# ---- shifts --------------------------------------------------------------------------------------

_SHIFT_SHARE = 0.6
_SHIFT_SIGMAS, _SHIFT_SIGMAS_ALONE = 4.0, 5.0


@rule("shifted", "pair")
def find_shifts(pair: Pair) -> Iterator[Finding]:
    """Finds a column that agrees better with the next or previous token of the other column.

    A sign test per token: is |a_t − b_{t+k}| smaller than |a_t − b_t|, for k = ±1? Of columns in
    step that is rare, of unrelated ones it is a coin's toss, of displaced ones it is the rule.
    Reported where it holds for more than 3 of 5 tokens and is 4 standard deviations beyond a
    coin (one in 30,000), over all the responses, or else in single ones beyond 5. No assumption on
    the distribution; ties do not count. Fewer than 17 tokens are never so far from a coin.
    """
    for ahead in (True, False):
        by_token = _find_nearer(pair, ahead=ahead)
        wins, counted = map(pair.view.count_tokens, by_token)
        whole = [pair.rows.sum(values) for values in (wins, counted)]
        found = _exceeds_coin(whole[0], whole[1], _SHIFT_SIGMAS)
        for sample in np.flatnonzero(found).tolist():
            counts = whole[0][sample], whole[1][sample]
            place = {"record": pair.record(sample)}
            yield _describe_shift(pair, sample, *counts, place, ahead=ahead)
        for response in np.flatnonzero(_exceeds_coin(wins, counted, _SHIFT_SIGMAS_ALONE)).tolist():
            sample = int(pair.rows.index[response])
            if not found[sample]:
                counts = wins[response], counted[response]
                yield _describe_shift(pair, sample, *counts, pair.view.at(response), ahead=ahead)
                found[sample] = True


def _find_nearer(pair: Pair, *, ahead: bool) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Returns [N] whether a token is nearer to the displaced column, and whether to either."""
    first, second = pair.first, pair.second
    a, b = (first[:-1], second[1:]) if ahead else (first[1:], second[:-1])
    displaced = a - b
    np.abs(displaced, out=displaced)
    at = slice(None, -1) if ahead else slice(1, None)
    wins, counted = np.zeros((2, len(first)), dtype=np.bool_)
    np.less(displaced, pair.size[at], out=wins[at])
    np.not_equal(displaced, pair.size[at], out=counted[at])
    rows = pair.view.responses
    ends = rows.starts + rows.lengths - 1 if ahead else rows.starts
    ends = ends[rows.lengths > 0]
    wins[ends] = counted[ends] = False
    return wins, counted


def _exceeds_coin(wins: NDArray[Any], counted: NDArray[Any], sigmas: float) -> NDArray[np.bool_]:
    """Returns whether counts are too one-sided for a coin."""
    trials = np.maximum(counted, 1)
    away = (wins / trials - 0.5) * 2 * np.sqrt(trials)
    found: NDArray[np.bool_] = (wins > _SHIFT_SHARE * counted) & (away > sigmas)
    return found


def _describe_shift(
    pair: Pair, sample: int, wins: int, tokens: int, place: dict[str, Any], *, ahead: bool
) -> Finding:
    odd, words = pair.compare_with_others(sample)
    sides = ("right", "left") if ahead else ("left", "right")
    moves = [f"{key} to the {side}" for key, side in zip(pair.keys, sides, strict=True)]
    words |= {"where": "next" if ahead else "previous"}
    words |= {"moved": " or ".join(moves) if odd is None else moves[odd]}
    words |= {"column": " or ".join(pair.keys) if odd is None else pair.keys[odd]}
    return Finding(
        {"lag": 1 if ahead else -1, "share": wins / tokens, "tokens": tokens},
        **place,
        words=words,
        by_training=pair.to_reference,
    )


# ---- last tokens ---------------------------------------------------------------------------------

_LAST_RESPONSES = 3
_LAST_NATS = 1.0
_LAST_CHANCE = 1e-6
_LAST_TIMES = 4.0
_LAST_SHARE = 0.25
_LAST_FOLLOW, _LAST_FOLLOWING = 0.5, 12
_CLEAR = -1e-3


@rule("last-token", "pair")
def find_wrong_last_tokens(pair: Pair) -> Iterator[Finding]:
    """Finds columns that differ more at the last token of responses than anywhere else.

    Among n tokens of which m differ by more than 1 nat, k of R last ones do with a probability of
    at most (e·R·q/k)^k, q being m/n of the tokens before the last (Chernoff). Reported below one
    in a million, from 3 responses on, where the last token differs four times as often as the one
    before it. Labels that were shifted over a packed batch are wrong in all its sequences but the
    last, so that a quarter of the responses must have it; and the wrong ones do not follow those of
    the other column, as the end of text does under older weights (correlation of the log-probs
    above 0.5 over 12 responses or more).
    """
    if pair.to_reference:
        yield from _find_first_tokens_of_next(pair)
        return
    rows = pair.view.responses
    filled = np.flatnonzero(rows.lengths > 2)
    far = pair.size > _LAST_NATS
    if not len(filled) or not far.any():
        return
    last, before = np.zeros((2, rows.count), dtype=np.int64)
    ends = (rows.starts + rows.lengths)[filled]
    last[filled], before[filled] = far[ends - 1], far[ends - 2]
    hits, near = pair.rows.sum(last), pair.rows.sum(before)
    every = pair.count(far)
    many = (hits >= _LAST_RESPONSES) & (hits > _LAST_TIMES * near)
    many &= hits >= _LAST_SHARE * pair.rows.lengths
    many &= ~_last_tokens_follow(pair, filled, ends - 1)
    for sample in np.flatnonzero(many).tolist():
        count, k = int(pair.rows.lengths[sample]), int(hits[sample])
        others = int(pair.samples.lengths[sample]) - count
        rate = (int(every[sample]) - k + 1) / others
        if k * (1.0 + np.log(count * rate / k)) < np.log(_LAST_CHANCE):
            start = int(pair.rows.starts[sample])
            row = start + int(np.argmax(last[start : start + count]))
            token = int(rows.starts[row] + rows.lengths[row]) - 1
            evidence = {"responses": k, "of": count, "elsewhere": rate}
            yield Finding(evidence, **pair.view.place(token))


def _last_tokens_follow(pair: Pair, rows: I64, ends: I64) -> NDArray[np.bool_]:
    """Returns [S] whether the last tokens of both columns correlate."""
    of = Segments(np.bincount(pair.rows.index[rows], minlength=pair.rows.count))
    found: NDArray[np.bool_] = of.lengths >= _LAST_FOLLOWING
    return found & (_correlate(of, pair.first[ends], pair.second[ends]) > _LAST_FOLLOW)


def _find_first_tokens_of_next(pair: Pair) -> Iterator[Finding]:
    """Yields references that have the next response's first token at the last one of most.

    Other distances from the reference prove nothing there: training may move the end of text. Nor
    does a value that the policy has at both tokens too: they are one token in one context.
    """
    rows, records = pair.view.responses, pair.view.records.index
    hit = np.zeros(rows.count, dtype=np.bool_)
    ends = rows.starts + rows.lengths - 1
    own = np.flatnonzero((records[:-1] == records[1:]) & (rows.lengths[:-1] > 2))
    own = own[rows.lengths[own + 1] > 0]
    value = pair.second[ends[own]]
    equal = (value == pair.second[rows.starts[own + 1]]) & (value < _CLEAR)
    one = pair.first[ends[own]] == pair.first[rows.starts[own + 1]]
    hit[own] = equal & ~one & (value != pair.first[ends[own]])
    hits = count_marked(pair.rows, hit)
    for sample in np.flatnonzero((hits >= _LAST_RESPONSES) & (2 * hits > pair.rows.lengths)):
        start, count = int(pair.rows.starts[sample]), int(pair.rows.lengths[sample])
        row = start + int(np.argmax(hit[start : start + count]))
        evidence = {"responses": hits[sample], "of": count}
        yield Finding(evidence, **pair.view.place(int(ends[row])), kind="next")


# ---- correlation ---------------------------------------------------------------------------------

_UNRELATED_TOKENS, _UNRELATED_TOKENS_ALONE = 24, 12
_RELATED = 0.8
_LITTLE = 0.3
_RELATED_REFERENCE, _LITTLE_REFERENCE = 0.5, 0.15
"""Of the reference, from which a policy moves far in long training."""
_UNRELATED_SIGMAS = 4.5
_UNRELATED_CHANCE = math.log(1e-6)
_VARIES, _MOVES = 0.001, 0.25
_SURE, _LEVEL = 0.2, 0.25


@rule("unrelated", "pair")
def find_unrelated(pair: Pair) -> Iterator[Finding]:
    """Finds columns whose probabilities do not correlate.

    Of one policy at two temperatures that differ by a factor of two, the probabilities of the
    tokens taken correlate by more than 0.8, whatever the noise; of other tokens by 0. They are
    between 0 and 1, so that no single token decides. Reported where the correlation is below 0.3,
    that of the log-probs too, and below 0.8 by
    4.5 standard errors (Fisher's z, one in 300,000) over a sample; or where that many responses
    alone are below 0.3 that chance makes so many once in a million (Chernoff). A model that is
    sure of nothing (the probabilities spread by less than 0.2, as in tests with random weights)
    can be moved anywhere by one large step, which also moves the mean: then the means must agree.
    Probabilities that are all near 1 do not correlate under the least noise, so the log-probs must
    differ by a quarter of a nat (root mean square). Of the reference the bounds are 0.15 and 0.5,
    and no response is judged alone; both must be sure of some tokens.
    """
    if not (pair.view.responses.mean(pair.size * pair.size) > _MOVES * _MOVES).any():
        return  # nor is a sample as far, nor a mean size
    moved = [*_find_rows_of_others(pair)]
    yield from moved
    pair = pair.distinct
    rows, square = pair.view.responses, pair.log_ratio * pair.log_ratio
    far, rows_far = (one.mean(square) > _MOVES * _MOVES for one in (pair.samples, rows))
    p, q = np.exp(pair.first), np.exp(pair.second)
    whole = _correlate(pair.samples, p, q)
    little = _LITTLE_REFERENCE if pair.to_reference else _LITTLE
    related = _RELATED_REFERENCE if pair.to_reference else _RELATED
    found = far & _is_unrelated(pair.samples, whole, little, related)
    each = _correlate(rows, p, q)
    low = rows_far & (rows.lengths >= _UNRELATED_TOKENS_ALONE) & (each < _LITTLE)
    low &= not pair.to_reference
    if not found.any() and not low.any():
        return
    comparable = _can_correlate(pair, p, q)
    for segments, hit in ((pair.samples, found), (rows, low)):
        hit &= _correlate(segments, pair.first, pair.second) < little
    comparable[pair.view.sample_index[[one.record for one in moved]]] = False
    found &= comparable
    for sample in np.flatnonzero(found).tolist():
        yield Finding(
            {
                "correlation": whole[sample],
                "tokens": pair.samples.lengths[sample],
                "rows": pair.rows.lengths[sample],
            },
            pair.record(sample),
            kind="sample",
            words=pair.compare_with_others(sample)[1],
        )
    every = count_marked(pair.rows, low)
    for sample in np.flatnonzero(comparable & ~found & (every > 0)).tolist():
        start = int(pair.rows.starts[sample])
        part = slice(start, start + int(pair.rows.lengths[sample]))
        if not _by_chance(rows.lengths[part], int(every[sample])):
            row = start + int(np.argmax(low[part]))
            evidence = {"correlation": each[row], "tokens": rows.lengths[row]}
            yield Finding(evidence | {"rows": every[sample]}, **pair.view.at(row), kind="responses")


_MOVED_NATS, _MOVED_TIMES, _MOVED_TIMES_LONG, _MOST_TRIED = 0.25, 10.0, 5.0, 2
_LEAST_FIT = 0.01
_NEARER_TIMES = 2.0


def _find_rows_of_others(pair: Pair) -> Iterator[Finding]:
    """Yields responses of which one column is that of another response of the record.

    The columns differ by a quarter of a nat per token, and by a tenth of that if one is compared
    with the other response's; by a fifth from 12 tokens on, but for the reference. Those of fewer
    than 12 tokens are so much nearer, in one record, that chance gives it once in a million
    (Chernoff). The column that agrees with a third one is not the one that was moved. Of records in
    which most responses differ so much, as where a column was not reordered with the batch, the
    first are compared; long training moves all of a record.
    """
    rows, records = pair.view.responses, pair.view.records
    size, clear = rows.mean(pair.size), pair.view.count_tokens(pair.size > _MOVED_NATS)
    tried, chances, found = Counter[int](), np.zeros(records.count), list[tuple[int, Finding]]()
    for row in np.flatnonzero(size > _MOVED_NATS).tolist():
        record = int(records.index[row])
        part = pair.view.rows_of(record)
        tried[record] += bool(size[row] < _MOVED_TIMES * np.median(size[part]))
        if tried[record] > _MOST_TRIED * (not pair.to_reference):
            continue
        fits = [
            (fit, other, at)
            for other in range(part.start, part.stop)
            for at, fit in enumerate(_compare_rows(pair, row, other))
        ]
        right = _find_right_column(pair, row)
        fit, other, at = min(one for one in fits if right is None or one[2] == right)
        short = pair.to_reference or rows.lengths[row] < _UNRELATED_TOKENS_ALONE
        times = _MOVED_TIMES if short else _MOVED_TIMES_LONG
        if other != row and fit * times < size[row]:
            chances[record] += clear[row] * (1.0 + math.log(max(fit / size[row], _LEAST_FIT)))
            evidence = {"own": size[row], "other": other - part.start, "fit": fit}
            words = {"column": pair.keys[1 - at], "reference": pair.keys[at]}
            found.append((row, Finding(evidence, **pair.view.at(row), kind="row", words=words)))
    for row, finding in found:
        sure = chances[finding.record] < _UNRELATED_CHANCE
        if sure or rows.lengths[row] >= _UNRELATED_TOKENS_ALONE:
            yield finding


def _find_right_column(pair: Pair, row: int) -> int | None:
    """Returns which column of a response the others are nearer to, by far."""
    start, tokens = pair.view.responses.starts[row], pair.view.responses.lengths[row]
    part, found = slice(start, start + tokens), set[int]()
    for name in pair.view.log_probs.keys() - {*pair.names}:
        third = pair.view.log_probs[name][part]
        near = [np.abs(third - one[part]).mean() for one in (pair.first, pair.second)]
        if min(near) * _NEARER_TIMES < max(near):
            found.add(int(np.argmin(near)))
    return next(iter(found)) if len(found) == 1 else None


def _compare_rows(pair: Pair, row: int, other: int) -> Iterator[float]:
    """Yields how far the second column of a response is from another's first; and the reverse."""
    rows = pair.view.responses
    tokens = int(min(rows.lengths[row], rows.lengths[other]))
    own, others = (slice(at, at + tokens) for at in rows.starts[[row, other]].tolist())
    for first, second in ((pair.first, pair.second), (pair.second, pair.first)):
        near = np.abs(first[others] - second[own])
        whole = tokens >= min(rows.lengths[row], _UNRELATED_TOKENS_ALONE)
        yield float(near.mean()) if tokens and whole else math.inf


def _can_correlate(pair: Pair, p: F64, q: F64) -> NDArray[np.bool_]:
    """Returns [S] whether the policies are sure of some tokens, or else their means agree.

    Of a reference, from which steps of any size may lead away, both must be sure of some.
    """
    spreads = [pair.moments(values)[2] for values in (p, q)]
    if pair.to_reference:
        both: NDArray[np.bool_] = np.minimum(*spreads) > _SURE
        return both
    _, mean, spread = pair.moments(pair.log_ratio)
    found: NDArray[np.bool_] = np.maximum(*spreads) > _SURE
    return found | (np.abs(mean) < _LEVEL * spread)


def _by_chance(lengths: I64, rows: int) -> bool:
    """Returns whether so many responses of related columns may correlate so little by chance."""
    sizes = lengths[lengths >= _UNRELATED_TOKENS_ALONE]
    away = (np.arctanh(_RELATED) - np.arctanh(_LITTLE)) * np.sqrt(sizes - 3.0)
    expected = float(np.logaddexp.reduce(math.log(0.5) - 0.5 * away * away))  # its logarithm
    return rows * (1.0 + expected - math.log(rows)) >= _UNRELATED_CHANCE


def _correlate(segments: Segments, first: F64, second: F64) -> F64:
    """Returns [S] Pearson's correlation; 1 if a column does not vary."""
    a = first - segments.spread(segments.mean(first))
    b = second - segments.spread(segments.mean(second))
    aa, bb, ab = segments.sum(a * a), segments.sum(b * b), segments.sum(a * b)
    enough = (aa > _VARIES * _VARIES * segments.lengths) & (bb > 0.0)
    found: F64 = np.where(enough, ab / np.sqrt(np.where(enough, aa * bb, 1.0)), 1.0)
    return found


def _is_unrelated(
    segments: Segments, correlation: F64, little: float, related: float
) -> NDArray[Any]:
    """Returns [S] whether a correlation is small, and far below that of related columns."""
    z = np.arctanh(np.clip(correlation, -0.999, 0.999))
    away = (np.arctanh(related) - z) * np.sqrt(np.maximum(segments.lengths - 3, 0))
    return (
        (segments.lengths >= _UNRELATED_TOKENS)
        & (correlation < little)
        & (away > _UNRELATED_SIGMAS)
    )


# ---- positions -----------------------------------------------------------------------------------

_DRIFT_TOKENS = 20
_FREE = math.log(0.9)
_DRIFT_TIMES = 1.8
_DRIFT_SIGMAS = 5.0


@rule("drift", "pair")
def find_drift(pair: Pair) -> Iterator[Finding]:
    """Finds columns that differ more in the later half of the tokens than in the earlier one.

    Where the probability is p a log-prob can move by about 1 − p, so |log ratio|/(1 − p) is
    compared, over tokens with p < 0.9, between places in the response above and below the mean
    place (of tokens that count: padding on the left is none).
    Reported where the mean is 1.8 times as great and the difference 5 standard errors (Welch):
    noise and staleness do not know the position. One update may do so where the reward depends on
    the end of responses: between the old and the new policy, most records have to show it.
    """
    greater = np.maximum(pair.first, pair.second)
    free = greater < _FREE
    tokens, place = Segments(pair.count(free)), pair.view.responses.positions[free]
    middle = tokens.mean(place)
    late = place > tokens.spread(middle.astype(np.int32))
    del place  # a column of a large file is some MB
    room = greater[free]
    del greater
    size = pair.size[free]
    np.minimum(size, 5.0, out=size)
    size /= np.negative(np.expm1(room, out=room), out=room)
    del room
    sides = late, ~late
    often = count_marked(tokens, late)
    n, m = (np.maximum(one, 1) for one in (often, tokens.lengths - often))
    after, before = (tokens.sum(size * one) / many for one, many in zip(sides, (n, m), strict=True))
    found = (np.minimum(n, m) >= _DRIFT_TOKENS) & (after > _DRIFT_TIMES * before)
    if not found.any():
        return
    away = size - np.where(late, tokens.spread(after), tokens.spread(before))
    squares = (tokens.sum(away * away * one) for one in sides)
    error = np.sqrt(sum(one / (many * many) for one, many in zip(squares, (n, m), strict=True)))
    away = (after - before) / np.where(error > 0.0, error, np.inf)
    found &= away > _DRIFT_SIGMAS
    for sample in np.flatnonzero(found).tolist():
        times = after[sample] / max(before[sample], 1e-12)
        evidence = {"times": times, "sigmas": away[sample], "position": middle[sample]}
        yield Finding(evidence, pair.record(sample), by_training=pair.to_old)
