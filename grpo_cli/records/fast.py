"""Many plain records at once: the short way from decoded objects to a batch.

Most dumps are thousands of records alike: ``[G][T]`` log-probs, a reward or an advantage for each
response. Read column by column over all of them, nothing is done per record. Anything unusual,
every fault included, makes ``gather`` give up, and ``parse`` and ``assemble``, which it must
agree with bit for bit, look at the records one at a time.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain, islice
from operator import iconcat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Batch, Segments
from grpo_cli.records.fields import read_fields
from grpo_cli.records.parse.assemble import grouped, kept_lengths, last_masked
from grpo_cli.records.parse.numbers import LARGEST
from grpo_cli.records.parse.record import record_id
from grpo_cli.records.record import Raw, Record, listed

LOG_PROBS = ("log_probs_new", "log_probs_old", "log_probs_ref", "log_probs_rollout")
PLAIN = {
    *LOG_PROBS,
    *("rewards", "advantages", "mask", "group_ids", "tokens", "token_ids"),
    *("id", "expected", "hyperparameters"),
}
Mask = NDArray[np.bool_]
Objects = Sequence[dict[str, Any]]
Flat = list[Any] | NDArray[Any]


class Unusual(Exception):  # noqa: N818 - nothing is wrong with the records yet
    """These records have to be looked at one at a time."""


@dataclass(slots=True, eq=False)
class Packed:
    """Plain records as the bytes of their columns; R responses, N tokens as written.

    Attributes:
        counts: [M] responses of each record.
        widths: [R] tokens of each response.
        columns: canonical token column → float64 bytes.
        mask: [N] a byte for every token, or None.
        rewards, advantages: [R] float64 bytes, or None.
        token_advantages: [N] the same, where they are given token by token.
        groups: for each record, [G] the dense number of each response's group; None for one group.
    """

    counts: list[int]
    widths: list[int]
    columns: dict[str, bytes | memoryview]
    mask: bytes | None
    rewards: bytes | None
    advantages: bytes | None
    token_advantages: bytes | None
    groups: list[list[int] | None]


def gather(objects: Objects) -> Batch | None:
    """The batch of records that have the same keys, in the same order; None if not plain."""
    packed = pack(objects)
    return None if packed is None else lay([packed])


def pack(objects: Objects) -> Packed | None:
    """The columns of records that have the same keys, in the same order; None if not plain."""
    try:
        return _pack_all(objects)
    except (Unusual, TypeError, ValueError, LookupError, struct.error, OverflowError):
        return None


def _pack_all(objects: Objects) -> Packed:
    names = read_fields(objects[0]).names
    if not names.keys() <= PLAIN or "log_probs_new" not in names:
        raise Unusual
    key = names["log_probs_new"]
    counts = [len(one[key]) for one in objects]
    widths = list(map(len, _rows(objects, key, counts)))
    columns = _log_probs(objects, names, counts, widths)
    _check_words(objects, names, counts, widths)
    by_token = "advantages" in names and _is_row(objects[0][names["advantages"]][0])
    advantages = names.get("advantages")
    return Packed(
        counts=counts,
        widths=widths,
        columns=columns,
        mask=_mask(objects, names.get("mask"), counts, widths),
        rewards=_scores(objects, names.get("rewards"), counts),
        advantages=None if by_token else _scores(objects, advantages, counts),
        token_advantages=(
            _numbers(_flat(objects, names["advantages"], counts, widths)) if by_token else None
        ),
        groups=_groups(objects, names, counts),
    )


def _is_row(value: object) -> bool:
    return type(value) is list or type(value) is np.ndarray


def lay(packed: Sequence[Packed]) -> Batch | None:
    """Lays packed records of one kind side by side; None where a value is out of its range."""
    counts = _joined_lists([one.counts for one in packed])
    widths = _joined_lists([one.widths for one in packed])
    mask = _join_masks(packed)
    columns: dict[str, Any] = {
        name: _column(b"".join([one.columns[name] for one in packed]), mask)
        for name in packed[0].columns
    }
    scores: dict[str, Any] = {
        "rewards": _join([one.rewards for one in packed], None),
        "advantages": _join([one.advantages for one in packed], None),
        "token_advantages": _join([one.token_advantages for one in packed], mask),
    }
    groups = grouped(reduce(iconcat, [one.groups for one in packed], []), counts)
    return batch_of(counts, widths, mask, columns, scores, groups)


def batch_of(
    counts: I64,
    widths: I64,
    mask: Mask | None,
    columns: dict[str, Any],
    scores: dict[str, Any],
    groups: tuple[I64, int],
) -> Batch | None:
    """A batch of plain columns; None where a value is out of its range.

    Args:
        counts: [M] responses of each record.
        widths: [R] tokens of each response, as written.
        mask: which tokens count; None: all.
        columns: the log-probs that count.
        scores: rewards and advantages, None where there are none.
        groups: [R] the number of each response's group, and how many there are.
    """
    if not all(_are_log_probs(column) for column in columns.values()):
        return None
    if not all(one is None or _are_usable(one) for one in scores.values()):
        return None
    columns.setdefault("log_probs_old", columns["log_probs_new"])
    lengths, positions = kept_lengths(widths, mask)
    return Batch(
        responses=Segments(lengths),
        records=Segments(counts),
        groups=groups[0],
        group_count=groups[1],
        positions=positions,
        last_masked=last_masked(widths, mask),
        **scores,
        **columns,
    )


def _joined_lists(lists: list[list[int]]) -> I64:
    return np.array(reduce(iconcat, lists, []), dtype=np.int64)


def _join(parts: list[bytes | None], mask: Mask | None) -> F64 | None:
    known = [part for part in parts if part is not None]
    return _column(b"".join(known), mask) if known else None


def _column(data: bytes, mask: Mask | None) -> F64:
    numbers = np.frombuffer(data)
    return numbers if mask is None else numbers[mask]


def _join_masks(packed: Sequence[Packed]) -> Mask | None:
    if all(one.mask is None for one in packed):
        return None
    whole = [one.mask or b"\1" * sum(one.widths) for one in packed]
    return np.frombuffer(b"".join(whole), dtype=np.bool_)


def _are_log_probs(column: F64) -> bool:
    # A NaN makes both extremes NaN, of which no comparison holds.
    return bool(column.max(initial=-1.0) <= 0.0 and column.min(initial=0.0) > -np.inf)


def _are_usable(scores: F64) -> bool:
    return bool(scores.max(initial=0.0) <= LARGEST and scores.min(initial=0.0) >= -LARGEST)


def _rows(objects: Objects, key: str, counts: list[int]) -> list[Any]:
    """The lists of all responses, response after response."""
    values = [one[key] for one in objects]
    if list(map(len, values)) != counts or set(map(type, values)) != {list}:
        raise Unusual
    return reduce(iconcat, values, [])


def _log_probs(
    objects: Objects, names: Mapping[str, str], counts: list[int], widths: list[int]
) -> dict[str, bytes | memoryview]:
    """The token columns, packed at once, which is faster than one by one."""
    keys = {name: names[name] for name in LOG_PROBS if name in names}
    # Where a record has no responses this is a LookupError, and it is not plain.
    kinds = {type(one[key][0]) for key in keys.values() for one in objects}
    if kinds != {list} or min(widths) == 0:
        return {
            name: _numbers(_flat(objects, key, counts, widths), below=0.0)
            for name, key in keys.items()
        }
    # What is no list among the rows, a string, is no number either when it is taken apart.
    each = [_token_rows(objects, key, counts, widths) for key in keys.values()]
    data = memoryview(_numbers(reduce(iconcat, chain.from_iterable(each), []), below=0.0))
    size = len(data) // len(keys)
    return {name: data[at * size : (at + 1) * size] for at, name in enumerate(keys)}


def _token_rows(objects: Objects, key: str, counts: list[int], widths: list[int]) -> list[Any]:
    """The same of a token column, each as long as it has to be."""
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


def _numbers(flat: Flat, *, below: float = -np.inf) -> bytes:
    """The float64 bytes of a list, or an array, without booleans.

    Args:
        flat: what should be numbers.
        below: a bound that most lists stay under, where no boolean could be.
    """
    if isinstance(flat, np.ndarray):
        if flat.dtype.kind not in "fiu":
            raise Unusual
        return flat.astype(np.float64).tobytes()
    data = struct.pack(f"{len(flat)}d", *flat)
    numbers = np.frombuffer(data)
    if not numbers.max(initial=-1.0) < below:
        suspects = np.flatnonzero((numbers == 0.0) | (numbers == 1.0)).tolist()
        if bool in map(type, map(flat.__getitem__, suspects)):
            raise Unusual
    return data


def _mask(objects: Objects, key: str | None, counts: list[int], widths: list[int]) -> bytes | None:
    if key is None:
        return None
    flat = _flat(objects, key, counts, widths)
    if isinstance(flat, np.ndarray):
        if not np.isin(flat, (0, 1)).all():
            raise Unusual
        flat = flat.astype(np.uint8)
    data = bytes(flat)
    if data.strip(b"\0\1"):
        raise Unusual
    return data if b"\0" in data else None


def _check_words(
    objects: Objects, names: Mapping[str, str], counts: list[int], widths: list[int]
) -> None:
    for name, kind in (("tokens", str), ("token_ids", int)):
        if name in names:
            flat = _flat(objects, names[name], counts, widths)
            if isinstance(flat, np.ndarray):
                if kind is not int or flat.dtype.kind not in "iu":
                    raise Unusual
            elif not set(map(type, flat)) <= {kind}:
                raise Unusual


def _scores(objects: Objects, key: str | None, counts: list[int]) -> bytes | None:
    """[R] one number per response."""
    if key is None:
        return None
    flat = _rows(objects, key, counts)
    if not set(map(type, flat)) <= {float, int}:
        raise Unusual
    return struct.pack(f"{len(flat)}d", *flat)


def _groups(
    objects: Objects, names: Mapping[str, str], counts: list[int]
) -> list[list[int] | None]:
    """For each record, [G] the dense number of each response's group; None for a single one."""
    if "group_ids" not in names:
        return [None] * len(objects)
    labels = _rows(objects, names["group_ids"], counts)
    if not set(map(type, labels)) <= {str, int}:
        raise Unusual
    return [numbered(one[names["group_ids"]]) for one in objects]


