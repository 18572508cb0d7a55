"""Rows of one response each → records of a group each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain, compress
from typing import Any, NamedTuple

import numpy as np

from grpo_cli.errors import InputError
from grpo_cli.records.choose.where import Missing, Path, hashable, look_up, spelled
from grpo_cli.records.fields import GROUPS, METRICS, TOKEN_COLUMNS, Fields, read_fields
from grpo_cli.records.objects import as_object
from grpo_cli.records.parse.columns import is_number
from grpo_cli.records.parse.scores import is_id
from grpo_cli.records.parse.turns import ROLLOUT, names_trajectory
from grpo_cli.records.places import Origin, got
from grpo_cli.records.record import BatchFields, Raw, keys_in_common, listed, only_element
from grpo_cli.records.unread import ENDINGS, STEP_FIELDS, VERSIONS, is_list

_BY_TOKEN = {*TOKEN_COLUMNS, "mask", "tokens", "token_ids", "roles", "turn_rewards", "state_ids"}
_SHARED = ("hyperparameters", "group_size")
_DROPPED = ("id", "expected")
_NOT_JOINED = {*_SHARED, *_DROPPED}
_OF_RESPONSE = {*ENDINGS, *VERSIONS}


class _Rows(NamedTuple):
    """Rows of one group, column by column.

    Attributes:
        raws: the rows.
        columns: key of the first row → the cells; those of another row are under its own key of
            the same meaning, and None where it has none.
        fields: what the keys mean.
        single: of each row, whether its token columns are of one response.
    """

    raws: Sequence[Raw]
    columns: Mapping[str, Sequence[Any]]
    fields: Fields
    single: list[bool]


def merge(raws: Sequence[Raw], label: object, by: str) -> Raw:
    """One record of all the rows' responses.

    Args:
        raws: objects in the order in which they stand; they need the same fields.
        label: what the group is called, which becomes the record's id; None if it has no name.
        by: the fields that are equal in the group, for messages; "" where its size makes it one.

    Raises:
        InputError: for rows that do not go together, with the place of the later one.
    """
    rows = _read_rows(raws)
    first, fields, single = raws[0], rows.fields, rows.single
    alone, nested = False not in single, True not in single
    _check_steps(rows, by)
    record = ({"id": label} if is_label(label) else {}) | _constants(rows)
    counts = [1] * len(raws)
    counted = fields.columns[0][0] if fields.columns else "rewards"
    for name, key in fields.names.items():
        if name in _NOT_JOINED:
            continue
        cells = rows.columns[key]
        kinds = {*map(type, cells)}
        # in a row of one token an advantage by token looks like one by response
        by_token = name in _BY_TOKEN or (
            name == "advantages" and alone and any(is_list(one) and len(one) > 1 for one in cells)
        )
        if alone and (by_token or kinds.isdisjoint((list, dict))):
            record[name] = cells
            continue
        parts = cells
        if not nested or kinds != {list}:
            pairs = zip(cells, single, strict=True)
            parts = [_listed(name, one, single=own) for one, own in pairs]
            kinds = {*map(type, parts)}
        record[name] = _joined(parts) if dict in kinds else [*chain.from_iterable(parts)]
        counts = [*map(len, parts)] if name == counted else counts
    for key in {one.key: None for each in fields.misnamed.values() for one in each}:
        values = rows.columns[key]
        if all(is_list(one) and len(one) for one in values):  # named where the column is needed
            record[key] = [row for one in values for row in (one if is_list(one[0]) else [one])]
    _label(record, label, raws, by_size=not by)
    made_again = None not in [raw.again for raw in raws]
    return Raw(
        record,
        first.source,
        first.line,
        first.prefix,
        sum([raw.size for raw in raws]),
        partial(_merged, raws, label, by) if made_again else None,
        origin=_origin(rows, counts),
        arrays=True in [raw.arrays for raw in raws],
        rows=raws if made_again else raws[:1],
        batch=_batch(raws, by),
    )


def _merged(raws: Sequence[Raw], label: object, by: str) -> Any:
    """The value of ``merge``, in any process."""
    return merge(raws, label, by).kept


def step_field(raw: Raw) -> Path | None:
    """The path of the field that says a row's step; None if none does."""
    value = raw.value if isinstance(raw.value, dict) else {}
    for above, holder in (((), value), (("meta",), value.get("meta"))):
        known = holder if isinstance(holder, dict) else {}
        if (name := next((name for name in STEP_FIELDS if name in known), None)) is not None:
            return (*above, name)
    return None


