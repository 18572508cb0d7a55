"""The groups of a run that a report keeps, and the tokens of some of them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from itertools import chain
from typing import Any, ClassVar

import numpy as np

from grpo_cli.commands.page.page import block
from grpo_cli.commands.trend.measure import rewards_of
from grpo_cli.commands.trend.origins import RecordStep, StepSource
from grpo_cli.commands.trend.responses import deviations, means
from grpo_cli.commands.trend.step import Finding, Place, Steps
from grpo_cli.commands.trend.sums import Ragged
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import BatchStatistics, Evaluator
from grpo_cli.engine.fold import Accumulator
from grpo_cli.errors import InputError
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.mismatch import Mismatch
from grpo_cli.records import DecodedChunk, Raw, Record, record
from grpo_cli.variants.plan import Plan

Owner = tuple[str, str | int | float]
"""A record: its file, and what ``--record`` takes."""


@dataclass(frozen=True)
class Choice:
    """What is kept of a run.

    Attributes:
        steps: the number of each step that is kept, and why.
        found: record → the responses in it that findings point at.
        worst: record → the responses that are worst in a step that is kept.
        groups: how many groups of a step are sampled as well.
        seed: of the sample.
        mismatched: the steps that findings on the engines' mismatch point at.
    """

    steps: Mapping[int, str]
    found: Mapping[Owner, frozenset[int]]
    worst: Mapping[Owner, frozenset[int]]
    groups: int
    seed: int
    mismatched: frozenset[int] = frozenset()

    def priority(self, *name: object) -> int:
        """A number that decides about a sample: equal for equal names, in any process."""
        text = "\\0".join(map(str, (self.seed, *name)))
        return int.from_bytes(blake2b(text.encode("utf-8", "replace"), digest_size=8).digest())


def choose(
    steps: Steps, findings: Sequence[Finding], *, most: int, groups: int, seed: int
) -> Choice:
    """Keeps what findings point at and the ends of the run, and samples the rest.

    Args:
        steps: all of the run, by number.
        findings: what was found.
        most: how many steps are kept where findings do not point at more.
        groups: how many groups of a step are sampled.
        seed: of the sample.
    """
    numbers, kept = steps.numbers, dict[int, str]()
    for finding in findings:  # the step before each onset, the onset, and the worst step
        before = numbers[max(numbers.index(finding.onset) - 1, 0)]
        kept |= dict.fromkeys((finding.onset, finding.worst_step, before), "finding")
    for number in (numbers[0], numbers[-1]) if numbers else ():
        kept.setdefault(number, "end")
    rest = [number for number in numbers if number not in kept]
    room = max(most - len(kept), 0)
    sampled = rest if len(rest) <= room else random.Random(seed).sample(rest, room)
    why = "all" if len(rest) <= room else "sampled"
    kept |= dict.fromkeys(sampled, why)
    found = owners(one.worst for one in findings if one.worst is not None)
    shown = (steps[at] for at, number in enumerate(numbers) if number in kept)
    worst = owners(chain.from_iterable(step.worst.values() for step in shown))
    in_order = {number: kept[number] for number in numbers if number in kept}
    mismatched = frozenset(step for one in findings for step in steps_of_mismatch(one))
    return Choice(in_order, found, worst, groups, seed, mismatched)


def steps_of_mismatch(finding: Finding) -> tuple[int, ...]:
    """The worst step of a finding on the engines' mismatch, and its onset."""
    return (finding.worst_step, finding.onset) if finding.metric.startswith("mismatch.") else ()


def owners(places: Iterable[Place]) -> dict[Owner, frozenset[int]]:
    """The responses of places, by the records that hold them."""
    found: dict[Owner, frozenset[int]] = {}
    for place in places:
        owner = (place.source, place.record)
        found[owner] = found.get(owner, frozenset()) | {place.response}
    return found


FOUND, WORST = -2, -1
"""The priorities of groups that a finding points at, and of the worst of a step."""


@dataclass
class Group:
    """One group of a step.

    Attributes:
        facts: the numbers that the page shows.
        priority: the least of a step are its sample, after those that something points at.
        tokens: how many it has.
        block: its tokens, as the page reads them; "" where they are not kept.
        draw: makes the block, while its record is read.
    """

    facts: dict[str, Any]
    priority: int
    tokens: int
    block: str = ""
    draw: Callable[[], str] | None = None


def sample(groups: Sequence[Group], most: int) -> list[Group]:
    """The groups that something points at, and the first by priority of the others."""
    pointed = [group for group in groups if group.priority < 0]
    others = (group for group in groups if group.priority >= 0)
    return pointed + sorted(others, key=lambda group: group.priority)[:most]


def limit_tokens(steps: Mapping[int, Sequence[Group]], most: int, budget: int) -> int:
    """Leaves out the tokens of sampled groups where all of them are too many.

    What findings point at stays; then come the worst of each step, then every step's first sampled
    group before another's second.

    Args:
        steps: all groups of each step; the blocks of those that are left out are removed.
        most: how many of a step are sampled.
        budget: tokens in all.

    Returns:
        How many groups lost their tokens.
    """
    ranked = []
    for step, groups in steps.items():
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


