"""What counts as a response: masks, prompts, sampled ids, and responses that were cut."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from grpo_cli.batch import F64, I64
from grpo_cli.commands.check.record_view import View
from grpo_cli.commands.check.rule import Finding, rule
from grpo_cli.commands.check.rules.padding import edges, runs
from grpo_cli.commands.trend.metadata import cut_off
from grpo_cli.records.unread import PROMPT_IDS, SAMPLED_IDS

# ---- masks ---------------------------------------------------------------------------------------

_LEAST_DISPLACED, _MOST_DISPLACED = 3, 0.6
_LEAST_INVERTED = 12
"""Tokens that count and are all exactly 0.0. Words that the policy is sure of are never so many."""


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
        yield Finding(
            f"the mask is inverted: all {int(kept[record]):,} tokens that it keeps have log-prob "
            f"0.0, and {int(taken[record] - empty[record]):,} of the {int(taken[record]):,} "
            "tokens that it drops have others",
            f"dump 1 − {view.key('mask')}: the mask is 1 where a token counts",
            {"counted": int(kept[record]), "masked": int(taken[record])},
            record=record,
        )


def _is_zero(view: View) -> np.ndarray:
    """Returns [W] whether all log-probs of a token are 0.0; where there are none, none is."""
    found = np.full(view.written.total, bool(view.log_probs))
    for name in view.log_probs:
        found &= view.packed.columns[name] == 0.0
    return found


@rule("mask")
def find_mask_faults(view: View) -> Iterator[Finding]:
    """Finds masks of whole responses, displaced masks, and masks with holes (tool results).

    Whole responses are masked by right where they were cut (overlong filtering), so all of a
    record are an error only if their texts, up to padding of 0.0, differ in length.
    A mask is displaced if, in 3 of 5 responses, the token before it has a log-prob and
    the last one that counts has 0.0, as padding has; or the token after it is the last that has
    one. Where there are ids, those say so.
    """
    if view.mask is None:
        return
    empty = (view.lengths == 0) & (view.widths > 0)
    taken = view.records.sum(empty.astype(np.int64))
    lengths = view.widths - runs(view.written, _is_zero(view), end=True)
    for record in np.flatnonzero(taken).tolist():
        count = int(view.counts[record])
        whole = taken[record] == count and np.ptp(lengths[view.rows_of(record)]) > 0
        yield Finding(
            f"the mask drops every token of {int(taken[record])} of {count} responses",
            "right if responses were filtered out (overlong filtering); they still count where "
            "the aggregation counts responses",
            {"empty": int(taken[record]), "of": count},
            record=record,
            response=int(np.argmax(empty[view.rows_of(record)])),
            severity="error" if whole else "info",
        )
    yield from _find_displaced_masks(view)
    yield from _find_holes(view)


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

    def has(tokens: I64) -> np.ndarray:
        inside = (tokens >= starts) & (tokens < ends)
        return inside & filled.take(tokens, mode="clip")

    usable = (end > begin) & ((end < ends) | (begin > starts))
    rows = view.records.sum(usable.astype(np.int64))
    lags = {
        "late": has(begin - 1) & has(begin) & ~has(end - 1),
        "early": ~has(begin - 1) & has(end) & ~has(end + 1),
    }
    for word, shifted in lags.items():
        count = view.records.sum((usable & shifted).astype(np.int64))
        some = (rows >= _LEAST_DISPLACED) & (count >= _MOST_DISPLACED * rows)
        for record in np.flatnonzero(some).tolist():
            row = int(np.argmax((usable & shifted)[view.rows_of(record)]))
            wrong = (
                "the first token is lost and padding counts"
                if word == "late"
                else "the last token is lost"
            )
            yield Finding(
                f"the mask is one token {word} in {int(count[record]):,} of {int(rows[record]):,} "
                f"responses, compared with the tokens that have log-probs: {wrong}",
                f"shift {view.key('mask')} by one token: log-prob t and mask t belong to token t",
                {"responses": int(count[record]), "of": int(rows[record]), "shift": word},
                record=record,
                response=row,
                severity="error",
            )


def _find_holes(view: View) -> Iterator[Finding]:
    holes = view.holes
    rows = view.responses.index[holes]
    records = view.records.index[rows]
    for record in np.unique(records).tolist():
        found = np.flatnonzero(records == record)
        count = len(np.unique(rows[found]))
        place = view.place(int(holes[found[0]]))
        yield Finding(
            f"the mask has holes between tokens in {count:,} of {int(view.counts[record]):,} "
            "responses",
            "right for tool results and other text that the policy did not write, wrong otherwise",
            {"responses": count, "of": int(view.counts[record]), "holes": len(found)},
            **(place | {"token": place["token"] + 1}),
            severity="info",
        )


# ---- prompts -------------------------------------------------------------------------------------

_PROMPT_CHANCE = math.log(1e-9)
_ABSOLUTE, _RELATIVE = 0.01, 0.02
_TAIL = 6
_PROMPT_ADVICE = "remove the prompt or mask it: only tokens that the policy wrote may count"


@rule("prompt-included")
def find_prompts(view: View) -> Iterator[Finding]:
    """Finds responses that begin with their prompt.

    If the record has prompt_ids (prompt_tokens, prompt_token_ids), a response's ids begin with
    them, or with the last six or more. Otherwise all responses of a group begin with the same
    tokens, although they were drawn independently: G samples agree on a beginning of log-prob L
    with probability e^((G−1)·L), and below 1e-9 it is found. A beginning that the policy always
    writes (a <think> tag) has L near 0.
    Tokens are compared by id or string, else by log-probs within 2 % and 0.01, which is more than
    two kernels differ on one prompt.
    """
    given = [*_find_given_prompts(view)]
    yield from given
    found = {finding.record for finding in given}
    new = view.columns.get("log_probs_new")
    if new is None or not len(new):
        return
    ids = view.counted_ids
    words: Any = new if ids is None else ids
    for group in _groups_that_start_alike(view, words).tolist():
        members = view.members(group)
        record = int(view.records.index[members[0]])
        shared = 0 if record in found else _common_prefix_length(view, words, members)
        lengths = view.lengths[members]
        if shared and not (lengths == shared).all():
            yield from _find_shared_prompt(view, new, members, shared)


def _find_shared_prompt(view: View, new: F64, members: I64, shared: int) -> Iterator[Finding]:
    begun = new[view.responses.starts[members][:, None] + np.arange(shared)]
    if not np.isfinite(begun).all():
        return
    chance = (len(members) - 1) * max(map(math.fsum, begun.tolist()))
    if chance < _PROMPT_CHANCE:
        yield Finding(
            f"prompt tokens count: all {len(members)} responses begin with the same {shared} "
            f"tokens, which sampling would give with probability e^{chance:.0f}",
            _PROMPT_ADVICE,
            {"tokens": shared, "responses": len(members), "log_probability": chance},
            **view.at(int(members[0])),
            token=0,
        )


def _groups_that_start_alike(view: View, words: Any) -> I64:
    """Returns the groups of several responses whose first tokens are equal."""
    rows = view.responses
    filled = rows.lengths > 0
    first = np.where(filled, words[edges(rows, end=False)], np.inf)
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
    step, at = 16, 0
    while at < size:
        width = min(step, size - at)
        table = words[starts[:, None] + np.arange(at, at + width)]
        low, high = table.min(axis=0), table.max(axis=0)
        with np.errstate(invalid="ignore"):
            differs = high - low > _tolerance(high, words)
        if differs.any():
            return at + int(np.argmax(differs))
        at, step = at + width, 2 * step
    return size


def _find_given_prompts(view: View) -> Iterator[Finding]:
    key = next((key for key in PROMPT_IDS if key in view.values[0]), None)
    ids = view.counted_ids
    if key is None or ids is None or "token_ids" not in view.names:
        return
    for record, value in enumerate(view.values):
        prompts = value.get(key)
        if isinstance(prompts, list) and prompts:
            yield from _find_given_prompt(view, ids, record, prompts, key)


def _find_given_prompt(
    view: View, ids: I64, record: int, prompts: list[Any], key: str
) -> Iterator[Finding]:
    nested = isinstance(prompts[0], list)
    start, count = int(view.records.starts[record]), int(view.counts[record])
    groups = view.groups[start : start + count]
    by_group = nested and len(prompts) < count and len(prompts) == np.ptp(groups) + 1
    for row in range(count):
        number = int(groups[row] - groups.min()) if by_group else min(row, len(prompts) - 1)
        prompt = prompts[number] if nested else prompts
        if not isinstance(prompt, list):
            continue
        at = int(view.responses.starts[start + row])
        begun = ids[at : at + min(len(prompt), int(view.lengths[start + row]))].tolist()
        shared = _shared_tail(prompt, begun)
        if shared:
            whole = "the" if shared == len(prompt) else "the last"
            yield Finding(
                f"prompt tokens count: the response begins with {whole} {shared} tokens of {key}",
                _PROMPT_ADVICE,
                {"tokens": shared, "key": key},
                record=record,
                response=row,
                token=0,
            )
            return


def _shared_tail(prompt: list[Any], begun: list[int]) -> int:
    """Returns how many of a prompt's last tokens begin a response: all, or at least 6."""
    sizes = [size for size in range(1, len(begun) + 1) if begun[size - 1] == prompt[-1]]
    for size in reversed(sizes):
        least = 2 if size == len(prompt) else _TAIL
        if size >= least and prompt[-size] == begun[0] and prompt[-size:] == begun[:size]:
            return size
    return 0


