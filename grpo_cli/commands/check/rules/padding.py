"""Padding that counts as tokens, and masks that remove the end of the text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.commands.check.record_view import View
from grpo_cli.commands.check.rule import Finding, rule
from grpo_cli.engine.padding import look_padded, runs
from grpo_cli.terminal.numbers import counted


def edges(responses: Segments, *, end: bool) -> I64:
    """Returns [R] the index of each response's last or first token; any token if it is empty."""
    if end:
        return responses.starts + responses.lengths - 1
    return np.minimum(responses.starts, responses.total - 1)


def equal_runs(responses: Segments, *columns: NDArray[np.generic], end: bool) -> I64:
    """Returns [R] how many tokens at either end of a response have one value in each column."""
    if not responses.total:
        return np.zeros(responses.count, dtype=np.int64)
    at = edges(responses, end=end)
    twice, inner = responses.lengths > 1, at - 1 if end else at + 1
    for values in columns:
        twice &= values[at] == values.take(inner, mode="clip")
    if not twice.any():
        return np.minimum(responses.lengths, 1)
    same = np.ones(responses.total, dtype=np.bool_)
    for values in columns:
        same &= values == np.repeat(values[at], responses.lengths)
    return runs(responses, same, end=end)


# ---- by log-probs --------------------------------------------------------------------------------

_RUN, _RUN_CHANCE = 4, math.log(1e-6)
_PADDED_RUN, _PADDED_CHANCE = 1, math.log(1e-3)
"""The least run, and the chance of such runs, in any record and in one that looks padded."""
_SURE = -1e-6
"""Log-probs from here on are 0.0 but for the rounding of float32."""
_RAMP, _RAMP_NATS = 4, -1e-3


@rule("padding")
def find_padding(view: View) -> Iterator[Finding]:
    """Finds runs of one value at an edge of responses, in every column of log-probs (verl#3805).

    Policies end in words that they are sure of, whose log-probs are exactly 0.0, and get stuck in
    loops. So a run has at least 4 tokens, or any number where the record looks padded
    (``look_padded``), and is compared with how often a value repeats, or is 0.0, elsewhere in the
    record: it is found if such runs occur by chance once in a million (``_chance``), and no loop
    leads to them (``_loops``). Runs of different tokens (by id or string) are text. A value that
    is not 0.0 is padding. Runs of 0.0 are if those of several responses are of one token, or if
    all responses have one length, as padded ones do, and the runs differ. Otherwise they may as
    well be words that the policy is sure of.
    """
    columns = list(view.log_probs.values())
    if not columns or not len(columns[0]):
        return
    for end in (True, False):
        found = equal_runs(view.responses, *columns, end=end)
        at_edge = columns[0][edges(view.responses, end=end)]
        zeros = np.where((view.lengths > 0) & (at_edge == 0.0), found, 0)
        padded = look_padded(view.records, view.lengths, zeros)
        longest = np.maximum.reduceat(found, view.records.starts) if len(found) else found
        for record in np.flatnonzero((longest >= _RUN) | padded).tolist():
            part = _PaddedRecord(view, record, columns[0], found, padded=bool(padded[record]))
            yield from _find_padding_in_record(part, end=end)


class _PaddedRecord:
    """One record: its responses, the values of its first column, its runs and ids.

    Attributes:
        least: the tokens of the shortest run that may be padding.
        chance: the logarithm of how often such runs may come by chance.
    """

    def __init__(self, view: View, record: int, column: F64, found: I64, *, padded: bool) -> None:
        rows, tokens = view.rows_of(record), view.tokens_of(record)
        self.record = record
        self.least = _PADDED_RUN if padded else _RUN
        self.chance = _PADDED_CHANCE if padded else _RUN_CHANCE
        self.responses = Segments(view.lengths[rows])
        self.values = column[tokens]
        self.runs = found[rows]
        ids = view.counted_ids
        self.ids = None if ids is None else ids[tokens]
        self.special = frozenset[int]() if ids is None else frozenset().union(*special_ids(view))


