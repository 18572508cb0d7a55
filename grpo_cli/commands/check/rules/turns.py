"""Turns of agents: how they are grouped, and which tokens have their advantages and rewards."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.check.record_view import Trajectory, View
from grpo_cli.commands.check.rule import Finding, rule

_LEAST = 3
"""Responses, or trajectories, that must agree before a finding on their turns."""
_EXACT = 1e-3


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

    Turns, each of which is a response, have the advantage of their trajectory at as many tokens as
    its last turn has, and 0 at the others.
    """
    by_token = view.token_advantages
    if by_token is None or view.advantages is not None or not len(by_token):
        return
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
            yield Finding(evidence, **view.at(hits[0]))


# ---- rewards of turns ----------------------------------------------------------------------------


@rule("turn-rewards")
def find_turn_rewards(view: View) -> Iterator[Finding]:
    """Finds rewards of masked tokens, which are lost, or the KL of a tool's tokens."""
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
