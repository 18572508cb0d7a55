"""Rows of one response each → records of a group each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from grpo_cli.errors import InputError
from grpo_cli.records.fields import TOKEN_COLUMNS, Fields, read_fields
from grpo_cli.records.parse.columns import is_number
from grpo_cli.records.parse.scores import is_id
from grpo_cli.records.parse.turns import names_trajectory
from grpo_cli.records.places import Origin, Row, got
from grpo_cli.records.record import BatchFields, Raw, listed, only_element
from grpo_cli.records.unread import ENDINGS, STEP_FIELDS, VERSIONS

_BY_TOKEN = {*TOKEN_COLUMNS, "mask", "tokens", "token_ids", "roles", "turn_rewards", "state_ids"}
_SHARED = ("hyperparameters", "group_size")
_DROPPED = ("id", "expected")

Part = tuple[Fields, dict[str, Any]]
"""A row's fields, and each as a list with one element per response."""


def merge(rows: Sequence[Raw], label: object, *, by_size: bool) -> Raw:
    """One record of all the rows' responses.

    Args:
        rows: objects in the order in which they stand; they need the same fields.
        label: what the group is called, which becomes the record's id; None if it has no name.
        by_size: whether the rows are one group because of their number, not their key.

    Raises:
        InputError: for rows that do not go together, with the place of the later one.
    """
    parts = [_part(raw) for raw in rows]
    first, fields = rows[0], parts[0][0]
    names = fields.names
    for raw, (own, _) in zip(rows, parts, strict=True):
        _check_same(first, names, raw, own.names)
    record = ({"id": label} if is_label(label) else {}) | _constants(rows, fields)
    for name in names:
        if name not in (*_SHARED, *_DROPPED):
            record[name] = _joined([columns[name] for _, columns in parts])
    for key in {one.key: None for each in fields.misnamed.values() for one in each}:
        values = [raw.value.get(key) for raw in rows]
        if all(_is_list(one) and len(one) for one in values):  # named where the column is needed
            record[key] = [row for one in values for row in (one if _is_list(one[0]) else [one])]
    _label(record, label, rows, by_size=by_size)
    again = None
    if all(raw.again is not None for raw in rows):
        again = partial(_again, [raw.dropped() for raw in rows], label, by_size=by_size)
    return Raw(
        record,
        first.source,
        first.line,
        first.prefix,
        sum(raw.size for raw in rows),
        again,
        origin=_origin(rows, parts),
        arrays=any(raw.arrays for raw in rows),
        first=first,
        batch=_batch(rows),
    )


def _again(rows: Sequence[Raw], label: object, *, by_size: bool) -> Any:
    return merge(rows, label, by_size=by_size).kept


def _batch(rows: Sequence[Raw]) -> BatchFields | None:
    """The batch of all rows; rows of several micro-batches are of none of them."""
    first = rows[0]
    for raw in rows:
        if raw.batch != first.batch:
            message = f"this row has {_named(raw)} and {_where(first)} has {_named(first)}"
            fields = ",".join(first.batch or {})
            raise _at(
                raw,
                f"{message}, but both are in one group; --group-by {fields},FIELD separates them",
            )
    if len({raw.batch.micro_batch for raw in rows if raw.batch is not None}) > 1:
        return BatchFields(first.batch or {})
    return first.batch


def _named(raw: Raw) -> str:
    return ", ".join(f"{name} {value}" for name, value in (raw.batch or {}).items())


def is_label(value: object) -> bool:
    """Whether a group can be called so in reports: it is a text or a number."""
    return isinstance(value, str) or is_number(value)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | np.ndarray)


def _part(raw: Raw) -> Part:
    try:
        if not isinstance(raw.value, dict):
            raise InputError(f"expected an object, got {got(raw.value)}")
        fields = read_fields(raw.value)
        single = _is_single(raw.value, fields)
        values = {name: raw.value[key] for name, key in fields.names.items()}
        if not single:
            name, key = fields.columns[0]
            responses, ids = len(values[name]), values.get("group_ids")
            if responses > 1 and ids is not None and not isinstance(ids, list):
                message = f"the {responses} responses in this row are already a group"
                raise InputError(f"{message}; leave out --group-by", path=key)
        return fields, {name: _listed(name, one, single=single) for name, one in values.items()}
    except InputError as error:
        raise _at(raw, error.message, error.path) from None


def _is_single(value: Mapping[str, Any], fields: Fields) -> bool:
    """Whether the token columns are those of one response, not a list with each response's."""
    if not fields.columns:
        return True
    column = value[fields.columns[0][1]]
    if isinstance(column, list) and column and _is_list(column[0]):
        if len(column[0]) and isinstance(column[0][0], list):
            raise InputError("expected one response, got groups", path=fields.columns[0][1])
        return False
    return True


def responses_of(raw: Raw) -> int:
    """How many responses a row holds."""
    value = raw.value if isinstance(raw.value, dict) else {}
    columns = read_fields(value).columns
    column: Any = value[columns[0][1]] if columns else []
    return len(column) if len(column) and _is_list(column[0]) else 1


def _listed(name: str, value: Any, *, single: bool) -> Any:
    """A field with one element per response."""
    if name in (*_SHARED, *_DROPPED):
        return value
    if name == "rewards" and isinstance(value, dict):
        return {key: one if isinstance(one, list) else [one] for key, one in value.items()}
    if not isinstance(value, list):
        return [value]
    if not single:
        return value
    alone = len(value) == 1 and name not in _BY_TOKEN
    if name == "advantages":
        alone = alone and not isinstance(value[0], list)
    return value if alone else [value]


