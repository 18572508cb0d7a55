"""The whole input as one batch, for questions that cut it anew."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from grpo_cli.engine.batches import Piece
from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import Value
from grpo_cli.records import Record, assemble, layout


@dataclass(frozen=True)
class Whole:
    """The input as one piece.

    Attributes:
        piece: all records, with the hyperparameters that they share, and the first one's others.
        differing: the hyperparameters in which the records differ, and the first one's value.
    """

    piece: Piece
    differing: dict[str, Value]


def whole(pieces: Iterable[Piece]) -> Whole:
    """Lays all records side by side, whatever their hyperparameters.

    Raises:
        InputError: for a record that has other columns than the first.
    """
    records = [record for piece in pieces for record in piece.records]
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
    return Whole(Piece(same, assemble(same)), differing)


def _check_layouts(records: list[Record]) -> None:
    wanted = layout(records[0])
    for record in records:
        if layout(record) != wanted:
            raise InputError(
                "this record has other columns than the first one, so they are no one batch",
                source=record.source,
                line=record.line,
            )
