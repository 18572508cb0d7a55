"""Many plain decoded objects at once → ``Packed``: nothing is done per record; and back.

Most dumps are thousands of records alike: ``[G][T]`` log-probs, a reward or an advantage for each
response. Anything unusual, every fault included, makes ``pack`` give up, and ``parse``, which it
must agree with bit for bit, reads the records one at a time.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import reduce
from itertools import chain, islice
from operator import iconcat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64
from grpo_cli.errors import InputError
from grpo_cli.records.fields import Fields, logged_metrics, names_inside, read_fields
from grpo_cli.records.packed import (
    LARGEST,
    PLAIN,
    PLAIN_COLUMNS,
    Mask,
    Packed,
    Unusual,
    integers,
    is_inside,
    join,
    number_groups,
    number_labels,
    pack_bits,
    pack_floats,
    refuse_booleans,
)
from grpo_cli.records.parse.record import record, record_id
from grpo_cli.records.parse.turns import find_trajectories, read_roles, read_versions
from grpo_cli.records.record import Raw, Record, Texts, listed, step_of
from grpo_cli.records.settings import read_settings
from grpo_cli.records.unread import VERSIONS, Misnamed, may_be_misnamed, misnamed_in

Objects = Sequence[dict[str, Any]]
Flat = list[Any] | NDArray[Any]

_TEXT = np.dtype(object)
_REFUSED = (Unusual, InputError, TypeError, ValueError, LookupError, struct.error, OverflowError)


def pack(objects: Objects) -> Packed | None:
    """The columns of records that have the same keys, in the same order; None if not plain."""
    try:
        return _pack_all(objects)
    except _REFUSED:
        return None


def _pack_all(objects: Objects) -> Packed:
    fields = read_fields(objects[0])
    names = fields.names
    for metric in logged_metrics(objects[0]):
        if not {type(one[metric]) for one in objects} <= {int, float}:
            raise Unusual  # a column of some
    if not names.keys() <= PLAIN or "log_probs_new" not in names:
        raise Unusual
    key = names["log_probs_new"]
    counts = [len(one[key]) for one in objects]
    widths = list(map(len, _rows(objects, key, counts)))
    mask = _mask(objects, names.get("mask"), counts, widths)
    columns: dict[str, F64] = {}
    for name in (name for name in PLAIN_COLUMNS if name in names):
        own = names[name]  # the engine's policy may stand for another as well
        same = (one for one in columns if all(each[own] is each[names[one]] for each in objects))
        known = next(same, None)
        if known is None:
            columns[name] = _numbers(_flat(objects, own, counts, widths), mask)
        else:
            columns[name] = columns[known].view()  # one and the same would be a missing column
    _check_words(objects, names, counts, widths)
    scores = {"rewards": names["rewards"]} if "rewards" in names else {}
    if "advantages" in names:
        if type(objects[0][names["advantages"]][0]) in (list, np.ndarray):
            flat = _flat(objects, names["advantages"], counts, widths)
            columns["token_advantages"] = _numbers(flat, mask)
        else:
            scores["advantages"] = names["advantages"]
    groups, group_count = _groups(objects, names, counts)
    trajectories, trajectory_count = _trajectories(objects, fields, groups, counts)
    return Packed(
        counts=integers(counts),
        widths=integers(widths),
        columns=columns,
        mask=mask,
        scores={name: _scores(objects, own, counts) for name, own in scores.items()},
        groups=groups,
        group_count=group_count,
        trajectories=trajectories,
        trajectory_count=trajectory_count,
        versions=_versions(objects, counts, widths),
        misnamed=_misnamed(objects, fields, counts, widths, columns["log_probs_new"]),
        settings=read_settings(objects, fields),
        fields=fields,
    )


def _misnamed(
    objects: Objects, fields: Fields, counts: list[int], widths: list[int], new: F64
) -> dict[str, Misnamed]:
    """The columns of log-probs that objects lack → a key that may hold each in some of them."""
    if not fields.misnamed:
        return {}
    rows, tokens = (np.cumsum([0, *each]) for each in (counts, widths))
    may_be = np.ones(len(objects), np.bool_)
    with suppress(*_REFUSED):  # nulls, or another shape, in some of them
        columns = {
            one.key: _numbers(_flat(objects, one.key, counts, widths))
            for one in chain.from_iterable(fields.misnamed.values())
        }
        starts = tokens[rows[:-1]]
        each = [may_be_misnamed(key, one, new, starts) for key, one in columns.items()]
        may_be = np.logical_or.reduce(each)
    found = [
        misnamed_in(objects[at], fields.names, fields.misnamed)
        for at in np.flatnonzero(may_be).tolist()
    ]
    return dict(pair for one in found for pair in one.items())


def _rows(objects: Objects, key: str, counts: list[int]) -> list[Any]:
    """The lists of all responses, response after response."""
    values = [one[key] for one in objects]
    if list(map(len, values)) != counts or set(map(type, values)) != {list}:
        raise Unusual
    return reduce(iconcat, values, [])


def _token_rows(objects: Objects, key: str, counts: list[int], widths: list[int]) -> list[Any]:
    """The lists of a token column, each as long as ``log_probs_new``'s."""
    rows = _rows(objects, key, counts)
    if list(map(len, rows)) != widths:
        raise Unusual
    return rows


