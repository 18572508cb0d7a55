"""Which responses answer the same prompt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from grpo_cli.errors import InputError
from grpo_cli.records.parse.columns import Shape
from grpo_cli.records.parse.numbers import is_number, per_response
from grpo_cli.records.places import count, got

Groups = tuple[list[int] | None, list[Any] | None]


def read_groups(record: Mapping[str, Any], names: Mapping[str, str], shape: Shape) -> Groups:
    """[R] the 0-based group of each response (None for a single group), and the user's labels.

    Raises:
        InputError: for ids or a size that do not fit the responses, the nesting or each other.
    """
    ids, size = names.get("group_ids"), names.get("group_size")
    groups, labels = _nested_groups(shape), None
    if ids is not None:
        groups, labels = _labelled(ids, record[ids], shape, groups)
    if size is not None:
        groups = _sized(size, record[size], len(shape.widths), groups, ids or shape.key)
    return groups if groups and groups != [0] * len(groups) else None, labels


def _nested_groups(shape: Shape) -> list[int] | None:
    if shape.outer is None:
        return None
    return [group for group, size in enumerate(shape.outer) for _ in range(size)]


def _labelled(
    key: str, value: object, shape: Shape, nested: list[int] | None
) -> tuple[list[int], list[Any]]:
    rows = _ids(key, value, shape, nested)
    numbers = {label: number for number, label in enumerate(dict.fromkeys(rows))}
    groups = [numbers[label] for label in rows]
    if nested is not None and groups != nested:
        raise InputError("expected one id for each nested group, got other groups", path=key)
    return groups, list(numbers)


def _ids(key: str, value: object, shape: Shape, nested: list[int] | None) -> list[Any]:
    if type(value) is not list:
        _check_id(key, value)
        return [value] * len(shape.widths)
    if nested is not None and len(value) == nested[-1] + 1 and type(value[0]) is not list:
        value = [value[group] for group in nested]
    rows, place = per_response(key, value, shape, "group id")
    if not set(map(type, rows)) <= {str, int}:
        for at, one in enumerate(rows):
            _check_id(place(at), one)
    return rows


def _check_id(path: str, value: object) -> None:
    if not isinstance(value, str) and not (is_number(value) and value == value):
        raise InputError(f"expected a string or a number, got {got(value)}", path=path)
    if isinstance(value, float) and abs(value) >= 2.0**63:
        wanted = "expected an id of at most 64 bits"  # else it was rounded when the text was read
        raise InputError(f"{wanted}, got {got(value)}; write such ids as strings", path=path)


def _sized(key: str, size: Any, responses: int, groups: list[int] | None, other: str) -> list[int]:
    if not is_number(size) or size < 1 or size % 1 != 0:
        raise InputError(f"expected a whole number >= 1, got {got(size)}", path=key)
    if groups is not None:
        members = next((one for one in Counter(groups).values() if one != size), size)
        if members != size:
            said = f"{got(size)} contradicts {other}, which has a group of"
            raise InputError(f"{said} {count(members, 'response')}", path=key)
        return groups
    if responses % size:
        wanted = f"a divisor of {responses} (the number of responses)"
        raise InputError(f"expected {wanted}, got {got(size)}", path=key)
    return [row // int(size) for row in range(responses)]
