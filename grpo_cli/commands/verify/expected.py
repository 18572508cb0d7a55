"""Reads what a record expects: numbers per token, per response, or of the whole record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.verify.quantities import KEYS, LOSSES, METRICS, QUANTITIES, Quantity, Values
from grpo_cli.errors import InputError, nearest
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.records import Record
from grpo_cli.records.parse.columns import is_number
from grpo_cli.records.places import got as shown

Flags = NDArray[np.bool_]

METRIC = "metrics"
"""The stage of what a trainer logs besides its loss."""


@dataclass(frozen=True)
class Expectation:
    """One quantity that a record expects.

    Attributes:
        key: as ``expected`` has it; a metric's is ``metrics.NAME``.
        stage: the stage that makes it.
        level: "token", "response" or "record".
        values: [N as written], [R] or [1].
        given: which of the values are numbers and not null.
        evaluated: a breakdown's [N], [R] or [M] of it.
    """

    key: str
    stage: str
    level: str
    values: F64
    given: Flags
    evaluated: Values


Wanted = tuple[list[Expectation], list[str]]
"""What a record expects, in the order of the stages, and its keys that cannot be compared."""


_QUANTITY = {key: quantity for quantity in QUANTITIES for key in quantity.keys}
_ORDER = {key: at for at, key in enumerate(_QUANTITY)}
"""The order of the stages."""


def read_expectations(record: Record) -> Wanted:
    """Reads ``expected`` of a record.

    Raises:
        InputError: for an unknown key, for a value that is no number, or for a number of values
            that fits neither tokens nor responses; without the record's place.
    """
    expected = _object(record.expected, "expected")
    for key in expected:
        if key not in KEYS:
            raise InputError(_unknown(key), path=f"expected.{key}")
    keys = [key for key, value in expected.items() if value is not None and key in _QUANTITY]
    keys.sort(key=_ORDER.__getitem__)
    found = [_expectation(_QUANTITY[key], key, expected[key], record) for key in keys]
    given = expected.get("metrics")
    metrics = {} if given is None else _object(given, "expected.metrics")
    found += [*_metrics(metrics)]
    return found, [f"metrics.{key}" for key in metrics if key not in METRICS]


def read_numbers(record: Record) -> dict[str, float]:
    """The numbers that a trainer computed of a record and its step, by their path in ``expected``.

    Raises:
        InputError: for a value that is no number; without the record's place.
    """
    expected = _object(record.expected or {}, "expected")
    found = {name: expected.get(name) for name in (*LOSSES, "step_loss")}
    for name in ("metrics", "step_metrics"):
        metrics = _object(expected.get(name) or {}, f"expected.{name}")
        found |= {f"{name}.{key}": value for key, value in metrics.items()}
    given = {path: value for path, value in found.items() if value is not None}
    return {
        path: float(_numbers([value], f"expected.{path}")[0][0]) for path, value in given.items()
    }


def _object(value: object, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"expected an object, got {shown(value)}", path=path)
    return value


def _unknown(key: str) -> str:
    close = nearest(key, KEYS, cutoff=0.5)
    near = f"did you mean {close}?" if close else f"known keys: {', '.join(KEYS)}"
    return f"verify does not know this key; {near} (put what a trainer logs under metrics)"


def _metrics(metrics: Mapping[str, Any]) -> Iterator[Expectation]:
    for name, value in metrics.items():
        if name in METRICS and value is not None:
            numbers = _numbers([value], f"expected.metrics.{name}")
            yield Expectation(f"metrics.{name}", METRIC, "record", *numbers, METRICS[name])


def _expectation(quantity: Quantity, key: str, value: object, record: Record) -> Expectation:
    path, count = f"expected.{key}", len(record.widths)
    if is_number(value):
        numbers = _numbers([value], path)
        if quantity.record is not None:
            return Expectation(key, quantity.stage, "record", *numbers, quantity.record)
        if count > 1:
            raise InputError(f"expected a list of numbers, got {shown(value)}", path=path)
        return Expectation(key, quantity.stage, "response", *numbers, _of_responses(quantity))
    if not isinstance(value, list) or quantity.tokens is None:
        wanted = "a number" if quantity.tokens is None else "a number or a list"
        raise InputError(f"expected {wanted}, got {shown(value)}", path=path)
    rows = _without_groups(value, record)
    if list in map(type, rows):
        numbers = _numbers(_joined(rows, record, path), path)
    elif record.nested > 1 or count > 1:
        _check_count(len(rows), count, "response", path)
        numbers = _numbers(rows, path)
        return Expectation(key, quantity.stage, "response", *numbers, _of_responses(quantity))
    else:
        numbers = _numbers(_joined([rows], record, path), path)
    return Expectation(key, quantity.stage, "token", *numbers, quantity.tokens)


def _without_groups(rows: list[Any], record: Record) -> list[Any]:
    nested = record.shape is not None and len(rows) == len(record.shape)
    if nested and all(isinstance(group, list) for group in rows):
        return [row for group in rows for row in group]
    return rows


def _joined(rows: list[Any], record: Record, path: str) -> list[Any]:
    """Joins the rows of all responses, one number per token as written."""
    _check_count(len(rows), len(record.widths), "response", path)
    flat: list[Any] = []
    for at, (row, width) in enumerate(zip(rows, record.widths, strict=True)):
        if not isinstance(row, list):
            raise InputError(f"expected a list of numbers, got {shown(row)}", path=f"{path}[{at}]")
        _check_count(len(row), width, "token", f"{path}[{at}]")
        flat += row
    return flat


def _check_count(came: int, wanted: int, what: str, path: str) -> None:
    if came != wanted:
        raise InputError(f"expected {wanted} numbers (one per {what}), got {came}", path=path)


def _numbers(values: list[Any], path: str) -> tuple[F64, Flags]:
    """Returns the numbers, and which of them are not null."""
    try:
        if {*map(type, values)} <= {float, int}:
            return np.array(values, dtype=np.float64), np.ones(len(values), dtype=np.bool_)
        given = np.ones(len(values), dtype=np.bool_)
        for at, value in enumerate(values):
            given[at] = value is not None
            if value is not None and not is_number(value):
                place = f"{path}, number {at}" if len(values) > 1 else path
                raise InputError(f"expected a number, got {shown(value)}", path=place)
        return np.array([np.nan if v is None else v for v in values], dtype=np.float64), given
    except OverflowError:
        raise InputError("expected a number that a double can hold", path=path) from None


def _of_responses(quantity: Quantity) -> Values:
    """[R] the first token's value; NaN for a response without tokens."""

    def firsts(breakdown: Breakdown) -> F64 | None:
        if quantity.stage == "advantage" and breakdown.response_advantage is not None:
            return breakdown.response_advantage
        tokens = None if quantity.tokens is None else quantity.tokens(breakdown)
        if tokens is None:
            return None
        responses = breakdown.batch.responses
        filled = responses.lengths > 0
        found = np.full(responses.count, np.nan)
        found[filled] = tokens[responses.starts[filled]]
        return found

    return firsts
