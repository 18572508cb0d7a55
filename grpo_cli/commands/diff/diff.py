"""Two runs that should be one, step by step: where they part, and by which column."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, groupby, zip_longest
from typing import Any

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.diff.pairs import paired
from grpo_cli.commands.trend.origins import Origins, StepSource, two_runs
from grpo_cli.engine import Reader
from grpo_cli.engine.chunk import located
from grpo_cli.objective.inputs import MisnamedColumnError
from grpo_cli.records import Raw, Record
from grpo_cli.records.unread import OLD

COLUMNS: dict[str, str] = {
    "token_ids": "what was sampled",
    "tokens": "what was sampled",
    "mask": "which tokens count",
    "groups": "which responses are a group",
    "rewards": "the reward",
    "log_probs_rollout": "the engine's log-probs",
    "log_probs_old": "the trainer's log-probs before the update",
    "log_probs_ref": "the reference",
    "hyperparameters": "the settings",
    "advantages": "the advantage stage",
    "log_probs_new": "the policy's log-probs",
    "entropies": "the policy's entropies",
    "expected": "what the trainer computed",
}
"""What is compared, causes before effects: of columns that part together, the first is told."""


@dataclass(frozen=True)
class Parting:
    """Where one column parts first.

    Attributes:
        column: of ``COLUMNS``, or "responses" where there are not as many.
        meaning: what it stands for.
        step: the step.
        record: the record's id or number in the first run; ``other`` in the second.
        response, token: where in it; None for what is of the whole record.
        group: what the response's group is called; None where it has no name.
        first, second: what stands there in either run.
        difference: of numbers, the largest in this record.
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


@dataclass
class Answer:
    """Whether two runs are one.

    Attributes:
        partings: each column's first, the one that came first at the front.
        steps, records, tokens: what was compared.
        agreed: the last step before which everything agrees; None where the first parts.
        only: steps that only one of the runs has, beside the number of that run.
        notes: what there is to tell of how they were compared.
    """

    partings: list[Parting] = field(default_factory=list)
    steps: int = 0
    records: int = 0
    tokens: int = 0
    agreed: int | None = None
    only: list[tuple[int, int]] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)

    @property
    def same(self) -> bool:
        """Whether nothing parts."""
        return not self.partings and not self.only


_MEANINGS = {
    "records": "which records there are",
    "responses": "how many responses there are",
}
Pair = tuple[Record, Record]
Steps = Iterator[tuple[int, list[Record]]]


def compare(first: Reader, second: Reader, step_source: StepSource, tolerance: float) -> Answer:
    """Compares two runs up to the step at which they part.

    Args:
        first, second: the runs.
        step_source: how records say their step.
        tolerance: how far numbers may be apart.
    """
    answer = Answer()
    steps = _by_step(first, step_source, answer, 1), _by_step(second, step_source, answer, 2)
    for step, ours, theirs in _aligned(*_counted_alike(answer, steps, tolerance)):
        if ours is None or theirs is None:
            answer.only.append((1 if theirs is None else 2, step))
            continue
        _compare_step(answer, step, ours, theirs, tolerance)
        if answer.partings:
            break
        answer.steps, answer.agreed = answer.steps + 1, step
    return answer


def _comparable(reader: Reader) -> Iterator[tuple[Raw, Record]]:
    """The records; one whose old log-probs have a name that nothing reads is bad."""
    for raw, record in reader.records():
        if OLD in record.misnamed:
            reader.bad(located(MisnamedColumnError.of(OLD, "diff", record.misnamed[OLD]), record))
        else:
            yield raw, record


def _by_step(reader: Reader, step_source: StepSource, answer: Answer, run: int) -> Steps:
    """The steps of a run, as they stand in its files.

    Raises:
        UsageError: where its files are of several runs.
    """
    origins = Origins()
    pairs = (
        (step_source.of_record(raw).number, raw, record) for raw, record in _comparable(reader)
    )
    before, told = None, ""
    for step, same in groupby(pairs, key=lambda one: one[0]):
        records = []
        for _, raw, record in same:
            origins.add(step, raw.source, raw.line)
            if origins.clash is not None:
                raise two_runs(origins.clash, reader.paths)
            records.append(record)
        if before is not None and step < before and not told:
            told = f"the steps of run {run} go back from {before} to {step}: what stands together "
            answer.notes[told + "is compared, not a step as a whole"] = None
        before = step
        yield step, records


