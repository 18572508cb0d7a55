"""A wrong implementation, and the words that name it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trials.product import Record
from trials.simulate.policies import F64, Random
from trials.trl import RIGHT, Data, data, evaluate, expected

Outcome = tuple[float, F64]


@dataclass(frozen=True)
class Plant:
    """How a loss is wrong.

    Attributes:
        steps: the steps of the loss that are replaced.
        after: what is done to loss and gradient at the end, instead.
        read: the record as the wrong implementation reads it.
        rewarded: the advantages are computed from rewards (records with whole groups).
        needs: whether a record has what it takes to see the mistake at all.
    """

    steps: dict[str, Callable[..., Any]] | None = None
    after: Callable[[Data, Outcome, Random], Outcome] | None = None
    read: Callable[[Record], Record] | None = None
    rewarded: bool = False
    needs: Callable[[Data], bool] = lambda data: True


@dataclass(frozen=True, kw_only=True)
class Mistake(Plant):
    """One thing done wrongly, a row of ``mistakes.csv``.

    Attributes:
        name: what was done.
        row: its name in the package's catalogue of mistakes.
        stage: a regular expression on the stage that has to be named.
        right: a regular expression on "stage … : causes" that names it: generous about wording,
            strict about substance. Everything else that is named as the cause is misleading.
    """

    name: str
    row: str
    stage: str
    right: str


def mistaken(mistake: Mistake, record: Record, random: Random) -> Record | None:
    """The record with what the wrong implementation gives; None where nobody could tell.

    A record tells where the loss or a gradient is off by more than 0.2 % of its scale: twenty times
    what ``verify`` allows for float32.
    """
    seen = data(record)
    if not mistake.needs(seen):
        return None
    loss, gradient = evaluate(seen)
    steps = replace(RIGHT, **mistake.steps) if mistake.steps else RIGHT
    as_read = data(mistake.read(record)) if mistake.read else seen
    wrong = evaluate(as_read, steps)
    if mistake.after:
        wrong = mistake.after(seen, wrong, random)
    if not (np.isfinite(wrong[0]) and np.isfinite(wrong[1]).all()):
        return None
    off = laid(as_read, wrong[1]) - laid(seen, gradient)
    apart = np.abs(off).max() > 2e-3 * np.abs(gradient).max()
    if not apart and abs(wrong[0] - loss) <= 2e-3 * abs(loss) + 1e-4:
        return None
    made = {key: value for key, value in record.items() if key != "expected"}
    return {**made, "expected": expected(as_read, *wrong)}


def laid(seen: Data, gradient: F64) -> F64:
    """The gradient at every token as written, 0 where it is masked."""
    whole = np.zeros(len(seen.kept))
    whole[seen.kept] = gradient
    return whole


def with_kl(data: Data) -> bool:
    return bool(data.hyper["beta"]) and bool(np.abs(data.ref - data.new).max() > 0.01)


def clipped(data: Data) -> bool:
    """A surrogate that clips; cispo's weight is another."""
    return data.framework["loss_type"] != "cispo"


def token_level(data: Data) -> bool:
    return data.framework["importance_sampling_level"] == "token" and clipped(data)


def sequence_level(data: Data) -> bool:
    return data.framework["importance_sampling_level"] == "sequence"


def cispo(data: Data) -> bool:
    return not clipped(data)


def moved(data: Data) -> bool:
    return bool(np.abs(data.new - data.old).max() > 0.01)


def on(step: str, made: Callable[..., Any], needs: Any = Plant.needs, **more: Any) -> Plant:
    """A step of the loss replaced."""
    return Plant({step: made}, needs=needs, **more)
