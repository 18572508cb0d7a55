"""Two runs that should be identical, step by step: where they first differ, and in which column."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, groupby, zip_longest
from typing import Any, NamedTuple

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.answer import Answer
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
"""What is compared, causes before effects: if columns differ together, the first is named."""
_FLOATS = {column for column in COLUMNS if column.startswith("log_probs") or column == "entropies"}
_COUNTS = {
    "records": "which records there are",
    "responses": "how many responses there are",
}


@dataclass(frozen=True)
class Parting(Answer):
    """The first difference of a column.

    Attributes:
        column: of ``COLUMNS``, or "records" or "responses" where there are not as many.
        meaning: in words.
        step: the step.
        record: the record's id or number in the first run; ``other`` in the second.
        response, token: the place in it; None if the record differs as a whole.
        group: the name of the response's group; None if it has none.
        first, second: the values in either run.
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


@dataclass(frozen=True)
class RunStep(Answer):
    """A step that only one of the runs has, and the number of that run."""

    run: int
    step: int


@dataclass
class RunDiff(Answer):
    """Whether two runs are identical.

    Attributes:
        same: whether nothing differs.
        agreed_until: the last step before which everything is equal; None if the first differs.
        steps, records, tokens: what was compared.
        notes: how they were compared, where that is not by the numbers of steps and records.
        only: steps that only one of the runs has.
        partings: the first difference of each column, causes before effects.
    """

    same: bool = True
    agreed_until: int | None = None
    steps: int = 0
    records: int = 0
    tokens: int = 0
    notes: list[str] = field(default_factory=list)
    only: list[RunStep] = field(default_factory=list)
    partings: list[Parting] = field(default_factory=list)


Steps = Iterator[tuple[int, list[Record]]]


def compare(first: Reader, second: Reader, step_source: StepSource, tolerance: float) -> RunDiff:
    """Compares two runs up to the step at which they first differ.

    Args:
        first, second: the runs.
        step_source: how the step of a record is found.
        tolerance: how far numbers may differ.
    """
    answer = RunDiff()
    steps = _by_step(first, step_source, answer, 1), _by_step(second, step_source, answer, 2)
    for step, ours, theirs in _aligned(*_counted_alike(answer, steps, tolerance)):
        if ours is None or theirs is None:
            answer.only.append(RunStep(1 if theirs is None else 2, step))
            continue
        _compare_step(answer, step, ours, theirs, tolerance)
        if answer.partings:
            break
        answer.steps, answer.agreed_until = answer.steps + 1, step
    answer.same = not answer.partings and not answer.only
    return answer


# ---- the steps of both runs ---------------------------------------------------------------------


def _comparable(reader: Reader) -> Iterator[tuple[Raw, Record]]:
    """The records; one whose old log-probs have a name that nothing reads is bad."""
    for raw, record in reader.records():
        if OLD in record.misnamed:
            reader.bad(located(MisnamedColumnError.of(OLD, "diff", record.misnamed[OLD]), record))
        else:
            yield raw, record


def _by_step(reader: Reader, step_source: StepSource, answer: RunDiff, run: int) -> Steps:
    """The steps of a run, in the order of its files.

    Raises:
        UsageError: where its files are of several runs.
    """
    origins = Origins()
    numbered = (
        (step_source.of_record(raw).number, raw, record) for raw, record in _comparable(reader)
    )
    before, noted = None, False
    for step, same in groupby(numbered, key=lambda one: one[0]):
        records = []
        for _, raw, record in same:
            origins.add(step, raw.source, raw.line)
            if origins.clash is not None:
                raise two_runs(origins.clash, reader.paths)
            records.append(record)
        if before is not None and step < before and not noted:
            noted = True
            back = f"the steps of run {run} go back from {before} to {step}"
            answer.notes.append(f"{back}: neighbours are compared, not whole steps")
        before = step
        yield step, records


