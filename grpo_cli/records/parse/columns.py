"""Token columns: nested lists of numbers → the bytes of one flat float64 array.

The short way packs a whole column in one call. Only what it refuses, or what could hide a boolean,
is looked at element by element to say where the fault is.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import iconcat
from typing import Any

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.errors import InputError
from grpo_cli.records import places
from grpo_cli.records.packed import Unusual, pack_bits, pack_floats
from grpo_cli.records.places import count, got

_LEVELS = ("group", "response")


@dataclass(slots=True, eq=False)
class Shape:
    """How a record nests its token columns. All columns follow the one that is read first.

    Attributes:
        key: that column, as written.
        value: its lists.
        nested: 1 for ``[G]`` or one response's ``[T]``, 2 for ``[G][T]``, 3 for ``[B][G][T]``.
        rows: how long each of the innermost lists is.
        outer: the number of responses of each group, for 3 levels.
        single: whether a flat list is the tokens of one response.
    """

    key: str
    value: list[Any]
    nested: int
    rows: list[int]
    outer: list[int] | None = None
    single: bool = False

    @property
    def widths(self) -> list[int]:
        """[R] tokens of each response."""
        return self.rows if self.nested > 1 or self.single else [1] * self.rows[0]

    @property
    def doubt(self) -> str:
        """Advice where something else has a level less than the column."""
        return guess_rows(self.key, self.value, self.rows, deep=self.nested == 3)

    def place(self, flat: int) -> str:
        """The place of the token with a flat index, for messages."""
        return places.index(flat, self.nested, self.rows, self.outer)


_A_ROW_PER_TOKEN = "; if each row is a token: collect the tokens of a response into one row's list"


def read_shape(key: str, value: object) -> Shape:
    """The nesting of a record's first column; ``single`` is left for the caller to set.

    Raises:
        InputError: if it is not lists all the way, or has no responses.
    """
    if type(value) is not list or not value:
        came = "an empty list" if value == [] else got(value)
        came += _A_ROW_PER_TOKEN * is_number(value)
        raise InputError(f"expected a list of numbers, got {came}", path=key)
    if type(value[0]) is not list:
        return Shape(key, value, 1, [len(value)])
    _all_lists(key, value)
    if type(_first(value)) is not list:
        return Shape(key, value, 2, list(map(len, value)))
    for number, group in enumerate(value):
        if not group:
            raise InputError("expected at least 1 response, got none", path=f"{key}[{number}]")
        _all_lists(f"{key}[{number}]", group)
    return Shape(key, value, 3, list(map(len, _join(value))), list(map(len, value)))


def refuse_odd_shape(shape: Shape, columns: Mapping[str, object]) -> None:
    """Blames the first column where more of the others agree with each other than with it.

    Raises:
        InputError: with the first place where that column is the odd one.
    """
    others = {key: one for key, one in columns.items() if type(one) is list and one}
    nested = {key: _nesting(one) for key, one in others.items()}
    usual, most = Counter(nested.values()).most_common(1)[0]
    if usual != shape.nested and most > 1:
        like = next(key for key, level in nested.items() if level == usual)
        wanted, came = ("lists" + " of lists" * (level - 1) for level in (usual, shape.nested))
        message = f"expected {wanted.replace('lists', 'a list', 1)} (as {like} is)"
        raise InputError(f"{message}, got {came.replace('lists', 'a list', 1)}", path=shape.key)
    if shape.nested > 2:
        return
    of_responses = {key: len(one) for key, one in others.items()}
    _refuse_minority(shape.key, "", of_responses, _LEVELS[1] if shape.nested > 1 else "number")
    for number in range(len(shape.value)) if shape.nested > 1 else ():
        rows = {key: one[number] for key, one in others.items() if len(one) > number}
        lengths = {key: len(row) for key, row in rows.items() if type(row) is list}
        _refuse_minority(shape.key, f"[{number}]", lengths, "number")


def _nesting(value: list[Any]) -> int:
    """How deep a column seems to be nested, by its first elements."""
    if type(value[0]) is not list:
        return 1
    return 2 if type(_first(value)) is not list else 3


def _refuse_minority(key: str, place: str, lengths: Mapping[str, int], level: str) -> None:
    counts = Counter(lengths.values())
    wanted, most = counts.most_common(1)[0]
    if most > counts[lengths[key]]:
        like = next(other for other, length in lengths.items() if length == wanted)
        expected = f"{count(wanted, level)} (as {like}{place} has)"
        raise InputError(f"expected {expected}, got {lengths[key]}", path=key + place)


def _first(rows: list[Any]) -> object:
    for row in rows:
        if row:
            return row[0] if type(row) is list else None
    return None


def _join(rows: list[Any]) -> list[Any]:
    # Several times faster than itertools.chain, which moves one element at a time.
    return reduce(iconcat, rows, [])


def _all_lists(path: str, value: list[Any]) -> None:
    if set(map(type, value)) == {list}:
        return
    number, other = next((i, one) for i, one in enumerate(value) if type(one) is not list)
    raise InputError(f"expected a list of numbers, got {got(other)}", path=f"{path}[{number}]")


def flatten(key: str, value: object, shape: Shape) -> list[Any]:
    """[N] the elements of a column, response after response.

    Raises:
        InputError: if the column is not nested as the first one is.
    """
    return _join(innermost(key, value, shape))


def innermost(key: str, value: object, shape: Shape, leaf: str = "number") -> list[list[Any]]:
    """The innermost lists of a column; ``leaf`` is what they hold.

    Raises:
        InputError: if the column is not nested as the first one is.
    """
    try:
        rows = _rows(value, shape)
        if [*map(len, rows)] == shape.rows and set(map(type, rows)) == {list}:
            return rows
    except TypeError:  # an element without a length
        pass
    check_nesting(key, value, shape, leaf)  # this raises, since they are not nested alike
    return _rows(value, shape)


def _rows(value: object, shape: Shape) -> list[Any]:
    """The innermost lists."""
    if type(value) is not list:
        raise TypeError
    if shape.nested == 1:
        return [value]
    if shape.nested == 2:
        return value
    if list(map(len, value)) != shape.outer:
        raise TypeError
    return _join(value)


def check_nesting(key: str, value: object, shape: Shape, leaf: str = "number") -> None:
    """Compares a column's nesting with the first column's; ``leaf`` is what it holds.

    Raises:
        InputError: at the first list that is missing, or longer or shorter than it should be.
    """
    try:
        _compare(value, shape.value, key, shape.key, (*_LEVELS[3 - shape.nested :], leaf))
    except InputError as error:
        if shape.nested == 3 and type(value) is list and type(_first(value)) is not list:
            error.message += shape.doubt
        raise


def _compare(value: object, model: list[Any], path: str, like: str, levels: Sequence[str]) -> None:
    if type(value) is not list or len(value) != len(model):
        came = len(value) if type(value) is list else got(value).removesuffix(places.QUOTED)
        if type(value) is int and value >= 0:  # which would be read as a length
            came = f"the number {value}"
        wanted = f"{count(len(model), levels[0])} (as {like} has)"
        raise InputError(f"expected {wanted}, got {came}", path=path)
    if len(levels) > 1:
        for number, (one, other) in enumerate(zip(value, model, strict=True)):
            _compare(one, other, f"{path}[{number}]", f"{like}[{number}]", levels[1:])


def read_column(
    key: str, value: object, shape: Shape, mask: bytes | None, *, nulls: bool = False
) -> bytes:
    """The float64 bytes of a column. Only a masked element may be null or a boolean.

    Args:
        mask: a byte for every token, or None.
        nulls: whether any element may be null, which reads NaN.

    Raises:
        InputError: for another shape than the first column's, or an element that is no number.
    """
    flat = flatten(key, value, shape)
    try:
        return pack_floats(flat).tobytes()
    except (struct.error, OverflowError):
        check_nesting(key, value, shape)
    except Unusual:
        pass
    return _pack_carefully(key, flat, shape, mask, nulls=nulls)


def _pack_carefully(
    key: str, flat: list[Any], shape: Shape, mask: bytes | None, *, nulls: bool
) -> bytes:
    numbers = []
    for at, value in enumerate(flat):
        masked = (mask is not None and not mask[at]) or (nulls and value is None)
        if not is_number(value) and not (masked and (value is None or type(value) is bool)):
            message = f"expected a number, got {got(value)}"
            if set(map(type, flat)) == {list}:
                message += guess_rows(key, flat, [*map(len, flat)], deep=True)
            raise InputError(message, path=key + shape.place(at))
        numbers.append(np.nan if value is None else places.as_float(value))
    return struct.pack(f"{len(numbers)}d", *numbers)


def fill_unscored(
    columns: dict[str, bytes], key: str, value: object, shape: Shape, mask: bytes | None
) -> int:
    """Gives tokens that the engine did not score the log-prob of the old policy.

    Their weight is 1 then, as in TRL, whose server writes null for a NaN of vLLM
    (trl/generation/vllm_generation.py).

    Args:
        columns: those of a record; ``log_probs_rollout`` of them changes.
        key, value: ``log_probs_rollout`` as written.
        mask: a byte for every token, or None.

    Returns:
        How many of them count.
    """
    filled = np.array(np.frombuffer(columns["log_probs_rollout"]))
    old = columns.get("log_probs_old", columns.get("log_probs_new"))
    if old is None or not np.isnan(filled).any():
        return 0
    unscored = np.array([one is None for one in flatten(key, value, shape)])
    filled[unscored] = np.frombuffer(old)[unscored]
    columns["log_probs_rollout"] = filled.tobytes()
    return int(unscored.sum() if mask is None else unscored[np.frombuffer(mask, np.bool_)].sum())


def is_number(value: object) -> bool:
    """Whether a decoded value is a number (true and false are not)."""
    return isinstance(value, float | int) and not isinstance(value, bool)


def read_mask(key: str, value: object, shape: Shape) -> bytes | None:
    """[N] a byte for every token, 1 where it counts; None if all count.

    Raises:
        InputError: for another shape than the first column's, or an element other than 0 or 1.
    """
    flat = flatten(key, value, shape)
    try:
        data = pack_bits(flat)
    except (Unusual, TypeError, ValueError):
        for at, bit in enumerate(flat):
            if not isinstance(bit, float | int) or bit not in (0, 1):
                message = f"expected 0 or 1, got {got(bit)}"
                raise InputError(message, path=key + shape.place(at)) from None
        data = bytes([bit == 1 for bit in flat])
    return data if b"\0" in data else None


_FROM = {"probs_old": "log_probs_old", "probs_ref": "log_probs_ref"}


def derive(
    columns: dict[str, bytes], names: Mapping[str, str], shape: Shape, mask: bytes | None
) -> tuple[str, ...]:
    """Adds to ``columns`` the log-probs that follow from ratios and probabilities.

    log π_old = log(probs_old), log π_ref = log(probs_ref), log π_θ = log π_old + log ρ.
    Probabilities are densities of whole samples: they may exceed 1 and are never normalised.

    Returns:
        The names of the columns added.

    Raises:
        InputError: for a probability or ratio that counts and is not finite and > 0.
    """
    if not ("ratios" in columns or "probs_old" in columns or "probs_ref" in columns):
        return ()
    derived = []
    for given, name in _FROM.items():
        if given in columns:
            columns[name] = _log(names[given], columns.pop(given), shape, mask).tobytes()
            derived.append(name)
    if "ratios" in columns:
        ratios = _log(names["ratios"], columns["ratios"], shape, mask)
        if "log_probs_old" in columns:
            columns["log_probs_new"] = (np.frombuffer(columns["log_probs_old"]) + ratios).tobytes()
            derived.append("log_probs_new")
    return tuple(derived)


def _log(key: str, column: bytes, shape: Shape, mask: bytes | None) -> np.ndarray:
    values = np.frombuffer(column)
    good = (values > 0.0) & (values < np.inf)
    if mask is not None:
        good |= np.frombuffer(mask, dtype=np.bool_) == 0
    if not good.all():
        at = int(np.argmin(good))
        wanted = "number > 0" if np.isfinite(values[at]) else "finite number"
        came = got(float(values[at]))
        raise InputError(f"expected a {wanted}, got {came}", path=key + shape.place(at))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(values)


# ---- what is no log-probs ---------------------------------------------------------------------

_MANY, _ENOUGH = 0.2, 6  # so large a part of so many values is no rounding
_LEAST = 3  # up to so many: all of them
ROUNDING = 0.01
"""The most that a log-sum-exp in bfloat16 is off, in nats: a log-prob of 0 that was rounded."""
_LOGITS = "look like logits: take log_softmax and select the sampled token"
_SPREAD, _NEAR_1 = 0.25, 0.15
"""Ratios to the old policy are all near 1; −log p of tokens spread more."""
_WIDE = 1000
"""From here on rows of equal length are a vocabulary rather than the tokens of responses."""


def guess_values(column: F64) -> str:
    """Names what a record's column seems to hold, where that is no log-probs."""
    numbers = column[np.isfinite(column)]
    needed = _MANY if numbers.size >= _ENOUGH else 1.0
    if numbers.size < _LEAST or np.mean(numbers > 0.0) < needed or numbers.max() <= ROUNDING:
        return ""
    if numbers.min() < 0.0:
        return f"; these {_LOGITS}"
    if numbers.max() <= 1.0:
        return "; these look like probabilities: take their natural logarithm"
    if np.std(numbers) < _SPREAD and abs(np.median(numbers) - 1.0) < _NEAR_1:
        return "; these look like importance ratios: call them ratios, or dump the log-probs"
    return "; these look like −log p (as losses are): negate them"


def guess_rows(key: str, column: list[Any], lengths: Sequence[int], *, deep: bool) -> str:
    """Names what a column seems to hold that is nested a level deeper than others."""
    first = column
    while first and type(first[0]) is list:
        first = first[0]
    numbers = all(isinstance(value, float | int) for value in first)
    if len(set(lengths)) > 1 or len(first) < 2 or not numbers:
        return ""
    above = sum(value > 0 for value in first)
    if not deep and (lengths[0] < _WIDE or above < _MANY * len(first)):
        return ""
    if above:
        return f"; the {lengths[0]:,} numbers in each list of {key} {_LOGITS}"
    return (
        f"; {key} is nested like several groups: if each of its lists of {lengths[0]:,} numbers "
        "covers the vocabulary, dump the log-prob of the sampled token only"
    )
