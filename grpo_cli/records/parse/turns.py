"""A record's turns, trajectories and versions of weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from grpo_cli.batch import I64
from grpo_cli.errors import InputError
from grpo_cli.records.fields import Fields
from grpo_cli.records.parse.columns import Shape, is_number
from grpo_cli.records.parse.scores import finite, is_id, per_response, read_ids
from grpo_cli.records.places import got
from grpo_cli.records.record import listed
from grpo_cli.records.unread import STEP_FIELDS, VERSIONS

ROLLOUT = "rollout_id"
"""A trajectory in some dumps, the step in others."""
_BEFORE = STEP_FIELDS[: STEP_FIELDS.index(ROLLOUT)]


class Trajectories(NamedTuple):
    """The trajectories of a record's responses.

    Attributes:
        numbers: [R] the number of each response's, in the order of their first responses.
        labels: what the record calls each, in the order of the numbers.
    """

    numbers: list[int]
    labels: list[Any]

    @property
    def span_groups(self) -> bool:
        """Whether one of them is in several groups."""
        return len(self.labels) > len(set(self.labels))


def names_trajectory(key: str, ids: Sequence[Any], record: Mapping[str, Any]) -> bool:
    """Whether a key's values name trajectories, not steps as slime's ``rollout_id`` does."""
    return key != ROLLOUT or {str} == {*map(type, ids)} or any(one in record for one in _BEFORE)


def read_trajectories(
    record: Mapping[str, Any],
    fields: Fields,
    shape: Shape,
    groups: list[int] | None,
    group_labels: list[Any] | None,
) -> Trajectories | None:
    """The trajectory of each response; None where the record does not say it.

    Raises:
        InputError: for ``trajectory_ids`` that do not fit the responses, or span groups.
    """
    of = groups or [0] * len(shape.widths)
    key = fields.names.get("trajectory_ids")
    if key is None:
        return find_trajectories(record, fields, of)
    labels, place = read_ids(key, record[key], shape, "trajectory id")
    found = _number(labels, of)
    if found.span_groups:
        seen: dict[Any, int] = {}
        at = next(at for at, one in enumerate(labels) if of[seen.setdefault(one, at)] != of[at])
        first = seen[labels[at]]
        both = [number if group_labels is None else group_labels[number] for number in of]
        message = (
            f"expected a trajectory within one group, got {got(labels[at])} in two: "
            f"group {got(both[first])} ({place(first)}) and group {got(both[at])}"
        )
        raise InputError(message, path=place(at))
    return found


def find_trajectories(
    record: Mapping[str, Any], fields: Fields, groups: Sequence[int]
) -> Trajectories | None:
    """Those that ``trajectory_ids`` names, as it is written; else those of another key.

    The other key has an id for each response, and some ids come back.
    """
    if (key := fields.names.get("trajectory_ids")) is not None:
        ids = record[key]
        return _number(ids if isinstance(ids, list) else [ids] * len(groups), groups)
    for key in fields.trajectories:
        ids = record[key]
        if not isinstance(ids, list) or len(ids) != len(groups) or not all(map(is_id, ids)):
            continue
        if names_trajectory(key, ids, record):
            found = _number(ids, groups)
            return found if len(found.labels) < len(ids) else None
    return None


def _number(labels: Sequence[Any], groups: Sequence[int]) -> Trajectories:
    pairs = list(zip(groups, labels, strict=True))
    numbers = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
    return Trajectories([numbers[pair] for pair in pairs], [label for _, label in numbers])


class TurnField(NamedTuple):
    """What a record says of its turns.

    Attributes:
        word: what each of them is.
        fits: whether a value may be one.
        is_id: whether it names something, and is numbered.
    """

    word: str
    fits: Callable[[object], bool]
    is_id: bool


TURN_FIELDS = {
    "turn_rewards": TurnField("reward", is_number, is_id=False),
    "state_ids": TurnField("state", is_id, is_id=True),
}


def read_of_turns(
    record: Mapping[str, Any], names: Mapping[str, str], shape: Shape
) -> dict[str, list[list[float]]]:
    """``turn_rewards`` and ``state_ids`` → [R] those of each response's turns.

    States are numbered.

    Raises:
        InputError: for another number of lists than responses, or an element of another kind.
    """
    single = shape.single or (len(shape.widths) == 1 and shape.nested < 3)
    numbers: dict[Any, int] = {}
    found: dict[str, list[list[float]]] = {}
    for name, turn in TURN_FIELDS.items():
        if name not in names:
            continue
        key, value = names[name], record[names[name]]
        if single and isinstance(value, list) and all(map(turn.fits, value)):
            value = [value]
        rows, place = per_response(key, value, shape, f"turn {turn.word} list")
        found[name] = []
        for number, row in enumerate(rows):
            values, own = row if isinstance(row, list) else [row], place(number)
            paths = [f"{own}[{at}]" if isinstance(row, list) else own for at in range(len(values))]
            if not turn.is_id:
                found[name].append(finite(values, paths.__getitem__))
                continue
            for one, path in zip(values, paths, strict=True):
                if not is_id(one):
                    message = f"expected a state id (text or a number), got {got(one)}"
                    raise InputError(message, path=path)
            found[name].append([float(numbers.setdefault(one, len(numbers))) for one in values])
    return found


def read_roles(value: Any, widths: Sequence[int]) -> list[list[str]] | None:
    """[R] who wrote each token; None where there is not a text for each."""
    rows = value if isinstance(value, list) and value and not isinstance(value[0], str) else [value]
    listed = [row if isinstance(row, list) else getattr(row, "tolist", list)() for row in rows]
    fits = [*map(len, listed)] == [*widths] and {*map(type, chain.from_iterable(listed))} <= {str}
    return listed if fits else None


def version_rows(value: Mapping[str, Any], widths: Sequence[int]) -> list[Any]:
    """What a record says of the weights that sampled it; an empty list where it says nothing.

    It is a version for the whole record, or for each response one, or a list of one a token.
    """
    meta = value.get("meta")
    for holder in (value, meta if isinstance(meta, Mapping) else {}):
        found = next((holder[name] for name in VERSIONS if name in holder), None)
        if found is not None:
            break
    else:
        return []
    found = listed(found)
    rows = found if isinstance(found, list) else [found]
    if not any(isinstance(row, list) for row in rows):
        return [rows] if len(rows) > 1 and list(widths) == [len(rows)] else rows
    if any(isinstance(one, list) for row in rows if isinstance(row, list) for one in row):
        return [row for group in rows for row in group]
    return rows


def read_versions(value: Mapping[str, Any], widths: Sequence[int]) -> I64 | None:
    """[N] the version that sampled each token as written, -1 if unknown; None if all are."""
    rows = version_rows(value, widths)
    if not rows:
        return None
    if len(rows) == 1 < len(widths):
        rows *= len(widths)
    found = np.full(sum(widths), -1)
    begin = 0
    for row, width in zip(rows, widths, strict=False):
        if isinstance(row, list) and len(row) == width:
            found[begin : begin + width] = [one if is_version(one) else -1 for one in row]
        elif is_version(row):
            found[begin : begin + width] = row
        begin += width
    return found if (found >= 0).any() else None


def is_version(value: Any) -> bool:
    """Whether it numbers a policy; a negative number is that of a token nobody sampled (AReaL)."""
    return is_whole(value) and 0 <= value < 2**62


def is_whole(value: Any) -> bool:
    """Whether it is a whole number (true and false are none)."""
    return isinstance(value, int) and not isinstance(value, bool)