def _check_steps(rows: _Rows, by: str) -> None:
    """Refuses a group of several steps: a prompt that comes back has other responses then."""
    raws = rows.raws
    path = step_field(raws[0])
    if path is None:
        return
    cells = rows.columns[str(path[0])]
    if _are_equal(cells):
        return
    steps = [_step_at(one, path[1:]) for one in cells]
    at = next((at for at, one in enumerate(steps) if one != steps[0]), None)
    if at is None or _is_of_trajectories(path[-1], steps, rows):
        return
    name = spelled_in_file(raws[0], path)
    raise _at(raws[at], of_two_steps(name, steps[at], steps[0], _where(raws[0]), by), name)


def _are_equal(cells: Sequence[Any]) -> bool:
    """Whether all cells are one text or one whole number."""
    return {*map(type, cells)} <= {int, str} and cells.count(cells[0]) == len(cells)


def of_two_steps(name: str, step: Any, first: Any, place: str, by: str) -> str:
    """What is wrong with a row whose step is not that of its group's first, at ``place``."""
    group = f"group of --group-by {by}" if by else "--group-size group"
    return (
        f"its step is {got(step)}, that of {place} is {got(first)}, but both are in one {group}; "
        f"--group-by {name},{by or 'FIELD'} separates steps"
    )


def _step_at(value: Mapping[str, Any], path: Path) -> Any:
    try:
        return only_element(look_up(value, path))
    except Missing:
        return None


def _is_of_trajectories(name: object, steps: Sequence[Any], rows: _Rows) -> bool:
    """Whether what is called a step names trajectories, or counts the turns of some."""
    columns, fields = rows.columns, rows.fields
    if name == ROLLOUT:  # a step only where responses share it
        alone = len({*map(hashable, steps)}) == len(steps)
        return alone or names_trajectory(ROLLOUT, steps, columns)
    keys = (fields.names.get("trajectory_ids", ""), *fields.trajectories)
    ids = ([*map(hashable, columns[key])] for key in keys if key in columns)
    return name == "step" and any(len({*each}) < len(each) for each in ids)


def spelled_in_file(raw: Raw, path: Path) -> str:
    """A field as the file has it, where its format has other names."""
    name = spelled(path)
    return name if raw.origin is None else raw.origin.spelled.get(name, name)


def _batch(rows: Sequence[Raw], by: str) -> BatchFields | None:
    """The batch of all rows; rows of several micro-batches are of none of them."""
    first = rows[0]
    for raw in rows:
        if raw.batch != first.batch:
            message = f"this row has {_named(raw)} and {_where(first)} has {_named(first)}"
            fields = ",".join(first.batch or {})
            hint = f"--group-by {fields},{by or 'FIELD'} separates them"
            raise _at(raw, f"{message}, but both are in one group; {hint}")
    if len({raw.batch.micro_batch for raw in rows if raw.batch is not None}) > 1:
        return BatchFields(first.batch or {})
    return first.batch


def _named(raw: Raw) -> str:
    return ", ".join(f"{name} {value}" for name, value in (raw.batch or {}).items())


def is_label(value: object) -> bool:
    """Whether a group can be called so in reports: it is a text or a number."""
    return isinstance(value, str) or is_number(value)


