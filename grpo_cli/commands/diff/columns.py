"""The columns of two records: the first number, token or setting that differs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, zip_longest
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.commands.diff.noise import Noise
from grpo_cli.records import Record

COLUMNS: dict[str, str] = {
    "token_ids": "the sampled responses",
    "tokens": "the sampled responses",
    "mask": "the tokens that count",
    "groups": "the grouping of responses",
    "rewards": "the reward",
    "log_probs_rollout": "the engine's log-probs",
    "log_probs_old": "the trainer's log-probs before the update",
    "log_probs_ref": "the reference",
    "hyperparameters": "the settings",
    "advantages": "the advantage stage",
    "log_probs_new": "the policy's log-probs",
    "entropies": "the policy's entropies",
    "expected": "the trainer's own numbers",
}
"""What is compared, causes before effects: if columns differ together, the first is named."""
_FLOATS = {column for column in COLUMNS if column.startswith("log_probs") or column == "entropies"}


class Found(NamedTuple):
    """The first difference in a record, with the values of both runs there."""

    values: tuple[Any, ...]
    response: int | None = None
    token: int | None = None
    difference: float | None = None


def there(one: object, other: object) -> Found:
    """What only one of the runs has."""
    return Found(tuple("absent" if each is None else "present" for each in (one, other)))


@dataclass
class Comparer:
    """Compares columns, and remembers how far they differ by noise and which a run lacks.

    Attributes:
        tolerance: how far numbers may differ; None: as far as noise does.
        noise: of each column.
        had: whether either run had a column, in any record so far.
        lacking: column → the run that lacks it, and in how many records.
    """

    tolerance: float | None
    noise: dict[str, Noise] = field(default_factory=dict)
    had: set[tuple[str, int]] = field(default_factory=set)
    lacking: dict[str, tuple[int, int]] = field(default_factory=dict)

    def compare(self, column: str, both: tuple[Record, Record]) -> Found | None:
        """The first difference of two records in a column; None where there is none.

        A column that a run never had is none, but counted.
        """
        values = tuple(_value(record, column) for record in both)
        for run, value in enumerate(values, 1):
            if value is not None:
                self.had.add((column, run))
        if None not in values:
            return _compare_column(column, both, values, self._first_place)
        lacks = 1 if values[0] is None else 2
        if values == (None, None) or column == "expected":
            return None
        if (column, lacks) in self.had:
            return there(*values)
        self.lacking[column] = lacks, self.lacking.get(column, (lacks, 0))[1] + 1
        return None

    def _first_place(self, column: str, first: F64, second: F64) -> Place | None:
        """The first place that differs by more than it may, and the largest difference of all."""
        if self.tolerance is not None or column in _EXACT:
            far = ~_near(first, second, self.tolerance or 0.0)
            place = int(far.argmax()) if far.any() else None
        else:
            noise = self.noise.setdefault(column, Noise(column))
            place = noise.outlier(first, second, engine=column.startswith("log_probs"))
        if place is None:
            return None
        size = np.where(_near(first, second, 0.0), 0.0, np.abs(first - second))
        return place, None if np.isnan(size).any() else float(size.max())


Place = tuple[int, float | None]
FirstPlace = Callable[[str, F64, F64], Place | None]
_EXACT = ("mask", "hyperparameters", "expected")


def _near(first: F64, second: F64, tolerance: float) -> NDArray[np.bool_]:
    both = (first == second) | (np.isnan(first) & np.isnan(second))
    near: NDArray[np.bool_] = both | (np.abs(first - second) <= tolerance)
    return near


def _compare_column(
    column: str, both: tuple[Record, Record], values: tuple[Any, ...], first_place: FirstPlace
) -> Found | None:
    first, second = values
    if column in ("token_ids", "tokens"):
        return _compare_tokens(first, second)
    if column == "groups":
        return _compare_groups(first, second)
    if column in ("hyperparameters", "expected"):
        return _compare_mappings(column, first, second, first_place)
    if isinstance(first, list) and isinstance(second, list):
        return _compare_scores(column, first, second, first_place)
    return _compare_numbers(column, both, (first, second), first_place)


def _value(record: Record, column: str) -> Any:
    if column == "groups":
        return groups_of(record)
    return record.columns.get(column) if column in _FLOATS else getattr(record, column)


def groups_of(record: Record) -> Sequence[int]:
    """The number of each response's group."""
    return record.groups or [0] * len(record.widths)


def _compare_tokens(first: Any, second: Any) -> Found | None:
    """The first token, or id, that differs."""
    for response, (mine, yours) in enumerate(zip(first, second, strict=True)):
        for token, (a, b) in enumerate(zip_longest(mine, yours, fillvalue="no token")):
            if a != b:
                return Found((a, b), response, token)
    return None


