"""What a record expects, laid beside what it evaluates to, stage by stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.verify.quantities import KEYS, METRICS, QUANTITIES, Quantity, nothing
from grpo_cli.errors import InputError
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.records import Record
from grpo_cli.records.parse.scores import is_number
from grpo_cli.records.places import got as shown

Told = NDArray[np.bool_]

METRIC = "metrics"
"""The stage of what a trainer logs beside its loss."""


@dataclass(frozen=True)
class Expectation:
    """One thing that a record expects.

    Attributes:
        key: as ``expected`` has it; a metric's is ``metrics.NAME``.
        stage: the stage that makes it.
        level: "token", "response" or "record".
        values: [N as written], [R] or [1].
        told: the same, where a number is expected and not null.
        of: a breakdown's [N], [R] or [1] of it.
    """

    key: str
    stage: str
    level: str
    values: F64
    told: NDArray[np.bool_]
    of: Callable[[Breakdown], F64 | None]


def expectations(record: Record) -> tuple[list[Expectation], list[str]]:
    """What the record expects, in the order of the stages, and the keys that say nothing here.

    Raises:
        InputError: for a key that is not known, for a value that is no number, or for another
            number of them than tokens.
    """
    expected = _object(record.expected, "expected")
    for key in expected:
        if key not in KEYS:
            raise InputError(_unknown(key), path=f"expected.{key}")
    told = [key for key, value in expected.items() if value is not None and key in _QUANTITY]
    if len(told) > 1:
        told.sort(key=_ORDER.__getitem__)
    found = [_read(_QUANTITY[key], key, expected[key], record) for key in told]
    given = expected.get("metrics")
    metrics = {} if given is None else _object(given, "expected.metrics")
    found += [*_metrics(metrics)]
    return found, [f"metrics.{key}" for key in metrics if key not in METRICS]


_QUANTITY = {key: quantity for quantity in QUANTITIES for key in quantity.keys}
_ORDER = {key: at for at, key in enumerate(_QUANTITY)}
"""The order of the stages."""


def _object(value: object, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"expected an object, got {shown(value)}", path=path)
    return value


def _unknown(key: str) -> str:
    close = get_close_matches(key, KEYS, cutoff=0.5)
    near = f"did you mean {close[0]}?" if close else f"known are {', '.join(KEYS)}"
    return f"verify knows no such key; {near} (what a trainer logs goes under metrics)"


def _metrics(metrics: Mapping[str, Any]) -> Iterator[Expectation]:
    for name, value in metrics.items():
        if name in METRICS and value is not None:
            path = f"expected.metrics.{name}"
            values, told = _numbers([value], path)
            of = _boxed(METRICS[name])
            yield Expectation(f"metrics.{name}", METRIC, "record", values, told, of)


def _read(quantity: Quantity, key: str, value: object, record: Record) -> Expectation:
    path = f"expected.{key}"
    if is_number(value):
        values, told = _numbers([value], path)
        if quantity.whole is nothing:
            if len(record.widths) > 1:
                raise InputError(f"expected a list of numbers, got {shown(value)}", path=path)
            return Expectation(key, quantity.stage, "response", values, told, _firsts(quantity))
        return Expectation(key, quantity.stage, "record", values, told, _boxed(quantity.whole))
    rows = _rows(value, record)
    if rows is None or quantity.tokens is nothing:
        wanted = "a number" if quantity.tokens is nothing else "a number or a list"
        raise InputError(f"expected {wanted}, got {shown(value)}", path=path)
    flat, told, level = _flat(rows, record, path)
    if level == "response":
        return Expectation(key, quantity.stage, level, flat, told, _firsts(quantity))
    return Expectation(key, quantity.stage, level, flat, told, quantity.tokens)


def _rows(value: object, record: Record) -> list[Any] | None:
    if not isinstance(value, list):
        return None
    nested = record.shape is not None and len(value) == len(record.shape)
    if nested and all(isinstance(group, list) for group in value):
        return [row for group in value for row in group]
    return value


def _flat(rows: list[Any], record: Record, path: str) -> tuple[F64, Told, str]:
    """[N as written] and "token", or [R] and "response"."""
    if list not in map(type, rows):
        if record.nested > 1 or len(record.widths) > 1:
            _check_count(len(rows), len(record.widths), "response", path)
            return *_numbers(rows, path), "response"
        rows = [rows]
    _check_count(len(rows), len(record.widths), "response", path)
    flat: list[Any] = []
    for at, (row, width) in enumerate(zip(rows, record.widths, strict=True)):
        if not isinstance(row, list):
            raise InputError(f"expected a list of numbers, got {shown(row)}", path=f"{path}[{at}]")
        _check_count(len(row), width, "token", f"{path}[{at}]")
        flat += row
    return *_numbers(flat, path), "token"


def _check_count(came: int, wanted: int, what: str, path: str) -> None:
    if came != wanted:
        raise InputError(f"expected {wanted} numbers (one per {what}), got {came}", path=path)


def _numbers(values: list[Any], path: str) -> tuple[F64, Told]:
    """The numbers, and which of them are there; null expects nothing."""
    try:
        if {*map(type, values)} <= {float, int}:
            return np.array(values, dtype=np.float64), _all_told(len(values))
        told = np.ones(len(values), dtype=np.bool_)
        for at, value in enumerate(values):
            told[at] = value is not None
            if value is not None and not is_number(value):
                place = f"{path}, number {at}" if len(values) > 1 else path
                raise InputError(f"expected a number, got {shown(value)}", path=place)
        return np.array([np.nan if v is None else v for v in values], dtype=np.float64), told
    except OverflowError:
        raise InputError("expected a number that a double can hold", path=path) from None


@lru_cache(maxsize=64)
def _all_told(count: int) -> Told:
    told = np.ones(count, dtype=np.bool_)
    told.flags.writeable = False
    return told


def _boxed(of: Callable[[Breakdown], float | None]) -> Callable[[Breakdown], F64 | None]:
    def boxed(breakdown: Breakdown) -> F64 | None:
        value = of(breakdown)
        return None if value is None else np.array([value])

    return boxed


def _firsts(quantity: Quantity) -> Callable[[Breakdown], F64 | None]:
    """[R] the first token's value; NaN for a response without tokens."""

    def firsts(breakdown: Breakdown) -> F64 | None:
        if quantity.stage == "advantage" and breakdown.response_advantage is not None:
            return breakdown.response_advantage
        tokens, responses = quantity.tokens(breakdown), breakdown.batch.responses
        if tokens is None:
            return None
        filled = responses.lengths > 0
        found = np.full(responses.count, np.nan)
        found[filled] = tokens[responses.starts[filled]]
        return found

    return firsts