def _read_rows(raws: Sequence[Raw]) -> _Rows:
    """The rows of a group.

    Raises:
        InputError: for one that is no record, holds groups, or is a group itself; and for rows
            that do not have the same fields, hyperparameters and size of a group.
    """
    columns = _columns_in_common(raws)
    each = [_fields_of(raw) for raw in (raws if columns is None else raws[:1])]
    columns = _columns_by_meaning(raws, each) if columns is None else columns
    rows = _Rows(raws, columns, each[0], _are_single(raws, columns, each[0]))
    _check_same(rows, each)
    return rows


def _columns_in_common(raws: Sequence[Raw]) -> Mapping[str, Sequence[Any]] | None:
    """The cells of rows with the same keys, which mean the same in each; None for others."""
    first, last = raws[0], raws[-1]
    columns: Mapping[str, Sequence[Any]]
    table = first.columns if first.columns is last.columns else None
    if table is not None and last.at - first.at == len(raws) - 1:
        columns = {key: cells[first.at : last.at + 1] for key, cells in table.items()}
    else:
        values = [raw.value for raw in raws]
        keys = keys_in_common(values) or ()
        columns = {key: [value[key] for value in values] for key in keys}
    depends = not columns or GROUPS in columns or not METRICS.isdisjoint(columns)
    return None if depends else columns


def _fields_of(raw: Raw) -> Fields:
    try:
        return read_fields(as_object(raw.value))
    except InputError as error:
        raise _at(raw, error.message, error.path) from None


def _columns_by_meaning(raws: Sequence[Raw], each: Sequence[Fields]) -> dict[str, list[Any]]:
    """The cells under the keys of the first row, which others may call otherwise."""
    values = [raw.value for raw in raws]
    names = {key: name for name, key in each[0].names.items()}
    keys = {key: [one.names.get(names.get(key, ""), key) for one in each] for key in values[0]}
    return {
        key: [value.get(own) for value, own in zip(values, owns, strict=True)]
        for key, owns in keys.items()
    }


def _are_single(
    raws: Sequence[Raw], columns: Mapping[str, Sequence[Any]], fields: Fields
) -> list[bool]:
    """Of each row, whether its token columns are of one response, not lists with each response's.

    Raises:
        InputError: for groups, and several responses under one group's id.
    """
    key = fields.columns[0][1] if fields.columns else ""
    cells = columns.get(key, ())
    kinds = {type(one[0]) if type(one) is list and one else None for one in cells}
    if kinds.isdisjoint((list, np.ndarray)):
        return [True] * len(raws)
    if kinds == {np.ndarray} and {*map(len, cells)} == {1}:  # as tables of responses have them
        return [False] * len(raws)
    nested = [type(one) is list and len(one) > 0 and is_list(one[0]) for one in cells]
    ids = columns.get(fields.names.get("group_ids", ""))
    for at in compress(range(len(raws)), nested):
        if len(cells[at][0]) and isinstance(cells[at][0][0], list):
            raise _at(raws[at], "expected one response, got groups", key)
        if len(cells[at]) > 1 and ids is not None and not isinstance(ids[at], list):
            message = f"the {len(cells[at])} responses in this row are already a group"
            raise _at(raws[at], f"{message}; leave out --group-by and --group-size", key)
    return [not one for one in nested]


def responses_of(raw: Raw) -> int:
    """How many responses a row holds."""
    value = raw.value if isinstance(raw.value, dict) else {}
    columns = read_fields(value).columns
    column: Any = value[columns[0][1]] if columns else []
    return len(column) if is_list(column) and len(column) and is_list(column[0]) else 1


def _listed(name: str, value: Any, *, single: bool) -> Any:
    """A field with one element per response."""
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


def _joined(parts: Sequence[Any]) -> dict[str, list[Any]]:
    """The rewards of several functions."""
    if any(not isinstance(one, dict) or one.keys() != parts[0].keys() for one in parts):
        raise InputError("expected the same reward functions in all rows of a group")
    return {key: [*chain.from_iterable([one[key] for one in parts])] for key in parts[0]}


