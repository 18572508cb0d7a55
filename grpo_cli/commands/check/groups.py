"""Groups that cannot teach, and rewards that only seem to differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.check.finding import Finding
from grpo_cli.commands.check.record_view import View

_NOISE = 2.0**-20
"""8 roundings of float32, relative: how far two orders of adding a few rewards are apart."""
_NEAR = 1e-5
"""Below this spread a group's std is under the eps that some framework adds to it."""


def _groups(view: View) -> Iterator[tuple[list[int], F64]]:
    """Each group's responses, and their rewards or else advantages."""
    scores = view.advantages if view.rewards is None else view.rewards
    if scores is not None:
        for members in view.groups:
            yield members, scores[members]


def _what(view: View) -> str:
    return "advantages" if view.rewards is None else "rewards"


def _place(view: View, members: list[int]) -> dict[str, Any]:
    record, response = view.local(members[0])
    return {"record": record, "response": response}


def dead_group(view: View) -> Iterator[Finding]:
    """All rewards of a group are equal, so all its advantages are 0."""
    for members, values in _groups(view):
        if len(members) > 1 and (values == values[0]).all():
            if view.rewards is None and values[0] != 0.0:
                continue
            yield Finding(
                "dead-group",
                "info",
                f"all {len(members)} {_what(view)} are {values[0]:g}: no policy gradient",
                "many of them waste samples: choose prompts of medium difficulty, or sample again "
                "(DAPO's dynamic sampling); whether they count in the denominator differs",
                {"size": len(members), "value": float(values[0])},
                **_place(view, members),
            )


def near_dead_group(view: View) -> Iterator[Finding]:
    """Rewards so nearly equal that eps, or rounding alone, decides the advantages.

    The spread is above 0 and at most 1e-5 (relative to the rewards where they are above 1): under
    the std_eps of 1e-4 that TRL adds, above the 1e-9 of others, so that |A| is 0.001 or 1.
    """
    for members, values in _groups(view):
        spread = float(values.max() - values.min())
        size = max(1.0, float(np.abs(values).max())) if view.rewards is not None else 1.0
        if len(members) > 1 and 0.0 < spread <= _NEAR * size:
            std = float(values.std(ddof=1))
            advantages = {f"eps_{eps:g}": spread / (std + eps) for eps in (1e-4, 1e-6, 1e-8)}
            least, most = advantages["eps_0.0001"], advantages["eps_1e-08"]
            yield Finding(
                "near-dead-group",
                "warning",
                f"the {len(members)} {_what(view)} differ by {spread:.3g} only: the sign of the "
                f"advantages is rounding, their size is std_eps's (they differ by {least:.2g} with "
                f"1e-4, by {most:.2g} with 1e-8)",
                "round the rewards, or set std_min above their noise, so that the group is dead",
                {"size": len(members), "spread": spread, "std": std, "advantages": advantages},
                **_place(view, members),
            )


def reward_noise(view: View) -> Iterator[Finding]:
    """Rewards that differ by float32 rounding only: a tie that the noise breaks.

    Two rewards of one group differ, by at most 8 float32 roundings of the larger.
    """
    if view.rewards is None:
        return
    for members in view.groups:
        values = np.unique(view.rewards[members])
        if len(values) < 2:
            continue
        gaps = np.diff(values)
        noisy = gaps <= _NOISE * np.maximum(np.abs(values[1:]), np.abs(values[:-1]))
        if noisy.any():
            at = int(np.argmax(noisy))
            yield Finding(
                "reward-noise",
                "warning",
                f"rewards {values[at]!r} and {values[at + 1]!r} differ by float32 noise",
                "compute rewards in float64 and in one order, or round them (6 digits)",
                {"pairs": int(noisy.sum()), "gap": float(gaps[at]), "of": len(members)},
                **_place(view, members),
            )


def singleton_group(view: View) -> Iterator[Finding]:
    """A group of one has no baseline but itself: advantage 0, or NaN with ddof 1.

    Only where the record says what its groups are, or has rewards and a single response.
    """
    for members in view.groups:
        record, response = view.local(members[0])
        said = view.names_groups(record) or view.rewards is not None
        if len(members) == 1 and said:
            yield Finding(
                "singleton-group",
                "warning",
                "a group of one response: its advantage is 0 or undefined, and frameworks differ",
                "write the responses to one prompt into one record (or with one group id), or "
                "drop it",
                {"size": 1},
                record=record,
                response=response,
            )


def uneven_groups(view: View) -> Iterator[Finding]:
    """Groups of different sizes in one record; groups of one are told apart."""
    sizes: dict[int, Counter[int]] = {}
    for members in view.groups:
        record, _ = view.local(members[0])
        if len(members) > 1:
            sizes.setdefault(record, Counter())[len(members)] += 1
    for record, counts in sizes.items():
        if len(counts) > 1:
            yield uneven(counts, record)


def uneven(counts: Counter[int], record: int = 0) -> Finding:
    """The finding for sizes that differ."""
    said = ", ".join(f"{times} with {size}" for size, times in sorted(counts.items()))
    return Finding(
        "uneven-groups",
        "info",
        f"groups of different sizes: {said} responses",
        "fine for exact group statistics, as here; a trainer that reshapes to [-1, G] mixes "
        "groups, or takes the batch for one group, without a word",
        {"sizes": {str(size): times for size, times in sorted(counts.items())}},
        record=record,
    )
