"""``--record`` and ``--group``: which records are read, and which of their groups."""

from __future__ import annotations

from typing import Any

from grpo_cli.records.fields import read_fields
from grpo_cli.records.record import Raw


def is_record(raw: Raw, wanted: str) -> bool:
    """Whether it is called so: by its id, or by its number where its id is no number itself."""
    given = raw.value.get("id") if isinstance(raw.value, dict) else None
    if isinstance(given, str | int | float) and str(given) == wanted:
        return True
    return not isinstance(given, int | float) and str(raw.number) == wanted


def only_group(value: dict[str, Any], wanted: str) -> dict[str, Any] | None:
    """The record without the responses of other groups; None where it has none of that group."""
    key = read_fields(value).names.get("group_ids")
    if key is None:
        return None
    ids = value[key]
    if not isinstance(ids, list):
        return value if _is(ids, wanted) else None
    if len({isinstance(one, list) for one in ids}) > 1:
        return value  # what is wrong with it is told where it is parsed
    if ids and isinstance(ids[0], list):
        kept = [bool(one) and all(_is(each, wanted) for each in one) for one in ids]
    else:
        kept = [_is(one, wanted) for one in ids]
    if all(kept):
        return value
    if not any(kept):
        return None
    picked = {name: _picked(name, one, kept, value) for name, one in value.items()}
    picked.pop("expected", None)  # it is of the whole record
    return picked


def _is(label: Any, wanted: str) -> bool:
    if isinstance(label, float) and label.is_integer():
        return wanted in (str(label), str(int(label)))
    return str(label) == wanted


def _picked(key: str, one: Any, kept: list[bool], value: dict[str, Any]) -> Any:
    """The elements of the responses that stay, of whatever has one for each."""
    names = read_fields(value).names
    if key == names.get("rewards") and isinstance(one, dict):
        return {name: _of(each, kept) for name, each in one.items()}
    if key in names.values() and key != names.get("hyperparameters"):
        return _of(one, kept)
    return one


def _of(one: Any, kept: list[bool]) -> Any:
    if not isinstance(one, list) or len(one) != len(kept):
        return one
    return [each for each, keep in zip(one, kept, strict=True) if keep]