def _counted_alike(
    answer: Answer, runs: tuple[Steps, Steps], tolerance: float
) -> tuple[Steps, Steps]:
    """The steps of the second run by the numbers of the first, if it only counts differently."""
    first, second = runs
    ours, theirs = next(first, None), next(second, None)
    ahead = 0
    if ours is not None and theirs is not None and ours[0] != theirs[0]:
        trial = Answer()
        _compare_step(trial, ours[0], ours[1], theirs[1], tolerance)
        if not trial.partings:
            ahead = theirs[0] - ours[0]
            told = f"step {ours[0]} of run 1 is step {theirs[0]} of run 2"
            answer.notes[f"{told}: steps are told by the numbers of run 1"] = None
    second = ((step - ahead, records) for step, records in _again(theirs, second))
    return _again(ours, first), second


def _again(first: tuple[int, list[Record]] | None, rest: Steps) -> Steps:
    return rest if first is None else chain((first,), rest)


def _aligned(
    first: Steps, second: Steps
) -> Iterator[tuple[int, list[Record] | None, list[Record] | None]]:
    """The steps of both runs by number; None where only one has it."""
    ours, theirs = next(first, None), next(second, None)
    while ours is not None or theirs is not None:
        if theirs is None or (ours is not None and ours[0] < theirs[0]):
            assert ours is not None
            yield ours[0], ours[1], None
            ours = next(first, None)
        elif ours is None or theirs[0] < ours[0]:
            yield theirs[0], None, theirs[1]
            theirs = next(second, None)
        else:
            yield ours[0], ours[1], theirs[1]
            ours, theirs = next(first, None), next(second, None)


def _compare_step(
    answer: Answer, step: int, ours: list[Record], theirs: list[Record], tolerance: float
) -> None:
    found: dict[str, Parting] = {}
    pairs, note = paired(ours, theirs)
    answer.notes |= {note: None} if note else {}
    for one, other in pairs:
        if one is None or other is None:
            known = one or other
            assert known is not None
            there = tuple("absent" if each is None else "there" for each in (one, other))
            found.setdefault("records", _told("records", step, (known, known), there))
            continue
        answer.records += 1
        answer.tokens += sum(one.widths)
        for parting in _partings(step, (one, other), tolerance):
            found.setdefault(parting.column, parting)
    order = ["records", "responses", *COLUMNS]
    answer.partings = sorted(found.values(), key=lambda parting: order.index(parting.column))


def _partings(step: int, pair: Pair, tolerance: float) -> Iterator[Parting]:
    one, other = pair
    if len(one.widths) != len(other.widths):
        yield _told("responses", step, pair, (len(one.widths), len(other.widths)))
        return
    for column in COLUMNS:
        values = _value(one, column), _value(other, column)
        if any(value is None for value in values):
            if (values[0] is None) != (values[1] is None) and column != "expected":
                told = tuple("absent" if value is None else "there" for value in values)
                yield _told(column, step, pair, told)
            continue
        yield from _COMPARISONS.get(column, _numbers)(column, step, pair, values, tolerance)


def _value(record: Record, column: str) -> Any:
    if column == "groups":
        return record.groups or [0] * len(record.widths)
    if column in ("token_ids", "tokens", "rewards", "advantages", "hyperparameters", "expected"):
        return getattr(record, column)
    if column == "mask":
        return record.mask
    return record.columns.get(column)


def _told(column: str, step: int, pair: Pair, values: Sequence[Any], **more: Any) -> Parting:
    place: dict[str, Any] = {"response": None, "token": None, "difference": None} | more
    one, other = pair
    group = None
    if place["response"] is not None and one.group_labels:
        numbers = one.groups or [0] * len(one.widths)
        group = one.group_labels[numbers[place["response"]]]
    meaning = COLUMNS.get(column) or _MEANINGS[column]
    return Parting(
        column,
        meaning,
        step,
        one.name,
        other.name,
        group=group,
        first=values[0],
        second=values[1],
        **place,
    )


Values = tuple[Any, Any]


