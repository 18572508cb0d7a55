"""Turns of agents: what is counted, rewarded, trained and prompted by turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from grpo_cli.batch import F64, Segments, cut_turns
from grpo_cli.commands.check.record_view import Trajectory, View
from grpo_cli.commands.check.rule import Finding, rule

_LEAST = 3
"""Responses, or trajectories, that must agree before a finding on their turns."""
_EXACT = 1e-3


def turns_of(view: View) -> Segments:
    """Returns the tokens that count, cut into turns."""
    ids = view.columns.get("turn_ids")
    return cut_turns(view.responses, None if ids is None else ids.astype(np.int64), view.positions)


def outcome(rewards: F64) -> float:
    """Returns the reward of a trajectory: that of every turn, or the only one; else NaN."""
    if np.ptp(rewards) == 0.0:
        return float(rewards[0])
    return float(rewards.sum()) if np.count_nonzero(rewards) == 1 else np.nan


# ---- groups and their statistics -----------------------------------------------------------------


@rule("turn-groups")
def find_groups_of_turns(view: View) -> Iterator[Finding]:
    """Finds groups of several responses that are all turns of one trajectory.

    Their rewards are those of one attempt: equal ones give advantages of 0. Advantages that do not
    add up to 0 over each trajectory have a baseline from elsewhere, as those of single attempts.
    """
    for record, every in view.turned.items():
        groups: dict[int, list[Trajectory]] = {}
        for one in every:
            groups.setdefault(one.group, []).append(one)
        alone = [some[0] for some in groups.values() if len(some) == 1 and len(some[0].rows) > 1]
        named = bool({"group_ids", "group_size"} & view.names.keys())
        several = len(groups) > 1 if named else "advantages" not in view.names
        if not several or any(len(some) > 1 for some in groups.values()):
            continue
        rewards = view.summed
        equal = [one for one in alone if rewards is not None and np.ptp(rewards[one.rows]) == 0.0]
        dead = len(equal) == len(alone)
        if view.advantages is not None:
            sums = np.array([abs(view.advantages[one.rows].sum()) for one in alone])
            centred = sums.max(initial=0.0) <= _EXACT * np.abs(view.advantages).max()
            dead = dead and not view.advantages[view.rows_of(record)].any()
            if not centred:
                continue
        yield Finding(
            {"groups": len(groups), "turns": sum(len(one.rows) for one in alone)},
            **view.at(int(alone[0].rows[0])),
            severity="error" if dead and named else "warning",
            words={"dead": ", whose rewards are equal: all advantages are 0" if dead else ""},
        )


# ---- advantages on the tokens of another turn ----------------------------------------------------


@rule("turn-advantages")
def find_turn_advantages(view: View) -> Iterator[Finding]:
    """Finds advantages by token that follow the tokens of another turn than their own.

    Where each turn is a response: turns that have the advantage of their trajectory at as many
    tokens as its last turn has, and 0 at the others. Where turns share a response: advantages
    that change as often as turns do or less, at one distance from where turns begin, or where
    turns would begin if the tokens of tools were not there.
    """
    by_token = view.token_advantages
    if by_token is None or view.advantages is not None or not len(by_token):
        return
    yield from _find_last_turns_mask(view, by_token)
    yield from _find_moved_turns(view, by_token)


def _find_last_turns_mask(view: View, by_token: F64) -> Iterator[Finding]:
    starts, lengths = view.responses.starts, view.lengths
    for every in view.turned.values():
        hits, mixed, earlier = [], 0, 0
        for one in every:
            last = int(one.rows[-1])
            own = by_token[starts[last] : starts[last] + lengths[last]]
            if not len(own) or own[0] == 0.0 or np.ptp(own) > 0.0:
                continue
            for row in one.rows[:-1].tolist():
                values = by_token[starts[row] : starts[row] + lengths[row]]
                zero = values == 0.0
                earlier += 1
                if zero.any() and not zero.all() and (zero | (values == own[0])).all():
                    mixed += 1
                    if np.count_nonzero(~zero) == len(own):
                        hits.append(row)
        if len(hits) >= _LEAST and len(hits) >= 0.8 * mixed:
            evidence = {"turns": len(hits), "of": earlier}
            yield Finding(evidence, **view.at(hits[0]), kind="last")


def _find_moved_turns(view: View, by_token: F64) -> Iterator[Finding]:
    turns, rows = turns_of(view), view.responses
    begins = np.zeros(rows.total, dtype=np.bool_)
    begins[turns.starts] = True
    begins[rows.starts[rows.lengths > 0]] = False
    inner = rows.positions > 0
    changes = inner & np.append(False, np.diff(by_token) != 0.0)
    begin_counts, change_counts = map(view.count_tokens, (begins, changes))
    compared = (begin_counts > 0) & (change_counts > 0)
    for record in np.unique(view.records.index[compared]).tolist():
        span = view.rows_of(record)
        chosen = np.flatnonzero(compared[span]) + span.start
        if len(chosen) < _LEAST or (change_counts > begin_counts)[chosen].any():
            continue
        pairs = [
            tuple(
                np.flatnonzero(flags[rows.starts[row] : rows.starts[row] + rows.lengths[row]])
                for flags in (changes, begins)
            )
            for row in chosen.tolist()
        ]
        if all(np.isin(changed, begun).all() for changed, begun in pairs):
            continue
        where = _displacement(view, chosen.tolist(), pairs)
        if where:
            evidence = {"responses": len(chosen), "where": where}
            yield Finding(evidence, **view.at(int(chosen[0])), kind="moved")


def _displacement(view: View, chosen: Sequence[int], pairs: Sequence[Any]) -> str:
    """Returns where advantages change, if one rule says so for all responses; else empty."""
    changed, begun = pairs[0]
    for by in (changed[0] - begun).tolist():
        if by and all(np.isin(some - by, starts).all() for some, starts in pairs):
            count = f"{abs(by):,} token{'' if abs(by) == 1 else 's'}"
            return f"{count} {'after' if by > 0 else 'before'} a turn begins"
    starts = view.responses.starts
    for row, (some, first) in zip(chosen, pairs, strict=True):
        written = view.positions[starts[row] : starts[row] + view.lengths[row]]
        for at in some.tolist():
            if not ((first > written[at - 1]) & (first <= written[at])).any():
                return ""
    return "where turns would begin without the tokens of tools between them"


# ---- rewards of turns ----------------------------------------------------------------------------


@rule("turn-rewards")
def find_turn_rewards(view: View) -> Iterator[Finding]:
    """Finds outcome rewards on the first of several turns, and rewards of masked tokens.

    Each of 8 trajectories of several turns or more has one reward that is not 0, always on its
    first turn. By token, rewards that the mask takes away are lost, or the KL of a tool's tokens.
    """
    yield from _find_masked_rewards(view)
    for every in _rewards_by_turn(view).values():
        paid = [rewards for _, rewards in every if len(rewards) > 1 and np.count_nonzero(rewards)]
        single = [rewards for rewards in paid if np.count_nonzero(rewards) == 1]
        if len(paid) < 8 or len(single) < len(paid) or any(one[0] == 0.0 for one in paid):
            continue
        yield Finding({"trajectories": len(paid)}, **view.at(every[0][0]), kind="first")


def _rewards_by_turn(view: View) -> dict[int, list[tuple[int, F64]]]:
    """Returns record → (first response, [turns] rewards) of each trajectory."""
    found: dict[int, list[tuple[int, F64]]] = {}
    by_turn, by_token = view.packed.of_turns.get("turn_rewards"), view.columns.get("token_rewards")
    if by_token is not None:
        turns = turns_of(view)
        counts = np.bincount(view.responses.index[turns.starts], minlength=view.responses.count)
        by_turn = counts, turns.sum(by_token)
    if by_turn is not None:
        for row, part in enumerate(np.split(by_turn[1], np.cumsum(by_turn[0])[:-1])):
            found.setdefault(int(view.records.index[row]), []).append((row, part))
    elif view.summed is not None:
        for one in view.trajectories:
            part = view.summed[one.rows]
            found.setdefault(one.record, []).append((int(one.rows[0]), part))
    return found


def _find_masked_rewards(view: View) -> Iterator[Finding]:
    written = view.packed.columns.get("token_rewards")
    if written is None or view.mask is None:
        return
    lost = ~view.mask & (written != 0.0)
    inside = view.written.sum(lost.astype(np.int64))
    count, rows = view.records.sum(inside), view.count_rows(inside > 0)
    tokens = view.count(~view.mask)
    for record in np.flatnonzero(rows >= _LEAST).tolist():
        yield Finding(
            {"tokens": count[record], "responses": rows[record]},
            **view.first_row(record, inside > 0),
            kind="masked-kl" if count[record] > 2 * rows[record] else "masked",
            words={"of": tokens[record]},
        )