def _joined(parts: list[Any]) -> Any:
    if any(isinstance(one, dict) for one in parts):
        if any(not isinstance(one, dict) or one.keys() != parts[0].keys() for one in parts):
            raise InputError("expected the same reward functions in all rows of a group")
        return {key: _joined([one[key] for one in parts]) for key in parts[0]}
    return [one for part in parts for one in part]


def _check_same(first: Raw, names: Mapping[str, str], raw: Raw, own: Mapping[str, str]) -> None:
    """Rows of one group have the same fields and hyperparameters."""
    for name in names.keys() ^ own.keys():
        if name in _DROPPED:
            continue
        has, lacks = (raw, first) if name in own else (first, raw)
        raise _at(raw, f"{_where(has)} has {name} but {_where(lacks)} of the same group does not")
    for name in _SHARED:
        if name in names and first.value[names[name]] != raw.value[own[name]]:
            raise _at(
                raw,
                f"its {name} differs from that of {_where(first)}, in the same group",
                own[name],
            )


def _where(raw: Raw) -> str:
    return f"line {raw.line}" if raw.line is not None else raw.prefix.rstrip(".") or "the first"


def _at(raw: Raw, message: str, path: str = "") -> InputError:
    path = (raw.prefix + path).rstrip(".")
    return InputError(message, path=path, source=raw.source, line=raw.line)


def _constants(rows: Sequence[Raw], fields: Fields) -> dict[str, Any]:
    """Keys that hold no responses and are equal in all rows, as settings must be.

    Steps may differ. How responses ended, which weights sampled them, and which trajectory they
    are turns of, is kept for each row.
    """
    known = set(fields.names.values()) - {fields.names.get(name) for name in _SHARED}
    single = _is_single(rows[0].value, fields)
    kept: dict[str, Any] = {}
    for key, one in rows[0].value.items():
        if key in known:
            continue
        of_response = key in (*ENDINGS, *VERSIONS)
        if not of_response and key in fields.trajectories:
            ids = [only_element(raw.value.get(key)) for raw in rows]
            of_response = all(map(is_id, ids)) and names_trajectory(key, ids, rows[0].value)
        if single and of_response:
            kept[key] = [only_element(raw.value.get(key)) for raw in rows]
            continue
        others = ((raw, raw.value.get(key)) for raw in rows)
        differing = next(
            (raw for raw, two in others if two is not one and listed(two) != listed(one)), None
        )
        if differing is None:
            kept[key] = one
        elif key in fields.hyperparameters:
            raise _at(
                differing,
                f"its value differs from that of {_where(rows[0])}, in the same group",
                key,
            )
        elif key in STEP_FIELDS:
            kept[key] = [raw.value.get(key) for raw in rows]
    return kept


def _label(record: dict[str, Any], label: object, rows: Sequence[Raw], *, by_size: bool) -> None:
    record.pop("group_size", None)
    record.pop("num_generations", None)
    ids = record.get("group_ids")
    if ids is not None and by_size:
        odd = next((at for at, one in enumerate(ids) if one != ids[0]), None)
        if odd is not None:
            raw = rows[odd] if len(ids) == len(rows) else rows[-1]
            before = _where(rows[0])
            raise _at(
                raw, f"its group id differs from that of {before}, in the same --group-size group"
            )
    if ids is not None and isinstance(label, str) and isinstance(ids[0], float):
        record["group_ids"] = [label] * len(ids)  # as text where it has more than 64 bits
    if ids is None and is_label(label):
        each = (record[name] for name in record if name in TOKEN_COLUMNS or name == "rewards")
        column = next(each, None)
        if isinstance(column, list):
            record["group_ids"] = [label] * len(column)


def _origin(rows: Sequence[Raw], parts: Sequence[Part]) -> Origin:
    """The places in the file of the merged record's parts."""
    value, fields = rows[0].value, parts[0][0]
    own = rows[0].origin.spelled if rows[0].origin is not None else {}
    single = _is_single(value, fields)
    spelled = {name: place for name, place in own.items() if "." in name or name == "step"}
    for name, key in fields.names.items():
        place = own.get(key, key)
        indexes = "" if "{" in place else _indexes(name, value[key], single=single)
        spelled[name] = place + indexes
    return Origin(
        spelled, tuple(Row(raw.line, raw.prefix, at) for raw, at in _responses(rows, parts))
    )


def _indexes(name: str, value: Any, *, single: bool) -> str:
    """The end of a place in a row: the indexes of the response and the token, as it is nested."""
    if not isinstance(value, list):
        return ""
    if single:
        several = name in ("advantages", "rewards") and len(value) > 1  # by token, by function
        return "[{t}]" if several or name in _BY_TOKEN else "[{r}]"
    return "[{r}][{t}]" if value and _is_list(value[0]) else "[{r}]"


def _responses(rows: Sequence[Raw], parts: Sequence[Part]) -> Iterator[tuple[Raw, int]]:
    """Each response's row, and its number there."""
    for raw, (fields, columns) in zip(rows, parts, strict=True):
        name = fields.columns[0][0] if fields.columns else "rewards"
        for at in range(len(columns.get(name, [None]))):
            yield raw, at
