"""The hyperparameters that records give, column by column."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import HyperparameterError, Value, canonical
from grpo_cli.records.fields import Fields
from grpo_cli.records.places import got

ABSENT: Any = ...
"""Stands for the value of a hyperparameter that a record does not give."""


@dataclass(frozen=True)
class Settings:
    """The hyperparameters of M records.

    Attributes:
        count: M.
        columns: hyperparameter → [M] its values (checked), ``ABSENT`` where a record gives none;
            in the order of their names.
    """

    count: int = 0
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[dict[str, Value]]:
        """Those of each record, by name."""
        return map(self.of_record, range(self.count))

    def of_record(self, at: int) -> dict[str, Value]:
        """Those of a record, by name."""
        found = ((name, column[at]) for name, column in self.columns.items())
        return {name: value for name, value in found if value is not ABSENT}

    def cut(self, records: slice) -> Settings:
        """Those of records that follow each other."""
        columns = {name: column[records] for name, column in self.columns.items()}
        return Settings(len(range(self.count)[records]), columns)


def join_settings(parts: Sequence[Settings]) -> Settings:
    """Those of all records, in order."""
    names = sorted({*chain.from_iterable(one.columns for one in parts)})
    each = {name: [one.columns.get(name, [ABSENT] * one.count) for one in parts] for name in names}
    count = sum([one.count for one in parts])
    return Settings(count, {name: [*chain.from_iterable(own)] for name, own in each.items()})


class _Given(NamedTuple):
    """A name under which records give a hyperparameter, where it stands, and [M] its values."""

    path: str
    name: str
    values: Sequence[Any]


def read_settings(objects: Sequence[Mapping[str, Any]], fields: Fields) -> Settings:
    """The hyperparameters of records with these fields.

    Raises:
        InputError: for an unknown name, a value outside its meaning, or two different values.
    """
    # Names that set several (epsilon) give way to the particular ones.
    broad: dict[str, _Given] = {}
    exact: dict[str, _Given] = {}
    for path, name, values in _without_both_sides(objects, _given(objects, fields)):
        columns = _canonical_columns(path, name, values)
        for own, column in columns.items():
            known = exact if len(columns) == 1 else broad
            before = known.get(own)
            if before is not None:
                _check_same(before, column, path)
                column = _filled(before.values, column)
            known[own] = _Given(path if before is None else before.path, own, column)
    return Settings(
        len(objects),
        {
            name: _filled(*(known[name].values for known in (exact, broad) if name in known))
            for name in sorted({*broad, *exact})
        },
    )


def _given(objects: Sequence[Mapping[str, Any]], fields: Fields) -> list[_Given]:
    """The names at the records' top level, then those of ``hyperparameters``."""
    own = fields.hyperparameters
    found = [_Given(name, name, [one.get(name) for one in objects]) for name in own]
    key = fields.names.get("hyperparameters")
    if key is None:
        return found
    nested = [one[key] for one in objects]
    for one in nested:
        if not isinstance(one, dict):
            raise InputError(f"expected an object, got {got(one)}", path=key)
    for name in dict.fromkeys(chain.from_iterable(nested)):
        values = [one.get(name, ABSENT) for one in nested]
        found.append(_Given(f"{key}.{name}", name, values))
    return found


_BOTH_SIDES = "clip_ratio"
"""verl takes it only where a side is null."""
_VERL_SIDES = ("clip_ratio_low", "clip_ratio_high")
"""They are 0.2 where verl's configuration does not say."""


def _without_both_sides(objects: Sequence[Mapping[str, Any]], given: list[_Given]) -> list[_Given]:
    """The same, where verl's records give ``clip_ratio`` for the sides that are null alone."""
    both = next((one.values for one in given if one.name == _BOTH_SIDES), None)
    if both is None:
        return given
    of_verl = [framework_of(one).get("name") == "verl" for one in objects]
    found = []
    for path, name, values in given:
        if name == _BOTH_SIDES:
            values = [ABSENT if verl else one for one, verl in zip(values, of_verl, strict=True)]
        elif name in _VERL_SIDES:
            values = [
                side if verl and one is None else one
                for one, side, verl in zip(values, both, of_verl, strict=True)
            ]
        found.append(_Given(path, name, values))
    return found


def framework_of(record: Mapping[str, object]) -> Mapping[str, object]:
    """What a record says of the framework that wrote it."""
    framework = record.get("framework")
    return framework if isinstance(framework, dict) else {}


def _canonical_columns(path: str, name: str, values: Sequence[Any]) -> Mapping[str, Sequence[Any]]:
    """Hyperparameter → [M] the values that one name gives it.

    Between two numbers that are allowed, all are, but for fractions: most columns need few checks.
    """
    kinds = set(map(type, values))
    if len(kinds) == 1 and values[0] is not ABSENT:
        if values.count(values[0]) == len(values):
            found = read_value(path, name, values[0])
            return {own: [one] * len(values) for own, one in found.items()}
        if kinds <= {int, float} and all(map(math.isfinite, values)):
            ends = [read_value(path, name, one) for one in (min(values), max(values))]
            made = {type(one) for end in ends for one in end.values()}
            if made == {float} or made == kinds:
                column = [*map(float, values)] if made == {float} else values
                return dict.fromkeys(ends[0], column)
    each = [{} if one is ABSENT else read_value(path, name, one) for one in values]
    names = dict.fromkeys(chain.from_iterable(each))
    return {own: [one.get(own, ABSENT) for one in each] for own in names}


def read_value(path: str, name: str, value: object) -> Mapping[str, Value]:
    """The hyperparameters that a value of some name gives; do not change the answer.

    Raises:
        InputError: for an unknown name, or a value outside its meaning.
    """
    try:
        return _cached(path, name, value)
    except TypeError:  # a list or an object cannot be a key
        return _canonical(path, name, value)


def _canonical(path: str, name: str, value: object) -> Mapping[str, Value]:
    try:
        return canonical({name: value})
    except HyperparameterError as error:
        raise InputError(error.message, path=path) from None


_cached = lru_cache(maxsize=1024, typed=True)(_canonical)


def _check_same(before: _Given, column: Sequence[Any], path: str) -> None:
    """Stops where two names give a record different values."""
    for one, other in zip(before.values, column, strict=True):
        if one != other and ABSENT not in (one, other):
            contradiction = f"{got(other)} contradicts {before.path}, which is {got(one)}"
            raise InputError(contradiction, path=path)


def _filled(first: Sequence[Any], second: Sequence[Any] | None = None) -> Sequence[Any]:
    """The first column, with values of the second where a record gives none."""
    if second is None or ABSENT not in first:
        return first
    return [two if one is ABSENT else one for one, two in zip(first, second, strict=True)]
