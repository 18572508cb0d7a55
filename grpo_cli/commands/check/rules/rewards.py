"""Rewards of groups: equal, nearly equal, or different by rounding only; and group sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.check.record_view import View
from grpo_cli.commands.check.rule import Finding, rule

_NOISE = 2.0**-20
"""8 relative roundings of float32: what the order of adding a few rewards can change."""
_NEAR = 1e-5
"""Below this spread the std of a group is less than the eps that some framework adds to it."""


def _scores(view: View) -> F64 | None:
    """Returns [R] rewards, or else advantages."""
    return view.advantages if view.summed is None else view.summed


def _score_name(view: View) -> str:
    return "advantages" if view.rewards is None else "rewards"


def _range_by_group(view: View, values: F64) -> tuple[F64, F64]:
    """Returns [groups] the least and the greatest value of each group."""
    return view.by_group(values, np.minimum), view.by_group(values, np.maximum)


def _has_advantages(view: View) -> NDArray[np.bool_]:
    """Returns [groups] whether given advantages are not all 0, so that the group has a gradient."""
    if view.rewards is None or "advantages" not in view.names:
        return np.zeros(len(view.sizes), dtype=np.bool_)
    if view.advantages is None:
        return np.ones(len(view.sizes), dtype=np.bool_)
    found: NDArray[np.bool_] = view.by_group(np.abs(view.advantages), np.maximum) > 0.0
    return found


def are_dead(view: View) -> NDArray[np.bool_]:
    """Returns [groups] whether all rewards of a group are equal, so that its advantages are 0."""
    values = _scores(view)
    if values is None:
        return np.zeros(len(view.sizes), dtype=np.bool_)
    low, high = _range_by_group(view, values)
    found: NDArray[np.bool_] = (low == high) & (view.sizes > 1) & ~_has_advantages(view)
    return found & (low == 0.0) if view.rewards is None else found


@rule("dead-group")
def find_dead_groups(view: View) -> Iterator[Finding]:
    """Finds groups whose rewards are all equal, so that all their advantages are 0."""
    values = _scores(view)
    if values is None:
        return
    for group in np.flatnonzero(are_dead(view)).tolist():
        first = int(view.first_members[group])
        size, value = int(view.sizes[group]), float(values[first])
        every = "both" if size == 2 else f"all {size}"
        yield Finding(
            f"{every} {_score_name(view)} are {value:g}: no policy gradient",
            "many dead groups waste samples: choose prompts of medium difficulty, or sample "
            "again (DAPO's dynamic sampling). Frameworks differ in whether dead groups count in "
            "the denominator",
            {"size": size, "value": value},
            **view.at(first),
        )


@rule("near-dead-group")
def find_near_dead_groups(view: View) -> Iterator[Finding]:
    """Finds rewards so nearly equal that eps, or rounding alone, decides the advantages.

    The spread is above 0 and at most 1e-5 (relative to the rewards where they are above 1): under
    the std_eps of 1e-4 that TRL adds, above the 1e-9 of others, so that |A| is 0.001 or 1.
    """
    values = _scores(view)
    if values is None or ("advantages" in view.names and view.rewards is not None):
        return
    low, high = _range_by_group(view, values)
    size = 1.0 if view.rewards is None else np.maximum(1.0, np.maximum(np.abs(low), np.abs(high)))
    near = (view.sizes > 1) & (high - low > 0.0) & (high - low <= _NEAR * size)
    for group in np.flatnonzero(near).tolist():
        members = values[view.members(group)]
        spread, std = float(high[group] - low[group]), float(members.std(ddof=1))
        advantages = {f"eps_{eps:g}": spread / (std + eps) for eps in (1e-4, 1e-6, 1e-8)}
        least, most = advantages["eps_0.0001"], advantages["eps_1e-08"]
        yield Finding(
            f"the {len(members)} {_score_name(view)} differ by only {spread:.3g}: rounding "
            "decides the sign of the advantages, and std_eps their size (they differ by "
            f"{least:.2g} with 1e-4, by {most:.2g} with 1e-8)",
            "round the rewards, or set std_min above their noise so that the group counts as dead",
            {"size": len(members), "spread": spread, "std": std, "advantages": advantages},
            **view.at(int(view.first_members[group])),
        )


@rule("reward-noise")
def find_reward_noise(view: View) -> Iterator[Finding]:
    """Finds two rewards of a group that differ by at most 8 float32 roundings of the larger."""
    if view.summed is None or "advantages" in view.names:
        return
    order = np.lexsort((view.summed, view.groups))
    values, groups = view.summed[order], view.groups[order]
    gaps = np.diff(values)
    size = np.maximum(np.abs(values[1:]), np.abs(values[:-1]))
    noisy = (gaps > 0.0) & (gaps <= _NOISE * size) & (np.diff(groups) == 0)
    for group in np.unique(groups[1:][noisy]).tolist():
        pairs = np.flatnonzero(noisy & (groups[1:] == group))
        low, high = float(values[pairs[0]]), float(values[pairs[0] + 1])
        yield Finding(
            f"rewards {low!r} and {high!r} differ by float32 noise",
            "compute rewards in float64 and in a fixed order, or round them (6 digits)",
            {"pairs": len(pairs), "gap": high - low, "of": int(view.sizes[group])},
            **view.at(int(view.first_members[group])),
        )


@rule("singleton-group")
def find_singleton_groups(view: View) -> Iterator[Finding]:
    """Finds groups of one, which have no baseline but themselves: advantage 0, or NaN with ddof 1.

    The record must name its groups or have rewards. Given advantages were computed when the group
    was complete, so that nothing is found then.
    """
    if ("advantages" in view.names) or not (
        ({"group_ids", "group_size"} & view.names.keys()) or view.rewards is not None
    ):
        return
    for group in np.flatnonzero(view.sizes == 1).tolist():
        hint = " (if rows carry a uid: --group-by uid)" if "group_ids" in view.names else ""
        yield Finding(
            "the group has one response: its advantage is 0 or undefined, and frameworks differ",
            "put all responses to a prompt into one record (or give them one group id), or drop "
            f"the group{hint.replace('uid', view.names.get('group_ids') or 'uid')}",
            {"size": 1},
            **view.at(int(view.first_members[group])),
        )


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


@rule("uneven-groups")
def find_uneven_groups(view: View) -> Iterator[Finding]:
    """Finds groups of different sizes in one record."""
    for record, counts in count_sizes(view).items():
        if len(counts) > 1:
            yield replace(describe_uneven(counts), record=record)


def describe_uneven(counts: Counter[int]) -> Finding:
    """Returns the finding for sizes that differ."""
    listed = ", ".join(f"{times} with {size}" for size, times in sorted(counts.items()))
    return Finding(
        f"groups of different sizes: {listed} responses",
        "grpo handles this exactly. A trainer that reshapes to [-1, G] mixes groups or treats "
        "the batch as one group, without a warning",
        {"sizes": {str(size): times for size, times in sorted(counts.items())}},
    )
