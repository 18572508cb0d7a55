"""What labels of tokens and rows say of each other: roles, turns, versions, prompts, endings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import I64
from grpo_cli.commands.check.record_view import View, flat
from grpo_cli.commands.check.rule import Finding, rule
from grpo_cli.commands.check.rules.padding import edges, special_ids
from grpo_cli.commands.trend.metadata import cut_off
from grpo_cli.records.unread import ENDINGS, PROMPT_IDS, PROMPTS, VERSIONS

_LEAST = 3
"""Responses that must agree, where one may be an accident."""
_MASKED_TOKENS, _MASKED_SHARE = 8, 0.2
_POLICY = ("assistant", "model", "policy", "agent")
_EXACT = 1e-4


@rule("mask-roles")
def find_masked_turns(view: View) -> Iterator[Finding]:
    """Finds responses whose policy tokens count in part, while many others are masked.

    Roles say which are the policy's; a template's tokens between them are few. Without roles, all
    responses of several turns must have masked turns before one that counts. Responses that are
    masked as a whole were filtered.
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


@rule("weight-versions")
def find_wrong_versions(view: View) -> Iterator[Finding]:
    """Finds versions of the weights that fall from token to token or turn to turn, or are all < 0.

    An engine only gets newer weights while it generates. Most changes must be falls, since rows of
    turns may be in any order.
    """
    key = next((key for key in VERSIONS if any(key in value for value in view.values)), None)
    versions = view.packed.versions
    if key is not None and versions is None:
        for record, value in enumerate(view.values):
            given = value.get(key)
            given = flat(given) if isinstance(given, list | np.ndarray) else [given]
            if given and all(type(one) is int for one in given):
                yield Finding({"key": key}, record, kind="unset", words={"most": max(given)})
        return
    if versions is None:
        return
    change = np.diff(versions)
    change[np.diff(view.written.index) != 0] = 0
    change[(versions[1:] < 0) | (versions[:-1] < 0)] = 0
    owner = view.records.index[view.written.index[1:]]
    falls, rises = (
        np.bincount(owner[some], minlength=len(view.counts)) for some in (change < 0, change > 0)
    )
    for one in view.trajectories:
        first = versions[view.written.starts[one.rows[view.widths[one.rows] > 0]]]
        falls[one.record] += np.count_nonzero(np.diff(first) < 0)
        rises[one.record] += np.count_nonzero(np.diff(first) > 0)
    for record in np.flatnonzero(falls > rises).tolist():
        yield Finding({"falls": falls[record], "rises": rises[record]}, record, kind="fall")


@rule("turn-order")
def find_falling_turns(view: View) -> Iterator[Finding]:
    """Finds responses along which the number of the turn falls."""
    turns = view.packed.columns.get("turn_ids")
    if turns is None or len(turns) < 2:
        return
    kept = slice(None) if view.mask is None else view.mask
    rows = view.written.index[kept]
    falls = (np.diff(turns[kept]) < 0) & (np.diff(rows) == 0)
    owner = view.records.index[rows[1:]]
    for record in np.unique(owner[falls]).tolist():
        hit = np.unique(rows[1:][falls & (owner == record)])
        words = {"of": view.counts[record]}
        yield Finding({"responses": len(hit)}, **view.at(int(hit[0])), words=words)


