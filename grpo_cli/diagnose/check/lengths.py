"""Tokens that are none: padding, masks that do not fit, prompts; and responses that were cut."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from grpo_cli.batch import F64, I64
from grpo_cli.diagnose.check.finding import Finding
from grpo_cli.diagnose.check.view import View

_CHANCE = math.log(1e-6)


def _edge_runs(view: View, values: F64, *, end: bool) -> I64:
    """[R] how many tokens at the end (or beginning) of each response have the same value."""
    responses = view.responses
    runs = np.zeros(responses.count, dtype=np.int64)
    filled = np.flatnonzero(responses.lengths)
    if not len(filled):
        return runs
    edges = responses.starts + (responses.lengths - 1 if end else 0)
    same = values == np.repeat(values[np.where(responses.lengths > 0, edges, 0)], responses.lengths)
    broken = np.flatnonzero(~same)
    index = responses.index[broken]
    runs[:] = responses.lengths
    if end:
        np.minimum.at(runs, index, (responses.starts + responses.lengths)[index] - 1 - broken)
    else:
        np.minimum.at(runs, index, broken - responses.starts[index])
    return runs


def padding(view: View) -> Iterator[Finding]:
    """Padding that counts as tokens: a run of one value at the end, in every log-prob column.

    Policies do repeat a log-prob, exact 0.0 above all when they are sure. So the run is held
    against how often a token's value repeats (or is 0.0) elsewhere in these records, with
    Laplace's p = (k + 1)/(n + 2): reported where p^run, over all responses, is below 1e-6. Where
    token ids are known they must repeat too, so that sure words are not taken for padding.
    """
    yield from _padded(view, end=True)
    yield from _padded(view, end=False)


def _padded(view: View, *, end: bool) -> Iterator[Finding]:
    columns = list(view.log_probs.values())
    if not columns or columns[0].size < 3:
        return
    runs = np.min([_edge_runs(view, one, end=end) for one in columns], axis=0)
    runs = np.where(runs > 1, runs, 0)
    runs = np.array([_same_words(view, at, int(run), end=end) for at, run in enumerate(runs)])
    if not runs.any():
        return
    first, index = columns[0], view.responses.index
    inside = ~_at_edge(view, runs, end=end)
    repeats = (first[1:] == first[:-1]) & (index[1:] == index[:-1]) & inside[1:] & inside[:-1]
    known = int(np.count_nonzero(inside))
    chance = (int(repeats.sum()) + int((first[inside] == 0.0).sum()) + 1) / (known + 2)
    total = int(np.maximum(runs - 1, 0).sum()) + int(_zero_runs(view, first, runs, end=end))
    if total * math.log(min(chance, 0.99)) > _CHANCE:
        return
    at = int(np.argmax(runs))
    record, response = view.local(at)
    edge = view.responses.starts[at] + (view.responses.lengths[at] - 1 if end else 0)
    where = "end" if end else "begin"
    yield Finding(
        "padding",
        "error",
        f"{int(np.count_nonzero(runs)):,} of {len(runs):,} responses {where} in a run of one "
        f"log-prob ({first[edge]:g}), the longest of {int(runs.max()):,} tokens: padding that counts",
        "give a mask (completion_mask, response_mask, …) or write the rows without padding",
        {
            "responses": int(np.count_nonzero(runs)),
            "of": len(runs),
            "tokens": int(runs.sum()),
            "longest": int(runs.max()),
            "value": float(first[edge]),
            "side": "right" if end else "left",
        },
        record=record,
        response=response,
    )


def _zero_runs(view: View, values: F64, runs: I64, *, end: bool) -> int:
    """A run of exact zeros counts its first token too."""
    edges = view.responses.starts + (view.responses.lengths - 1 if end else 0)
    return int(np.count_nonzero((runs > 0) & (values[np.where(runs > 0, edges, 0)] == 0.0)))


def _same_words(view: View, response: int, run: int, *, end: bool) -> int:
    if run < 2:
        return 0
    words = view.words(response)
    if words is None or len(words) < run:
        return run
    edge = words[-run:] if end else words[:run]
    return run if len(set(edge)) == 1 else 0


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