def _flat(objects: Objects, key: str, counts: list[int], widths: list[int]) -> Flat:
    """[N] the elements of a token column."""
    rows = _token_rows(objects, key, counts, widths)
    kinds = set(map(type, rows))
    if kinds not in ({list}, {np.ndarray}):
        raise Unusual
    return np.concatenate(rows) if kinds == {np.ndarray} else reduce(iconcat, rows, [])


def _numbers(flat: Flat, mask: Mask | None = None) -> F64:
    """A list, or an array, as floats; booleans only where the mask leaves them out."""
    if not isinstance(flat, np.ndarray):
        return pack_floats(flat, mask)
    if flat.dtype.kind not in "fiu":
        raise Unusual
    return flat.astype(np.float64, copy=False)


def _mask(objects: Objects, key: str | None, counts: list[int], widths: list[int]) -> Mask | None:
    if key is None:
        return None
    flat = _flat(objects, key, counts, widths)
    if isinstance(flat, np.ndarray):
        mask: Mask = flat != 0
        if not (mask == flat).all():
            raise Unusual
    else:
        mask = np.frombuffer(pack_bits(flat), np.bool_)
    return None if mask.all() else mask


def _check_words(
    objects: Objects, names: Mapping[str, str], counts: list[int], widths: list[int]
) -> None:
    if "tokens" in names:
        rows = _token_rows(objects, names["tokens"], counts, widths)
        if set(map(type, rows)) == {list}:
            "".join(chain.from_iterable(rows))  # in half the time that their types take
        elif set(map(type, rows)) != {Texts}:
            raise Unusual
    if "token_ids" in names:
        rows = _token_rows(objects, names["token_ids"], counts, widths)
        if set(map(type, rows)) == {list}:
            ids: list[Any] = reduce(iconcat, rows, [])
            # Packing them takes three quarters of the time that comparing their types takes.
            refuse_booleans(np.frombuffer(struct.pack(f"{len(ids)}q", *ids), np.int64), ids)
        elif not all(getattr(row, "dtype", _TEXT).kind in "iu" for row in rows):
            raise Unusual


def _scores(objects: Objects, key: str, counts: list[int]) -> F64:
    """[R] one number per response."""
    flat = _rows(objects, key, counts)
    if not set(map(type, flat)) <= {float, int}:
        raise Unusual
    return np.frombuffer(struct.pack(f"{len(flat)}d", *flat))


def _groups(
    objects: Objects, names: Mapping[str, str], counts: list[int]
) -> tuple[NDArray[np.int64], int]:
    """[R] the number of each response's group, and how many groups there are."""
    each: list[list[int] | None] = [None] * len(objects)
    key = names.get("group_ids")
    if key is not None and not set(map(type, [one[key] for one in objects])) <= {str, int}:
        labels = _rows(objects, key, counts)
        if not set(map(type, labels)) <= {str, int}:
            raise Unusual
        each = [number_labels(one[key]) for one in objects]
    return number_groups(each, integers(counts))


def _trajectories(
    objects: Objects, fields: Fields, groups: I64, counts: list[int]
) -> tuple[I64 | None, int]:
    """[R] the number of each response's trajectory, and how many there are; None if not named."""
    is_named = "trajectory_ids" in fields.names
    if not (is_named or fields.trajectories):
        return None, 0
    of_groups = iter(groups.tolist())
    each = [
        find_trajectories(one, fields, [*islice(of_groups, count)])
        for one, count in zip(objects, counts, strict=True)
    ]
    found = [one for one in each if one is not None]
    key = fields.names.get("trajectory_ids", "")
    listed = (one[key] for one in objects if isinstance(one.get(key), list))
    kinds = {*map(type, chain.from_iterable(listed))}
    if is_named and (not kinds <= {str, int} or any(one.span_groups for one in found)):
        raise Unusual
    if not found:
        return None, 0
    numbers = (
        [*range(count)] if one is None else one.numbers
        for one, count in zip(each, counts, strict=True)
    )
    return number_groups([*numbers], integers(counts))