# ---- ids that were sampled -----------------------------------------------------------------------


@rule("retokenised")
def find_retokenised(view: View) -> Iterator[Finding]:
    """Finds responses whose trained ids differ from the sampled ids in the same record.

    Text that is decoded and encoded again, between an agent's turns or by a chat template, may
    become other tokens, to which the engine's log-probs do not belong.
    """
    if "token_ids" not in view.names or view.ids is None:
        return
    key = next((key for key in SAMPLED_IDS if any(key in value for value in view.values)), None)
    if key is None:
        return
    for record, value in enumerate(view.values):
        rows = value.get(key)
        if isinstance(rows, list) and len(rows) == view.counts[record]:
            yield from _compare_ids(view, record, rows, key)


def _compare_ids(view: View, record: int, rows: list[Any], key: str) -> Iterator[Finding]:
    assert view.ids is not None
    first = int(view.records.starts[record])
    differing = []
    for row, sampled in enumerate(rows):
        start = int(view.written.starts[first + row])
        trained = view.ids[start : start + int(view.widths[first + row])].tolist()
        pairs = zip(trained, sampled, strict=False)
        at = next((token for token, (a, b) in enumerate(pairs) if a != b), None)
        if at is not None:
            differing.append((row, at))
    if differing:
        row, at = differing[0]
        yield Finding(
            f"the trained token ids ({view.key('token_ids')}) differ from the sampled ids "
            f"({key}) in {len(differing)} of {len(rows)} responses, here from token {at} on",
            "keep the ids that the engine returned instead of encoding its text again: log-probs "
            "belong to ids, not to text",
            {"responses": len(differing), "of": len(rows), "key": key},
            record=record,
            response=row,
            token=at,
        )


