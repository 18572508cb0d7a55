"""The whole input as one batch, for questions that cut it anew."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from grpo_cli.engine import Reader
from grpo_cli.engine.chunk import Chunk
from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import Value
from grpo_cli.records import Record, layout


@dataclass(frozen=True)
class Whole:
    """The input as one chunk.

    Attributes:
        chunk: all records, with the hyperparameters that they share, and the first one's others.
        differing: the hyperparameters in which the records differ, and the first one's value.
    """

    chunk: Chunk
    differing: dict[str, Value]


def whole(source: Reader) -> Whole:
    """Lays all records side by side, whatever their hyperparameters.

    Raises:
        InputError: for a record that has other columns than the first.
    """
    records = [*_usable(source)]
    if not records:
        raise InputError("no record can be read")
    first = records[0]
    differing = {
        name: first.hyperparameters.get(name)
        for record in records
        for name in {**first.hyperparameters, **record.hyperparameters}
        if record.hyperparameters.get(name) != first.hyperparameters.get(name)
    }
    same = [replace(record, hyperparameters=first.hyperparameters) for record in records]
    _check_layouts(same)
    return Whole(Chunk.of(same), differing)


def _usable(source: Reader) -> Iterator[Record]:
    """The records whose values are in range; the others stop the command, or are left out."""
    for _, record in source.records():
        try:
            Chunk.of([record])
        except InputError as error:
            source.bad(error)
        else:
            yield record


def _check_layouts(records: list[Record]) -> None:
    wanted = layout(records[0])
    for record in records:
        if layout(record) != wanted:
            raise InputError(
                "this record has other columns than the first one, so they are no one batch",
                source=record.source,
                line=record.line,
            )
