"""What labels of tokens and rows say of each other: roles, turns, versions, prompts, endings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from grpo_cli.batch import F64
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
    """Finds responses of which some of the policy's tokens count, and many others are masked.

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
        hit, several = (masked > least) & (view.lengths > 0), view.lengths > 0
        required = np.full(len(view.counts), 1)
    else:
        turns = view.packed.columns["turn_ids"]
        last = np.repeat(_last_counted(view, turns), view.widths)
        earlier = turns < last
        counted = rows.sum((earlier & view.mask).astype(np.int64))
        masked = rows.sum((earlier & ~view.mask).astype(np.int64))
        several = (masked + counted > 0) & (view.lengths > 0)
        hit = several & (counted == 0)
        required = np.maximum(_LEAST, view.records.sum(several.astype(np.int64)))
    hits = view.records.sum(hit.astype(np.int64))
    for record in np.flatnonzero((hits > 0) & (hits >= required)).tolist():
        mine = view.rows_of(record)
        row = mine.start + int(np.argmax(hit[mine]))
        tokens = int(masked[mine][hit[mine]].sum())
        yield Finding(
            f"the mask leaves out {tokens:,} tokens of the assistant in {int(hits[record]):,} of "
            f"{int(view.counts[record]):,} responses whose other turns count",
            "let the mask count every turn of the assistant, not the last one alone; correct if "
            "only some turns are trained on purpose",
            {"tokens": tokens, "responses": int(hits[record])},
            **view.at(row),
        )


def _last_counted(view: View, turns: F64) -> F64:
    """Returns [R] the number of the turn of the last token that counts; -inf if none does."""
    found = np.full(view.written.count, -np.inf)
    assert view.mask is not None
    kept = np.flatnonzero(view.mask)
    np.maximum.at(found, view.written.index[kept], turns[kept])
    return found


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
                yield Finding(
                    f"{key} are all below 0 (at most {max(given)}): no token has a version of the "
                    "weights",
                    "record the engine's version when a token is sampled; filters by age and "
                    "corrections see no stale token otherwise",
                    {"key": key},
                    record,
                )
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
        yield Finding(
            f"the version of the weights falls along {int(falls[record]):,} responses or "
            f"trajectories, and rises along {int(rises[record]):,}",
            "an engine that is updated while it generates has newer weights later: look for "
            "versions that were reversed, or belong to other rows",
            {"falls": int(falls[record]), "rises": int(rises[record])},
            record,
        )


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
        yield Finding(
            f"turn numbers fall along {len(hit):,} of {int(view.counts[record]):,} responses",
            "number turns in the order in which they were written: look for tokens and turn_ids "
            "that were put together in different orders",
            {"responses": len(hit)},
            **view.at(int(hit[0])),
        )


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
            yield _describe_mixed_prompts(key, {}, {"record": record})
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
                yield _describe_mixed_prompts(
                    key, {"responses": len(odd)}, view.at(mine.start + odd[0])
                )
            break


def _describe_mixed_prompts(key: str, evidence: dict[str, Any], place: dict[str, Any]) -> Finding:
    return Finding(
        f"a group has responses to different prompts: {key} differs within it",
        "group by prompt: responses to another prompt, or to a later turn, are no baseline for "
        "each other",
        {"key": key, **evidence},
        **place,
    )


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
    tools = np.zeros(len(view.counts), dtype=np.bool_)
    inside = np.diff(view.responses.index) == 0
    gaps = view.responses.index[1:][inside & (np.diff(view.positions) > 1)]
    tools[view.records.index[gaps]] = True
    for record in np.unique(view.records.index[above]).tolist():
        mine = view.rows_of(record)
        if not tools[record] and record not in view.turned:
            count = int(above[mine].sum())
            yield Finding(
                f"{count:,} of {int(view.counts[record]):,} responses have more tokens than "
                f"max_completion_length ({limits[record]:g}), the longest "
                f"{int(view.lengths[mine].max()):,}",
                "look for tokens of the prompt or padding that count, or rows of two responses",
                {"responses": count, "limit": limits[record]},
                **view.at(mine.start + int(np.argmax(above[mine]))),
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
            yield Finding(
                f"{int(wrong.sum()):,} of {int(cut.sum()):,} responses that were cut, according to "
                "the record, end in the end of text",
                "endings must belong to the same rows as the tokens: check what sorts or filters "
                "one of the two",
                {"responses": int(wrong.sum()), "cut": int(cut.sum())},
                **view.at(mine.start + int(np.argmax(wrong))),
            )
        elif empty.sum() > 1 and (empty == ~cut).all():
            yield Finding(
                f"the mask drops the {int(empty.sum()):,} responses that were finished, and counts "
                f"the {int(cut.sum()):,} that were cut",
                "overlong filtering masks the responses that were cut: its condition is inverted",
                {"responses": int(empty.sum()), "cut": int(cut.sum())},
                **view.at(mine.start + int(np.argmax(empty))),
            )


_TEXT_TOKENS, _ALIKE = 24, 0.7


@rule("token-text")
def find_wrong_text(view: View) -> Iterator[Finding]:
    """Finds strings of tokens that are not those of the ids: one id must have one string.

    Of ids that occur several times in a record, 7 of 10 tokens must have the id's usual string.
    """
    if not {"tokens", "token_ids"} <= view.names.keys() or view.ids is None:
        return
    strings = view.strings("tokens")
    if strings is not None and _agree(view.ids.tolist(), strings.tolist()):
        return
    for record, value in enumerate(view.values):
        ids, words = (flat(value[view.names[name]]) for name in ("token_ids", "tokens"))
        if len(ids) != len(words) or _agree(ids, words):
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
            yield Finding(
                f"{view.key('tokens')} are not the strings of {view.key('token_ids')}: an id has "
                f"its usual string at {usual / total:.0%} of {total:,} tokens",
                "decode each id on its own, and keep strings and ids in the same order",
                {"share": usual / total, "tokens": total},
                record,
            )


def _agree(ids: list[Any], words: list[Any]) -> bool:
    """Returns whether each id has one string."""
    return [*map(dict(zip(ids, words, strict=True)).get, ids)] == words


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
                f"the sums of {view.key(name)} are the rewards of other responses: they have the "
                f"same values, but differ in {int(far.sum()):,} of {len(far):,} responses",
                "put rewards and tokens of one response in one row: check what shuffles or gathers "
                "one of the two",
                {"responses": int(far.sum()), "of": len(far)},
                **view.at(rows.start + int(np.argmax(far))),
            )
