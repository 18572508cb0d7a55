"""Many plain records at once: the short way from decoded objects to a batch.

Most dumps are thousands of records alike: ``[G][T]`` log-probs, a reward or an advantage for each
response. Read column by column over all of them, nothing is done per record. Anything unusual,
every fault included, makes ``gather`` give up, and ``parse`` and ``assemble``, which it must
agree with bit for bit, look at the records one at a time.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import compress
from operator import iconcat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, Batch, Segments
from grpo_cli.records.assemble import grouped, kept_lengths
from grpo_cli.records.fields import read_fields
from grpo_cli.records.parse import record_id
from grpo_cli.records.record import Raw, Record

_LOG_PROBS = ("log_probs_new", "log_probs_old", "log_probs_ref", "log_probs_rollout")
_PLAIN = {
    *_LOG_PROBS,
    *("rewards", "advantages", "mask", "group_ids", "tokens", "token_ids"),
    *("id", "expected", "hyperparameters"),
}
Objects = Sequence[dict[str, Any]]


class Unusual(Exception):  # noqa: N818 - nothing is wrong with the records yet
    """These records have to be looked at one at a time."""


def gather(objects: Objects) -> Batch | None:
    """The batch of records that have the same keys, in the same order; None if not plain."""
    try:
        return _gather(objects)
    except (Unusual, TypeError, ValueError, LookupError, struct.error, OverflowError):
        return None


def _gather(objects: Objects) -> Batch:
    names = read_fields(objects[0]).names
    if not names.keys() <= _PLAIN or "log_probs_new" not in names:
        raise Unusual
    key = names["log_probs_new"]
    counts = [len(one[key]) for one in objects]
    rows = _rows(objects, key, counts)
    widths = list(map(len, rows))
    if not all(counts):
        raise Unusual
    mask = _mask(objects, names, counts, widths)
    columns = {
        name: _log_probs(_flat(objects, names[name], counts, widths), mask)
        for name in _LOG_PROBS
        if name in names
    }
    columns.setdefault("log_probs_old", columns["log_probs_new"])
    _check_words(objects, names, counts, widths)
    lengths, positions = kept_lengths(np.array(widths, dtype=np.int64), mask)
    sizes = np.array(counts, dtype=np.int64)
    groups, group_count = grouped(_groups(objects, names, counts), sizes)
    return Batch(
        responses=Segments(lengths),
        records=Segments(sizes),
        groups=groups,
        group_count=group_count,
        rewards=_scores(objects, names.get("rewards"), counts),
        positions=positions,
        **_advantages(objects, names.get("advantages"), counts, widths, mask),
        **columns,
    )


def _rows(objects: Objects, key: str, counts: list[int]) -> list[Any]:
    """The lists of all responses, response after response."""
    values = [one[key] for one in objects]
    if list(map(len, values)) != counts or set(map(type, values)) != {list}:
        raise Unusual
    return reduce(iconcat, values, [])


def _flat(objects: Objects, key: str, counts: list[int], widths: list[int]) -> list[Any]:
    """[N] the elements of a token column."""
    rows = _rows(objects, key, counts)
    if list(map(len, rows)) != widths or set(map(type, rows)) != {list}:
        raise Unusual
    return reduce(iconcat, rows, [])


def _pack(flat: list[Any]) -> F64:
    return np.frombuffer(struct.pack(f"{len(flat)}d", *flat))


def _log_probs(flat: list[Any], mask: NDArray[np.bool_] | None) -> F64:
    numbers = _pack(flat)
    if not numbers.max(initial=-1.0) < 0.0:  # a zero may have been false
        _refuse_booleans(flat, numbers)
    kept = numbers if mask is None else numbers[mask]
    if not (kept.max(initial=-1.0) <= 0.0 and kept.min(initial=0.0) > -np.inf):
        raise Unusual
    return kept


def _refuse_booleans(flat: list[Any], numbers: F64) -> None:
    suspects = (numbers == 0.0) | (numbers == 1.0)
    if bool in set(map(type, compress(flat, suspects.tobytes()))):
        raise Unusual


def _mask(
    objects: Objects, names: Mapping[str, str], counts: list[int], widths: list[int]
) -> NDArray[np.bool_] | None:
    if "mask" not in names:
        return None
    data = bytes(_flat(objects, names["mask"], counts, widths))
    if data.strip(b"\0\1"):
        raise Unusual
    return np.frombuffer(data, dtype=np.bool_) if b"\0" in data else None


def _check_words(
    objects: Objects, names: Mapping[str, str], counts: list[int], widths: list[int]
) -> None:
    for name, kind in (("tokens", str), ("token_ids", int)):
        if name in names:
            flat = _flat(objects, names[name], counts, widths)
            if not set(map(type, flat)) <= {kind}:
                raise Unusual


def _scores(objects: Objects, key: str | None, counts: list[int]) -> F64 | None:
    """[R] one finite number per response."""
    if key is None:
        return None
    flat = _rows(objects, key, counts)
    numbers = _pack(flat)
    if not set(map(type, flat)) <= {float, int} or not np.isfinite(numbers).all():
        raise Unusual
    return numbers


def _advantages(
    objects: Objects,
    key: str | None,
    counts: list[int],
    widths: list[int],
    mask: NDArray[np.bool_] | None,
) -> dict[str, F64 | None]:
    if key is None:
        return {}
    if type(objects[0][key][0]) is not list:
        return {"advantages": _scores(objects, key, counts)}
    flat = _flat(objects, key, counts, widths)
    numbers = _pack(flat)
    _refuse_booleans(flat, numbers)
    kept = numbers if mask is None else numbers[mask]
    if not np.isfinite(kept).all():
        raise Unusual
    return {"token_advantages": kept}


def _groups(
    objects: Objects, names: Mapping[str, str], counts: list[int]
) -> list[list[int] | None]:
    """For each record, [G] the dense number of each response's group; None for a single one."""
    if "group_ids" not in names:
        return [None] * len(objects)
    labels = _rows(objects, names["group_ids"], counts)
    if not set(map(type, labels)) <= {str, int}:
        raise Unusual
    return [_numbered(one[names["group_ids"]]) for one in objects]


def _numbered(labels: list[Any]) -> list[int] | None:
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    return [numbers[label] for label in labels] if len(numbers) > 1 else None


def headers(raws: Sequence[Raw]) -> list[Record]:
    """What a report shows of plain records beside their numbers."""
    names = read_fields(raws[0].value).names
    return [_header(raw, names) for raw in raws]


def _header(raw: Raw, names: Mapping[str, str]) -> Record:
    value = raw.value
    labels = None
    if "group_ids" in names:
        labels = list(dict.fromkeys(value[names["group_ids"]]))
    return Record(
        source=raw.source,
        line=raw.line,
        prefix=raw.prefix,
        id=record_id(value),
        widths=list(map(len, value[names["log_probs_new"]])),
        columns={},
        nested=2,
        names=names,
        group_labels=labels,
        tokens=value[names["tokens"]] if "tokens" in names else None,
        token_ids=value[names["token_ids"]] if "token_ids" in names else None,
    )
