"""Values of whole responses: rewards, baselines, advantages, and the group of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import chain
from math import isclose, isfinite, isnan, nan
from typing import Any

from grpo_cli.errors import InputError
from grpo_cli.records.packed import LARGEST
from grpo_cli.records.parse.columns import Shape, is_number, read_column
from grpo_cli.records.places import as_float, count, got, response

WITHIN = f"a number between {-LARGEST:g} and {LARGEST:g}"

_FLOATS, _NUMBERS = {float}, {float, int}
Place = Callable[[int], str]
Rewards = list[float] | list[list[float]]
Groups = tuple[list[int] | None, list[Any] | None]


def finite(values: list[Any], place: Place) -> list[float]:
    """Numbers as floats.

    Raises:
        InputError: at the first that is no number, not finite, or beyond ``LARGEST``.
    """
    kinds = set(map(type, values))
    if kinds <= _NUMBERS and all(-LARGEST <= one <= LARGEST for one in values):
        return values if kinds == _FLOATS else list(map(float, values))
    if kinds == {bool} and (key := place(0).partition("[")[0]) != place(0):
        fix = f"jq -c '(.{key}|..|booleans) |= (if . then 1 else 0 end)'"
        raise InputError(f"expected numbers, got true and false; write 1 and 0: {fix}", path=key)
    at = next(
        at for at, one in enumerate(values) if not (is_number(one) and -LARGEST <= one <= LARGEST)
    )
    wanted = "a number"
    if is_number(values[at]):
        wanted = WITHIN if isfinite(as_float(values[at])) else "a finite number"
    raise InputError(f"expected {wanted}, got {got(values[at])}", path=place(at))


_TOTALS = {"total", "sum", "overall", "combined", "total_reward", "reward_total", "final"}


def total_among(functions: Mapping[str, Any]) -> str | None:
    """The reward function that is the sum of two others or more, or is called a total."""
    rows = {name: one if type(one) is list else [one] for name, one in functions.items()}
    each = [*zip(*rows.values(), strict=False)]
    if len(rows) > 2 and all(map(is_number, chain(*each))) and all(map(any, rows.values())):
        for at, name in enumerate(rows):
            if all(isclose(2.0 * one[at], sum(one), rel_tol=1e-6, abs_tol=1e-9) for one in each):
                return name
    return next((name for name in rows if len(rows) > 1 and name.lower() in _TOTALS), None)


def per_response(key: str, value: object, shape: Shape, what: str) -> tuple[list[Any], Place]:
    """[R] an element for each response, and its place.

    A single number is the list of one where there is one response. Where groups are nested, the
    elements may be nested likewise.

    Raises:
        InputError: if there are fewer or more than responses; ``what`` is what they are.
    """
    responses, outer = len(shape.widths), shape.outer
    if type(value) is not list:
        if responses == 1:
            return [value], lambda _: key
        size, came = 1, got(value)
    elif outer is not None and outer == [len(one) if type(one) is list else 0 for one in value]:
        flat = [one for group in value for one in group]
        return flat, lambda at: f"{key}{response(at, outer)}"
    elif len(value) == responses:
        return value, lambda at: f"{key}[{at}]"
    else:
        size, came = len(value), str(len(value))
    wanted = f"{count(responses, what)} (one per response)"
    tokens = sum(shape.widths)
    if what == "advantage" and tokens != responses:
        wanted += f" or {tokens:,} (one per token)"
    elif what == "reward" and size == tokens > 1 and shape.single:
        came += "; if they are one per token: call them token_rewards, or sum them"
    raise InputError(f"expected {wanted}, got {came}{_doubt(shape, size, what)}", path=key)


def _doubt(shape: Shape, size: int, what: str) -> str:
    """Advice where the column may be meant for other responses than its nesting says.

    One list of numbers may be one response's tokens, and lists for each token all of its words'.
    """
    if shape.nested > 1:
        return shape.doubt if size == (1 if shape.outer is None else len(shape.outer)) else ""
    if shape.single or what != "reward":
        return ""
    return (
        f"; {shape.key} is a flat list with one number per response: write values per token "
        "as [[…]]"
    )


def read_rewards(key: str, value: object, shape: Shape) -> tuple[Rewards, tuple[str, ...]]:
    """[R] rewards, or [R][K] with one for each reward function, and the functions' names.

    Of several functions some may give none (null), which reads NaN.

    Raises:
        InputError: for another number of them than responses, or an element that is no number.
    """
    if isinstance(value, dict):
        if not value:
            raise InputError("expected at least 1 reward function, got none", path=key)
        columns = [
            _with_nulls(*per_response(f"{key}.{name}", one, shape, "reward"))
            for name, one in value.items()
        ]
        found = [list(row) for row in zip(*columns, strict=True)]
        return _check_given(found, lambda at: f"{key}.*[{at}]"), tuple(value)
    values, place = per_response(key, value, shape, "reward")
    if type(values[0]) is list:
        return _by_function(values, place), ()
    return finite(values, place), ()


def count_unknown(key: str, value: object, shape: Shape) -> int:
    """How many responses have null from all reward functions.

    Raises:
        InputError: for another number of rewards than responses.
    """
    columns = [*value.items()] if isinstance(value, dict) else [("", value)]
    each = [
        per_response(f"{key}.{name}" if name else key, one, shape, "reward")[0]
        for name, one in columns
    ]
    return sum(all(map(_is_null, row)) for row in zip(*each, strict=True))


def _is_null(given: Any) -> bool:
    """Whether a reward, or those of all functions, is null."""
    return given is None or (isinstance(given, list) and {*map(type, given)} == {type(None)})


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
    numbers = _with_nulls(flat, lambda at: f"{place(at // functions)}[{at % functions}]")
    found = [numbers[at : at + functions] for at in range(0, len(numbers), functions)]
    return _check_given(found, place)


def _with_nulls(values: list[Any], place: Place) -> list[float]:
    """Numbers as floats; NaN where a reward function gave none (null)."""
    if None not in values:
        return finite(values, place)
    finite([0.0 if value is None else value for value in values], place)
    return [nan if value is None else float(value) for value in values]


def _check_given(rows: list[list[float]], place: Place) -> list[list[float]]:
    """The rows. Each must have a number."""
    for at, row in enumerate(rows):
        if all(map(isnan, row)):
            raise InputError(
                "expected a reward from at least 1 function, got null from all; leave out the "
                "response, or give advantages (TRL uses 0)",
                path=place(at),
            )
    return rows


def read_advantages(key: str, value: Any, shape: Shape, mask: bytes | None) -> list[float] | bytes:
    """[R] advantages, or the bytes of a token column.

    Raises:
        InputError: for another number of them than responses or tokens, or one that is no number.
    """
    flat_tokens = shape.single and type(value) is list and len(value) == shape.rows[0]
    if shape.nested == 2 and {*shape.widths} != {1} and _is_per_row(value):
        value = [one[0] for one in value]
    if depth(value) == shape.nested and (shape.nested > 1 or flat_tokens):
        return read_column(key, value, shape, mask)
    return finite(*per_response(key, value, shape, "advantage"))


def _is_per_row(value: object) -> bool:
    """Whether it is a list of lists of one number, as a tensor of B × 1 is."""
    return type(value) is list and all(type(one) is list and len(one) == 1 for one in value)


def depth(value: Any) -> int:
    """How deep lists are nested, by their first elements."""
    levels = 0
    while type(value) is list:
        levels += 1
        value = next((one for one in value if one != []), value[0] if value else None)
    return levels


def read_groups(record: Mapping[str, Any], names: Mapping[str, str], shape: Shape) -> Groups:
    """[R] the 0-based group of each response (None for a single group), and the user's labels.

    Raises:
        InputError: for ids or a size that do not fit the responses, the nesting or each other.
    """
    ids, size = names.get("group_ids"), names.get("group_size")
    groups: list[int] | None = None
    labels: list[Any] | None = None
    if shape.outer is not None:
        groups = [group for group, length in enumerate(shape.outer) for _ in range(length)]
    if ids is not None:
        rows, _ = read_ids(ids, record[ids], shape, "group id", groups)
        labels = list(dict.fromkeys(rows))
        numbers = {label: number for number, label in enumerate(labels)}
        if groups is not None and groups != [numbers[label] for label in rows]:
            raise InputError("expected one id per nested group, got other groups", path=ids)
        groups = [numbers[label] for label in rows]
    if size is not None:
        groups = _sized(size, record[size], len(shape.widths), groups, ids or shape.key)
    return groups if groups and groups != [0] * len(groups) else None, labels


def read_ids(
    key: str, value: object, shape: Shape, what: str, nested: list[int] | None = None
) -> tuple[list[Any], Place]:
    """[R] the id of what each response belongs to, and its place; a single id is that of all.

    Raises:
        InputError: for another number of them than responses, or one that is no id.
    """
    if type(value) is not list:
        _check_id(key, value)
        return [value] * len(shape.widths), lambda _: key
    if nested is not None and len(value) == nested[-1] + 1 and type(value[0]) is not list:
        value = [value[group] for group in nested]
    rows, place = per_response(key, value, shape, what)
    if not set(map(type, rows)) <= {str, int}:
        for at, one in enumerate(rows):
            _check_id(place(at), one)
    return rows, place


def is_id(value: object) -> bool:
    """Whether it names something: text, or a number."""
    return isinstance(value, str) or (is_number(value) and value == value)


def _check_id(path: str, value: object) -> None:
    if not is_id(value):
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
            clash = f"{got(size)} contradicts {other}, which has a group of"
            raise InputError(f"{clash} {count(members, 'response')}", path=key)
        return groups
    if responses % size:
        wanted = f"a divisor of {responses} (the number of responses)"
        raise InputError(f"expected {wanted}, got {got(size)}", path=key)
    return [row // int(size) for row in range(responses)]
