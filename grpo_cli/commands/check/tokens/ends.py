"""The end of the text: padding that counts behind it, or a mask that takes it away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import I64
from grpo_cli.commands.check.finding import Finding, Rule
from grpo_cli.commands.check.record_view import View
from grpo_cli.commands.check.tokens.edges import edges, equal_runs

ENDS = frozenset({151_645, 128_001, 128_008, 128_009, 100_257, 100_265, 32_000, 50_256})
"""Ends of text that are no ordinary word: Qwen 2 and 3, Llama 3, GPT-4's and Phi's vocabularies,
Phi-3, GPT-2; from the models' generation_config.json. Small ids (2, 1) are words elsewhere."""
PADS = frozenset({151_643, 128_004, 100_257, 100_349, 32_000, 50_256})
"""Ids of padding of the same models, from their tokenizer_config.json."""
_END_WORDS = frozenset(
    {"<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "</s>", "<|end|>", "<eos>", "<end_of_turn>"}
)
_PAD_WORDS = frozenset({"<pad>", "<|endoftext|>", "<|finetune_right_pad_id|>", "[PAD]", "<|pad|>"})

_SEVERAL = 2
_MANY = 3


def _specials(view: View) -> tuple[frozenset[int], frozenset[int]]:
    """The numbers, as the view has them, of ends of text and of padding."""
    if "token_ids" in view.names:
        said = view.values[0]
        ends = ENDS | _said(said, "eos_token_id")
        return ends, (PADS | _said(said, "pad_token_id")) - ends
    words: dict[str, None] = {}
    for value in view.values:
        for row in value[view.names["tokens"]]:
            words |= dict.fromkeys(row if isinstance(row, list) else [row])
    numbers = {word: number for number, word in enumerate(words)}
    ends, pads = (
        frozenset(numbers[word] for word in some if word in numbers)
        for some in (_END_WORDS, _PAD_WORDS)
    )
    return ends, pads


def _said(value: Mapping[str, Any], key: str) -> frozenset[int]:
    given = value.get(key)
    every = given if isinstance(given, list) else [given]
    return frozenset(number for number in every if type(number) is int)


def _pads(view: View) -> Iterator[Finding]:
    """Tokens of padding's id count, at the end of several responses, behind the end of text.

    A response that ends in a known id of padding counts it; where that is also an end of text
    (GPT-2, many base models) only from two in a row on. Ids that nobody knows count where several
    responses end in a run of one and the same id that occurs nowhere else.
    """
    ids = view.counted_ids
    if ids is None or not len(ids):
        return
    ends, pads = _specials(view)
    rows = view.responses
    at = edges(rows, end=True)
    last, runs = ids[at], equal_runs(rows, ids, end=True)
    known = np.isin(last, list(pads)) & (rows.lengths > runs)
    hit = known & np.isin(ids[at - runs], list(ends))
    hit |= _nowhere_else(view, ids, last, runs)
    for record in np.flatnonzero(view.records.sum(hit.astype(np.int64)) >= _SEVERAL).tolist():
        start = int(view.records.starts[record])
        part = slice(start, start + int(view.counts[record]))
        rows_hit = int(hit[part].sum())
        row = start + int(np.argmax(hit[part]))
        tokens = int(runs[part][hit[part]].sum())
        yield Finding(
            "error",
            f"{rows_hit:,} of {part.stop - start:,} responses end in {view.word(int(last[row]))}, "
            f"behind the end of text: {tokens:,} tokens of padding count",
            "end the mask with the end of text: it counts, what follows does not",
            {
                "responses": rows_hit,
                "of": part.stop - start,
                "tokens": tokens,
                "token_id": int(last[row]),
            },
            **view.at(row),
        )


def _nowhere_else(view: View, ids: I64, last: I64, runs: I64) -> np.ndarray:
    """[R] whether a response ends in a run of an id that several end in, and none has before."""
    found = np.zeros(len(last), dtype=np.bool_)
    long = runs > _SEVERAL
    if not long.any():
        return found
    records = view.records.index
    of_token = records[view.responses.index]
    for record, word in {(int(r), int(w)) for r, w in zip(records[long], last[long], strict=True)}:
        mine = (records == record) & (last == word)
        every = int(np.count_nonzero(ids[of_token == record] == word))
        if np.count_nonzero(mine & long) >= _SEVERAL and every == int(runs[mine].sum()):
            found |= mine & long
    return found


def _masked_end(view: View) -> Iterator[Finding]:
    """The first token that the mask takes behind the last one that counts is the end of text.

    It is by its id; or, of a vocabulary that nobody knows, by where it stands (``_like_an_end``).
    """
    if view.mask is None or view.ids is None:
        return
    ends, _ = _specials(view)
    written = view.written
    stops = written.starts + written.lengths
    last = np.full(written.count, -1)
    kept = np.flatnonzero(view.mask)
    np.maximum.at(last, written.index[kept], kept)
    some, following = last >= 0, last + 1
    inside = some & (following < stops)
    first, after = (view.ids.take(at, mode="clip") for at in (following, following + 1))
    again = (following + 1 < stops) & (after == first)
    counted, taken = view.ids[last], inside & ~again
    hit = taken & np.isin(first, list(ends)) & ~np.isin(counted, list(ends))
    hit |= _like_an_end(view, _Ends(taken, inside, some, last, first, counted))
    for record in np.flatnonzero(view.records.sum(hit.astype(np.int64)) >= _SEVERAL).tolist():
        start = int(view.records.starts[record])
        part = slice(start, start + int(view.counts[record]))
        row = start + int(np.argmax(hit[part]))
        yield Finding(
            "warning",
            f"the mask takes the end of text ({view.word(int(first[row]))}) of "
            f"{int(hit[part].sum()):,} of {part.stop - start:,} responses: the last token counts "
            "not",
            "the policy chose to stop, and does not learn when to: a mask made from the id of "
            "padding takes the end of text too where the two are one; count up to its first",
            {
                "responses": int(hit[part].sum()),
                "of": part.stop - start,
                "token_id": int(first[row]),
            },
            **view.at(row),
            token=int(following[row] - written.starts[row]),
        )


class _Ends(NamedTuple):
    """[R] How the responses end.

    Attributes:
        taken: whether the mask takes a token behind the last that counts, and not the same again.
        inside: whether there is one behind it at all.
        some: whether a token counts.
        last: where the last token stands that counts.
        first, counted: the token behind it, and that last one; any where there is none.
    """

    taken: NDArray[np.bool_]
    inside: NDArray[np.bool_]
    some: NDArray[np.bool_]
    last: I64
    first: I64
    counted: I64


def _like_an_end(view: View, of: _Ends) -> NDArray[np.bool_]:
    """[R] whether what the mask takes is an end of text, to judge by where it stands.

    Behind responses of several lengths it takes one token which is the same in all of them, and
    stands nowhere but there, or as the last one that counts.
    """
    found = np.zeros(len(of.last), np.bool_)
    of_record, ids = view.records.index, view.ids
    assert ids is not None
    for record in np.flatnonzero(view.records.sum(of.taken.astype(np.int64)) >= _MANY).tolist():
        mine = of_record == record
        rows = np.flatnonzero(of.taken & mine)
        words, lengths = set(of.first[rows].tolist()), of.last[rows] - view.written.starts[rows]
        if len(words) > 1 or len(np.unique(lengths)) < 2 or len(np.unique(of.counted[rows])) < 2:
            continue
        (word,) = words
        everywhere = np.count_nonzero(ids[mine[view.written.index]] == word)
        at_end = (of.inside & (of.first == word)) | (of.some & (of.counted == word))
        found[rows] = everywhere == np.count_nonzero(at_end & mine)
    return found


RULES = (
    Rule(
        "padding-id",
        ("error",),
        "Tokens of padding, by their id, count behind the end of text.",
        19,
        _pads,
        explains=True,
        about="padding, ends and loops by id",
        needs=("token_ids|tokens",),
    ),
    Rule(
        "end-of-text",
        ("warning",),
        "The mask takes the end of text away.",
        25,
        _masked_end,
        about="padding, ends and loops by id",
        needs=("token_ids|tokens",),
    ),
)
