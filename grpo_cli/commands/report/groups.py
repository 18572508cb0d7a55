"""The groups of a run that a report keeps, and the tokens of some of them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Batch
from grpo_cli.commands.page.page import Drawn, blocks, text_fields
from grpo_cli.commands.trend.answer import of_steps
from grpo_cli.commands.trend.measure import rewards_of
from grpo_cli.commands.trend.origins import StepSource
from grpo_cli.commands.trend.responses import deviations, means
from grpo_cli.commands.trend.run import Run
from grpo_cli.commands.trend.step import Finding, Place, Step, Steps
from grpo_cli.commands.trend.sums import NO_NUMBER, Ragged
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.engine.fold import Accumulator, first_pass
from grpo_cli.errors import InputError
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.inputs import MissingColumnError
from grpo_cli.objective.kl import k3
from grpo_cli.records import DecodedChunk, Raw
from grpo_cli.records.formats.texts import NoLogProbsError

Owner = tuple[int, str, str | int | float]
"""A record: its step, its file, and what ``--record`` takes: steps may share ids."""


@dataclass(frozen=True)
class Choice:
    """What is kept of a run.

    Attributes:
        steps: the number of each step that is kept, and why.
        pointed: record → the responses in it that something points at, each with its priority.
        groups: how many groups of a step are sampled as well.
        seed: of the sample.
    """

    steps: Mapping[int, str]
    pointed: Mapping[Owner, Mapping[int, int]]
    groups: int
    seed: int

    def priority(self, *name: object) -> int:
        """A number that decides about a sample: equal for equal names, in any process."""
        text = "\\0".join(map(str, (self.seed, *name)))
        return int.from_bytes(blake2b(text.encode("utf-8", "replace"), digest_size=8).digest())


def choose(
    steps: Steps, findings: Sequence[Finding], *, most: int, groups: int, seed: int
) -> Choice:
    """Keeps what findings point at and the ends of the run, and samples the rest.

    ``most``: how many steps are kept where findings do not point at more.
    """
    numbers, kept = steps.numbers, dict[int, str]()
    for finding in findings:
        kept[numbers[max(numbers.index(finding.onset) - 1, 0)]] = "before"
    kept |= {one.worst_step: "worst" for one in findings}
    kept |= {one.onset: "onset" for one in findings}
    for number in (numbers[0], numbers[-1]) if numbers else ():
        kept.setdefault(number, "end")
    rest = [number for number in numbers if number not in kept]
    room = max(most - len(kept), 0)
    sampled = rest if len(rest) <= room else random.Random(seed).sample(rest, room)
    why = "all" if len(rest) <= room else "sampled"
    kept |= dict.fromkeys(sampled, why)
    found = ((one.worst_step, one.worst) for one in findings if one.worst is not None)
    in_order = {number: kept[number] for number in numbers if number in kept}
    worst = (
        (number, place)
        for number in in_order
        for place in steps[numbers.index(number)].worst.values()
    )
    return Choice(in_order, pointed_at(worst, found), groups, seed)


def worst_in(facts: Mapping[str, Any], worst: Mapping[str, Place]) -> list[str]:
    """What a step is worst in, of its places by kind those that are in this group."""
    owner, pointed = (facts["source"], facts["record"]), facts["pointed"]
    return [
        kind
        for kind, place in worst.items()
        if (place.source, place.record) == owner and place.response in pointed
    ]


FOUND, WORST = -2, -1
"""The priorities of groups that a finding points at, and of the worst of a step."""


def pointed_at(
    worst: Iterable[tuple[int, Place]], found: Iterable[tuple[int, Place]] = ()
) -> dict[Owner, dict[int, int]]:
    """The responses of places, with their steps, by record, each with its priority."""
    pointed: dict[Owner, dict[int, int]] = {}
    for priority, places in ((WORST, worst), (FOUND, found)):
        for step, place in places:
            pointed.setdefault((step, place.source, place.record), {})[place.response] = priority
    return pointed


_OF_TOKENS = ("entropy", "nll", "kl_k3")
"""What is known of a group from its tokens' log-probs and entropies; null of rewards alone."""


@dataclass
class Group:
    """One group of a step.

    Attributes:
        facts: the numbers that the page shows.
        priority: the least of a step are its sample, after those that something points at.
        block: its tokens, as the page reads them; "" where they are not kept.
    """

    facts: dict[str, Any]
    priority: int
    block: str = ""


def sample(groups: Sequence[Group], most: int) -> list[Group]:
    """The groups that something points at, and the first by priority of the others.

    The tokens of those that are left out are removed.
    """
    pointed = [group for group in groups if group.priority < 0]
    others = (group for group in groups if group.priority >= 0)
    ordered = sorted(others, key=lambda group: group.priority)
    for group in ordered[most:]:
        group.block = ""
    return pointed + ordered[:most]