def numbered(labels: list[Any]) -> list[int] | None:
    """The dense number of each label, in the order of their first; None for a single one."""
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    return [numbers[label] for label in labels] if len(numbers) > 1 else None


def headers(raws: Sequence[Raw], packed: Packed, names: Mapping[str, str]) -> list[Record]:
    """What a report shows of plain records beside their numbers.

    Args:
        raws: the records.
        packed: the same, packed.
        names: canonical name → the key that they have.
    """
    widths = iter(packed.widths)
    return [
        _header(raw, raw.value, list(islice(widths, count)), names)
        for raw, count in zip(raws, packed.counts, strict=True)
    ]


def _header(raw: Raw, value: Any, widths: list[int], names: Mapping[str, str]) -> Record:
    labels = None
    if "group_ids" in names:
        labels = list(dict.fromkeys(value[names["group_ids"]]))
    return Record(
        source=raw.source,
        line=raw.line,
        prefix=raw.prefix,
        id=record_id(value),
        widths=widths,
        columns={},
        nested=2,
        names=names,
        group_labels=labels,
        tokens=value[names["tokens"]] if "tokens" in names else None,
        token_ids=listed(value[names["token_ids"]]) if "token_ids" in names else None,
        origin=raw.origin,
        batch=raw.batch,
    )