def _counted_alike(
    answer: RunDiff, runs: tuple[Steps, Steps], tolerance: float
) -> tuple[Steps, Steps]:
    """The steps of the second run by the numbers of the first, if it only counts differently."""
    first, second = runs
    ours, theirs = next(first, None), next(second, None)
    ahead = 0
    if ours is not None and theirs is not None and ours[0] != theirs[0]:
        trial = RunDiff()
        _compare_step(trial, ours[0], ours[1], theirs[1], tolerance)
        if not trial.partings:
            ahead = theirs[0] - ours[0]
            offset = f"step {ours[0]} of run 1 is step {theirs[0]} of run 2"
            answer.notes.append(f"{offset}: steps have the numbers of run 1 here")
    second = second if theirs is None else chain((theirs,), second)
    shifted = ((step - ahead, records) for step, records in second)
    return first if ours is None else chain((ours,), first), shifted


def _aligned(
    first: Steps, second: Steps
) -> Iterator[tuple[int, list[Record] | None, list[Record] | None]]:
    """The steps of both runs by number; None where only one has it."""
    ours, theirs = next(first, None), next(second, None)
    while there := [one[0] for one in (ours, theirs) if one is not None]:
        step, mine, yours = min(there), None, None
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
        note = "records are paired by what was sampled"
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
    answer: RunDiff, step: int, ours: list[Record], theirs: list[Record], tolerance: float
) -> None:
    found: dict[str, Parting] = {}
    pairs, note = _pair(ours, theirs)
    if note and note not in answer.notes:
        answer.notes.append(note)
    for one, other in pairs:
        if one is None or other is None:
            known = one or other
            assert known is not None
            where = _there(one, other)
            found.setdefault("records", _parting("records", step, (known, known), where))
            continue
        answer.records += 1
        answer.tokens += sum(one.widths)
        if len(one.widths) != len(other.widths):
            where = _Found((len(one.widths), len(other.widths)))
            found.setdefault("responses", _parting("responses", step, (one, other), where))
            continue
        for column in COLUMNS:
            differs = None if column in found else _compare_column(column, (one, other), tolerance)
            if differs is not None:
                found[column] = _parting(column, step, (one, other), differs)
    answer.partings = [found[name] for name in (*_COUNTS, *COLUMNS) if name in found]


# ---- the columns of a record --------------------------------------------------------------------


class _Found(NamedTuple):
    """The first difference in a record, with the values of both runs there."""

    values: tuple[Any, ...]
    response: int | None = None
    token: int | None = None
    difference: float | None = None
    comment: str = ""


def _there(one: object, other: object) -> _Found:
    return _Found(tuple("absent" if each is None else "there" for each in (one, other)))


def _parting(column: str, step: int, both: tuple[Record, Record], found: _Found) -> Parting:
    one, other = both
    group = None
    if found.response is not None and one.group_labels:
        group = one.group_labels[_groups_of(one)[found.response]]
    meaning = (COLUMNS | _COUNTS)[column] + found.comment
    place = found.response, found.token, group
    first, second = found.values
    names = one.name, other.name
    return Parting(column, meaning, step, *names, *place, first, second, found.difference)


def _compare_column(column: str, both: tuple[Record, Record], tolerance: float) -> _Found | None:
    first, second = (_value(record, column) for record in both)
    if first is None or second is None:
        lacking = (first is None) != (second is None) and column != "expected"
        return _there(first, second) if lacking else None
    if column in ("token_ids", "tokens"):
        return _compare_tokens(first, second)
    if column == "groups":
        return _compare_groups(first, second)
    if column in ("hyperparameters", "expected"):
        return _compare_mappings(first, second, tolerance)
    if isinstance(first, list) and isinstance(second, list):
        return _compare_scores(first, second, tolerance)
    return _compare_numbers(column, both, (first, second), tolerance)


def _value(record: Record, column: str) -> Any:
    if column == "groups":
        return _groups_of(record)
    return record.columns.get(column) if column in _FLOATS else getattr(record, column)


