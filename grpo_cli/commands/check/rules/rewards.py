"""Groups: rewards that are equal or nearly so, sizes, and prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.check.kinds import Kinds
from grpo_cli.commands.check.lines import ANOTHER, FORMULAS
from grpo_cli.commands.check.record_view import View
from grpo_cli.commands.check.rule import Finding, Placed, Severity, rule
from grpo_cli.records.unread import PROMPT_IDS, PROMPTS

_NEAR = 1e-5
"""Below this spread the std of a group is less than the eps that some framework adds to it."""


def _scores(view: View) -> tuple[str, F64, F64, F64] | None:
    """Returns what scores are called, [R] rewards or else advantages, and [groups] their range."""
    values = view.advantages if view.summed is None else view.summed
    if values is None:
        return None
    name = "advantages" if view.rewards is None else "rewards"
    return name, values, view.by_group(values, np.minimum), view.by_group(values, np.maximum)


def are_dead(view: View) -> NDArray[np.bool_]:
    """Returns [groups] whether all rewards of a group are equal, so that its advantages are 0."""
    scores = _scores(view)
    if scores is None:
        return np.zeros(len(view.sizes), dtype=np.bool_)
    _, _, low, high = scores
    found: NDArray[np.bool_] = (low == high) & (view.sizes > 1)
    if view.rewards is None:
        return found & (low == 0.0)
    if "advantages" not in view.names:
        return found
    if view.advantages is None:  # one in each token
        return np.zeros(len(view.sizes), dtype=np.bool_)
    return found & ~(view.by_group(np.abs(view.advantages), np.maximum) > 0.0)


@rule("dead-group")
def find_dead_groups(view: View) -> Iterator[Finding]:
    """Finds groups whose rewards are all equal, so that all their advantages are 0.

    Its first response says which group of the record it is, if there are several.
    """
    scores = _scores(view)
    if scores is None:
        return
    owners = view.records.index[view.first_members]
    groups = np.bincount(owners)
    for group in np.flatnonzero(are_dead(view)).tolist():
        first, size, record = int(view.first_members[group]), int(view.sizes[group]), owners[group]
        place = view.at(first) if groups[record] > 1 else {"record": int(record)}
        every = "both" if size == 2 else f"all {size}"
        evidence = {"size": size, "value": scores[1][first]}
        yield Finding(evidence, **place, words={"every": every, "name": scores[0]})


@rule("near-dead-group")
def find_near_dead_groups(view: View) -> Iterator[Finding]:
    """Finds rewards so nearly equal that eps, or rounding alone, decides the advantages.

    The spread is above 0 and at most 1e-5 (relative to the rewards where they are above 1): under
    the std_eps of 1e-4 that TRL adds, above the 1e-9 of others, so that |A| is 0.001 or 1.
    Two estimators of one framework differed a hundredfold there: verl#6348.
    """
    scores = _scores(view)
    if scores is None or ("advantages" in view.names and view.rewards is not None):
        return
    name, values, low, high = scores
    size = 1.0 if view.rewards is None else np.maximum(1.0, np.maximum(np.abs(low), np.abs(high)))
    near = (view.sizes > 1) & (high - low > 0.0) & (high - low <= _NEAR * size)
    for group in np.flatnonzero(near).tolist():
        members = values[view.members(group)]
        spread, std = float(high[group] - low[group]), float(members.std(ddof=1))
        advantages = {f"eps_{eps:g}": spread / (std + eps) for eps in (1e-4, 1e-6, 1e-8)}
        yield Finding(
            {"size": len(members), "spread": spread, "std": std, "advantages": advantages},
            **view.at(int(view.first_members[group])),
            words={"name": name},
        )


_SOURCES = ("", "the length of its response", "its place in its group", "the step of its record")
_LEAST_GROUPS = 3


def compare_sources(view: View) -> Kinds:
    """Returns the places in ``_SOURCES`` of what the rewards of groups of 3 or more are equal to.

    Equal rewards may be equal to a step. Those that are equal to one length say nothing.
    """
    rewards, records, first = view.rewards, view.records.index, view.first_members
    if rewards is None or rewards.ndim > 1 or not len(rewards):
        return Kinds()
    steps = np.array([place.step for place in view.places])[records]
    away = rewards - view.places_in_groups  # a place is counted from 0 or from 1 on
    tests = (
        (rewards == view.lengths) | (rewards == view.widths),
        (away == away[first][view.groups]) & np.isin(away, (0.0, 1.0)),
        (rewards == steps) & (steps >= 0),
    )
    equal = [view.by_group(test.astype(np.float64), np.minimum) > 0.0 for test in tests]
    varied = view.by_group(rewards, np.maximum) > view.by_group(rewards, np.minimum) + 1.0
    kinds = np.select([equal[0] & varied, equal[1], equal[2] & ~varied], [1, 2, 3], 0)
    kept = np.flatnonzero((view.sizes >= _LEAST_GROUPS) & ((kinds > 0) | ~equal[0]))
    return Kinds.of(kinds[kept], lambda at: view.places[records[first[kept[at]]]])


@rule("reward-source", "input")
def find_replaced_rewards(groups: Kinds, formulas: Kinds) -> Iterator[Placed]:
    """Finds rewards that are another number: the length, the place in the group or the step.

    In all groups of 3 responses or more, which are 3 at least; the steps must differ. It is an
    info where the advantages follow these rewards, since a length may be what is rewarded.
    """
    kind, span = next(iter(groups.spans.items()), (0, None))
    if span is None or not kind or len(groups.spans) > 1 or groups.count < _LEAST_GROUPS:
        return
    if kind == len(_SOURCES) - 1 and span.place.step == span.last_step:
        return
    odd = formulas.spans.get(FORMULAS.index(ANOTHER))
    follow = formulas.count > 0 and 2 * (0 if odd is None else odd.total) < formulas.count
    severity: Severity | None = "info" if follow else None
    words = {"source": _SOURCES[kind]}
    yield Finding({"groups": groups.count}, severity=severity, words=words), span.place


@rule("singleton-group")
def find_singleton_groups(view: View) -> Iterator[Finding]:
    """Finds groups of one, which have no baseline but themselves: advantage 0, or NaN with ddof 1.

    The record must name its groups or have rewards. Given advantages were computed when the group
    was complete, so that nothing is found then.
    """
    named = {"group_ids", "group_size"} & view.names.keys()
    if "advantages" in view.names or not (named or view.rewards is not None):
        return
    key = view.names.get("group_ids") or "uid"
    hint = f" (if rows carry a {key}: --group-by {key})" if "group_ids" in view.names else ""
    for group in np.flatnonzero(view.sizes == 1).tolist():
        yield Finding({"size": 1}, **view.at(int(view.first_members[group])), words={"hint": hint})


def count_sizes(view: View) -> dict[int, Counter[int]]:
    """Returns record → size → number of its groups of that size, for sizes above 1.

    A trajectory in several responses counts once.
    """
    records, sizes = view.records.index[view.first_members], view.sizes
    if view.packed.trajectories is not None:
        firsts = np.unique(view.packed.trajectories, return_index=True)[1]
        sizes = np.bincount(view.groups[firsts], minlength=len(sizes))
    several = sizes > 1
    found: dict[int, Counter[int]] = {}
    for record, size in zip(records[several].tolist(), sizes[several].tolist(), strict=True):
        found.setdefault(record, Counter())[size] += 1
    return found


@rule("mixed-prompts")
def find_mixed_prompts(view: View) -> Iterator[Finding]:
    """Finds groups whose responses answer different prompts.

    A rank whose prompts differed within a group: huggingface/trl#2803. Where a trajectory's turns
    are responses, each has a prompt of its own.
    """
    keys = [key for key in (*PROMPT_IDS, *PROMPTS) if key in view.values[0]]
    for record, value in enumerate(view.values):
        place, mine = view.places[record], view.rows_of(record)
        count = int(view.counts[record])
        if record in view.turned:
            continue
        if place.mixed:
            yield Finding({"key": place.mixed}, record)
            continue
        for key in keys:
            prompts = value.get(key)
            if not isinstance(prompts, list) or len(prompts) != count or not prompts:
                continue
            if not isinstance(prompts[0], str | list):
                continue  # one prompt: its messages
            first: dict[int, Any] = {}
            pairs = zip(view.groups[mine].tolist(), prompts, strict=True)
            odd = [
                at for at, (group, one) in enumerate(pairs) if first.setdefault(group, one) != one
            ]
            if odd and len(first) < len(prompts):
                yield Finding({"key": key, "responses": len(odd)}, **view.at(mine.start + odd[0]))
            break


@rule("uneven-groups")
def find_uneven_groups(view: View) -> Iterator[Finding]:
    """Finds groups of different sizes in one record."""
    for record, counts in count_sizes(view).items():
        if len(counts) > 1:
            yield replace(describe_uneven(counts), record=record)


def describe_uneven(counts: Counter[int]) -> Finding:
    """Returns the finding for sizes that differ."""
    sizes = {str(size): times for size, times in sorted(counts.items())}
    listed = ", ".join(f"{times} with {size}" for size, times in sizes.items())
    return Finding({"sizes": sizes}, words={"listed": listed})