def limit_tokens(steps: Mapping[int, Sequence[Group]], most: int, budget: int) -> int:
    """Removes the tokens of groups beyond a budget of tokens; how many groups lost theirs.

    What findings point at stays; then come the worst of each step, then every step's first sampled
    group before another's second. ``most``: how many of a step are sampled.
    """
    ranked = []
    for step, groups in steps.items():
        chosen = sample(groups, most)
        pointed = sum(group.priority < 0 for group in chosen)  # they stand before the others
        ranked += [
            (min(group.priority, max(at - pointed, 0)), step, group)
            for at, group in enumerate(chosen)
            if group.block
        ]
    lost = 0
    for rank, _, group in sorted(ranked, key=lambda one: one[:2]):
        budget -= 0 if rank == FOUND else group.facts["tokens"]  # those come first
        if budget < 0:
            group.block, lost = "", lost + 1
    return lost


def _of_rewards(records: Sequence[NoLogProbsError]) -> Group:
    """The numbers of a group of records that have rewards and no log-probs."""
    first, signals = records[0], [one.signal for one in records]
    every = [reward for signal in signals for reward in signal.rewards]
    lengths = [length for signal in signals for length in signal.lengths]
    known = np.array([one for one in every if one is not None], dtype=np.float64)
    rewards, measured = Ragged(np.array([len(known)]), known), [n for n in lengths if n is not None]
    facts: dict[str, Any] = {
        "source": first.source,
        "line": first.line,
        "record": f"line {first.line}",
        "responses": len(every),
        "tokens": sum(measured),
        "reward_mean": _or_none(means(rewards))[0],
        "reward_std": _or_none(deviations(rewards))[0],
        "length_mean": sum(measured) / len(measured) if measured else None,
        "length_max": max(measured, default=None),
        **dict.fromkeys(("clip_fraction", "log_ratio_max", *_OF_TOKENS)),
        "rewards": every,
        "lengths": lengths,
        "group": 0 if first.signal.group is None else first.signal.group,
        "labelled": first.signal.group is not None,
        "pointed": [],
    }
    return Group(facts, 0)


@dataclass
class KeptGroups(Accumulator[Breakdown | None]):
    """The groups of the steps that are kept, in the order of the files, and the tokens of some.

    Records that cannot be read are left out: they were reported when the steps were measured.

    Attributes:
        evaluator: which objective, with the statistics of each step where it wants some.
        step_source: how the step of a record is found.
        choice: what is kept.
        steps: the groups of each step.
        rewarded: step, and label or place → the records that have no log-probs.
    """

    evaluator: Evaluator
    step_source: StepSource
    choice: Choice
    steps: dict[int, list[Group]] = field(default_factory=dict)
    rewarded: dict[tuple[int, Any], list[NoLogProbsError]] = field(default_factory=dict)

    headers = True
    settings: ClassVar[tuple[str, ...]] = ("evaluator", "step_source", "choice")

    def chunks(self, decoded: Iterable[DecodedChunk]) -> Iterator[Chunk | InputError]:
        """Records of the steps that are kept, each with its step as its batch."""
        return super().chunks(one for one in map(self._kept, decoded) if one.items)

    def _kept(self, decoded: DecodedChunk) -> DecodedChunk:
        kept: list[Raw | InputError] = []
        for raw in decoded.items:
            with suppress(InputError):
                if isinstance(raw, NoLogProbsError):
                    self._add_rewards(raw)
                elif isinstance(raw, Raw):
                    step = self.step_source.of_record(raw)
                    if step.number in self.choice.steps:
                        step.texts = text_fields(raw.value)
                        raw.batch = step
                        kept.append(raw)
        return DecodedChunk(kept, decoded.keys)

    def _add_rewards(self, record: NoLogProbsError) -> None:
        """Adds a record without log-probs to its group, if its step is kept."""
        group, source = record.signal.group, record.source or ""
        step = self.step_source.number(record.signal.step, source, record.line)
        if step in self.choice.steps:
            name = (source, record.line) if group is None else group
            self.rewarded.setdefault((step, name), []).append(record)

    def evaluate(self, chunk: Chunk) -> Breakdown | None:
        """The breakdown of records; None of those that lack what the objective needs."""
        with suppress(MissingColumnError):
            return self.evaluator.evaluate(chunk)
        return None

    def add(self, chunk: Chunk, found: Breakdown | None) -> None:
        """Adds the groups of records, and the tokens of those that are sampled so far."""
        new = [*self._groups(chunk, found)]
        for group, step, _ in new:
            self.steps.setdefault(step, []).append(group)
        steps = {step for _, step, _ in new}
        sampled = {
            id(one) for step in steps for one in sample(self.steps[step], self.choice.groups)
        }
        drawn = [(group, own) for group, _, own in new if id(group) in sampled]
        for record in chunk.records:
            record.batch = None  # a page does not repeat the step
        if found is not None and drawn:
            texts = blocks(chunk.records, found, [own for _, own in drawn])
            for (group, _), text in zip(drawn, texts, strict=True):
                group.block = text

    def merge(self, later: KeptGroups) -> None:
        """Adds the groups of the input that follows."""
        for step, groups in later.steps.items():
            self.steps.setdefault(step, []).extend(groups)
        for name, records in later.rewarded.items():
            self.rewarded.setdefault(name, []).extend(records)

    @property
    def all_groups(self) -> dict[int, list[Group]]:
        """The groups of each step, those without log-probs last."""
        found = {step: [*groups] for step, groups in self.steps.items()}
        for (step, _), records in self.rewarded.items():
            found.setdefault(step, []).append(_of_rewards(records))
        return found

    def _groups(
        self, chunk: Chunk, breakdown: Breakdown | None
    ) -> Iterator[tuple[Group, int, Drawn]]:
        """The groups of records, each with its step, and what is drawn of it."""
        batch, steps = chunk.batch, chunk.of_batches
        order, sizes = np.argsort(batch.groups, kind="stable"), np.bincount(batch.groups)
        sizes = sizes[sizes > 0]
        owners = batch.records.index[order[np.cumsum(sizes) - sizes]]
        numbers = np.arange(len(owners)) - np.searchsorted(owners, owners)
        members = Ragged(sizes, batch.records.positions[order])
        facts = _facts(chunk, breakdown, order, sizes)
        places = zip(owners.tolist(), numbers.tolist(), members.lists(), strict=True)
        for at, (owner, number, rows) in enumerate(places):
            found = chunk.records[owner]
            step: Any = steps[owner]
            if step.number not in self.choice.steps:
                continue
            place = (step.number, found.source, found.name)
            responses = self.choice.pointed.get(place, {})
            pointed = sorted(responses.keys() & rows)
            priority = self.choice.priority(found.source, found.line, found.prefix, number)
            priority = min(map(responses.__getitem__, pointed), default=priority)
            label = None if found.group_labels is None else found.group_labels[number]
            group: dict[str, Any] = {
                "source": found.source,
                "line": found.line,
                "record": found.name,
                **{name: values[at] for name, values in facts.items()},
                "group": number if label is None else label,
                "labelled": label is not None,
                "pointed": pointed,
            }
            drawn = (step.texts, owner, rows)
            yield Group(group, priority), step.number, drawn


