"""What records hold in addition to numbers per token: words, endings, versions, rewards."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import chain, islice
from operator import iconcat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64
from grpo_cli.commands.trend.origins import RecordStep
from grpo_cli.commands.trend.sums import (
    EACH,
    MOST_ENVIRONMENTS,
    NO_NUMBER,
    OF_ENVIRONMENT,
    Ragged,
    StepSums,
)
from grpo_cli.engine.chunk import Chunk
from grpo_cli.records.parse.turns import is_version, is_whole, version_rows
from grpo_cli.records.record import Texts
from grpo_cli.records.tables.cells import number_texts
from grpo_cli.records.unread import ENDINGS, VERSIONS

ENVIRONMENTS = ("env", "env_name", "data_source", "task")
"""Fields of whose values each has a mean reward, up to ``MOST_ENVIRONMENTS`` values."""
TEXT = "prompt"
"""The field with a prompt's text."""
_READ = frozenset((*ENDINGS, *VERSIONS, *ENVIRONMENTS, TEXT, "meta", "loss", "expected"))

_CUT_OFF = (True, "length", "max_tokens", "truncated")


def cut_off(value: Mapping[str, Any]) -> list[bool] | None:
    """For each response, whether it was cut off; None if the record does not say."""
    endings = next((value[name] for name in ENDINGS if value.get(name) is not None), None)
    if endings is None:
        return None
    plain = endings.tolist() if hasattr(endings, "tolist") else endings  # of a table's column
    return [one in _CUT_OFF for one in (plain if isinstance(plain, list) else [plain])]


def is_metadata(key: str) -> bool:
    """Whether ``add_metadata`` reads the value of a key."""
    return key in _READ or key.startswith(EACH)


def metadata_of(value: Any) -> dict[str, Any] | None:
    """The fields of a record that ``add_metadata`` reads; None where there is nothing."""
    if not isinstance(value, dict):
        return None  # an error, which is reported where the record is read
    return {key: one for key, one in value.items() if is_metadata(key)} or None


def add_metadata(sums: StepSums, chunk: Chunk, steps: Sequence[RecordStep], row: I64) -> None:
    """Adds how responses ended, how old their policy is, reward functions, and the loss.

    Args:
        sums: of the steps of a chunk.
        chunk: the records.
        steps: that of each, with what ``metadata_of`` has of it.
        row: [M] the row of each record in the sums.
    """
    counts: dict[str, list[int]] = defaultdict(lambda: [0] * len(sums))
    given: dict[str, list[list[float]]] = defaultdict(lambda: [[] for _ in range(len(sums))])
    for number, (step, at) in enumerate(zip(steps, row.tolist(), strict=True)):
        if step.metadata is None:
            continue
        functions = functions_in(step.metadata)
        for name, values in functions.items():
            given[name][at] += values
        sums.functions |= dict.fromkeys(functions)
        loss = recorded_loss(step.metadata)
        if math.isfinite(loss or 0.0):
            given["recorded_loss"][at] += [] if loss is None else [loss]
        else:
            counts["recorded_nan"][at] += 1
        for name, count in _counts(step.metadata, step.number, chunk, number):
            counts[name][at] += count
    for name, by_row in counts.items():
        sums.add_count(name, np.array(by_row))
    for name, numbers in given.items():
        widths = np.array([*map(len, numbers)])
        if widths.any():
            sums.add_sum(name, Ragged(widths, np.array([*chain(*numbers)], dtype=np.float64)))
            sums.add_count(name, widths)


def functions_in(value: Mapping[str, Any]) -> dict[str, list[float]]:
    """The rewards of single functions that a record's own keys hold, by name."""
    return {
        name: [one for one in given if isinstance(one, int | float)]
        for name, given in value.items()
        if name.startswith(EACH) and isinstance(given, list)
    }


def recorded_loss(value: Mapping[str, Any]) -> float | None:
    """The loss that the trainer wrote into the record: ``expected.loss``, or else ``loss``."""
    expected = value.get("expected")
    for one in (expected, value):
        found = one.get("loss") if isinstance(one, dict) else None
        if isinstance(found, int | float | np.floating) and not isinstance(found, bool):
            return float(found)
    return None


def _counts(
    value: Mapping[str, Any], step: int, chunk: Chunk, number: int
) -> Iterator[tuple[str, int]]:
    """The counts of a record of a step; ``number``: which of the chunk."""
    endings = cut_off(value)
    if endings is not None:
        yield "cut_off", sum(endings)
        yield "endings", len(endings)
    if rows := version_rows(value, chunk.records[number].widths):
        known = [one for one in _versions(rows, chunk, number) if is_whole(one)]
        yield "lag", sum(step - one for one in known)
        yield "versions", len(known)