def _find_padding_in_record(part: _PaddedRecord, *, end: bool) -> Iterator[Finding]:
    runs = part.runs
    if part.ids is not None:  # runs of different tokens are text
        same = equal_runs(part.responses, part.ids, end=end)
        runs = np.where((runs >= part.least) & (same < runs), 0, runs)
    at_edge = part.values[edges(part.responses, end=end)]
    sure = at_edge > _SURE
    runs = np.where((runs > 1) | (at_edge == 0.0), runs, 0)
    if not (runs >= part.least).any() or _chance(part, runs, end=end) > part.chance:
        return
    runs = np.where((runs >= part.least) & ~(sure & _loops(part, runs, end=end)), runs, 0)
    if not runs.any():
        return
    at = int(np.argmax(runs))
    certain = (
        not sure[at]
        or (part.ids is not None and _is_padding_by_id(part, runs, end=end))
        or (np.ptp(part.responses.lengths) == 0 and len(set(runs.tolist())) > 1)
    )
    if not certain:
        return
    yield Finding(
        {
            "responses": np.count_nonzero(runs),
            "of": len(runs),
            "tokens": runs.sum(),
            "longest": runs.max(),
            "value": at_edge[at] + 0.0,
            "side": "right" if end else "left",
        },
        part.record,
        at,
        words={"begin": "end" if end else "begin"},
    )


def _loops(part: _PaddedRecord, runs: I64, *, end: bool) -> NDArray[np.bool_]:
    """Returns [R] whether what leads to a run at the end is a loop, of which it is the surest part.

    The token of the run came before it already, or four log-probs that are nearly 0.0 did; padding
    follows the end of text, of which no policy is so sure so long.
    """
    rows = part.responses
    before = rows.starts + rows.lengths - 1 - runs if end else rows.starts + runs
    step = -1 if end else 1
    found = (runs > 0) & (rows.lengths > runs + _RAMP)
    for away in range(_RAMP):
        values = part.values.take(before + step * away, mode="clip")
        found &= values > _RAMP_NATS
    if part.ids is not None:
        same = part.ids.take(before, mode="clip") == part.ids[edges(rows, end=end)]
        same &= part.ids.take(before + step, mode="clip") == part.ids[edges(rows, end=end)]
        found |= same & (runs > 0) & (rows.lengths > runs + 1)
    return found


def _is_padding_by_id(part: _PaddedRecord, runs: I64, *, end: bool) -> bool:
    """Whether runs are of one token: padding; or only there, after one other, or in most."""
    assert part.ids is not None
    hit = np.flatnonzero(runs)
    words = {*part.ids[edges(part.responses, end=end)[hit]].tolist()}
    starts, lengths = part.responses.starts[hit], part.responses.lengths[hit]
    before = starts + lengths - runs[hit] - 1 if end else starts + runs[hit]
    whole = lengths == runs[hit]
    ends = {*part.ids.take(before[~whole], mode="clip").tolist()}
    only_there = np.count_nonzero(np.isin(part.ids, [*words])) == int(runs.sum())
    several = len(hit) > 1 and (len(ends) < 2 or only_there or 2 * len(hit) >= len(runs))
    return len(words) == 1 and (words <= part.special or several)


def _chance(part: _PaddedRecord, runs: I64, *, end: bool) -> float:
    """Returns the log-probability of such runs, if they were like the repeats elsewhere.

    A token repeats the log-prob before it, or is 0.0, with probability p, and with q after one
    that does; so a run of r has probability p·qʳ⁻¹ and X = −ln p − (r − 1)·ln q, at most an Exp(1).
    The sum of X over R responses is bounded as a Gamma(R) by Chernoff, the greatest by Bonferroni.
    """
    values, index = part.values, part.responses.index
    at_edge = values[edges(part.responses, end=end)]
    of_longest = at_edge[int(np.argmax(runs))]  # shorter runs of its value are no repeats elsewhere
    alike = (at_edge == of_longest) & (of_longest <= _SURE)
    cut = part.responses.spread(np.where((runs >= part.least) | alike, runs, 0))
    places, lengths = part.responses.positions, part.responses.spread(part.responses.lengths)
    inside = places < lengths - cut if end else places >= cut
    follows = np.zeros(len(values), dtype=np.bool_)
    follows[1:] = index[1:] == index[:-1]
    same = np.zeros(len(values), dtype=np.bool_)
    same[1:] = (values[1:] == values[:-1]) & follows[1:]
    same = (same | (values == 0.0)) & inside
    after = np.zeros(len(values), dtype=np.bool_)
    after[1:] = same[:-1] & follows[1:] & inside[1:]
    first = _estimate_share(same, inside)
    again = max(first, _estimate_share(same & after, after))
    size = np.where(runs > 0, -math.log(first) - np.maximum(runs - 1, 0) * math.log(again), 0.0)
    responses, total, most = len(runs), float(size.sum()), float(size.max())
    together = 0.0
    if total > responses:
        together = responses * math.log(total / responses) + responses - total
    return math.log(2.0) + min(together, math.log(responses) - most)