def _groups_of(record: Record) -> Sequence[int]:
    return record.groups or [0] * len(record.widths)


def _compare_tokens(first: Any, second: Any) -> _Found | None:
    """The first token, or id, that differs."""
    reordered = _sorted(first) == _sorted(second)
    comment = ": the same responses in another order" if reordered else ""
    for response, (mine, yours) in enumerate(zip(first, second, strict=True)):
        for token, (a, b) in enumerate(zip_longest(mine, yours, fillvalue="no token")):
            if a != b:
                return _Found((a, b), response, token, comment=comment)
    return None


def _sorted(rows: Any) -> list[list[str]]:
    return sorted([str(one) for one in row] for row in rows)


def _compare_groups(first: Sequence[int], second: Sequence[int]) -> _Found | None:
    """The first response that is in another group, whatever groups are called."""
    mine, yours = ([*map(list(dict.fromkeys(one)).index, one)] for one in (first, second))
    for response, (a, b) in enumerate(zip(mine, yours, strict=True)):
        if a != b:
            names = (f"with response {each.index(each[response])}" for each in (mine, yours))
            return _Found(tuple(names), response)
    return None


def _compare_mappings(
    first: Mapping[str, Any], second: Mapping[str, Any], tolerance: float
) -> _Found | None:
    """Settings, or what the trainer computed: the names that differ."""
    both = ((name, first.get(name), second.get(name)) for name in {**first, **second})
    names = [name for name, a, b in both if not _equal(a, b, tolerance)]
    if not names:
        return None
    return _Found(tuple({name: _short(one.get(name)) for name in names} for one in (first, second)))


def _equal(a: Any, b: Any, tolerance: float) -> bool:
    numbers = all(isinstance(one, int | float) for one in (a, b))
    return bool(a == b or (numbers and abs(a - b) <= tolerance))


def _short(value: Any) -> Any:
    return "a list" if isinstance(value, list | dict) else value


def _compare_scores(first: Any, second: Any, tolerance: float) -> _Found | None:
    """A number, or several, for each response."""
    mine, yours = (np.array(value, dtype=np.float64) for value in (first, second))
    if mine.shape != yours.shape:
        return _Found((f"shape {mine.shape}", f"shape {yours.shape}"))
    place = _first_place(mine.ravel(), yours.ravel(), tolerance)
    if place is None:
        return None
    at, size = place
    values = float(mine.ravel()[at]), float(yours.ravel()[at])
    return _Found(values, at // (mine.size // len(mine)), difference=size)


def _compare_numbers(
    column: str, both: tuple[Record, Record], values: tuple[Any, Any], tolerance: float
) -> _Found | None:
    """A number for each token; one of a response is that of each of its tokens."""
    widths, others = (record.widths for record in both)
    if widths != others:
        pairs = enumerate(zip(widths, others, strict=True))
        at, (a, b) = next(one for one in pairs if one[1][0] != one[1][1])
        return _Found((f"{a} tokens", f"{b} tokens"), at)
    kind = np.uint8 if column == "mask" else np.float64
    mine, yours = (
        np.repeat(value, widths) if isinstance(value, list) else np.frombuffer(value, dtype=kind)
        for value in values
    )
    place = _first_place(mine.astype(np.float64), yours.astype(np.float64), tolerance)
    if place is None:
        return None
    at, size = place
    ends = [*accumulate(widths)]
    response = next(number for number, end in enumerate(ends) if at < end)
    token = at - (ends[response] - widths[response])
    return _Found((float(mine[at]), float(yours[at])), response, token, size)


def _first_place(mine: F64, yours: F64, tolerance: float) -> tuple[int, float] | None:
    """The first place that differs by more than it may, and the largest difference of all."""
    equal = (mine == yours) | (np.isnan(mine) & np.isnan(yours))
    difference = np.where(equal, 0.0, abs(mine - yours))
    far = np.flatnonzero(~(difference <= tolerance))
    return (int(far[0]), float(np.nanmax(difference))) if far.size else None