def _versions(rows: list[Any], chunk: Chunk, number: int) -> Iterator[Any]:
    """The versions of a record: its own, one of each response, or of each token that counts."""
    if not any(isinstance(row, list) for row in rows):
        yield from rows
        return
    batch, widths = chunk.batch, chunk.records[number].widths
    for at, row in enumerate(rows):
        each = row if isinstance(row, list) else [row]
        if at < len(widths) and len(each) == widths[at] and batch.positions is not None:
            response = int(batch.records.starts[number]) + at
            start, length = batch.responses.starts[response], batch.responses.lengths[response]
            each = [each[token] for token in batch.positions[start : start + length].tolist()]
        yield from filter(is_version, each)


def environments(
    steps: Sequence[RecordStep], counts: I64
) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """The name of each environment's series, and [R] which responses are of it.

    Of a field with more values than are shown one more is enough to see that.

    Args:
        steps: that of each record, with what ``metadata_of`` has of it, by record or response.
        counts: [M] the responses of each record.
    """
    keys = set(chain.from_iterable(step.metadata or () for step in steps))
    for field in (one for one in ENVIRONMENTS if one in keys):
        values: list[Any] = []
        for step, count in zip(steps, counts.tolist(), strict=True):
            value = (step.metadata or {}).get(field)
            each = value if isinstance(value, list) and len(value) == count else [value] * count
            values += each
        names = dict.fromkeys(one for one in values if isinstance(one, str))
        for name in islice(names, MOST_ENVIRONMENTS + 1):
            yield f"{OF_ENVIRONMENT}{field}={name}", np.array([one == name for one in values])


_GRAM = 4
_PRIME, _BITS = np.uint64(0x9E3779B97F4A7C15), np.uint64(64)
"""4-grams are compared by as many bits of a hash as the numbers of their responses leave."""


def _numbered(rows: list[Sequence[Any]]) -> NDArray[Any]:
    """A number for each token of all rows, which equal ones share: its id, or a hash."""
    kinds = {*map(type, rows)}
    if kinds == {Texts}:
        return number_texts(rows)  # type: ignore[arg-type]
    if kinds == {np.ndarray}:
        return np.concatenate(rows)
    every: list[Any] = reduce(iconcat, rows, [])
    words = np.array(every) if every and type(every[0]) is int else None
    if words is None or words.dtype.kind != "i":  # strings, or ids beyond 64 bits
        words = np.fromiter(map(hash, every), dtype=np.int64, count=len(every))
    return words


def words_of(chunk: Chunk, *fields: str) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """[R] which responses have words, and the numbers of these words, which equal ones share.

    Tokens that are masked out, such as padding, are none of the response's.

    Args:
        chunk: records with what a report shows of them.
        fields: of a record that may have the words, the first that it has.
    """
    batch, known, rows = chunk.batch, list[bool](), list[Sequence[Any]]()
    for record, count in zip(chunk.records, batch.records.lengths.tolist(), strict=True):
        given = next(filter(None, (getattr(record, one) for one in fields)), ())
        known += [len(given) == count] * count
        rows += given if len(given) == count else ()
    kept = np.array(known, dtype=np.bool_)
    lengths = batch.responses.lengths[kept]
    words = _numbered(rows).astype(np.int64, copy=False)
    widths = np.array([*map(len, rows)], dtype=np.int64)
    if batch.positions is not None or (widths != lengths).any():
        inside = batch.responses.positions if batch.positions is None else batch.positions
        starts = np.repeat(np.cumsum(widths) - widths, lengths)
        words = words[starts + inside[batch.responses.spread(kept)]]
    return kept, words


def repetition(chunk: Chunk) -> F64:
    """[R] the share of each response's 4-grams that it had before; NaN where it has none."""
    kept, numbers = words_of(chunk, "tokens", "token_ids")
    lengths, words = chunk.batch.responses.lengths[kept], numbers.view(np.uint64)
    grams = np.zeros(max(len(words) - _GRAM + 1, 0), dtype=np.uint64)
    for at in range(_GRAM):  # in place, as below: a column of a large file is some MB
        grams += words[at : at + len(grams)]
        grams *= _PRIME
    del words
    owners = np.repeat(np.arange(len(lengths), dtype=np.uint64), lengths)
    whole = owners[: len(grams)] == owners[len(owners) - len(grams) :]
    bits = np.uint64(len(lengths).bit_length())  # of the owner, above those of the hash
    keys = grams[whole]
    owners = owners[: len(grams)][whole]
    del grams
    keys >>= bits
    owners <<= _BITS - bits
    keys |= owners
    del owners
    keys.sort()
    is_new = np.ones(len(keys), np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=is_new[1:])
    distinct = (keys[is_new] >> (_BITS - bits)).astype(np.int64)
    distinct = np.bincount(distinct, minlength=len(lengths))
    shares = np.full(len(kept), NO_NUMBER)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = 1.0 - distinct / (lengths - _GRAM + 1)
    shares[kept] = np.where(lengths >= _GRAM, share, NO_NUMBER)
    return shares
