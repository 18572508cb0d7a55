"""What counts as a response: masks, prompts, sampled ids, and responses that were cut."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import I64
from grpo_cli.commands.check.record_view import View
from grpo_cli.commands.check.rule import Finding, rule
from grpo_cli.commands.check.rules.padding import edges, special_ids
from grpo_cli.commands.trend.metadata import cut_off
from grpo_cli.engine.padding import runs
from grpo_cli.records.unread import SAMPLED_IDS, is_list

# ---- masks ---------------------------------------------------------------------------------------

_LEAST_DISPLACED, _MOST_DISPLACED = 3, 0.6
_LEAST_INVERTED = 12
"""Tokens that count and are all exactly 0.0. Words that the policy is sure of are never so many."""
_LEAST_ROWS = 3
"""Responses that must agree, where one may be an accident."""
_MASKED_TIMES = 4.0
"""How many times as many tokens a mask leaves out as it keeps, at least, where it keeps too few."""
_COLUMNS, _PADDING_CHANCE = 2, math.log(1e-6)
_MASKED_TOKENS, _MASKED_SHARE = 8, 0.2
_POLICY = ("assistant", "model", "policy", "agent")


@rule("inverted-mask")
def find_inverted_masks(view: View) -> Iterator[Finding]:
    """Finds masks whose counted tokens are all 0.0 in every column, and their masked ones not."""
    if view.mask is None or not view.log_probs:
        return
    zero = _is_zero(view)
    marks = (view.mask, view.mask & zero, ~view.mask, ~view.mask & zero)
    kept, filled, taken, empty = map(view.count, marks)
    bad = (filled == kept) & (np.minimum(kept, taken) >= _LEAST_INVERTED) & (2 * empty < taken)
    for record in np.flatnonzero(bad).tolist():
        words = {"others": taken[record] - empty[record], "mask": view.key("mask")}
        yield Finding({"counted": kept[record], "masked": taken[record]}, record, words=words)


def _is_zero(view: View) -> NDArray[np.bool_]:
    """Returns [W] whether all log-probs of a token are 0.0; where there are none, none is."""
    found = np.full(view.written.total, bool(view.log_probs))
    for name in view.log_probs:
        found &= view.packed.columns[name] == 0.0
    return found


@rule("mask")
def find_mask_faults(view: View) -> Iterator[Finding]:
    """Finds masks of whole responses, displaced masks, and masks with holes (tool results).

    Whole responses are masked by right where they were cut (overlong filtering).
    A mask is displaced if, in 3 of 5 responses, the token before it has a log-prob and
    the last one that counts has 0.0, as padding has; or the token after it is the last that has
    one, and the first that counts has 0.0. If that first one has a log-prob, the last token may be
    masked on purpose. Where there are ids, those say so. A mask that keeps as many tokens of every
    response of a group, a quarter of those that have log-probs at most, is wrong where the others
    are not as many, as those of a prompt are.
    """
    if view.mask is None:
        return
    empty = (view.lengths == 0) & (view.widths > 0)
    taken = view.count_rows(empty)
    for record in np.flatnonzero(taken).tolist():
        evidence = {"empty": taken[record], "of": view.counts[record]}
        yield Finding(evidence, **view.first_row(record, empty), kind="whole")
    yield from _find_displaced_masks(view)
    yield from _find_counted_padding(view)
    yield from _find_short_masks(view)
    yield from _find_holes(view)


def _find_short_masks(view: View) -> Iterator[Finding]:
    """Yields records whose mask keeps as many tokens of each response, whatever its length."""
    assert view.mask is not None
    if not view.log_probs or not len(view.sizes):
        return
    lost = view.written.sum((~view.mask & ~_is_zero(view)).astype(np.float64))
    kept = view.lengths.astype(np.float64)
    (low, high), (least, most) = (
        [view.by_group(one, reduce) for reduce in (np.minimum, np.maximum)] for one in (kept, lost)
    )
    odd = (view.sizes >= _LEAST_ROWS) & (low == high) & (low > 0.0) & (most > least + 1.0)
    odd &= view.by_group(lost, np.add) >= _MASKED_TIMES * view.sizes * low
    rows = odd[view.groups]
    count = view.count_rows(rows)
    for record in np.flatnonzero(2 * count > view.counts).tolist():
        mine = view.rows_of(record)
        dropped = int(lost[mine].sum())
        evidence = {"kept": int(kept[mine].sum()), "lost": dropped, "responses": count[record]}
        yield Finding(
            evidence,
            **view.first_row(record, rows),
            kind="few",
            words={"mask": view.key("mask"), "each": int(kept[mine][np.argmax(rows[mine])])},
        )


def _find_displaced_masks(view: View) -> Iterator[Finding]:
    assert view.mask is not None
    kept = np.flatnonzero(view.mask)
    if not view.log_probs or not len(kept) or view.ids is not None:
        return
    filled = ~_is_zero(view)
    starts, ends = view.written.starts, view.written.starts + view.widths
    begin, end = ends.copy(), starts.copy()
    np.minimum.at(begin, view.written.index[kept], kept)
    np.maximum.at(end, view.written.index[kept], kept + 1)

    def has(tokens: I64) -> NDArray[np.bool_]:
        inside = (tokens >= starts) & (tokens < ends)
        return inside & filled.take(tokens, mode="clip")

    usable = (end > begin) & ((end < ends) | (begin > starts))
    rows = view.count_rows(usable)
    lags = {
        "late": usable & has(begin - 1) & has(begin) & ~has(end - 1),
        "early": usable & ~has(begin - 1) & ~has(begin) & has(end) & ~has(end + 1),
        "last": usable & ~has(begin - 1) & has(begin) & has(end) & ~has(end + 1),
    }
    padded = view.count_rows(usable & has(end + 1)) > 0  # with numbers, which say no length
    for word, shifted in lags.items():
        count = view.count_rows(shifted)
        some = (rows >= _LEAST_DISPLACED) & (count >= _MOST_DISPLACED * rows)
        some &= ~padded | (word == "late")
        for record in np.flatnonzero(some).tolist():
            yield Finding(
                {"responses": count[record], "of": rows[record], "shift": word},
                **view.first_row(record, shifted),
                kind=word,
                words={"mask": view.key("mask")},
            )


def _find_counted_padding(view: View) -> Iterator[Finding]:
    """Yields records whose mask counts one token of padding, by its log-prob of exactly 0.0.

    Two columns at least have it at the last token of most responses, which is one id and no known
    end of text, and so rarely elsewhere that chance gives one in a million (Chernoff). Responses
    that end otherwise are no shorter: they had no padding.
    """
    rows, columns, ids = view.responses, [*view.log_probs.values()], view.counted_ids
    if len(columns) < _COLUMNS or not rows.total:
        return
    zero = np.logical_and.reduce([column == 0.0 for column in columns])
    last = edges(rows, end=True)
    hit = (rows.lengths > 1) & zero[last] & ~zero.take(last - 1, mode="clip")
    hits, every = view.count_rows(hit), view.count(zero)
    for record in np.flatnonzero((hits >= _LEAST_ROWS) & (2 * hits > view.counts)).tolist():
        part, count, of = view.rows_of(record), int(hits[record]), int(view.counts[record])
        mine, lengths = hit[part], view.lengths[part]
        rate = (int(every[record]) - count + 1) / (int(view.tokens[record]) - of + 2)
        at, (ends, pads) = last[part][mine], special_ids(view)
        words = [] if ids is None else np.unique(ids[at]).tolist()
        known = len(words) > 1 or not ends.isdisjoint(words)
        if ids is not None and not pads.isdisjoint(words):  # padding-id finds it after an end
            known |= not ends.isdisjoint(ids[at - 1].tolist())
        shorter = lengths[~mine].min(initial=lengths.max()) < lengths[mine].max()
        if known or shorter or count * (1.0 + math.log(of * rate / count)) > _PADDING_CHANCE:
            continue
        evidence = {"responses": count, "of": of, "elsewhere": rate}
        named = f" ({view.word(words[0])})" if words else ""
        yield Finding(
            evidence,
            **view.first_row(record, hit),
            kind="padding",
            words={"mask": view.key("mask"), "word": named},
        )


def _find_holes(view: View) -> Iterator[Finding]:
    rows = view.responses.owners(view.holes)
    records = view.records.index[rows]
    for record in np.unique(records).tolist():
        found = np.flatnonzero(records == record)
        place = view.place(int(view.holes[found[0]]))
        count, of = len(np.unique(rows[found])), view.counts[record]
        evidence = {"responses": count, "of": of, "holes": len(found)}
        yield Finding(evidence, **(place | {"token": place["token"] + 1}), kind="holes")


@rule("mask-roles")
def find_masked_turns(view: View) -> Iterator[Finding]:
    """Finds responses whose policy tokens count in part, while many others are masked.

    Roles say which are the policy's; a template's tokens are between them. Without roles, all
    responses of several turns must have masked turns before one that counts. Responses that are
    masked as a whole were filtered. Masks that keep the last turn alone: modelscope/ms-swift#7838.
    """
    if view.mask is None or not ({"roles", "turn_ids"} & view.names.keys()):
        return
    rows, roles = view.written, view.strings("roles")
    if roles is not None:
        own = np.isin(roles, _POLICY)
        masked = rows.sum((own & ~view.mask).astype(np.int64))
        least = np.maximum(_MASKED_TOKENS, _MASKED_SHARE * rows.sum(own.astype(np.int64)))
        hit = (masked > least) & (view.lengths > 0)
        required = np.full(len(view.counts), 1)
    else:
        turns = view.packed.columns["turn_ids"]
        last, kept = np.full(rows.count, -np.inf), np.flatnonzero(view.mask)
        np.maximum.at(last, rows.index[kept], turns[kept])
        earlier = turns < rows.spread(last)
        counted = rows.sum((earlier & view.mask).astype(np.int64))
        masked = rows.sum((earlier & ~view.mask).astype(np.int64))
        several = (masked + counted > 0) & (view.lengths > 0)
        hit = several & (counted == 0)
        required = np.maximum(_LEAST_ROWS, view.count_rows(several))
    hits = view.count_rows(hit)
    for record in np.flatnonzero((hits > 0) & (hits >= required)).tolist():
        mine = view.rows_of(record)
        yield Finding(
            {"tokens": masked[mine][hit[mine]].sum(), "responses": hits[record]},
            **view.first_row(record, hit),
            words={"of": view.counts[record]},
        )


# ---- prompts -------------------------------------------------------------------------------------

_PROMPT_CHANCE = math.log(1e-9)
_ABSOLUTE, _RELATIVE = 0.01, 0.02


@rule("prompt-included")
def find_prompts(view: View) -> Iterator[Finding]:
    """Finds responses that begin with their prompt.

    All responses of a group begin with the same tokens, although they were drawn independently: G
    samples agree on a beginning of log-prob L with probability e^((G−1)·L), and below 1e-9 it is
    found. A beginning that the policy always writes (a <think> tag) has L near 0.
    Tokens are compared by id or string, else by log-probs within 2 % and 0.01, which is more than
    two kernels differ on one prompt.
    """
    new = view.columns.get("log_probs_new")
    if new is None or not len(new):
        return
    ids = view.counted_ids
    words: Any = new if ids is None else ids
    for group in _groups_that_start_alike(view, words).tolist():
        members = view.members(group)
        shared = _common_prefix_length(view, words, members)
        if not shared or (view.lengths[members] == shared).all():
            continue
        places = view.responses.starts[members][:, None] + np.arange(shared)
        begun = np.concatenate([column[places] for column in view.policies])
        if not np.isfinite(begun).all():
            continue
        chance = (len(members) - 1) * max(map(math.fsum, begun.tolist()))
        if chance < _PROMPT_CHANCE:
            yield Finding(
                {"tokens": shared, "responses": len(members), "log_probability": chance},
                **view.at(int(members[0])),
                token=0,
            )


def _groups_that_start_alike(view: View, words: Any) -> I64:
    """Returns the groups of several responses whose first tokens are equal."""
    rows = view.responses
    first = np.where(rows.lengths > 0, words[edges(rows, end=False)], np.inf)
    low, high = view.by_group(first, np.minimum), view.by_group(first, np.maximum)
    several = np.flatnonzero(np.isfinite(high) & (view.sizes > 1))
    low, high = low[several], high[several]
    return several[high - low <= _tolerance(high, words)]


def _tolerance(values: Any, words: Any) -> Any:
    """Returns by how much equal tokens may differ: 0 for ids, more for log-probs."""
    if words.dtype.kind == "i":
        return np.zeros_like(values)
    return np.where(np.isfinite(values), _ABSOLUTE + 2.0 * _RELATIVE * np.abs(values), 0.0)


def _common_prefix_length(view: View, words: Any, members: I64) -> int:
    """Returns the length of the longest common beginning of a group."""
    starts = view.responses.starts[members]
    size = int(view.lengths[members].min())
    for width in (min(16, size), size):  # most differ soon
        table = words[starts[:, None] + np.arange(width)]
        low, high = table.min(axis=0), table.max(axis=0)
        with np.errstate(invalid="ignore"):
            differs = high - low > _tolerance(high, words)
        if differs.any():
            return int(np.argmax(differs))
    return size


# ---- ids that were sampled -----------------------------------------------------------------------


@rule("retokenised")
def find_retokenised(view: View) -> Iterator[Finding]:
    """Finds responses whose trained ids differ from the sampled ids in the same record.

    Text that is decoded and encoded again, between an agent's turns or by a chat template, may
    become other tokens, to which the engine's log-probs do not belong.
    """
    ids = view.ids
    key = next((key for key in SAMPLED_IDS if any(key in value for value in view.values)), None)
    if ids is None or key is None:
        return
    for record, value in enumerate(view.values):
        sampled: Any = value.get(key)
        if is_list(sampled) and view.counts[record] == 1 and not any(map(is_list, sampled)):
            sampled = [sampled]  # of one response, as its token columns may be
        if not is_list(sampled) or [*map(is_list, sampled)] != [True] * view.counts[record]:
            continue
        part = view.rows_of(record)
        starts, widths = view.written.starts[part].tolist(), view.widths[part].tolist()
        differing = []
        for row, (start, width, other) in enumerate(zip(starts, widths, sampled, strict=True)):
            pairs = zip(ids[start : start + width].tolist(), other, strict=False)
            at = next((token for token, (a, b) in enumerate(pairs) if a != b), None)
            if at is not None:
                differing.append((row, at))
        if differing:
            evidence = {"responses": len(differing), "of": len(sampled), "key": key}
            words = {"ids": view.key("token_ids"), "at": differing[0][1]}
            yield Finding(evidence, record, *differing[0], words=words)


# ---- endings -------------------------------------------------------------------------------------

_LONGEST_PHRASE = 8
_LOOP_TOKENS, _LOOP_TIMES = 16, 4


@rule("repetition")
def find_loops(view: View) -> Iterator[Finding]:
    """Finds responses that end in a repeated phrase: at least 4 times, at least 16 tokens.

    A phrase has 1 to 8 tokens, compared by id; padding is found by another rule.
    """
    ids = view.counted_ids
    if ids is None or not len(ids):
        return
    rows = view.responses
    best, period = np.zeros((2, rows.count), dtype=np.int64)
    last = edges(rows, end=True)
    for step in range(1, _LONGEST_PHRASE + 1):
        if not (ids[last] == ids[np.maximum(last - step, 0)])[rows.lengths >= _LOOP_TOKENS].any():
            continue
        same = np.zeros(len(ids), dtype=np.bool_)
        same[step:] = ids[step:] == ids[:-step]
        same &= rows.positions >= step
        length = runs(rows, same, end=True) + step
        found = (length >= np.maximum(_LOOP_TOKENS, _LOOP_TIMES * step)) & (best == 0)
        best, period = np.where(found, length, best), np.where(found, step, period)
    looping = view.count_rows(best > 0)
    for record in np.flatnonzero(looping).tolist():
        longest = int(np.argmax(best[view.rows_of(record)])) + view.rows_of(record).start
        tokens = int(period[longest])
        yield Finding(
            {"responses": looping[record], "of": view.counts[record], "longest": best[longest]},
            **view.at(longest),
            words={"phrase": "one token" if tokens == 1 else f"a phrase of {tokens} tokens"},
        )


@rule("length-cap")
def find_cut_responses(view: View) -> Iterator[Finding]:
    """Finds records many of whose responses have exactly the greatest length: they were cut.

    At least 3 and a tenth of the responses, if no other record's are longer, and not all of them.
    Or 1 and a tenth if that length is the record's max_completion_length. Tokens of tools within a
    response count, as they do for the engine. If a record says how its responses ended
    (finish_reasons, truncated), the responses that were cut are those that it names.
    """
    declared = [cut_off(value) for value in view.values]
    for record, endings in enumerate(declared):
        if endings and any(endings):
            evidence = {"responses": sum(endings), "of": len(endings), "named": True}
            yield Finding(evidence, record, kind="declared")
    longest = np.maximum.reduceat(view.spans, view.records.starts)
    hits = view.count_rows(view.spans == view.records.spread(longest))
    undeclared = np.array([endings is None for endings in declared], dtype=np.bool_)
    likely = undeclared & (longest >= 2) & (hits >= 0.1 * view.counts)
    limits = view.packed.settings.columns.get("max_completion_length", [None] * len(likely))
    for record in np.flatnonzero(likely).tolist():
        count, of, length = int(hits[record]), int(view.counts[record]), int(longest[record])
        named = limits[record] == length
        if named or 3 <= count < of:
            evidence = {"responses": count, "of": of, "length": length, "named": named}
            yield Finding(evidence, record, kind="limit" if named else "lengths")
