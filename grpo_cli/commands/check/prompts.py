"""Prompt tokens inside the response."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from grpo_cli.commands.check.finding import Finding
from grpo_cli.commands.check.record_view import View

_CHANCE = math.log(1e-9)
_KEYS = ("prompt_ids", "prompt_tokens", "prompt_token_ids")

_ADVICE = "cut the prompt off, or mask it: only tokens that the policy wrote may count"


def prompt_included(view: View) -> Iterator[Finding]:
    """Responses that begin with their prompt.

    Where the record has prompt_ids (prompt_tokens, prompt_token_ids): a response's ids begin with
    them. Otherwise: all responses of a group begin with the same tokens although they were drawn
    independently. G samples agree on a beginning of log-prob L with probability e^((G−1)·L), so
    a shared beginning is reported where that is below 1e-9; one that the policy writes every time
    (a <think> tag) has L near 0 and is not. Tokens are told by id or string, else by their
    log-probs to 6 digits.
    """
    found = [*_given(view)]
    told = {one.record for one in found}
    yield from found
    new = view.log_probs.get("log_probs_new")
    if new is None:
        return
    for members in view.groups:
        record, _ = view.local(members[0])
        if len(members) < 2 or record in told:
            continue
        rows = [_row(view, response) for response in members]
        shared = _shared(rows)
        if not shared or all(len(row) == shared for row in rows):
            continue  # nothing shared, or one response many times over
        totals = []
        for response in members:
            start = int(view.responses.starts[response])
            totals.append(math.fsum(new[start : start + shared].tolist()))
        chance = (len(members) - 1) * max(totals)
        if chance < _CHANCE:
            record, response = view.local(members[0])
            yield Finding(
                "prompt-included",
                "error",
                f"all {len(members)} responses begin with the same {shared} tokens, which has "
                f"probability e^{chance:.0f} if they were sampled: prompt tokens count",
                _ADVICE,
                {"tokens": shared, "responses": len(members), "log_probability": chance},
                record=record,
                response=response,
                token=0,
            )


def _row(view: View, response: int) -> Sequence[Any]:
    words = view.words(response)
    if words is not None:
        return words
    start = int(view.responses.starts[response])
    end = start + int(view.responses.lengths[response])
    return [f"{value:.6g}" for value in view.log_probs["log_probs_new"][start:end].tolist()]


def _shared(rows: Sequence[Sequence[Any]]) -> int:
    """The length of the longest common beginning."""
    for length, column in enumerate(zip(*rows, strict=False)):
        if len(set(column)) > 1:
            return length
    return min(map(len, rows))


def _given(view: View) -> Iterator[Finding]:
    for number, raw in enumerate(view.raws):
        record = view.records[number]
        key = next((key for key in _KEYS if isinstance(raw.value.get(key), list)), None)
        words = record.token_ids or record.tokens
        if key is None or words is None:
            continue
        prompts = raw.value[key]
        nested = bool(prompts) and isinstance(prompts[0], list)
        kept = [
            view.words(row) or []
            for row in range(len(view.record_of))
            if view.record_of[row] == number
        ]
        for response, row in enumerate(kept):
            prompt = prompts[min(response, len(prompts) - 1)] if nested else prompts
            if len(prompt) > 1 and row[: len(prompt)] == prompt:
                yield Finding(
                    "prompt-included",
                    "error",
                    f"the response begins with the {len(prompt)} tokens of {key}: they count",
                    _ADVICE,
                    {"tokens": len(prompt), "key": key},
                    record=number,
                    response=response,
                    token=0,
                )
                break
