"""``--record`` and ``--group``: what they choose, and what there is where they find nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from grpo_cli.errors import nearest
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
        return value  # parsing says what is wrong with it
    if ids and isinstance(ids[0], list):
        kept = [bool(one) and all(_is(each, wanted) for each in one) for one in ids]
    else:
        kept = [_is(one, wanted) for one in ids]
    if all(kept):
        return value
    if not any(kept):
        return None
    names = read_fields(value).names
    settings = names.get("hyperparameters")
    columns = {own for own in names.values() if own != settings}
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

_LISTED = 5


def hint(
    raws: Sequence[Raw], where: Iterable[Condition], record: str | None, group: str | None
) -> str:
    """The fields, ids or groups that there are, near the ones that were asked for."""
    values = [raw.value for raw in raws if isinstance(raw.value, dict)]
    fields = "".join(_fields(values, one) for one in where)
    if fields or not values:
        return fields
    if record is not None:
        ids = [value["id"] for value in values if "id" in value]
        if not ids:
            return "; they only have numbers, from 0"
        return _near("the first ids are", record, ids)
    return "" if group is None else _near("the first groups are", group, _groups(values))


def _fields(values: Sequence[dict[str, Any]], condition: Condition) -> str:
    """The values of the field; where there is no such field, those that there are."""
    path, found = spelled(condition.path), []
    for value in values:
        with suppress(Missing):
            found.append(look_up(value, condition.path))
    if found:
        return _near(f"{path} is", "", [one for one in found if not isinstance(one, list | dict)])
    names = dict.fromkeys(name for value in values for name in value)
    return _near(f"the first records have no field {path}, but", path, list(names), most=len(names))


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
