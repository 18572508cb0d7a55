"""The hyperparameters that records give, column by column."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Any

from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import (
    HOLDERS,
    KNOWN,
    SETS,
    SWITCHES,
    HyperparameterError,
    Value,
    canonical,
    parameter_of,
)
from grpo_cli.records.fields import Fields, refuse_slips
from grpo_cli.records.places import got
from grpo_cli.records.unread import is_setting, meant_setting

ABSENT: Any = ...
"""Marks a hyperparameter that a record does not give."""


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
    if len({(*one.columns,) for one in parts}) > 1:
        return settings_of([*chain.from_iterable(parts)])
    columns = {
        name: [*chain.from_iterable([one.columns[name] for one in parts])]
        for name in parts[0].columns
    }
    return Settings(sum([one.count for one in parts]), columns)


def settings_of(each: Sequence[Mapping[str, Value]]) -> Settings:
    """The columns of what each record gives."""
    names = sorted({*chain.from_iterable(each)})
    columns = {name: [given.get(name, ABSENT) for given in each] for name in names}
    return Settings(len(each), columns)


def keys_of_settings(value: Mapping[str, Any]) -> dict[str, str]:
    """Hyperparameter → the key under which an object gives it, ``epsilon`` for both of its sides.

    Its own keys go before those of a trainer's configuration.
    """
    found: dict[str, str] = {}
    for holder in (value, *(value.get(key) for key in ("hyperparameters", "hyper", *HOLDERS))):
        keys = KNOWN.intersection(holder) if isinstance(holder, dict) else ()
        names = sorted((parameter_of(key) in SETS, key) for key in keys)  # exact ones first
        for _, key in names:
            for name in SETS.get(parameter_of(key), (parameter_of(key),)):
                found.setdefault(name, key)
    return found


_Given = tuple[str, str, Sequence[Any]]
"""The path of a hyperparameter's name, the name, and [M] the values that records give it."""


def read_settings(objects: Sequence[Mapping[str, Any]], fields: Fields) -> Settings:
    """The hyperparameters of records with these fields.

    Their own go before those of a trainer's configuration in ``settings``, ``config``, ….

    Raises:
        InputError: for a misspelt name, a value out of range, or two different values.
    """
    found = _merged(_given(objects, fields))
    for name, column in _merged(_held(objects, fields)).items():
        found[name] = _filled(found[name], column) if name in found else column
    return Settings(len(objects), dict(sorted(found.items())))


def _merged(given: Iterable[_Given]) -> dict[str, Sequence[Any]]:
    """Hyperparameter → [M] its values, where names of it do not contradict each other."""
    # Names that set several (epsilon) give way to the particular ones.
    broad: dict[str, Sequence[Any]] = {}
    exact: dict[str, Sequence[Any]] = {}
    paths: dict[tuple[str, bool], str] = {}
    for path, name, values in given:
        columns = _canonical_columns(path, name, values)
        is_exact = len(columns) == 1
        known = exact if is_exact else broad
        for own, column in columns.items():
            before = paths.setdefault((own, is_exact), path)
            known[own] = _agreed(known[own], before, column, path) if own in known else column
    found = {**broad, **exact}
    found |= {name: _filled(exact[name], broad[name]) for name in broad.keys() & exact.keys()}
    return found


def _given(objects: Sequence[Mapping[str, Any]], fields: Fields) -> list[_Given]:
    """The names at the records' top level, then those of ``hyperparameters``."""
    own = fields.hyperparameters
    found: list[_Given] = [(name, name, _values(objects, name)) for name in own]
    names = dict.fromkeys(own)
    if (key := fields.names.get("hyperparameters")) is not None:
        nested = [one[key] for one in objects]
        for one in nested:
            if not isinstance(one, dict):
                raise InputError(f"expected an object, got {got(one)}", path=key)
        names = dict.fromkeys(chain.from_iterable(nested))
        others = [name for name in names if name not in KNOWN]
        refuse_slips(others, "hyperparameter", meant_setting, f"{key}.")
        for name in (name for name in names if name in KNOWN):
            found.append((f"{key}.{name}", name, _values(nested, name)))
    both_sides = _BOTH_SIDES in names or _BOTH_SIDES in own
    return _without_both_sides(objects, found) if both_sides else found


