"""Two runs that should be identical, step by step: where they first differ, and in which column."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, zip_longest
from typing import Any

from grpo_cli.commands.answer import Answer
from grpo_cli.commands.diff.columns import (
    COLUMNS,
    Comparer,
    Found,
    Noise,
    groups_of,
    reordered,
    there,
)
from grpo_cli.commands.frames import Frames
from grpo_cli.commands.trend.metadata import recorded_loss
from grpo_cli.commands.trend.origins import Origins, StepSource, two_runs
from grpo_cli.engine import Reader
from grpo_cli.engine.chunk import located
from grpo_cli.objective.inputs import MisnamedColumnError
from grpo_cli.records import Raw, Record
from grpo_cli.records.unread import OLD
from grpo_cli.terminal.numbers import counted, shown

_COUNTS = {"records": "the set of records", "responses": "the number of responses"}


@dataclass(frozen=True)
class Parting(Answer):
    """The first difference of a column.

    Attributes:
        column: of ``COLUMNS``, or "records" or "responses" if their numbers differ.
        meaning: in words.
        step: the step.
        record: the record's id or number in the first run; ``other`` in the second.
        response, token: the place in it; None if the record differs as a whole.
        group: the name of the response's group; None if it has none.
        first, second: the values in either run.
        difference: the largest difference in this record; None for text, or if a number is NaN.
    """

    column: str
    meaning: str
    step: int
    record: str | int | float
    other: str | int | float
    response: int | None
    token: int | None
    group: Any
    first: Any
    second: Any
    difference: float | None


@dataclass(frozen=True)
class RunStep(Answer):
    """A step that only one of the runs has, and the number of that run."""

    run: int
    step: int


@dataclass
class RunDiff(Frames, Answer):
    """Whether two runs are identical.

    Attributes:
        ok: whether nothing differs.
        agreed_until: the last step up to which nothing differs by more than noise; None if the
            first does.
        steps, records, tokens: how many were compared.
        notes: how they were compared, if not by the numbers of steps and records.
        only: steps that only one of the runs has.
        noise: columns that differ only by rounding or by an engine's noise.
        partings: the first difference of each column, causes before effects.
    """

    ok: bool = True
    agreed_until: int | None = None
    steps: int = 0
    records: int = 0
    tokens: int = 0
    notes: list[str] = field(default_factory=list)
    only: list[RunStep] = field(default_factory=list)
    noise: list[Noise] = field(default_factory=list)
    partings: list[Parting] = field(default_factory=list)

    @property
    def headline(self) -> str:
        """Whether the runs are identical, or up to which step."""
        compared = ", ".join(
            counted(number, noun)
            for number, noun in (
                (self.steps, "step"),
                (self.records, "record"),
                (self.tokens, "token"),
            )
            if number or self.ok
        )
        if self.ok:
            return f"same: {compared} compared"
        what = "different samples" if self.of_other_samples else "differs"
        return f"{what} {self.since}: {compared} compared"

    @property
    def since(self) -> str:
        """From when on the runs differ."""
        until = self.agreed_until
        return "from the first step on" if until is None else f"after step {until}"

    @property
    def of_other_samples(self) -> bool:
        """Whether no step has the same responses in both runs."""
        if self.agreed_until is not None or not self.partings:
            return False
        first = self.partings[0]
        return first.response is not None and COLUMNS.get(first.column) == COLUMNS["tokens"]

    def table(self) -> list[dict[str, Any]]:
        """The first difference of each column."""
        names = ("column", "step", "record", "response", "token", "first", "second", "difference")
        plain = str | int | float | None  # anything else is in words
        rows = ({name: getattr(one, name) for name in names} for one in self.partings)
        return [
            {n: v if isinstance(v, plain) else shown(v) for n, v in row.items()} for row in rows
        ]


Steps = Iterator[tuple[int, list[Record]]]


def compare(
    first: Reader, second: Reader, step_source: StepSource, tolerance: float | None
) -> RunDiff:
    """Compares two runs up to the step at which they first differ by more than noise.

    Args:
        first, second: the runs.
        step_source: how the step of a record is found.
        tolerance: how far numbers may differ; None: as far as rounding and engines' noise do.
    """
    answer, comparer = RunDiff(), Comparer(tolerance)
    steps = _by_step(first, step_source), _by_step(second, step_source)
    for step, ours, theirs in _aligned(*_counted_alike(answer, steps, tolerance), answer):
        if ours is None or theirs is None:
            answer.only.append(RunStep(1 if theirs is None else 2, step))
            continue
        _compare_step(answer, step, ours, theirs, comparer)
        if answer.partings:
            break
        answer.steps, answer.agreed_until = answer.steps + 1, step
    answer.noise = [one for one in comparer.noise.values() if one.differing]
    for column, (run, count) in comparer.lacking.items():
        lacks = f"{column} is not in run {run} ({counted(count, 'record')})"
        answer.notes.append(f"{lacks}: only the other columns are compared")
    answer.ok = not answer.partings and not answer.only and not answer.noise
    return answer


# ---- the steps of both runs ---------------------------------------------------------------------


def _by_step(reader: Reader, step_source: StepSource) -> Steps:
    """The steps of a run, in the order of its files.

    A record whose old log-probs have a name that nothing reads is bad.

    Raises:
        UsageError: where its files are of several runs.
    """
    origins = Origins()

    def numbered() -> Iterator[tuple[int, Raw, Record]]:
        for raw, record in reader.records():
            if OLD in record.misnamed:
                misnamed = MisnamedColumnError.of(OLD, "grpo diff", record.misnamed[OLD])
                reader.bad(located(misnamed, record))
            else:
                if (loss := recorded_loss(raw.value)) is not None:
                    record.expected = {"loss": loss} | (record.expected or {})
                yield step_source.of_record(raw).number, raw, record

    for step, same in groupby(numbered(), key=lambda one: one[0]):
        records = []
        for _, raw, record in same:
            origins.add(step, raw.source, raw.line)
            if origins.clash is not None:
                raise two_runs(origins.clash, reader.paths)
            records.append(record)
        yield step, records


def _counted_alike(
    answer: RunDiff, runs: tuple[Steps, Steps], tolerance: float | None
) -> tuple[Steps, Steps]:
    """The steps of the second run by the numbers of the first, if it only counts differently."""
    first, second = runs
    ours, theirs = next(first, None), next(second, None)
    ahead = 0
    if ours is not None and theirs is not None and ours[0] != theirs[0]:
        trial = RunDiff()
        _compare_step(trial, ours[0], ours[1], theirs[1], Comparer(tolerance))
        differ = {one.column for one in trial.partings}
        sampled = all(one.tokens or one.token_ids for one in (*ours[1], *theirs[1]))
        if not differ or (sampled and not differ & _SAMPLED):
            ahead = theirs[0] - ours[0]
            offset = f"step {ours[0]} of run 1 is step {theirs[0]} of run 2"
            answer.notes.append(f"{offset}: step numbers are those of run 1")
    second = second if theirs is None else chain((theirs,), second)
    shifted = ((step - ahead, records) for step, records in second)
    return first if ours is None else chain((ours,), first), shifted


def _aligned(
    first: Steps, second: Steps, answer: RunDiff
) -> Iterator[tuple[int, list[Record] | None, list[Record] | None]]:
    """The steps of both runs by number; None where only one has it.

    Steps to which only one of the runs goes back, since it was resumed, are left out.
    """
    ours, theirs = next(first, None), next(second, None)
    high = -math.inf
    while there := [one[0] for one in (ours, theirs) if one is not None]:
        again = [one is not None and one[0] <= high for one in (ours, theirs)]
        if any(again):
            run = "both runs go" if all(again) else f"run {again.index(True) + 1} goes"
            note = "grpo compares neighbouring records, not whole steps"
            if not all(again):
                note = f"grpo compares the first pass of this run (up to step {high}) only"
            if not any(one.startswith(f"{run} back") for one in answer.notes):
                answer.notes.append(f"{run} back from step {high} to {min(there)}: {note}")
        if again[0] != again[1]:
            ours = next(first, None) if again[0] else ours
            theirs = next(second, None) if again[1] else theirs
            continue
        step, mine, yours = min(there), None, None
        high = step
        if ours is not None and ours[0] == step:
            mine, ours = ours[1], next(first, None)
        if theirs is not None and theirs[0] == step:
            yours, theirs = theirs[1], next(second, None)
        yield step, mine, yours


# ---- the records of a step ----------------------------------------------------------------------


Pairs = list[tuple[Record | None, Record | None]]
"""Records of both runs, None for one that a run lacks."""


def _pair(ours: Sequence[Record], theirs: Sequence[Record]) -> tuple[Pairs, str]:
    """Pairs records by id if each has one of its own; else in their order; and says how.

    Where the order does not fit, by what was sampled: a run whose rollouts came in another order,
    or that lost some, is still the same run.
    """
    mine, yours = (_by_name(records, lambda one: one.id) for records in (ours, theirs))
    note = ""
    if not mine.keys() & yours.keys():
        mine, yours = _by_name(ours, _sampled), _by_name(theirs, _sampled)
        subset = mine.keys() <= yours.keys() or mine.keys() >= yours.keys()
        if not mine or not yours or [*mine] == [*yours] or not subset:
            return [*zip_longest(ours, theirs)], ""
        note = "records are paired by their sampled responses"
    both = [(one, yours.get(name)) for name, one in mine.items()]
    return [*both, *((None, yours[name]) for name in yours if name not in mine)], note


def _by_name(
    records: Sequence[Record], name: Callable[[Record], Hashable]
) -> Mapping[Hashable, Record]:
    """The records by their names; none if two have the same, or one has none."""
    named = {name(one): one for one in records}
    return {} if None in named or len(named) < len(records) else named


def _sampled(record: Record) -> Hashable:
    """What was sampled: tokens, or else log-probs in their place."""
    rows = record.token_ids if record.tokens is None else record.tokens
    if rows is not None:
        return tuple(map(tuple, rows))
    column = record.columns.get("log_probs_rollout", record.columns.get("log_probs_new"))
    return column if isinstance(column, bytes) else None


def _compare_step(
    answer: RunDiff, step: int, ours: list[Record], theirs: list[Record], comparer: Comparer
) -> None:
    found: dict[str, Parting] = {}

    def add(column: str, one: Record, other: Record, differs: Found) -> None:
        group = None
        if differs.response is not None and one.group_labels:
            group = one.group_labels[groups_of(one)[differs.response]]
        place = differs.response, differs.token, group
        first, second = differs.values
        meaning, names = (COLUMNS | _COUNTS)[column], (one.name, other.name)
        found.setdefault(
            column,
            Parting(column, meaning, step, *names, *place, first, second, differs.difference),
        )

    pairs, note = _pair(ours, theirs)
    if note and note not in answer.notes:
        answer.notes.append(note)
    for one, other in pairs:
        if one is None or other is None:
            known = one or other
            assert known is not None
            add("records", known, known, there(one, other))
            continue
        answer.records += 1
        answer.tokens += sum(one.widths) if one.mask is None else one.mask.count(1)
        if len(one.widths) != len(other.widths):
            add("responses", one, other, Found((len(one.widths), len(other.widths))))
            continue
        if (changed := reordered(one, other)) is not None:
            other = changed
            if _REORDERED not in answer.notes:
                answer.notes.append(_REORDERED)
        for column in COLUMNS:
            differs = None if column in found else comparer.compare(column, (one, other))
            if differs is not None:
                add(column, one, other, differs)
    answer.partings = sorted(
        (found[name] for name in (*_COUNTS, *COLUMNS) if name in found),
        key=lambda one: one is not _engine_first(found),
    )


def _engine_first(found: Mapping[str, Parting]) -> Parting | None:
    """The engine's log-probs, if they differ in a response before the first with other tokens.

    An engine that gives other probabilities samples other tokens from then on.
    """
    engine = found.get("log_probs_rollout")
    sampled = [found[name] for name in _SAMPLED if name in found]
    if engine is None or engine.token is None or engine.response is None or not sampled:
        return None
    before = (
        one.record == engine.record and one.response is not None and one.response > engine.response
        for one in sampled
    )
    return engine if all(before) else None


_SAMPLED = {*_COUNTS, "tokens", "token_ids"}
_REORDERED = "responses of a record are paired by what was sampled, because their order differs"
