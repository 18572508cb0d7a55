"""Padding that counts as tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.commands.check.finding import Finding, Rule
from grpo_cli.commands.check.record_view import View
from grpo_cli.commands.check.tokens.edges import edges, equal_runs

_CHANCE = math.log(1e-6)
_RUN, _LONG = 4, 8
_ADVICE = "give a mask (completion_mask, response_mask, …) or write the rows without padding"


def _look(view: View) -> Iterator[Finding]:
    """Padding that counts: runs of one value at an edge, in every log-prob column.

    Policies end in sure words, whose log-probs are exactly 0.0, and get stuck in loops. So a run
    counts from 4 tokens on, and is held against how often a value repeats, or is 0.0, elsewhere
    in the record: reported where chance makes such runs once in a million (``_chance``). It is an
    error where sure words are excluded: the value is not 0.0; or the runs are of one and the
    same token in several responses; or all responses have one length, as padded ones do, and the
    runs differ; or a run has 8 tokens. Otherwise it is a warning. Runs of several different
    tokens (by id or string) are text.
    """
    columns = list(view.log_probs.values())
    if not columns or not len(columns[0]):
        return
    for end in (True, False):
        every = [equal_runs(view.responses, column, end=end) for column in columns]
        found = np.minimum.reduce(every)
        longest = np.maximum.reduceat(found, view.records.starts) if len(found) else found
        for record in np.flatnonzero(longest >= _RUN).tolist():
            yield from _of_record(_Part(view, record, columns[0], found), end=end)


class _Part:
    """One record: its responses, first column and runs."""

    def __init__(self, view: View, record: int, column: F64, runs: I64) -> None:
        self.view, self.record = view, record
        self.first = int(view.records.starts[record])
        rows = slice(self.first, self.first + int(view.counts[record]))
        self.responses = Segments(view.responses.lengths[rows])
        self.start = int(view.responses.starts[self.first])
        self.values = column[self.start : self.start + self.responses.total]
        self.runs = runs[rows]
        ids = view.counted_ids
        self.ids = None if ids is None else ids[self.start :]


def _of_record(part: _Part, *, end: bool) -> Iterator[Finding]:
    words = [_words(part, row, int(run), end=end) for row, run in enumerate(part.runs)]
    runs = np.where([len(word or ()) > 1 for word in words], 0, part.runs)
    at_edge = part.values[edges(part.responses, end=end)]
    runs = np.where((runs > 1) | (at_edge == 0.0), runs, 0)
    if not (runs >= _RUN).any() or _chance(part, runs, end=end) > _CHANCE:
        return
    known = {number for word in words if word for number in word}
    runs = np.where(runs >= _RUN, runs, 0)
    at = int(np.argmax(runs))
    value = float(at_edge[at])
    rows = int(np.count_nonzero(runs))
    lengths = part.responses.lengths
    sure = (
        value != 0.0
        or (len(known) == 1 and rows > 1)
        or (len(set(lengths.tolist())) == 1 and len(set(runs.tolist())) > 1)
        or int(runs.max()) >= _LONG
    )
    yield Finding(
        "error" if sure else "warning",
        f"{rows:,} of {len(runs):,} responses {'end' if end else 'begin'} in a run of one "
        f"log-prob ({value + 0.0:g}), the longest of {int(runs.max()):,} tokens: padding counts",
        _ADVICE,
        {
            "responses": rows,
            "of": len(runs),
            "tokens": int(runs.sum()),
            "longest": int(runs.max()),
            "value": value + 0.0,
            "side": "right" if end else "left",
        },
        record=part.record,
        response=at,
    )


def _words(part: _Part, row: int, run: int, *, end: bool) -> set[int] | None:
    """The words of a run; None where nobody knows, or the run is short."""
    if part.ids is None or run < _RUN:
        return None
    start = int(part.responses.starts[row])
    stop = start + int(part.responses.lengths[row])
    return set(part.ids[stop - run : stop].tolist() if end else part.ids[start : start + run])


def _chance(part: _Part, runs: I64, *, end: bool) -> float:
    """The logarithm of how likely such runs are, were they like the repeats elsewhere.

    A token repeats the log-prob before it, or is 0.0, with probability p, and with q after one
    that does; so a run of r has probability p·qʳ⁻¹ and X = −ln p − (r − 1)·ln q, at most an Exp(1).
    The sum of X over R responses is bounded as a Gamma(R) by Chernoff, the greatest by Bonferroni.
    """
    values, index = part.values, part.responses.index
    inside = ~_at_edge(part.responses, np.where(runs >= _RUN, runs, 0), end=end)
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


def _at_edge(responses: Segments, runs: I64, *, end: bool) -> NDArray[np.bool_]:
    places = np.arange(responses.total) - responses.spread(responses.starts)
    first = responses.spread(responses.lengths - runs)
    found: NDArray[np.bool_] = places >= first if end else places < responses.spread(runs)
    return found


RULES: tuple[Rule, ...] = (
    Rule(
        "padding",
        ("error", "warning"),
        "Padding counts as tokens.",
        20,
        _look,
        explains=True,
        yields=True,
    ),
)
