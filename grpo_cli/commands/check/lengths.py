"""Tokens that are none: padding, masks that do not fit, prompts; and responses that were cut."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64
from grpo_cli.commands.check.finding import Finding
from grpo_cli.commands.check.record_view import View

_CHANCE = math.log(1e-6)


def _edge_runs(view: View, values: F64, *, end: bool) -> I64:
    """[R] how many tokens at the end (or beginning) of each response have the same value."""
    responses = view.responses
    runs = np.zeros(responses.count, dtype=np.int64)
    filled = np.flatnonzero(responses.lengths)
    if not len(filled):
        return runs
    same = values == np.repeat(values[_edges(view, end=end)], responses.lengths)
    broken = np.flatnonzero(~same)
    index = responses.index[broken]
    runs[:] = responses.lengths
    if end:
        np.minimum.at(runs, index, (responses.starts + responses.lengths)[index] - 1 - broken)
    else:
        np.minimum.at(runs, index, broken - responses.starts[index])
    return runs


def padding(view: View) -> Iterator[Finding]:
    """Padding that counts as tokens: runs of one value at an edge, in every log-prob column.

    Policies end in sure words, whose log-probs are exactly 0.0, and get stuck in loops. So a run
    counts from 4 tokens on, and is held against how often a value repeats, or is 0.0, elsewhere
    in the record: reported where chance makes such runs once in a million (``_chance``). It is an
    error where sure words are excluded: the value is not 0.0; or the runs are of one and the
    same token in several responses; or all responses have one length, as padded ones do, and the
    runs differ; or a run has 8 tokens. Otherwise it is a warning. Runs of several different
    tokens (by id or string) are text.
    """
    yield from _padded(view, end=True)
    yield from _padded(view, end=False)


_RUN, _LONG = 4, 8


def _padded(view: View, *, end: bool) -> Iterator[Finding]:
    columns = list(view.log_probs.values())
    if not columns or columns[0].size < _RUN:
        return
    runs = np.min([_edge_runs(view, one, end=end) for one in columns], axis=0)
    words = [_word(view, at, int(run), end=end) for at, run in enumerate(runs)]
    runs = np.where([word is _TEXT for word in words], 0, runs)
    first = columns[0]
    runs = np.where((runs > 1) | (first[_edges(view, end=end)] == 0.0), runs, 0)
    if not (runs >= _RUN).any() or _chance(view, first, runs, end=end) > _CHANCE:
        return
    runs = np.where(runs >= _RUN, runs, 0)
    at = int(np.argmax(runs))
    value = float(first[_edges(view, end=end)[at]])
    known = {word for word, run in zip(words, runs, strict=True) if run and word is not None}
    rows = int(np.count_nonzero(runs))
    lengths = view.responses.lengths
    sure = (
        value != 0.0
        or (len(known) == 1 and rows > 1)
        or (len(lengths) > 1 and len(set(lengths.tolist())) == 1 and len(set(runs.tolist())) > 1)
        or int(runs.max()) >= _LONG
    )
    record, response = view.local(at)
    yield Finding(
        "padding",
        "error" if sure else "warning",
        f"{rows:,} of {len(runs):,} responses {'end' if end else 'begin'} in a run of one "
        f"log-prob ({value + 0.0:g}), the longest of {int(runs.max()):,} tokens: padding counts",
        "give a mask (completion_mask, response_mask, …) or write the rows without padding",
        {
            "responses": rows,
            "of": len(runs),
            "tokens": int(runs.sum()),
            "longest": int(runs.max()),
            "value": value + 0.0,
            "side": "right" if end else "left",
        },
        record=record,
        response=response,
    )


def _edges(view: View, *, end: bool) -> I64:
    """[R] the index of each response's last (or first) token; any token for an empty one."""
    responses = view.responses
    edges = responses.starts + (responses.lengths - 1 if end else 0)
    return np.where(responses.lengths > 0, edges, 0)