def _check_same(rows: _Rows, each: Sequence[Fields]) -> None:
    """Rows of one group have the same fields and hyperparameters.

    Args:
        each: what their keys mean; of the first alone, where all have its keys.
    """
    raws, names = rows.raws, rows.fields.names
    first = raws[0]
    for raw, fields in zip(raws, each, strict=False):
        for name in sorted(names.keys() ^ fields.names.keys()):
            if name in _DROPPED:
                continue
            has, lacks = (raw, first) if name in fields.names else (first, raw)
            message = f"{_where(has)} has {name} but {_where(lacks)} of the same group does not"
            raise _at(raw, message)
    for name in _SHARED:
        cells = rows.columns[names[name]] if name in names else ()
        at = next((at for at, one in enumerate(cells) if one != cells[0]), None)
        if at is not None:
            message = f"its {name} differs from that of {_where(first)}, in the same group"
            raise _at(raws[at], message, each[at if len(each) > 1 else 0].names[name])


def _where(raw: Raw) -> str:
    return f"line {raw.line}" if raw.line is not None else raw.prefix.rstrip(".") or "the first"


def _at(raw: Raw, message: str, path: str = "") -> InputError:
    path = (raw.prefix + path).rstrip(".")
    return InputError(message, path=path, source=raw.source, line=raw.line)


def _constants(rows: _Rows) -> dict[str, Any]:
    """Keys that hold no responses and are equal in all rows, as settings must be.

    Steps may differ. How responses ended, which weights sampled them, and which trajectory they
    are turns of, is kept for each row.
    """
    raws, columns, fields, single = rows.raws, rows.columns, rows.fields, rows.single[0]
    known = set(fields.names.values()) - {fields.names.get(name) for name in _SHARED}
    kept: dict[str, Any] = {}
    for key, cells in columns.items():
        if key in known:
            continue
        one, of_response = cells[0], key in _OF_RESPONSE
        if not of_response and key in fields.trajectories:
            ids = [*map(only_element, cells)]
            of_response = all(map(is_id, ids)) and names_trajectory(key, ids, columns)
        if single and of_response:
            kept[key] = [*map(only_element, cells)]
            continue
        whole = one if isinstance(one, str) else listed(one)
        others = () if _are_equal(cells) else enumerate(cells)
        at = next((at for at, two in others if two is not one and listed(two) != whole), None)
        if at is None:
            kept[key] = one
        elif key in fields.hyperparameters:
            message = f"its value differs from that of {_where(raws[0])}, in the same group"
            raise _at(raws[at], message, key)
        elif key in STEP_FIELDS:
            kept[key] = [*cells]
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


def _origin(rows: _Rows, counts: Sequence[int]) -> Origin:
    """The places in the file of the merged record's parts; [rows] responses of each."""
    raws, names, single = rows.raws, rows.fields.names, rows.single[0]
    own = raws[0].origin.spelled if raws[0].origin is not None else {}
    spelled = {name: place for name, place in own.items() if "." in name or name == "step"}
    for name, key in names.items():
        place = own.get(key, key)
        indexes = "" if "{" in place else _indexes(name, rows.columns[key][0], single=single)
        spelled[name] = place + indexes
    pairs = zip(raws, counts, strict=True)
    places = [(raw.line, raw.prefix, at) for raw, count in pairs for at in range(count)]
    return Origin(spelled, places)


def _indexes(name: str, value: Any, *, single: bool) -> str:
    """The end of a place in a row: the indexes of the response and the token, as it is nested."""
    if not isinstance(value, list):
        return ""
    if single:
        several = name in ("advantages", "rewards") and len(value) > 1  # by token, by function
        return "[{t}]" if several or name in _BY_TOKEN else "[{r}]"
    return "[{r}][{t}]" if value and is_list(value[0]) else "[{r}]"
