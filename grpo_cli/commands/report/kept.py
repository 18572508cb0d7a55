"""The groups that a report keeps, and of which of them it keeps the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

FOUND, WORST = -2, -1
"""The priorities of what a finding points at, and of what is worst in its step."""


@dataclass
class Group:
    """One group of a step.

    Attributes:
        facts: what the page shows of it.
        priority: the least of a step are its sample, after those that something points at.
        tokens: how many it has.
        block: its tokens, as the page reads them; "" where they are not kept.
    """

    facts: dict[str, Any]
    priority: int
    tokens: int
    block: str = ""


@dataclass
class Kept:
    """The groups of each step, in the order of the files, and what could not be read."""

    steps: dict[int, list[Group]] = field(default_factory=dict)

    def merge(self, later: Kept) -> None:
        """Adds those of the input that follows."""
        for step, groups in later.steps.items():
            self.steps.setdefault(step, []).extend(groups)


def sample(groups: Sequence[Group], most: int) -> list[Group]:
    """Those that something points at, and the first by priority of the others."""
    pointed = [group for group in groups if group.priority < 0]
    others = sorted((group for group in groups if group.priority >= 0), key=_priority)
    return pointed + others[:most]


def _priority(group: Group) -> int:
    return group.priority


def within(kept: Kept, most: int, budget: int) -> int:
    """Leaves out the tokens of sampled groups where all of them are too many.

    What findings point at stays; then come the worst of each step, then every step's first sampled
    group before another's second.

    Args:
        kept: all groups; the blocks of those that are left out go.
        most: how many of a step are sampled.
        budget: tokens in all.

    Returns:
        How many groups lost their tokens.
    """
    ranked = []
    for step, groups in kept.steps.items():
        chosen = sample(groups, most)
        for group in groups:
            if not any(group is one for one in chosen):
                group.block = ""
        ranked += [
            (min(group.priority, rank), step, group)
            for rank, group in enumerate(chosen)
            if group.block
        ]
    lost = 0
    for rank, _, group in sorted(ranked, key=lambda one: one[:2]):
        budget -= 0 if rank == FOUND else group.tokens  # those come first
        if budget < 0:
            group.block, lost = "", lost + 1
    return lost