def _chance(view: View, values: F64, runs: I64, *, end: bool) -> float:
    """The logarithm of how likely such runs are, were they like the repeats elsewhere.

    A token repeats the log-prob before it, or is 0.0, with probability p, and with q after one
    that does; so a run of r has probability p·qʳ⁻¹ and X = −ln p − (r − 1)·ln q, at most an Exp(1).
    The sum of X over R responses is bounded as a Gamma(R) by Chernoff, the greatest by Bonferroni.
    """
    inside = ~_at_edge(view, np.where(runs >= _RUN, runs, 0), end=end)
    index = view.responses.index
    follows = np.zeros(len(values), dtype=np.bool_)
    follows[1:] = index[1:] == index[:-1]
    same = np.zeros(len(values), dtype=np.bool_)
    same[1:] = (values[1:] == values[:-1]) & follows[1:]
    same = (same | (values == 0.0)) & inside
    after = np.zeros(len(values), dtype=np.bool_)
    after[1:] = same[:-1] & follows[1:] & inside[1:]
    first = _share(same, inside)
    again = max(first, _share(same & after, after))
    size = np.where(runs > 0, -math.log(first) - np.maximum(runs - 1, 0) * math.log(again), 0.0)
    responses, total, most = len(runs), float(size.sum()), float(size.max())
    together = 0.0
    if total > responses:
        together = responses * math.log(total / responses) + responses - total
    return math.log(2.0) + min(together, math.log(responses) - most)


def _share(part: NDArray[np.bool_], whole: NDArray[np.bool_]) -> float:
    """Laplace's estimate."""
    return (int(np.count_nonzero(part)) + 1) / (int(np.count_nonzero(whole)) + 2)


_TEXT = object()
"""Stands for several different words."""


def _word(view: View, response: int, run: int, *, end: bool) -> Any:
    """The one word of a run, ``_TEXT`` if it has several, None if nobody knows."""
    words = view.words(response) if run >= _RUN else None
    if words is None or len(words) < run:
        return None
    edge = words[-run:] if end else words[:run]
    return edge[0] if len(set(edge)) == 1 else _TEXT


def _at_edge(view: View, runs: I64, *, end: bool) -> np.ndarray:
    responses = view.responses
    places = np.arange(responses.total) - np.repeat(responses.starts, responses.lengths)
    if end:
        return places >= np.repeat(responses.lengths - runs, responses.lengths)
    return places < np.repeat(runs, responses.lengths)


def mask(view: View) -> Iterator[Finding]:
    """A mask that takes everything, or leaves holes between tokens."""
    if view.mask is None:
        return
    written, kept = view.written, view.responses.lengths
    empty = (kept == 0) & (written.lengths > 0)
    for record in np.unique(view.record_of[empty]).tolist():
        own = view.record_of == record
        rows = np.flatnonzero(empty & own)
        whole = len(rows) == int(np.count_nonzero(own))
        yield Finding(
            "mask",
            "error" if whole else "warning",
            f"the mask takes every token of {len(rows)} of {int(own.sum())} responses",
            "such responses still count where the aggregation counts responses; drop them if they "
            "should not, or look at how the mask was made",
            {"empty": len(rows), "of": int(own.sum())},
            record=record,
            response=view.local(int(rows[0]))[1],
        )
    yield from _holes(view)


def _holes(view: View) -> Iterator[Finding]:
    edges = np.diff(view.positions) > 1
    inside = np.diff(view.responses.index) == 0
    holes = np.flatnonzero(edges & inside)
    if not len(holes):
        return
    rows = np.unique(view.responses.index[holes])
    record, response = view.local(int(rows[0]))
    yield Finding(
        "mask",
        "warning",
        f"the mask has holes between tokens in {len(rows):,} of {view.responses.count:,} responses",
        "right for tool results and other text the policy did not write; wrong otherwise",
        {"responses": len(rows), "of": view.responses.count, "holes": len(holes)},
        record=record,
        response=response,
        token=int(view.positions[holes[0]]) + 1,
    )


def length_cap(view: View) -> Iterator[Finding]:
    """Many responses of exactly the greatest length: they were cut, not finished.

    At least 3 and a tenth of the responses, while the others differ; or 1 and a tenth where the
    record names its max_completion_length and that is the length.
    """
    for number, record in enumerate(view.records):
        lengths = view.responses.lengths[view.record_of == number]
        longest = int(lengths.max(initial=0))
        hits = int(np.count_nonzero(lengths == longest))
        named = record.hyperparameters.get("max_completion_length") == longest
        least = 1 if named else 3
        if longest < 2 or hits < max(least, 0.1 * len(lengths)):
            continue
        if not named and hits == len(lengths):
            continue
        yield Finding(
            "length-cap",
            "info",
            f"{hits} of {len(lengths)} responses have exactly the greatest length, {longest}"
            + (" (max_completion_length)" if named else ""),
            "cut responses are rewarded as if finished: raise the limit, mask them "
            "(mask_truncated_completions, overlong filtering), or shape their reward",
            {"responses": hits, "of": len(lengths), "length": longest, "named": named},
            record=number,
        )