def _versions(objects: Objects, counts: list[int], widths: list[int]) -> I64 | None:
    """[N] the weights that sampled each token; None where no record says it."""
    if objects[0].keys().isdisjoint((*VERSIONS, "meta")):
        return None
    rest = iter(widths)
    own = [[*islice(rest, count)] for count in counts]
    each = [read_versions(*pair) for pair in zip(objects, own, strict=True)]
    if all(one is None for one in each):
        return None
    unknown = (np.full(sum(row), -1) for row in own)
    return join([old if one is None else one for one, old in zip(each, unknown, strict=True)])


def headers(raws: Sequence[Raw], packed: Packed) -> list[Record]:
    """The records without their numbers, as reports show them."""
    fields, names = packed.fields, packed.fields.names
    words = [(name, names[name]) for name in ("tokens", "token_ids") if name in names]
    named = "trajectory_ids" in names or bool(fields.trajectories)
    widths, groups = iter(packed.widths.tolist()), iter(packed.groups.tolist())
    found = []
    for raw, count in zip(raws, packed.counts.tolist(), strict=True):
        value, own = raw.value, [*islice(widths, count)]
        header = Record(raw.source, raw.line, raw.prefix, record_id(value), own, {}, 2, names)
        for name, key in words:  # those of tables stay in their column until one is asked for
            setattr(header, name, value[key])
        if "group_ids" in names:
            ids = value[names["group_ids"]]
            header.group_labels = list(dict.fromkeys(ids)) if isinstance(ids, list) else [ids]
        if named:
            trajectories = find_trajectories(value, fields, [*islice(groups, count)])
            header.trajectory_labels = None if trajectories is None else trajectories.labels
        if "roles" in names:
            header.roles = read_roles(value[names["roles"]], own)
        header.origin, header.batch, header.step = raw.origin, raw.batch, step_of(value)
        found.append(header)
    return found


def read_records(
    items: Sequence[Raw | InputError], packed: Packed | None, make_records: Any = None
) -> list[Record | InputError]:
    """The records of decoded objects, and errors in the places of bad ones.

    Args:
        packed: their columns; None where they have to be read one at a time.
        make_records: what is made of packed ones; None: whole records.
    """
    scores = [] if packed is None else packed.scores.values()
    if packed is None or not all(is_inside(one, -LARGEST, LARGEST) for one in scores):
        return [item if isinstance(item, InputError) else record(item) for item in items]
    raws: Any = items  # what is packed is no error
    return [*(make_records or whole_records)(raws, packed)]


def whole_records(raws: Sequence[Raw], packed: Packed) -> list[Record]:
    """The records as ``record`` reads them, whose columns ``pack`` has checked."""
    found = headers(raws, packed)
    fields, columns = packed.fields, {name: one.tobytes() for name, one in packed.columns.items()}
    by_token = columns.pop("token_advantages", None)
    mask = None if packed.mask is None else packed.mask.tobytes()
    scores = {name: one.tolist() for name, one in packed.scores.items()}
    rows = np.cumsum(packed.counts).tolist()
    tokens = np.cumsum(packed.widths)[np.array(rows) - 1].tolist()
    row = token = 0
    for made, raw, settings, end, last in zip(
        found, raws, packed.settings, rows, tokens, strict=True
    ):
        own, numbers = slice(row, end), slice(8 * token, 8 * last)
        made.columns = {name: data[numbers] for name, data in columns.items()}
        made.unknown = names_inside(raw.value, fields.unknown)
        made.hyperparameters = settings
        made.token_ids = listed(made.token_ids)
        groups = (packed.groups[own] - packed.groups[row]).tolist()
        made.groups = groups if any(groups) else None
        for name, values in scores.items():
            setattr(made, name, values[own])
        if by_token is not None:
            made.advantages = by_token[numbers]
        if mask is not None and 0 in (kept := mask[token:last]):
            made.mask = kept
        if made.trajectory_labels is not None and packed.trajectories is not None:
            made.trajectories = (packed.trajectories[own] - packed.trajectories[own].min()).tolist()
        if packed.versions is not None and (packed.versions[token:last] >= 0).any():
            made.versions = packed.versions[token:last]
        if packed.misnamed:
            made.misnamed = misnamed_in(raw.plain(), fields.names, fields.misnamed)
        if "expected" in fields.names:
            expected: Any = raw.value["expected"]
            made.expected = listed(expected) if raw.arrays else expected
        row, token = end, last
    return found
