"""What labels of tokens and rows say of each other: roles, turns, prompts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from grpo_cli.commands.check.record_view import View
from grpo_cli.commands.check.rule import Finding, rule
from grpo_cli.records.unread import PROMPT_IDS, PROMPTS

_LEAST = 3
"""Responses that must agree, where one may be an accident."""
_MASKED_TOKENS, _MASKED_SHARE = 8, 0.2
_POLICY = ("assistant", "model", "policy", "agent")


@rule("mask-roles")
def find_masked_turns(view: View) -> Iterator[Finding]:
    """Finds responses whose policy tokens count in part, while many others are masked.

    Roles say which are the policy's; a template's tokens between them are few. Without roles, all
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
        required = np.maximum(_LEAST, view.count_rows(several))
    hits = view.count_rows(hit)
    for record in np.flatnonzero((hits > 0) & (hits >= required)).tolist():
        mine = view.rows_of(record)
        yield Finding(
            {"tokens": masked[mine][hit[mine]].sum(), "responses": hits[record]},
            **view.first_row(record, hit),
            words={"of": view.counts[record]},
        )


@rule("mixed-prompts")
def find_mixed_prompts(view: View) -> Iterator[Finding]:
    """Finds groups whose responses answer different prompts.

    Not where a trajectory's turns are responses, each of which has a prompt of its own. A rank
    whose prompts differed within a group: huggingface/trl#2803.
    """
    keys = [key for key in (*PROMPT_IDS, *PROMPTS) if key in view.values[0]]
    for record, value in enumerate(view.values):
        if record in view.turned:
            continue
        if key := view.places[record].mixed:
            yield Finding({"key": key}, record)
            continue
        for key in keys:
            prompts = value.get(key)
            if not isinstance(prompts, list) or len(prompts) != view.counts[record] or not prompts:
                continue
            if not isinstance(prompts[0], str | list):
                continue  # one prompt: its messages
            mine = view.rows_of(record)
            first: dict[int, Any] = {}
            pairs = zip(view.groups[mine].tolist(), prompts, strict=True)
            odd = [
                at for at, (group, one) in enumerate(pairs) if first.setdefault(group, one) != one
            ]
            if odd and len(first) < len(prompts):
                yield Finding({"key": key, "responses": len(odd)}, **view.at(mine.start + odd[0]))
            break