def _rows(
    column: str, step: int, pair: Pair, values: Values, tolerance: float
) -> Iterator[Parting]:
    """Tokens or ids: the first that differs."""
    del tolerance
    meaning = COLUMNS[column]
    if _sorted(values[0]) == _sorted(values[1]):
        meaning += ": the same responses in another order"
    for response, (mine, yours) in enumerate(zip(*values, strict=True)):
        for token, (a, b) in enumerate(zip_longest(mine, yours, fillvalue="no token")):
            if a != b:
                told = _told(column, step, pair, (a, b), response=response, token=token)
                yield replace(told, meaning=meaning)
                return


def _sorted(rows: Any) -> list[list[str]]:
    return sorted([str(one) for one in row] for row in rows)


def _groups(
    column: str, step: int, pair: Pair, values: Values, tolerance: float
) -> Iterator[Parting]:
    """The first response that is in another group, whatever groups are called."""
    del tolerance
    mine, yours = ([*map(list(dict.fromkeys(one)).index, one)] for one in values)
    for response, (a, b) in enumerate(zip(mine, yours, strict=True)):
        if a != b:
            told = tuple(f"with response {each.index(each[response])}" for each in (mine, yours))
            yield _told(column, step, pair, told, response=response)
            return


def _numbers(
    column: str, step: int, pair: Pair, values: Values, tolerance: float
) -> Iterator[Parting]:
    """A number for each token, or each response; a response's stands for each of its tokens."""
    if all(isinstance(value, list) for value in values):
        yield from _scores(column, step, pair, values, tolerance)
        return
    widths = pair[0].widths
    if pair[1].widths != widths:
        at = next(i for i, (a, b) in enumerate(zip(widths, pair[1].widths, strict=True)) if a != b)
        lengths = f"{widths[at]} tokens", f"{pair[1].widths[at]} tokens"
        yield _told(column, step, pair, lengths, response=at)
        return
    kind = np.uint8 if column == "mask" else np.float64
    mine, yours = (
        np.repeat(value, widths) if isinstance(value, list) else np.frombuffer(value, dtype=kind)
        for value in values
    )
    place = _first(mine.astype(np.float64), yours.astype(np.float64), tolerance)
    if place is not None:
        at, size = place
        ends = [*accumulate(widths)]
        response = next(number for number, end in enumerate(ends) if at < end)
        token = at - (ends[response] - widths[response])
        told = float(mine[at]), float(yours[at])
        yield _told(column, step, pair, told, response=response, token=token, difference=size)


def _scores(
    column: str, step: int, pair: Pair, values: Values, tolerance: float
) -> Iterator[Parting]:
    mine, yours = (np.array(value, dtype=np.float64) for value in values)
    if mine.shape != yours.shape:
        yield _told(column, step, pair, (f"shape {mine.shape}", f"shape {yours.shape}"))
        return
    place = _first(mine.ravel(), yours.ravel(), tolerance)
    if place is not None:
        at, size = place
        response = at // (mine.size // len(mine))
        told = float(mine.ravel()[at]), float(yours.ravel()[at])
        yield _told(column, step, pair, told, response=response, difference=size)


def _first(mine: F64, yours: F64, tolerance: float) -> tuple[int, float] | None:
    """The first place that is farther apart than it may be, and the largest distance of all."""
    apart = np.where((mine == yours) | (np.isnan(mine) & np.isnan(yours)), 0.0, abs(mine - yours))
    far = np.flatnonzero(~(apart <= tolerance))
    return (int(far[0]), float(np.nanmax(apart))) if far.size else None


def _mapping(
    column: str, step: int, pair: Pair, values: Values, tolerance: float
) -> Iterator[Parting]:
    """Settings, or what the trainer computed: the names that differ."""
    mine, yours = values
    names = [name for name in {**mine, **yours} if not _equal(mine, yours, name, tolerance)]
    if names:
        told = tuple({name: _short(value.get(name)) for name in names} for value in values)
        yield _told(column, step, pair, told)


def _equal(mine: dict[str, Any], yours: dict[str, Any], name: str, tolerance: float) -> bool:
    a, b = mine.get(name), yours.get(name)
    numbers = all(isinstance(one, int | float) for one in (a, b))
    return a == b or (numbers and abs(a - b) <= tolerance)  # type: ignore[operator]


def _short(value: Any) -> Any:
    return "a list" if isinstance(value, list | dict) else value


_COMPARISONS: dict[str, Callable[..., Iterator[Parting]]] = {
    "token_ids": _rows,
    "tokens": _rows,
    "groups": _groups,
    "hyperparameters": _mapping,
    "expected": _mapping,
}