@rule("mixed-prompts")
def find_mixed_prompts(view: View) -> Iterator[Finding]:
    """Finds groups whose responses answer different prompts.

    Not where a trajectory's turns are responses, each of which has a prompt of its own.
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


@rule("endings")
def find_wrong_endings(view: View) -> Iterator[Finding]:
    """Finds endings that contradict the tokens, the mask or the limit.

    A response that was cut does not end in the end of text. If whole responses are masked, they
    are those that were cut, not just the others. None is longer than the limit, unless turns of
    tools are between its tokens.
    """
    settings = view.packed.settings
    limits = np.array([one.get("max_completion_length") or np.inf for one in settings])
    above = view.lengths > np.repeat(limits.astype(np.float64), view.counts)
    tools = {*view.records.index[view.responses.index[view.holes]].tolist()}
    for record in np.unique(view.records.index[above]).tolist():
        mine = view.rows_of(record)
        if record not in tools and record not in view.turned:
            yield Finding(
                {"responses": above[mine].sum(), "limit": limits[record]},
                **view.first_row(record, above),
                kind="long",
                words={"of": view.counts[record], "longest": view.lengths[mine].max()},
            )
    ends = np.zeros(len(view.lengths), dtype=np.bool_)
    declared = [at for at, value in enumerate(view.values) if not value.keys().isdisjoint(ENDINGS)]
    if declared and view.counted_ids is not None and len(view.counted_ids):
        last = view.counted_ids[edges(view.responses, end=True)]
        ends = np.isin(last, list(special_ids(view)[0])) & (view.lengths > 0)
    for record in declared:
        mine, value = view.rows_of(record), view.values[record]
        cut = np.array(cut_off(value) or (), dtype=np.bool_)
        if len(cut) != view.counts[record] or not cut.any() or cut.all():
            continue
        wrong = cut & ends[mine]
        empty = (view.lengths == 0)[mine] & (view.widths > 0)[mine]
        if 2 * wrong.sum() > cut.sum():
            place = view.at(mine.start + int(np.argmax(wrong)))
            yield Finding({"responses": wrong.sum(), "cut": cut.sum()}, **place, kind="ended")
        elif empty.sum() > 1 and (empty == ~cut).all():
            place = view.at(mine.start + int(np.argmax(empty)))
            yield Finding({"responses": empty.sum(), "cut": cut.sum()}, **place, kind="filtered")


_TEXT_TOKENS, _ALIKE = 24, 0.7
_TABLE = 1 << 20
"""More than the ids of any vocabulary."""


@rule("token-text")
def find_wrong_text(view: View) -> Iterator[Finding]:
    """Finds strings of tokens that are not those of the ids: one id must have one string.

    Of ids that occur several times in a record, 7 of 10 tokens must have the id's usual string.
    """
    if not {"tokens", "token_ids"} <= view.names.keys() or view.ids is None:
        return
    strings = view.strings("tokens")
    if strings is not None and _all_agree(view.ids, strings):
        return
    for record, value in enumerate(view.values):
        ids, words = (flat(value[view.names[name]]) for name in ("token_ids", "tokens"))
        if len(ids) != len(words):
            continue
        if not all(isinstance(word, str) for word in words):
            continue
        texts: dict[Any, Counter[Any]] = {}
        for one, word in zip(ids, words, strict=True):
            texts.setdefault(one, Counter())[word] += 1
        several = [count for count in texts.values() if count.total() > 1]
        total = sum(count.total() for count in several)
        usual = sum(max(count.values()) for count in several)
        if total >= _TEXT_TOKENS and usual < _ALIKE * total:
            names = {"tokens_key": view.key("tokens"), "ids": view.key("token_ids")}
            yield Finding({"share": usual / total, "tokens": total}, record, words=names)


def _all_agree(ids: I64, words: NDArray[Any]) -> bool:
    """Whether each id has one string, as far as a table of the ids tells."""
    if not len(ids):
        return True
    size = max(int(ids.max()) + 1, -int(ids.min()))
    if size > _TABLE:
        return False
    last = np.zeros(size, dtype=np.int64)  # ids below 0 are counted from its end
    last[ids] = np.arange(len(ids))
    return bool((words == words[last[ids]]).all())


@rule("reward-sums")
def find_displaced_sums(view: View) -> Iterator[Finding]:
    """Finds rewards by token or turn whose sums are the rewards of other responses."""
    rewards = view.summed
    if rewards is None or (view.rewards is not None and view.rewards.ndim > 1):
        return
    by_token, by_turn = view.columns.get("token_rewards"), view.packed.of_turns.get("turn_rewards")
    sums: dict[str, Any] = {}
    if by_token is not None:
        sums["token_rewards"] = view.responses.sum(by_token)
    if by_turn is not None:
        parts = np.split(by_turn[1], np.cumsum(by_turn[0])[:-1])
        sums["turn_rewards"] = np.array([part.sum() for part in parts])
    for name, each in sums.items():
        for record in range(len(view.counts)):
            rows = view.rows_of(record)
            own, given = each[rows], rewards[rows]
            far = np.abs(own - given) > _EXACT
            if far.sum() < _LEAST or (np.abs(np.sort(own) - np.sort(given)) > _EXACT).any():
                continue
            yield Finding(
                {"responses": far.sum(), "of": len(far)},
                **view.at(rows.start + int(np.argmax(far))),
                words={"name": view.key(name)},
            )