@dataclass
class KeptGroups(Accumulator[None]):
    """The groups of the steps that are kept, in the order of the files, and the tokens of some.

    Records that cannot be read are left out: they were reported when the steps were measured.

    Attributes:
        plan: the objective.
        step_source: how the step of a record is found.
        choice: what is kept.
        statistics: those of each step, where the plan wants some.
        steps: the groups of each step.
        mismatches: of each step that a finding on the engines' mismatch points at.
    """

    plan: Plan
    step_source: StepSource
    choice: Choice
    statistics: BatchStatistics | None
    steps: dict[int, list[Group]] = field(default_factory=dict)
    mismatches: dict[int, Mismatch] = field(default_factory=dict)

    settings: ClassVar[tuple[str, ...]] = ("plan", "step_source", "choice", "statistics")

    def read(self, decoded: Iterable[DecodedChunk]) -> Iterator[InputError]:
        """Adds the records of the steps that are kept."""
        made: dict[int, list[Group]] = {}
        for raw in chain.from_iterable(chunk.items for chunk in decoded):
            step = self._step(raw)
            if step is not None and isinstance(raw, Raw):
                new = [*self._groups(raw, step)]
                self.steps.setdefault(step, []).extend(new)
                before = [*made.get(step, []), *new]
                made[step] = sample(before, self.choice.groups)
                for group in before:
                    if not any(group is one for one in made[step]):
                        group.draw = None  # it holds the record
        for group in chain.from_iterable(made.values()):
            if group.draw is not None:
                group.block, group.draw = group.draw(), None
        yield from ()

    def merge(self, later: KeptGroups) -> None:
        """Adds the groups of the input that follows."""
        for step, groups in later.steps.items():
            self.steps.setdefault(step, []).extend(groups)
        for step, mismatch in later.mismatches.items():
            self.mismatches.setdefault(step, Mismatch()).merge(mismatch)

    def _step(self, raw: Raw | InputError) -> int | None:
        try:
            step = None if isinstance(raw, InputError) else self.step_source.of_record(raw).number
        except InputError:
            return None
        if step is None or self.step_source.abandoned_pass(step, raw.source or "", raw.line):
            return None
        return step if step in self.choice.steps else None

    def _groups(self, raw: Raw, step: int) -> Iterator[Group]:
        found = record(raw)
        try:
            chunk = None if isinstance(found, InputError) else Chunk.of([found])
        except InputError:
            chunk = None
        if chunk is None or isinstance(found, InputError):
            return
        if step in self.choice.mismatched:
            self.mismatches.setdefault(step, Mismatch()).add_batch(chunk.batch)
        breakdown = None  # of the record alone; it may lack what the objective needs
        with suppress(InputError):
            alone = replace(chunk, of_batches=[RecordStep(step)])
            breakdown = alone.run(Evaluator(self.plan, self.statistics).evaluate)
        numbers = np.asarray(found.groups or [0] * len(found.widths), dtype=np.int64)
        owner = (found.source, found.name)
        found_in = self.choice.found.get(owner, frozenset())
        worst_in = self.choice.worst.get(owner, frozenset())
        order, sizes = np.argsort(numbers, kind="stable"), np.bincount(numbers)
        for number, members in enumerate(np.split(order, np.cumsum(sizes))[: len(sizes)]):
            rows = members.tolist()
            pointed = sorted((found_in | worst_in).intersection(rows))
            label = None if found.group_labels is None else found.group_labels[number]
            facts = _facts(found, chunk, breakdown, rows)
            priority = self.choice.priority(found.source, found.line, found.prefix, number)
            if pointed:
                priority = FOUND if found_in.intersection(rows) else WORST
            facts |= {"group": number if label is None else label, "pointed": pointed}
            group = Group(facts, priority, int(chunk.batch.responses.lengths[rows].sum()))
            if breakdown is not None:
                group.draw = partial(block, raw.with_lists(), found, breakdown, rows)
            yield group


def _facts(
    found: Record, chunk: Chunk, breakdown: Breakdown | None, rows: list[int]
) -> dict[str, Any]:
    """The facts of a group: its rewards, lengths, and how far its tokens went."""
    batch = chunk.batch
    lengths = batch.responses.lengths[rows].tolist()
    facts: dict[str, Any] = {
        "source": found.source,
        "line": found.line,
        "record": found.name,
        "responses": len(rows),
        "length_mean": math.fsum(lengths) / len(lengths),
        "length_max": max(lengths),
        "reward_mean": None,
        "reward_std": None,
        "clip_fraction": None,
        "log_ratio_max": None,
    }
    if (rewards := rewards_of(chunk, breakdown)) is not None:
        values = Ragged(np.array([len(rows)]), rewards[rows])
        facts["reward_mean"], deviation = float(means(values)[0]), float(deviations(values)[0])
        facts["reward_std"] = None if math.isnan(deviation) else deviation
    if breakdown is not None and sum(lengths):
        starts = batch.responses.starts[rows].tolist()
        each = [np.arange(start, start + n) for start, n in zip(starts, lengths, strict=True)]
        tokens = np.concatenate(each)
        facts["clip_fraction"] = np.count_nonzero(breakdown.clip[tokens]) / sum(lengths)
        facts["log_ratio_max"] = float(np.abs(breakdown.log_ratio[tokens]).max())
    return facts