def _estimate_share(part: NDArray[np.bool_], whole: NDArray[np.bool_]) -> float:
    """Returns Laplace's estimate of a share: (k + 1)/(n + 2)."""
    return (int(np.count_nonzero(part)) + 1) / (int(np.count_nonzero(whole)) + 2)


# ---- by ids --------------------------------------------------------------------------------------

ENDS = frozenset({151_645, 128_001, 128_008, 128_009, 100_257, 100_265, 32_000, 50_256})
"""Ends of text that are no ordinary word: Qwen 2 and 3, Llama 3, GPT-4's and Phi's vocabularies,
Phi-3, GPT-2; from the models' generation_config.json. Small ids (2, 1) are words elsewhere."""
PADS = frozenset({151_643, 128_004, 100_257, 100_349, 32_000, 50_256})
"""Ids of padding of the same models, from their tokenizer_config.json."""
_END_WORDS = frozenset(
    {"<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "</s>", "<|end|>", "<eos>", "<end_of_turn>"}
)
_ONLY_PAD_WORDS = frozenset({"<pad>", "<|finetune_right_pad_id|>", "[PAD]", "<|pad|>"})
"""Words that end no text; an id may be another word in another vocabulary."""
_PAD_WORDS = _ONLY_PAD_WORDS | {"<|endoftext|>"}

_SEVERAL = 2
_MANY, _OFTEN = 3, 0.5
_AT_ENDS = 0.95
"""A policy that loops writes its words elsewhere too: 2 and 8 of 10 were, where this was seen."""


def special_ids(view: View) -> tuple[frozenset[int], frozenset[int]]:
    """Returns the ids of ends of text and of padding, as in ``View.ids``."""
    if "token_ids" in view.names:
        settings = view.values[0]
        ends = ENDS | _ids_of_setting(settings, "eos_token_id")
        return ends, (PADS | _ids_of_setting(settings, "pad_token_id")) - ends
    try:
        numbers = view.words
    except TypeError:  # nested in several ways: ``View.ids`` has none
        return frozenset(), frozenset()
    ends, pads = (
        frozenset(numbers[word] for word in some if word in numbers)
        for some in (_END_WORDS, _PAD_WORDS)
    )
    return ends, pads


_TEXTS = 3


def _only_pads(view: View, ends: frozenset[int], often: I64) -> frozenset[int]:
    """Returns the ids, as in ``View.ids``, of tokens that end no text and are only padding.

    The texts of ids are looked up where some responses end in them more than once (``often``).
    """
    if "token_ids" in view.names:
        settings, named = view.values[0], frozenset[int]()
        if _ids_of_setting(settings, "eos_token_id"):
            named = _ids_of_setting(settings, "pad_token_id")
        for word in often[:_TEXTS].tolist() if "tokens" in view.names else ():
            named |= {one for one, text in view.text_of(word).items() if text in _ONLY_PAD_WORDS}
        return named - ends
    return frozenset(view.words[word] for word in _ONLY_PAD_WORDS if word in view.words)


def _ids_of_setting(value: Mapping[str, Any], key: str) -> frozenset[int]:
    given = value.get(key)
    every = given if isinstance(given, list) else [given]
    return frozenset(number for number in every if type(number) is int)


@rule("padding-id")
def find_padding_ids(view: View) -> Iterator[Finding]:
    """Finds responses that count ids of padding after their end of text.

    Where both ids are known, one response is enough. Ends of text are padding too, but for the
    first: no policy goes on after it. Tokens that are only padding are so after any text, if two of
    them end a response and the record has none elsewhere. An unknown id is padding if several
    responses end in a run of it after one other id, and both occur nowhere else; or if the runs,
    one of a single token, fill all of them up to the record's longest; or if half of the responses
    end in it, at different lengths, and so in an end of text. A loop of one token is none of these:
    a policy writes its word elsewhere too, if not in this record.
    """
    ids = view.counted_ids
    if ids is None or not len(ids):
        return
    ends, pads = special_ids(view)
    rows = view.responses
    at = edges(rows, end=True)
    last, runs = ids[at], equal_runs(rows, ids, end=True)
    only = _only_pads(view, ends, np.unique(last[runs > 1]))
    unknown = _count_unknown_padding(view, ids, last, runs)
    for word in np.unique(last[unknown > 0]).tolist():
        if runs[last == word].sum() < _AT_ENDS * np.count_nonzero(ids == word):
            unknown[last == word] = 0
    known = np.isin(last, list(pads)) & (rows.lengths > runs) & np.isin(ids[at - runs], list(ends))
    ended = np.where(_repeats_the_end(view, ids, ends), runs - 1, np.where(known, runs, 0))
    alone = np.where(np.isin(last, [*only]) & (rows.lengths > 0), runs, 0)
    elsewhere = view.records.sum(rows.sum(np.isin(ids, [*only]))) > view.records.sum(alone)
    several = view.count_rows(alone >= _SEVERAL) > 0
    alone[(elsewhere | ~several)[view.records.index]] = 0
    behind = np.maximum.reduce([ended, alone, unknown])
    yield from _find_other_text(view, ids, ends, behind)
    masked = np.where(rows.lengths > 0, view.positions[np.minimum(rows.starts, len(ids) - 1)], 0)
    for record in np.flatnonzero(view.records.sum(behind)).tolist():
        part, of = view.rows_of(record), view.counts[record]
        row = part.start + int(np.argmax(behind[part] > 0))
        whole = ended[part].any() or (unknown[row] == runs[row] and rows.lengths[row] > runs[row])
        kind = "only" if alone[row] else "repeated"
        late = int(behind[row]) if (behind == masked)[part][behind[part] > 0].all() else 0
        moved = f", and the first {late} masked: the mask is {counted(late, 'token')} late"
        yield Finding(
            {
                "responses": np.count_nonzero(behind[part]),
                "of": of,
                "tokens": behind[part].sum(),
                "token_id": last[row],
            },
            **view.at(row),
            kind="after-end" if whole else kind,
            words={"word": view.word(int(last[row])), "late": moved if late else ""},
        )


def _find_other_text(view: View, ids: I64, ends: frozenset[int], behind: I64) -> Iterator[Finding]:
    """Yields records with ids below 0, or with text right after an end of text that is no padding.

    The mask or the number of the turn changes where a new turn begins.
    """
    usual, counts = np.unique(ids[edges(view.responses, end=True)], return_counts=True)
    at = np.flatnonzero(np.isin(ids[:-1], [*ends.intersection(usual[counts >= _SEVERAL].tolist())]))
    of = view.responses.owners
    at = at[of(at + 1) == of(at)]
    for column, step in ((view.positions, 1), (view.columns.get("turn_ids"), 0)):
        if column is not None:
            at = at[column[at + 1] - column[at] == step]
    at = at[ids[at + 1] != ids[at]] + 1
    at = at[behind[of(at)] == 0]
    negative = np.flatnonzero(ids < 0) if "token_ids" in view.names else at[:0]
    for kind, places in (("negative", negative), ("goes-on", at)):
        rows = of(places)
        for record in np.unique(view.records.index[rows]).tolist():
            mine = places[view.records.index[rows] == record]
            yield Finding(
                {"tokens": len(mine), "responses": len(np.unique(of(mine)))},
                **view.place(int(mine[0])),
                kind=kind,
                words={"of": view.counts[record], "id": ids[mine[0]]},
            )


def _repeats_the_end(view: View, ids: I64, ends: frozenset[int]) -> NDArray[np.bool_]:
    """Returns [R] whether a response ends in two ends of text, as one other of its record ends.

    The two are neighbours as written: ends of an agent's turns have a tool's answer between them.
    """
    at = edges(view.responses, end=True)
    finished = (view.lengths > 0) & np.isin(ids[at], list(ends))
    before = np.maximum(at - 1, 0)
    twice = finished & (view.lengths > 1) & (ids[before] == ids[at])
    twice &= view.positions[at] - view.positions[before] == 1
    enough = view.count_rows(finished) >= np.minimum(view.counts, _SEVERAL)
    found: NDArray[np.bool_] = twice & enough[view.records.index]
    return found


def _count_unknown_padding(view: View, ids: I64, last: I64, runs: I64) -> I64:
    """Returns [R] how many tokens at the end of a response are of an id that is only padding."""
    found = np.zeros(len(last), dtype=np.int64)
    long = (runs > _SEVERAL) & (view.lengths > 0)
    if not long.any():
        return found
    records, at = view.records.index, edges(view.responses, end=True) - runs
    for record, word in {(int(r), int(w)) for r, w in zip(records[long], last[long], strict=True)}:
        mine = (records == record) & (last == word) & (view.lengths > 0)
        own_ids = ids[view.tokens_of(record)]
        every = int(np.count_nonzero(own_ids == word))
        if np.count_nonzero(mine & long) < _SEVERAL or every != int(runs[mine].sum()):
            continue
        before = at[mine & (view.lengths > runs)]
        end = np.unique(ids[before])
        if len(end) == 1 and np.count_nonzero(own_ids == end) == len(before):
            found = np.where(mine & long, runs, found)
            continue
        own, rows = view.lengths[mine], view.lengths[view.rows_of(record)]
        filled = runs[mine].min() == 1 and own.min() == rows.max()
        # a response that is shorter than another one was not cut in a loop
        if filled or (len(own) >= max(_MANY, _OFTEN * len(rows)) and np.ptp(own) > 0):
            found = np.where(mine, runs - 1, found)
    return found


@rule("end-of-text")
def find_masked_ends(view: View) -> Iterator[Finding]:
    """Finds responses whose end of text is masked, after the last token that counts.

    The end of text is known by its id. It is masked in several responses; or in one, where it
    counts in others and padding of another id follows. In an unknown vocabulary it is the first
    masked token of responses of several lengths, if that is one id in all of them, and occurs
    nowhere else except as the last token that counts.
    """
    ids, written = view.ids, view.written
    if ids is None or view.mask is None:
        return
    ends, _ = special_ids(view)
    last = np.full(written.count, -1)
    kept = np.flatnonzero(view.mask)
    np.maximum.at(last, written.index[kept], kept)
    rest = np.where(last >= 0, written.starts + written.lengths - last - 1, 0)
    first, after = (ids.take(last + step, mode="clip") for step in (1, 2))
    counted = ids[last]
    taken = (rest > 0) & ~((rest > 1) & (after == first))
    hit = taken & np.isin(first, list(ends)) & ~np.isin(counted, list(ends))
    for record in np.flatnonzero(view.count_rows(taken) >= _MANY).tolist():
        part = view.rows_of(record)
        rows = part.start + np.flatnonzero(taken[part])
        word, lengths = first[rows[0]], last[rows] - written.starts[rows]
        if (first[rows] != word).any() or min(map(np.ptp, (lengths, counted[rows]))) == 0:
            continue
        at_end = ((rest > 0) & (first == word)) | ((last >= 0) & (counted == word))
        begin = int(written.starts[part.start])
        everywhere = ids[begin : begin + int(view.widths[part].sum())] == word
        hit[rows] |= np.count_nonzero(everywhere) == np.count_nonzero(at_end[part])
    finished = view.count_rows((last >= 0) & np.isin(counted, list(ends)))
    clear = hit & (rest > 1) & ~np.isin(first, list(PADS))
    count = view.count_rows(hit)
    some = (view.count_rows(clear) > 0) & (finished > 0)
    for record in np.flatnonzero((count >= _SEVERAL) | some).tolist():
        row = view.rows_of(record).start + int(np.argmax(hit[view.rows_of(record)]))
        yield Finding(
            {"responses": count[record], "of": view.counts[record], "token_id": first[row]},
            **view.at(row),
            token=int(last[row] + 1 - written.starts[row]),
            words={"word": view.word(int(first[row]))},
        )