def _values(each: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    """What objects give a hyperparameter; 0 where they say that it is not used."""
    switch = SWITCHES.get(name, "")
    return [
        0.0 if name in one and one.get(switch) is False else one.get(name, ABSENT) for one in each
    ]


def _held(objects: Sequence[Mapping[str, Any]], fields: Fields) -> Iterator[_Given]:
    """The numbers of hyperparameters in objects with a trainer's configuration."""
    for key in fields.unknown:
        if key not in HOLDERS:
            continue
        each = [one[key] if isinstance(one[key], dict) else {} for one in objects]
        for name in dict.fromkeys(chain.from_iterable(each)):
            given = _values(each, name)
            values = [value if is_setting(name, value) else ABSENT for value in given]
            if any(value is not ABSENT for value in values):
                yield f"{key}.{name}", name, values


_BOTH_SIDES = "clip_ratio"
"""verl takes it only where a side is null."""
_VERL_SIDES = ("clip_ratio_low", "clip_ratio_high")
"""They are 0.2 where verl's configuration does not say."""


def _without_both_sides(objects: Sequence[Mapping[str, Any]], given: list[_Given]) -> list[_Given]:
    """The same, where verl's records give ``clip_ratio`` for the sides that are null alone."""
    both = next(values for _, name, values in given if name == _BOTH_SIDES)
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
        found.append((path, name, values))
    return found


def framework_of(record: Mapping[str, object]) -> Mapping[str, object]:
    """What a record says of the framework that wrote it."""
    framework = record.get("framework")
    return framework if isinstance(framework, dict) else {}


def _canonical_columns(path: str, name: str, values: Sequence[Any]) -> Mapping[str, Sequence[Any]]:
    """Hyperparameter → [M] the values that one name gives it.

    Between two numbers that are allowed, all are, but for fractions: most columns need no others.
    """
    first, count = values[0], len(values)
    kinds = {type(first)} if count == 1 else set(map(type, values))
    if len(kinds) == 1 and first is not ABSENT:
        if values.count(first) == count:
            found = read_value(path, name, first)
            return {own: [one] * count for own, one in found.items()}
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
        InputError: for an unknown name, or a value out of range.
    """
    try:
        return _canonical(path, name, value)
    except TypeError:  # a list or an object cannot be a key
        return _canonical.__wrapped__(path, name, value)


@lru_cache(maxsize=1024, typed=True)
def _canonical(path: str, name: str, value: object) -> Mapping[str, Value]:
    try:
        return canonical({name: value})
    except HyperparameterError as error:
        raise InputError(error.message, path=path) from None


_UNSET = (None, ABSENT)


def _agreed(before: Sequence[Any], where: str, column: Sequence[Any], path: str) -> Sequence[Any]:
    """The values that two names of a hyperparameter give; a null gives way to a value.

    Frameworks' configurations have null under a deprecated name.

    Raises:
        InputError: where they give a record different values.
    """
    for one, other in zip(before, column, strict=True):
        if one != other and one not in _UNSET and other not in _UNSET:
            contradiction = f"{got(other)} contradicts {where}, which is {got(one)}"
            raise InputError(contradiction, path=path)
    pairs = zip(before, column, strict=True)
    return [
        two if one is ABSENT or (one is None and two is not ABSENT) else one for one, two in pairs
    ]


def _filled(first: Sequence[Any], second: Sequence[Any]) -> Sequence[Any]:
    """The first column, with values of the second where a record gives none."""
    return [two if one is ABSENT else one for one, two in zip(first, second, strict=True)]