def read_groups(run: Run, steps: Sequence[Step], choice: Choice) -> KeptGroups:
    """The groups of some steps of a run that was read; their records are read again."""
    make = partial(KeptGroups, Evaluator(run.plan, run.statistics), run.step_source, choice)
    return first_pass(of_steps(run.reader, steps, run.step_source), make)


def _facts(
    chunk: Chunk, breakdown: Breakdown | None, order: I64, sizes: I64
) -> dict[str, list[Any]]:
    """The rewards and lengths of groups, how far their tokens went, and their mean entropy and KL.

    Args:
        breakdown: None where the records lack what the objective needs.
        order: their responses, those of a group next to each other.
        sizes: how many responses each group has.
    """
    responses = chunk.batch.responses

    def of(values: NDArray[Any]) -> Ragged:
        return Ragged(sizes, values[order])

    tokens, unknown = of(responses.lengths).reduced(np.add, 0), [None] * len(sizes)
    facts: dict[str, list[Any]] = {
        "responses": sizes.tolist(),
        "tokens": tokens.tolist(),
        "length_mean": (tokens / sizes).tolist(),
        "length_max": of(responses.lengths).reduced(np.maximum, 0).tolist(),
        **dict.fromkeys(("reward_mean", "reward_std", "clip_fraction", "log_ratio_max"), unknown),
    }
    if (rewards := rewards_of(chunk, breakdown)) is not None:
        facts["rewards"] = [*of(rewards).lists()]
        facts["lengths"] = [*of(responses.lengths).lists()]
        facts["reward_mean"] = means(of(rewards)).tolist()
        facts["reward_std"] = _or_none(deviations(of(rewards)))
    if breakdown is not None:
        clipped = of(responses.sum((breakdown.clip != 0).astype(np.int64))).reduced(np.add, 0)
        sizes_of = Ragged(responses.lengths, np.abs(breakdown.log_ratio))
        largest = of(sizes_of.reduced(np.maximum, 0.0)).reduced(np.maximum, 0.0)
        with np.errstate(invalid="ignore"):
            facts["clip_fraction"] = _or_none(clipped / tokens)
        facts["log_ratio_max"] = _or_none(np.where(tokens > 0, largest, NO_NUMBER))
    return facts | _token_facts(chunk.batch, of, tokens)


def _token_facts(batch: Batch, of: Callable[[F64], Ragged], tokens: I64) -> dict[str, list[Any]]:
    """Means over the tokens of groups as ``trend`` has them of a step, in nats."""
    new, reference = batch.log_probs_new, batch.log_probs_ref
    nll = None if new is None else -new
    with np.errstate(invalid="ignore", over="ignore"):
        kl = None if new is None or reference is None else k3(new - reference)[0]

    def mean(values: F64 | None) -> list[Any]:
        if values is None:
            return [None] * len(tokens)
        return _or_none(of(batch.responses.sum(values)).reduced(np.add, 0) / tokens)

    with np.errstate(invalid="ignore"):
        return dict(zip(_OF_TOKENS, map(mean, (batch.entropies, nll, kl)), strict=True))


def _or_none(values: F64) -> list[float | None]:
    """Numbers; None for NaN."""
    return [None if math.isnan(one) else one for one in values.tolist()]
