"""``--where``: which objects are read; and places inside an object, as flags name them."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from grpo_cli.errors import InputError, UsageError, did_you_mean, nearest
from grpo_cli.records.fields import read_fields
from grpo_cli.records.record import ARRAYS, LISTS, Raw, listed

Path = tuple[str | int, ...]
"""Keys and indexes; where a key meets a list, it is that of each object in it."""

_OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY

_STEP = re.compile(r"([^.\[\]]+)(?:\[\*?\])*|\[(-?\d+)\]")


def read_path(text: str, flag: str) -> Path:
    """``choices[0].logprobs`` or ``rollouts[*].lp`` as its steps: ``[*]`` is no step.

    Raises:
        UsageError: for anything else; ``flag`` is where it was given.
    """
    steps: list[str | int] = []
    at = 0
    while at < len(text):
        found = _STEP.match(text, at)
        if found is None:
            break
        steps.append(found[1] if found[1] is not None else int(found[2]))
        at = found.end()
        if text[at : at + 1] == "." and at + 1 < len(text):
            at += 1
    if not steps or at < len(text) or isinstance(steps[0], int):
        raise UsageError(
            f"{flag}: expected a field like meta.step or choices[0].text, got {text!r}"
        )
    return tuple(steps)


_OF_TABLES = (*ARRAYS, np.integer)
_NESTED = (dict, *LISTS)


class Missing(Exception):  # noqa: N818 - the caller says what that means
    """There is nothing at the path."""


def look_up(value: Any, path: Path) -> Any:
    """The value at a path; a number may index a list with or without brackets.

    A table's row of numbers is a list here, as it is in JSON. A key of a list of objects gives a
    list, with null for those that lack it.

    Raises:
        Missing: where it leads nowhere.
    """
    for at, step in enumerate(path):
        try:
            value = value[int(step) if isinstance(value, LISTS) else step]
        except (LookupError, TypeError, ValueError):
            found = [_find_in(one, path[at:]) for one in value] if type(value) is list else []
            if all(one is None for one in found):
                raise Missing from None
            return found
    return value.tolist() if isinstance(value, _OF_TABLES) else value


def _find_in(value: Any, path: Path) -> Any:
    try:
        return look_up(value, path) if isinstance(value, _NESTED) else None
    except Missing:
        return None


@lru_cache
def spelled(path: Path) -> str:
    """The path as text."""
    first, *rest = path
    return str(first) + "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in rest)


_TESTS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_CONDITION = re.compile(r"\s*([^=!<>\s]+)\s*(==|!=|<=|>=|<|>)\s*([^=!<>\s].*?)\s*")
_ONE_OF = re.compile(r"\s*([^=!<>\s]+)\s+in\s*[(\[]\s*([^()\[\]]+?)\s*[)\]]\s*")
_ASSIGNED = re.compile(r"\s*([^=!<>\s]+)\s*=\s*([^=!<>]+?)\s*")
_BARE_LIST = re.compile(r"\s*([^=!<>\s]+)\s+in\s+([^=!<>()\[\]]+?)\s*")
_WORDS = {"true": True, "false": False, "null": None}


def hashable(value: Any) -> Any:
    """A field's value as a part of a key.

    Raises:
        InputError: for one that is nested too deeply.
    """
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return str(value)  # which JSON can be written of
    if not isinstance(value, _NESTED):
        return value
    try:
        return orjson.dumps(listed(value), default=str, option=_OPTIONS)
    except orjson.JSONEncodeError:
        raise InputError(
            "expected a field to group by, got a field that is nested too deeply"
        ) from None


class Condition(NamedTuple):
    """One comparison of a field with a constant, or with several (``in``).

    A field that is not there never matches; where there are ``others``, one of them may.
    """

    path: Path
    test: str
    wanted: Any
    others: tuple[Path, ...] = ()

    @property
    def paths(self) -> tuple[Path, ...]:
        """The fields of which one has to compare so."""
        return (self.path, *self.others)

    def holds(self, value: Any) -> bool:
        """Whether an object has the field, and it compares so."""
        for path in self.paths:
            with suppress(Missing):
                if self.compares(look_up(value, path)):
                    return True
        return False

    def compares(self, found: Any) -> bool:
        """The comparison; the text of a number, and a list of one, count as the number."""
        if self.test == "in":
            return any(_compares(found, "==", one) for one in self.wanted)
        return _compares(found, self.test, self.wanted)

    @property
    def each(self) -> list[Condition]:
        """A comparison with each of the constants."""
        if self.test != "in":
            return [self]
        return [Condition(self.path, "==", one) for one in self.wanted]

    def fits(self, found: NDArray[Any]) -> NDArray[np.bool_]:
        """[n] which numbers of an array compare so."""
        if self.test == "in":
            return np.any([one.fits(found) for one in self.each], axis=0)
        if isinstance(self.wanted, bool) or not isinstance(self.wanted, int | float):
            return np.full(len(found), self.compares(0.0))
        return np.asarray(_TESTS[self.test](found, self.wanted), dtype=np.bool_)


def _compares(found: Any, test: str, wanted: Any) -> bool:
    if isinstance(found, list) and len(found) == 1:
        found = found[0]
    if isinstance(found, str) and type(wanted) in (int, float):
        try:
            found = float(found)
        except ValueError:
            return test == "!="
    if isinstance(found, bool) != isinstance(wanted, bool):
        return test == "!="
    try:
        return bool(_TESTS[test](found, wanted))
    except TypeError:
        return False


def scalars(text: bytes, path: Path) -> list[Any]:
    """Every value that an object's text gives the last key of a path, at any depth.

    Raises:
        ValueError: where one of them is no scalar, a key may be written in another way, or the
            last key may be the index of a list.
    """
    mark = _mark(path[-1])
    if not mark or (b"\\" in text and b"\\u" in text):  # one character is found much faster
        raise ValueError
    found, at = [], _find(text, mark, 0)
    while at >= 0:
        at += len(mark)
        one = _AFTER.match(text, at)
        if one is None:
            raise ValueError
        found.append(_exact(one[1]))
        at = _find(text, mark, at)
    return found


def _find(text: bytes, mark: bytes, at: int) -> int:
    """Where a key is from a place on, as ``text.find``; -1 where it is not.

    Numbers are most of a text: it is read to the first of each of the key's letters, which is
    twenty times as fast, before the key itself is searched from there on.
    """
    for place, letter in enumerate(mark[1:-1], 1):
        first = text.find(letter, at)
        if first < 0:
            return -1
        at = max(at, first - place)
    return text.find(mark, at)


@lru_cache
def _mark(key: str | int) -> bytes:
    """A key as texts have it; nothing where they may write it in another way, or for an index."""
    if isinstance(key, int) or _INDEX.fullmatch(key) or '"' in key:
        return b""
    return b'"' + key.encode() + b'"' if key.isascii() and key.isprintable() else b""


def _exact(text: bytes) -> Any:
    """A scalar; an integer beyond 64 bits keeps all its digits (orjson makes it a float)."""
    value = orjson.loads(text)
    if isinstance(value, float) and text.removeprefix(b"-").isdigit():
        return int(text)
    return value


_AFTER = re.compile(rb'\s*:\s*(-?\d[\d.eE+-]*|"[^"\\]*"|true|false|null)\s*[,}\]]')
_INDEX = re.compile(r"\s*[+-]?[\d_]+\s*")


def read_conditions(texts: Iterable[str] | None, flag: str = "--where") -> tuple[Condition, ...]:
    """``step==120 && env!="math"`` as its conditions.

    Raises:
        UsageError: for anything else; ``flag`` is where it was given.
    """
    return tuple(_read(part, flag) for text in texts or () for part in _AND.split(text))


_UNQUOTED = r"""(?=(?:[^"']|"[^"]*"|'[^']*')*$)"""
_AND = re.compile(f"&&{_UNQUOTED}")
_COMMA = re.compile(f",{_UNQUOTED}")
_AND_WORD = re.compile(rf"(?:\band\b|[&,;])(?=\s*[^=!<>\s]+\s*(?:[=!]=|[<>])){_UNQUOTED}")
_OR = re.compile(rf"(\|\|?|\bor\b){_UNQUOTED}")


ASKED = Condition(("?",), "==", None)
"""What ``?`` is read as: it asks which fields there are."""


def _read(text: str, flag: str) -> Condition:
    if text.strip() == "?":
        return ASKED
    if found_or := _OR.search(text):
        raise UsageError(
            f"{flag}: {found_or[1]!r} is not supported: all tests must hold (&&). For one of "
            "several values write step in (5, 6); put a value that contains it in quotes"
        )
    if one_of := _ONE_OF.fullmatch(text):
        constants = tuple(_constant(one.strip()) for one in _COMMA.split(one_of[2]))
        return Condition(read_path(one_of[1], flag), "in", constants)
    if found_and := _AND_WORD.search(text):
        parts = f"{text[: found_and.start()].strip()} && {text[found_and.end() :].strip()}"
        raise UsageError(f"{flag}: write {parts!r}, got {text!r}")
    found = _CONDITION.fullmatch(text)
    if found is None:
        having = flag.endswith("having")
        examples = ("clip==high", "clip!=none") if having else ("step==120", "step in [5,6]")
        how = f"expected a comparison like {' or '.join(map(repr, examples))}"
        if equal := _ASSIGNED.fullmatch(text):
            how = f"write '{equal[1]}=={equal[2]}'"
        elif bare := _BARE_LIST.fullmatch(text):
            how = f"write '{bare[1]} in [{bare[2]}]'"
        raise UsageError(f"{flag}: {how} (== != < <= > >= in, &&), got {text!r}")
    quote = found[3][0]
    if quote in "'\"" and found[3].count(quote) == 1:
        raise UsageError(f"{flag}: the quote {quote} is not closed in {text.strip()}")
    return Condition(read_path(found[1], flag), found[2], _constant(found[3]))


def _constant(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def passes(conditions: tuple[Condition, ...], value: Any) -> bool:
    """Whether all conditions hold."""
    return all(one.holds(value) for one in conditions)


def refuted(conditions: tuple[Condition, ...], text: bytes) -> bool:
    """Whether one of them is seen to fail without decoding the text."""
    for one in conditions:
        try:
            given = chain.from_iterable(scalars(text, path) for path in one.paths)
            if not any(map(one.compares, given)):
                return True
        except (ValueError, orjson.JSONDecodeError):
            continue
    return False


def is_record(raw: Raw, wanted: str) -> bool:
    """Whether it is called so: by its id, or by its number where its id is no number itself."""
    given = raw.value.get("id") if isinstance(raw.value, dict) else None
    if isinstance(given, str | int | float) and str(given) == wanted:
        return True
    return not isinstance(given, int | float) and str(raw.number) == wanted


def only_group(value: dict[str, Any], wanted: str) -> dict[str, Any] | None:
    """The record without the responses of other groups; None where it has none of that group."""
    names = read_fields(value).names
    if "group_ids" not in names:
        return None
    ids = value[names["group_ids"]]
    if not isinstance(ids, list):
        return value if _is(ids, wanted) else None
    if len({isinstance(one, list) for one in ids}) > 1:
        return value  # parsing says what is wrong with it
    each = [one if isinstance(one, list) else [one] for one in ids]
    kept = [bool(one) and all(_is(label, wanted) for label in one) for one in each]
    if all(kept):
        return value
    if not any(kept):
        return None
    columns = {own for name, own in names.items() if name != "hyperparameters"}
    picked = {}
    for name, one in value.items():
        if name == names.get("rewards") and isinstance(one, dict):
            picked[name] = {function: _of(each, kept) for function, each in one.items()}
        else:
            picked[name] = _of(one, kept) if name in columns else one
    picked.pop("expected", None)  # it is of the whole record
    return picked


def _is(label: Any, wanted: str) -> bool:
    if isinstance(label, float) and label.is_integer():
        return wanted in (str(label), str(int(label)))
    return str(label) == wanted


def _of(one: Any, kept: list[bool]) -> Any:
    if not isinstance(one, list) or len(one) != len(kept):
        return one
    return [each for each, keep in zip(one, kept, strict=True) if keep]


LOOKED_AT = 100
"""Records from the beginning that are looked at."""

COUNTED = 2_000
"""Those after them that are counted."""

_LISTED = 5


def hint(
    raws: Sequence[Raw],
    where: Iterable[Condition],
    record: str | None,
    group: str | None,
    count: int | None,
) -> str:
    """The fields, ids or groups of the first records, near the ones that were asked for."""
    values = [raw.value for raw in raws if isinstance(raw.value, dict)]
    fields = "".join(_fields(values, one) for one in where)
    if fields and record is not None and record.isdecimal():
        return f"{fields}; a number for --record counts all records of the file"
    if fields or not values:
        return fields
    if record is not None:
        ids = [value["id"] for value in values if "id" in value]
        if not ids:
            named = record in map(str, _groups(values))
            of_group = f"; --group {record} chooses a group" if named else ""
            last = "" if count is None else f" to {count - 1}"
            return f"; the records have no ids: give a number, 0{last}{of_group}"
        return _near("the first ids:", record, ids)
    return "" if group is None else _near("the first groups:", group, _groups(values))


def _fields(values: Sequence[dict[str, Any]], condition: Condition) -> str:
    """The values of the field; where there is no such field, those that there are."""
    path, found = spelled(condition.path), []
    for value in values:
        with suppress(Missing):
            found.append(look_up(value, condition.path))
    if found:
        single = [one for one in found if not isinstance(one, list | dict)]
        if not single and isinstance(found[0], list):
            return f"; {path} is a list of {len(found[0])}, and {path}[0] its first value"
        if len({*single}) > _LISTED and all(type(one) in (int, float) for one in single):
            some = f" in the first {LOOKED_AT} records" if len(values) == LOOKED_AT else ""
            return f"; {path} is {min(single)} to {max(single)}{some}"
        return _near(f"{path} is", "", single)
    names = dict.fromkeys(name for value in values for name in value)
    lacking = f"the first records have no field {path}{did_you_mean(path, names)}; they have"
    return _near(lacking, path, list(names), most=len(names))


def fields_of(raws: Iterable[Raw]) -> dict[str, str]:
    """The fields of records, each with its first value."""
    found: dict[str, Any] = {}
    for raw in raws:
        found = (raw.plain() if isinstance(raw.value, dict) else {}) | found
    return {name: _described(value) for name, value in found.items()}


def _described(value: Any) -> str:
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"an object with {', '.join(value)}"
    return f"for example {value if isinstance(value, str) else orjson.dumps(value).decode()}"


def _groups(values: Sequence[dict[str, Any]]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        key = read_fields(value).names.get("group_ids")
        ids = value.get(key) if key is not None else None
        for one in ids if isinstance(ids, list) else [ids]:
            found += one if isinstance(one, list) else [] if one is None else [one]
    return found


def _near(beginning: str, wanted: str, names: Sequence[Any], most: int = _LISTED) -> str:
    """The first names; the near ones before the others."""
    texts = list(dict.fromkeys(map(str, names)))
    if not texts:
        return ""
    near = nearest(wanted, texts)
    listed = list(dict.fromkeys([*filter(None, [near]), *texts]))[:most]
    return f"; {beginning} {', '.join(listed)}{', …' if len(texts) > most else ''}"