# ---- endings -------------------------------------------------------------------------------------

_LONGEST_PHRASE = 8
_LOOP_TOKENS, _LOOP_TIMES = 16, 4


@rule("repetition")
def find_loops(view: View) -> Iterator[Finding]:
    """Finds responses that end in a repeated phrase: at least 4 times, at least 16 tokens.

    A phrase has 1 to 8 tokens, compared by id; padding is found by another rule.
    """
    ids = view.counted_ids
    if ids is None:
        return
    rows = view.responses
    places = np.arange(rows.total) - rows.spread(rows.starts)
    best = np.zeros(rows.count, dtype=np.int64)
    period = np.zeros(rows.count, dtype=np.int64)
    for step in range(1, _LONGEST_PHRASE + 1):
        same = np.zeros(len(ids), dtype=np.bool_)
        same[step:] = ids[step:] == ids[:-step]
        same &= places >= step
        length = runs(rows, same, end=True) + step
        found = (length >= np.maximum(_LOOP_TOKENS, _LOOP_TIMES * step)) & (best == 0)
        best, period = np.where(found, length, best), np.where(found, step, period)
    looping = view.records.sum((best > 0).astype(np.int64))
    for record in np.flatnonzero(looping).tolist():
        part, count = view.rows_of(record), int(view.counts[record])
        row = part.start + int(np.argmax(best[part]))
        yield Finding(
            f"{int(looping[record])} of {count} responses end in a loop: a phrase of "
            f"{int(period[row])} tokens is repeated over {int(best[row])} tokens",
            "stop generation at such loops, or penalise them: they are degenerate text, fill the "
            "whole length and get the reward of a truncated response",
            {"responses": int(looping[record]), "of": count, "longest": int(best[row])},
            **view.at(row),
        )


_CUT_ADVICE = (
    "truncated responses are rewarded as if they were finished: raise the limit, mask them "
    "(mask_truncated_completions, overlong filtering), or shape their reward"
)


@rule("length-cap")
def find_cut_responses(view: View) -> Iterator[Finding]:
    """Finds records many of whose responses have exactly the greatest length: they were cut.

    At least 3 and a tenth of the responses, but not all; or 1 and a tenth if that length is the
    record's max_completion_length. If a record says how its responses ended (finish_reasons,
    truncated), the responses that were cut are those that it names.
    """
    declared = [cut_off(value) for value in view.values]
    yield from _find_declared_cuts(declared)
    lengths = view.lengths
    longest = np.maximum.reduceat(lengths, view.records.starts)
    hits = view.records.sum((lengths == view.records.spread(longest)).astype(np.int64))
    undeclared = np.array([endings is None for endings in declared], dtype=np.bool_)
    likely = undeclared & (longest >= 2) & (hits >= 0.1 * view.counts)
    for record in np.flatnonzero(likely).tolist():
        count, length = int(hits[record]), int(longest[record])
        named = view.packed.settings[record].get("max_completion_length") == length
        if not named and (count < 3 or count == view.counts[record]):
            continue
        yield Finding(
            f"{count} of {int(view.counts[record])} responses have exactly the maximum length, "
            f"{length}" + (" (max_completion_length)" if named else ""),
            _CUT_ADVICE,
            {"responses": count, "of": int(view.counts[record]), "length": length, "named": named},
            record=record,
        )


def _find_declared_cuts(declared: Sequence[list[bool] | None]) -> Iterator[Finding]:
    for record, endings in enumerate(declared):
        if endings and any(endings):
            yield Finding(
                f"{sum(endings)} of {len(endings)} responses were truncated, according "
                "to the record",
                _CUT_ADVICE,
                {"responses": sum(endings), "of": len(endings), "named": True},
                record=record,
            )
