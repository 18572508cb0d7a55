"""Which steps of a run a report keeps, which groups of them, and of which of these the tokens."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain
from typing import Any

from grpo_cli.commands.trend.step import Finding, Place, Step

Owner = tuple[str, str | int | float]
"""A record: its file, and what ``--record`` takes."""


@dataclass(frozen=True)
class Choice:
    """What is kept of a run.

    Attributes:
        steps: the number of each step that is kept, and why.
        found: record → the responses in it that findings point at.
        worst: the same of what is worst in a step that is kept.
        groups: how many groups of a step are sampled besides those.
        seed: of the sample.
    """

    steps: Mapping[int, str]
    found: Mapping[Owner, frozenset[int]]
    worst: Mapping[Owner, frozenset[int]]
    groups: int
    seed: int

    def priority(self, *name: object) -> int:
        """A number that decides about a sample: the same for the same group, whoever asks."""
        text = "\\0".join(map(str, (self.seed, *name)))
        return int.from_bytes(blake2b(text.encode("utf-8", "replace"), digest_size=8).digest())


def choose(
    steps: Sequence[Step], findings: Sequence[Finding], *, most: int, groups: int, seed: int
) -> Choice:
    """Keeps what findings point at and the ends of the run, and samples the rest.

    Args:
        steps: all of the run, by number.
        findings: what was found.
        most: how many steps are kept where findings do not point at more.
        groups: how many groups of a step are sampled.
        seed: of the sample.
    """
    numbers = [step.number for step in steps]
    kept = dict(_pointed_at(numbers, findings))
    for number in (numbers[0], numbers[-1]) if numbers else ():
        kept.setdefault(number, "end")
    rest = [number for number in numbers if number not in kept]
    room = max(most - len(kept), 0)
    sampled = rest if len(rest) <= room else random.Random(seed).sample(rest, room)
    why = "all" if len(rest) <= room else "sampled"
    kept |= dict.fromkeys(sampled, why)
    found = _owners(one.worst for one in findings if one.worst is not None)
    worst = _owners(chain(*(step.worst.values() for step in steps if step.number in kept)))
    in_order = {number: kept[number] for number in numbers if number in kept}
    return Choice(in_order, found, worst, groups, seed)


def _pointed_at(numbers: Sequence[int], findings: Sequence[Finding]) -> Mapping[int, str]:
    """The step before each onset, the onset, and the worst step."""
    kept: dict[int, str] = {}
    for finding in findings:
        at = numbers.index(finding.onset)
        for number in (finding.onset, finding.worst_step, numbers[max(at - 1, 0)]):
            kept[number] = "finding"
    return kept


def _owners(places: Iterable[Place]) -> dict[Owner, frozenset[int]]:
    found: dict[Owner, frozenset[int]] = {}
    for place in places:
        owner = (place.source, place.record)
        found[owner] = found.get(owner, frozenset()) | {place.response}
    return found


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
        pointed = sum(group.priority < 0 for group in chosen)  # they stand before the others
        ranked += [
            (min(group.priority, max(at - pointed, 0)), step, group)
            for at, group in enumerate(chosen)
            if group.block
        ]
    lost = 0
    for rank, _, group in sorted(ranked, key=lambda one: one[:2]):
        budget -= 0 if rank == FOUND else group.tokens  # those come first
        if budget < 0:
            group.block, lost = "", lost + 1
    return lost
