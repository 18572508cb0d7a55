"""Dumps of healthy runs, as a start for faults; and helpers that change their columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trials.product import Record
from trials.simulate.batch import Batch
from trials.simulate.noise import BFLOAT16, FLOAT32, Engine
from trials.simulate.policy import Random
from trials.simulate.run import simulate
from trials.simulate.setup import Dump, Moves, Rewards, Sampling, Setup, Text
from trials.simulate.write import KEYS, records

Change = Callable[..., None]


@dataclass(frozen=True)
class Run:
    """A batch before it is written; faults change it, or the records afterwards."""

    setup: Setup
    batch: Batch
    random: Random

    def written(self, name: str = "step-0") -> list[Record]:
        return records(self.batch, self.setup.dump, self.random, name)


def healthy(random: Random, **more: Any) -> Setup:
    """A run that somebody may have: sizes, lengths, precision, rewards and names all drawn."""
    words = str(random.choice(["own", "trl", "verl"]))
    layout = str(random.choice(["record", "record", "group"]))
    found = Setup(
        prompts=int(random.integers(3, 7)),
        group=int(random.choice([4, 8])),
        engine=BFLOAT16,
        trainer=BFLOAT16 if random.random() < 0.7 else FLOAT32,
        moves=Moves(
            update=float(random.choice([0.0, 0.05, 0.15])),
            reference=float(random.uniform(0.05, 0.3)),
            same_pass=False,
        ),
        rewards=Rewards(kind=str(random.choice(["binary", "continuous", "shaped"]))),
        text=Text(length=float(random.uniform(50, 140)), spread=0.5, longest=300),
        dump=Dump(
            words=words,
            rollout=True,
            ids=True,
            layout=layout,
            padding=str(random.choice(["", "right"])),
        ),
    )
    if found.moves.update == 0.0:
        found = replace(found, moves=replace(found.moves, same_pass=True))
    return with_parts(found, **more)


def with_parts(setup: Setup, **more: Any) -> Setup:
    """Parts of a setup replaced: ``moves={"update": 0.1}``, or a part as a whole."""
    for name, value in more.items():
        part = getattr(setup, name)
        new = replace(part, **value) if isinstance(value, dict) else value
        setup = replace(setup, **{name: new})
    return setup


def made(random: Random, setup: Setup) -> Run:
    return Run(setup, simulate(setup, random), random)


def key(record: Record, name: str) -> str:
    """The key of a canonical name in a record."""
    for words in KEYS.values():
        if words.get(name) in record:
            return str(words[name])
    return "token_ids" if name == "ids" else name


def rowwise(records: Sequence[Record], name: str, change: Callable[[list[Any], int], Any]) -> None:
    """Every row of a column of every record, changed."""
    at = 0
    for record in records:
        column = record[key(record, name)]
        for row, values in enumerate(column):
            column[row] = change(values, at)
            at += 1


def lengthened(run: Run, more: np.ndarray, fill: dict[str, Any]) -> Run:
    """With more tokens at the end of each response."""
    return replace(run, batch=run.batch.lengthened(more, fill))


__all__ = ["Engine", "Run", "Sampling", "healthy", "key", "lengthened", "made", "rowwise"]
