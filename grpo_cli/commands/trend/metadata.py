"""What records hold besides the numbers of their tokens: endings, versions, reward functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from grpo_cli.batch import I64
from grpo_cli.commands.trend.origins import RecordStep
from grpo_cli.commands.trend.sums import EACH, Ragged, StepSums
from grpo_cli.engine.chunk import Chunk
from grpo_cli.records.parse.turns import is_version, is_whole, version_rows
from grpo_cli.records.unread import ENDINGS, VERSIONS

_READ = frozenset((*ENDINGS, *VERSIONS, "meta"))

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


def has_metadata(keys: Iterable[str]) -> bool:
    """Whether ``add_metadata`` reads any of a record's keys."""
    return any(map(is_metadata, keys))


def metadata_of(value: Any) -> dict[str, Any] | None:
    """The fields of a record that ``add_metadata`` reads; None where there is nothing."""
    if not isinstance(value, dict):
        return None  # an error, which is reported where the record is read
    return {key: one for key, one in value.items() if is_metadata(key)} or None


def add_metadata(sums: StepSums, chunk: Chunk, steps: Sequence[RecordStep], row: I64) -> None:
    """Adds how responses ended, how old the policy is that sampled them, and reward functions.

    Args:
        sums: of the steps of a chunk.
        chunk: the records.
        steps: that of each, with what ``metadata_of`` has of it.
        row: [M] the row of each record in the sums.
    """
    counts: dict[str, dict[int, int]] = {}
    given: dict[str, dict[int, list[float]]] = {}
    for number, (step, at) in enumerate(zip(steps, row.tolist(), strict=True)):
        if step.metadata is None:
            continue
        functions = dict(functions_in(step.metadata))
        for name, values in functions.items():
            given.setdefault(name, {}).setdefault(at, []).extend(values)
        if functions:
            names = tuple(functions)
            sums.functions[names] = min(step.number, sums.functions.get(names, step.number))
        for name, count in _counts(step, chunk, number):
            known = counts.setdefault(name, {})
            known[at] = known.get(at, 0) + count
    for name, by_row in counts.items():
        sums.add_count(name, np.array([by_row.get(at, 0) for at in range(len(sums))]))
    for name, rewards in given.items():
        widths = np.array([len(rewards.get(at, ())) for at in range(len(sums))])
        values = [value for at in range(len(sums)) for value in rewards.get(at, ())]
        sums.add_sum(name, Ragged(widths, np.array(values, dtype=np.float64)))
        sums.add_count(name, widths)


def functions_in(value: Mapping[str, Any]) -> Iterator[tuple[str, list[float]]]:
    """The rewards of single functions that a record's own keys hold, by name."""
    for name, given in value.items():
        if name.startswith(EACH) and isinstance(given, list):
            yield name, [one for one in given if isinstance(one, int | float)]


def _counts(step: RecordStep, chunk: Chunk, number: int) -> Iterator[tuple[str, int]]:
    value = step.metadata or {}
    endings = cut_off(value)
    if endings is not None:
        yield "cut_off", sum(endings)
        yield "endings", len(endings)
    if rows := version_rows(value, chunk.records[number].widths):
        known = [one for one in _counted(rows, chunk, number) if is_whole(one)]
        yield "lag", sum(step.number - one for one in known)
        yield "versions", len(known)


def _counted(rows: list[Any], chunk: Chunk, number: int) -> Iterator[Any]:
    """The versions of a record: its own, one of each response, or of each token that counts."""
    if not any(isinstance(row, list) for row in rows):
        yield from rows
        return
    spans = dict(enumerate(_tokens_of(chunk, number)))
    for at, row in enumerate(rows):
        width, kept = spans.get(at, (0, ()))
        each = row if isinstance(row, list) else [row]
        counted = [each[token] for token in kept] if len(each) == width else each
        yield from filter(is_version, counted)


def _tokens_of(chunk: Chunk, number: int) -> list[tuple[int, list[int]]]:
    """For each response of a record, its tokens as written, and the indices of those that count."""
    batch, first = chunk.batch, int(chunk.batch.records.starts[number])
    found = []
    for response, width in enumerate(chunk.records[number].widths, first):
        start, length = (
            int(one[response]) for one in (batch.responses.starts, batch.responses.lengths)
        )
        kept = range(length) if batch.positions is None else batch.positions[start : start + length]
        found.append((width, [int(one) for one in kept]))
    return found
