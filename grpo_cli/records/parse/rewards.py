"""Rewards and advantages: one per response, per reward function, or per token."""

from __future__ import annotations

from math import isnan, nan
from typing import Any

from grpo_cli.errors import InputError
from grpo_cli.records.parse.columns import Shape, read_column
from grpo_cli.records.parse.numbers import Place, finite, per_response
from grpo_cli.records.places import count, got

Rewards = list[float] | list[list[float]]


def read_rewards(key: str, value: object, shape: Shape) -> tuple[Rewards, tuple[str, ...]]:
    """[R] rewards, or [R][K] with one for each reward function, and the functions' names.

    Of several functions some may give none (null), which reads NaN.

    Raises:
        InputError: for another number of them than responses, or an element that is no number.
    """
    if isinstance(value, dict):
        return _named(key, value, shape)
    values, place = per_response(key, value, shape, "reward")
    if type(values[0]) is list:
        return _by_function(values, place), ()
    return finite(values, place), ()


def _named(key: str, value: dict[str, Any], shape: Shape) -> tuple[Rewards, tuple[str, ...]]:
    if not value:
        raise InputError("expected at least 1 reward function, got none", path=key)
    columns = [
        _scored(*per_response(f"{key}.{name}", one, shape, "reward")) for name, one in value.items()
    ]
    found = [list(row) for row in zip(*columns, strict=True)]
    _check_scored(found, lambda at: f"{key}.*[{at}]")
    return found, tuple(value)


def _by_function(rows: list[Any], place: Place) -> list[list[float]]:
    functions = len(rows[0])
    if not functions:
        raise InputError("expected at least 1 reward function, got none", path=place(0))
    for at, row in enumerate(rows):
        if type(row) is not list or len(row) != functions:
            wanted = f"{count(functions, 'reward')} (as the first response has)"
            came = len(row) if type(row) is list else got(row)
            raise InputError(f"expected {wanted}, got {came}", path=place(at))
    flat = [one for row in rows for one in row]
    numbers = _scored(flat, lambda at: f"{place(at // functions)}[{at % functions}]")
    found = [numbers[at : at + functions] for at in range(0, len(numbers), functions)]
    _check_scored(found, place)
    return found


def _scored(values: list[Any], place: Place) -> list[float]:
    """The same numbers as floats; NaN where a reward function gave none (null)."""
    if None not in values:
        return finite(values, place)
    finite([0.0 if value is None else value for value in values], place)
    return [nan if value is None else float(value) for value in values]


def _check_scored(rows: list[list[float]], place: Place) -> None:
    for at, row in enumerate(rows):
        if all(map(isnan, row)):
            raise InputError(
                "expected a reward of at least 1 function, got null of all; leave the response "
                "out, or give advantages (TRL's is 0)",
                path=place(at),
            )


def read_advantages(
    key: str, value: object, shape: Shape, mask: bytes | None
) -> list[float] | bytes:
    """[R] advantages, or the bytes of a token column.

    Raises:
        InputError: for another number of them than responses or tokens, or one that is no number.
    """
    if _depth(value) == shape.nested and (shape.nested > 1 or _per_token(value, shape)):
        return read_column(key, value, shape, mask)
    return finite(*per_response(key, value, shape, "advantage"))


def _per_token(value: Any, shape: Shape) -> bool:
    return shape.single and len(value) == shape.rows[0]


def _depth(value: Any) -> int:
    depth = 0
    while type(value) is list:
        depth += 1
        value = next((one for one in value if one != []), value[0] if value else None)
    return depth