def _compare_groups(first: Sequence[int], second: Sequence[int]) -> Found | None:
    """The first response that is in another group, whatever groups are called."""
    mine, yours = ([*map(list(dict.fromkeys(one)).index, one)] for one in (first, second))
    for response, (a, b) in enumerate(zip(mine, yours, strict=True)):
        if a != b:
            names = (f"with response {each.index(each[response])}" for each in (mine, yours))
            return Found(tuple(names), response)
    return None


def _compare_mappings(
    column: str, first: Mapping[str, Any], second: Mapping[str, Any], first_place: FirstPlace
) -> Found | None:
    """Settings, or what the trainer computed: the names that differ."""
    both = ((name, first.get(name), second.get(name)) for name in {**first, **second})
    names = [name for name, a, b in both if not _equal(column, a, b, first_place)]
    if not names:
        return None
    return Found(tuple({name: _short(one.get(name)) for name in names} for one in (first, second)))


def _equal(column: str, a: Any, b: Any, first_place: FirstPlace) -> bool:
    if a == b or not all(isinstance(one, int | float) for one in (a, b)):
        return bool(a == b)
    return first_place(column, np.array([a], dtype=np.float64), np.array([b])) is None


def _short(value: Any) -> Any:
    return "a list" if isinstance(value, list | dict) else value


def _compare_scores(column: str, first: Any, second: Any, first_place: FirstPlace) -> Found | None:
    """A number, or several, for each response."""
    mine, yours = (np.array(value, dtype=np.float64) for value in (first, second))
    if mine.shape != yours.shape:
        return Found((f"shape {mine.shape}", f"shape {yours.shape}"))
    place = first_place(column, mine.ravel(), yours.ravel())
    if place is None:
        return None
    at, size = place
    values = float(mine.ravel()[at]), float(yours.ravel()[at])
    return Found(values, at // (mine.size // len(mine)), difference=size)


def _compare_numbers(
    column: str, both: tuple[Record, Record], values: tuple[Any, Any], first_place: FirstPlace
) -> Found | None:
    """A number for each token; one of a response is that of each of its tokens."""
    widths, others = (record.widths for record in both)
    if widths != others:
        pairs = enumerate(zip(widths, others, strict=True))
        at, (a, b) = next(one for one in pairs if one[1][0] != one[1][1])
        return Found((f"{a} tokens", f"{b} tokens"), at)
    kind = np.uint8 if column == "mask" else np.float64
    mine, yours = (
        np.repeat(value, widths) if isinstance(value, list) else np.frombuffer(value, dtype=kind)
        for value in values
    )
    place = first_place(column, mine.astype(np.float64), yours.astype(np.float64))
    if place is None:
        return None
    at, size = place
    ends = [*accumulate(widths)]
    response = next(number for number, end in enumerate(ends) if at < end)
    token = at - (ends[response] - widths[response])
    return Found((float(mine[at]), float(yours[at])), response, token, size)


# ---- responses in another order -----------------------------------------------------------------


def reordered(first: Record, second: Record) -> Record | None:
    """The second record with its responses in the order of the first's.

    None where both have one order, or are no reordering of each other by what was sampled.
    """
    mine, yours = (one.token_ids if one.tokens is None else one.tokens for one in (first, second))
    if mine is None or yours is None or mine == yours:
        return None
    places = {repr(row): at for at, row in enumerate(yours)}
    order = [places.get(repr(row), -1) for row in mine]
    if len(places) < len(yours) or sorted(order) != [*range(len(yours))]:
        return None
    taken = _tokens_of(second.widths, order)
    changed: dict[str, Any] = {"widths": [second.widths[at] for at in order]}
    for name in _BY_RESPONSE:
        value = getattr(second, name)
        if isinstance(value, list):
            changed[name] = [value[at] for at in order]
    for name, kind in (("mask", np.uint8), ("advantages", np.float64)):
        value = getattr(second, name)
        if isinstance(value, bytes):
            changed[name] = np.frombuffer(value, dtype=kind)[taken].tobytes()
    changed["columns"] = {
        name: np.frombuffer(value, dtype=np.float64)[taken].tobytes()
        for name, value in second.columns.items()
    }
    return replace(second, **changed)


_BY_RESPONSE = ("groups", "rewards", "reward_baselines", "advantages", "tokens", "token_ids")


def _tokens_of(widths: Sequence[int], order: Sequence[int]) -> I64:
    """The places of the tokens of responses, in another order of these."""
    segments = Segments(np.array(widths, dtype=np.int64))
    starts = segments.starts.tolist()
    parts = [np.arange(starts[at], starts[at] + widths[at]) for at in order]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
