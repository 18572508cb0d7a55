"""``--record`` and ``--group``: what they choose, and what there is where they find nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

from grpo_cli.records.choose.where import Condition, Missing, look_up, spelled
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


LOOKED_AT = 100
"""Records from the beginning that are looked at."""

_LISTED = 5


def hint(
    raws: Sequence[Raw], where: Iterable[Condition], record: str | None, group: str | None
) -> str:
    """The fields, ids or groups that there are, near the ones that were asked for."""
    values = [raw.value for raw in raws if isinstance(raw.value, dict)]
    said = list(filter(None, (_fields(values, one) for one in where)))
    if said or not values:
        return "".join(said)
    if record is not None:
        ids = [raw.value["id"] for raw in raws if isinstance(raw.value, dict) and "id" in raw.value]
        if not ids:
            return "; they have no ids, only numbers from 0"
        return _near("the first ids are", record, ids)
    if group is not None:
        return _near("the first groups are", group, _groups(values))
    return ""


def _fields(values: Sequence[dict[str, Any]], condition: Condition) -> str:
    """The values of the field; where there is no such field, those that there are."""
    path = spelled(condition.path)
    found = [look_up(value, condition.path) for value in values if _has(value, condition)]
    if found:
        return _near(f"{path} is", "", [one for one in found if not isinstance(one, list | dict)])
    names = dict.fromkeys(name for value in values for name in value)
    return _near(f"the first records have no field {path}, but", path, list(names), most=len(names))


def _has(value: dict[str, Any], condition: Condition) -> bool:
    try:
        look_up(value, condition.path)
    except Missing:
        return False
    return True


def _groups(values: Sequence[dict[str, Any]]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        key = read_fields(value).names.get("group_ids")
        ids = value.get(key) if key is not None else None
        for one in ids if isinstance(ids, list) else [ids]:
            found += one if isinstance(one, list) else [] if one is None else [one]
    return found


def _near(said: str, wanted: str, names: Sequence[Any], most: int = _LISTED) -> str:
    """The first names; the near ones before the others."""
    texts = list(dict.fromkeys(map(str, names)))
    if not texts:
        return ""
    near = get_close_matches(wanted, texts, n=1)
    listed = list(dict.fromkeys([*near, *texts]))[:most]
    return f"; {said} {', '.join(listed)}{', …' if len(texts) > most else ''}"
