"""Prompt tokens inside the response."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from grpo_cli.batch import F64, I64
from grpo_cli.commands.check.finding import Finding, Rule
from grpo_cli.commands.check.record_view import View
from grpo_cli.commands.check.tokens.edges import edges

_CHANCE = math.log(1e-9)
_KEYS = ("prompt_ids", "prompt_tokens", "prompt_token_ids")
_ABSOLUTE, _RELATIVE = 0.01, 0.02
_ADVICE = "cut the prompt off, or mask it: only tokens that the policy wrote may count"


def _look(view: View) -> Iterator[Finding]:
    """Responses that begin with their prompt.

    Where the record has prompt_ids (prompt_tokens, prompt_token_ids): a response's ids begin with
    them. Otherwise: all responses of a group begin with the same tokens although they were drawn
    independently. G samples agree on a beginning of log-prob L with probability e^((G−1)·L), so
    a shared beginning is reported where that is below 1e-9; one that the policy writes every time
    (a <think> tag) has L near 0 and is not. Tokens are told by id or string, else by their
    log-probs, within 2 % and 0.01, which is more than two kernels differ on one prompt.
    """
    told = set()
    for finding in _given(view):
        told.add(finding.record)
        yield finding
    new = view.column("log_probs_new")
    if new is None or not len(new):
        return
    ids = view.counted_ids
    words: Any = new if ids is None else ids
    for group in _alike_at_first(view, words).tolist():
        members = view.members(group)
        record, _ = view.local(int(members[0]))
        shared = 0 if record in told else _shared(view, words, members)
        lengths = view.responses.lengths[members]
        if shared and not (lengths == shared).all():
            yield from _of_group(view, new, members, shared)


def _of_group(view: View, new: F64, members: I64, shared: int) -> Iterator[Finding]:
    begun = new[view.responses.starts[members][:, None] + np.arange(shared)]
    if not np.isfinite(begun).all():
        return
    chance = (len(members) - 1) * max(map(math.fsum, begun.tolist()))
    if chance < _CHANCE:
        yield Finding(
            "error",
            f"all {len(members)} responses begin with the same {shared} tokens, which has "
            f"probability e^{chance:.0f} if they were sampled: prompt tokens count",
            _ADVICE,
            {"tokens": shared, "responses": len(members), "log_probability": chance},
            **view.at(int(members[0])),
            token=0,
        )


def _alike_at_first(view: View, words: Any) -> I64:
    """The groups of several responses whose first tokens are the same."""
    rows = view.responses
    filled = rows.lengths > 0
    first = np.where(filled, words[edges(rows, end=False)], np.inf)
    low, high = view.by_group(first, np.minimum), view.by_group(first, np.maximum)
    several = np.flatnonzero(np.isfinite(high) & (view.sizes > 1))
    low, high = low[several], high[several]
    return several[high - low <= _tolerance(high, words)]


def _tolerance(values: Any, words: Any) -> Any:
    """How far apart tokens may be that are the same: ids not at all."""
    if words.dtype.kind == "i":
        return np.zeros_like(values)
    return np.where(np.isfinite(values), _ABSOLUTE + 2.0 * _RELATIVE * np.abs(values), 0.0)


def _shared(view: View, words: Any, members: I64) -> int:
    """The length of the longest common beginning."""
    starts = view.responses.starts[members]
    size = int(view.responses.lengths[members].min())
    step, at = 16, 0
    while at < size:
        width = min(step, size - at)
        table = words[starts[:, None] + np.arange(at, at + width)]
        low, high = table.min(axis=0), table.max(axis=0)
        with np.errstate(invalid="ignore"):
            apart = high - low > _tolerance(high, words)
        if apart.any():
            return at + int(np.argmax(apart))
        at, step = at + width, 2 * step
    return size


def _given(view: View) -> Iterator[Finding]:
    key = next((key for key in _KEYS if view.values and key in view.values[0]), None)
    ids = view.counted_ids
    if key is None or ids is None or "token_ids" not in view.names:
        return
    for record, value in enumerate(view.values):
        prompts = value.get(key)
        if isinstance(prompts, list) and prompts:
            yield from _begins(view, ids, record, prompts, key)


def _begins(view: View, ids: I64, record: int, prompts: list[Any], key: str) -> Iterator[Finding]:
    nested = isinstance(prompts[0], list)
    start = int(view.records.starts[record])
    for row in range(int(view.counts[record])):
        prompt = prompts[min(row, len(prompts) - 1)] if nested else prompts
        at = int(view.responses.starts[start + row])
        size = min(len(prompt), int(view.responses.lengths[start + row]))
        if 1 < len(prompt) == size and ids[at : at + size].tolist() == prompt:
            yield Finding(
                "error",
                f"the response begins with the {len(prompt)} tokens of {key}: they count",
                _ADVICE,
                {"tokens": len(prompt), "key": key},
                record=record,
                response=row,
                token=0,
            )
            return


RULES = (
    Rule(
        "prompt-included",
        ("error",),
        "Tokens of the prompt count as if the policy had written them.",
        30,
        _look,
        explains=True,
    ),
)
