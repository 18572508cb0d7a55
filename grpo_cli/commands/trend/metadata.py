"""What records hold besides the numbers of their tokens: endings, versions, reward functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
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
    counts: dict[str, list[int]] = defaultdict(lambda: [0] * len(sums))
    given: dict[str, list[list[float]]] = defaultdict(lambda: [[] for _ in range(len(sums))])
    for number, (step, at) in enumerate(zip(steps, row.tolist(), strict=True)):
        if step.metadata is None:
            continue
        functions = functions_in(step.metadata)
        for name, values in functions.items():
            given[name][at] += values
        if functions:
            names = tuple(functions)
            sums.functions[names] = min(step.number, sums.functions.get(names, step.number))
        for name, count in _counts(step.metadata, step.number, chunk, number):
            counts[name][at] += count
    for name, by_row in counts.items():
        sums.add_count(name, np.array(by_row))
    for name, rewards in given.items():
        widths = np.array([*map(len, rewards)])
        sums.add_sum(name, Ragged(widths, np.array([*chain(*rewards)], dtype=np.float64)))
        sums.add_count(name, widths)


def functions_in(value: Mapping[str, Any]) -> dict[str, list[float]]:
    """The rewards of single functions that a record's own keys hold, by name."""
    return {
        name: [one for one in given if isinstance(one, int | float)]
        for name, given in value.items()
        if name.startswith(EACH) and isinstance(given, list)
    }


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
