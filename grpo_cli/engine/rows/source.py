"""What a field of a row is, what it is read from, and lists of that which can be printed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Batch, Segments
from grpo_cli.objective.arithmetic.turns import order_turns
from grpo_cli.objective.breakdown import Breakdown, record_sums
from grpo_cli.records.record import Record

Level = Literal["batch", "record", "trajectory", "response", "turn", "token"]
LEVELS: tuple[Level, ...] = get_args(Level)
Kind = Literal["number", "diagnostic", "whole", "text", "any"]


class Field(NamedTuple):
    """One field of a level.

    Attributes:
        name: what it is called in every format and flag.
        read: its values: one for each row of the level in a ``Source``, or the one of ``Totals``.
        spare: when a narrow terminal goes without it: the greatest first; 0: never.
        usual: a table leaves the column out where all its values are this one.
        hidden: whether a table shows it only where it is asked for.
        kind: what its values are; ``any``: what the user's data have; ``diagnostic``: a number
            that says how the run is doing and is no part of the objective, so that a table has
            fewer digits of it.
    """

    name: str
    read: Callable[[Any], Any]
    spare: int = 0
    usual: object = ...
    hidden: bool = False
    kind: Kind = "number"


SIZED = ("gradient", "contribution")
"""What ``Source.sizes`` are the sums of, in absolute values."""


class Source:
    """What fields are read from: M records and their breakdown, R responses, N tokens.

    Args:
        records: those that ``breakdown`` is of.
        breakdown: the numbers.
        sizes: [M, 2] Σ |gradient| and Σ |contribution| over the batch of each record, as asked
            for; None where nobody added them up.
        wanted: whether each row of the level to be printed is wanted; None: all are.
    """

    def __init__(
        self,
        records: Sequence[Record],
        breakdown: Breakdown,
        sizes: Callable[[], F64 | None] = lambda: None,
        wanted: Callable[[Source], NDArray[np.bool_]] | None = None,
    ) -> None:
        self.records = records
        self.breakdown = breakdown
        self.batch = breakdown.batch
        self._sizes, self._wanted = sizes, wanted

    def only(self, wanted: Callable[[Source], NDArray[np.bool_]] | None) -> Source:
        """The same records, for other rows."""
        return Source(self.records, self.breakdown, self._sizes, wanted)

    @cached_property
    def sizes(self) -> F64 | None:
        """[M, 2] Σ |gradient| and Σ |contribution| over the batch of each record."""
        return self._sizes()

    @cached_property
    def mask(self) -> NDArray[np.bool_] | None:
        """Whether each row of the level to be printed is wanted; None where all are."""
        return None if self._wanted is None else self._wanted(self)

    @property
    def by(self) -> tuple[str, ...]:
        """The fields that ``--batch`` names."""
        return tuple(self.records[0].batch or ()) if self.records else ()

    @cached_property
    def turns(self) -> Segments:
        """The tokens cut into turns."""
        return self.breakdown.batch.turns

    @cached_property
    def turn_responses(self) -> Segments:
        """The turns of each response."""
        return Segments(self.breakdown.turn_counts)

    def rows_of_records(self, level: Level) -> Segments:
        """The rows of a level within records that each record has, wanted or not."""
        if level == "trajectory":
            return self.trajectories.records
        if level == "turn":
            return Segments(self.batch.records.sum(self.turn_responses.lengths))
        return self.batch.records if level == "response" else self.batch.record_tokens

    def rows_of_responses(self, level: Level) -> Segments:
        """The turns or tokens that each response has, wanted or not."""
        return self.turn_responses if level == "turn" else self.batch.responses

    @cached_property
    def trajectories(self) -> Trajectories:
        """The responses of each trajectory."""
        return Trajectories(self.breakdown.batch)

    @cached_property
    def turn_numbers(self) -> I64:
        """[turns] each turn's number in its trajectory, 0-based."""
        batch = self.breakdown.batch
        return order_turns(batch.turns, batch.responses, batch.trajectories).number

    def count(self, level: Level) -> int:
        """How many rows of a level there are, wanted or not."""
        return len(self.records) if level == "record" else self.rows_of_records(level).total

    def sum(self, level: Level, values: NDArray[Any]) -> list[Any]:
        """The sum of the values [R] over the responses of each row; exact where they are floats."""
        if level == "response":
            return plain(values)
        if level == "trajectory":
            return self.trajectories.sum(values)
        records = self.batch.records
        return plain(
            record_sums(values, records) if values.dtype.kind == "f" else records.sum(values)
        )

    def sum_tokens(self, level: Level, values: NDArray[Any]) -> list[Any]:
        """The sum of the values [N] over the tokens of each row of a level."""
        if level == "turn":
            return plain(self.turns.sum(values))
        return self.sum(level, self.batch.responses.sum(values))

    def token_counts(self, level: Level) -> list[int]:
        """How many tokens each row of a level has."""
        lengths = self.batch.responses.lengths
        if level == "turn":
            return self.turns.lengths.tolist()
        return lengths.tolist() if level == "response" else [*map(int, self.sum(level, lengths))]

    @cached_property
    def positions(self) -> I64:
        """[N] each token's index in its response as written."""
        batch = self.breakdown.batch
        return batch.responses.positions if batch.positions is None else batch.positions


def group_names(source: Source) -> list[Any]:
    """[R] what the user calls each response's group, or its number in the record."""
    names: list[Any] = []
    cuts = pairwise(bounds(source.batch.records))
    for record, (begin, end) in zip(source.records, cuts, strict=True):
        numbers, labels = source.breakdown.local_groups[begin:end], record.group_labels
        names += numbers if labels is None else [labels[number] for number in numbers]
    return names


def trajectory_names(source: Source) -> list[Any]:
    """What the user calls each trajectory, or its number in its record."""
    names: list[Any] = []
    for record, count in zip(
        source.records, source.trajectories.records.lengths.tolist(), strict=True
    ):
        names += [*range(count)] if record.trajectory_labels is None else record.trajectory_labels
    return names


def rewards_of(source: Source) -> list[Any]:
    """[R] one number, or with several reward functions a list or dict of them."""
    rewards, names = source.breakdown.batch.rewards, source.breakdown.batch.reward_names
    if rewards is None:
        return [None] * source.count("response")
    values = plain(rewards)
    if rewards.ndim == 2 and names:
        return [dict(zip(names, row, strict=True)) for row in values]
    return values


def differences_of(breakdown: Breakdown) -> dict[str, F64]:
    """[N] by name, those that the record has the log-probs for.

    ``difference`` is log π_θ − log π_old, which is log ρ only where the ratio is the token's own;
    ``mismatch`` is log π_old − log π_rollout: the trainer against the engine that sampled.
    """
    batch = breakdown.batch
    found = {}
    if batch.log_probs_new is not None and batch.log_probs_old is not None:
        found["difference"] = batch.log_probs_new - batch.log_probs_old + 0.0
    if batch.log_probs_old is not None and batch.log_probs_rollout is not None:
        found["mismatch"] = batch.log_probs_old - batch.log_probs_rollout + 0.0
    return found


class Trajectories:
    """The responses of a batch in the order of their trajectories.

    Attributes:
        index: [R] the trajectory of each response.
        count: how many trajectories there are.
        order: [R] the responses, those of one trajectory next to each other.
        responses: cuts these into trajectories.
        records: the trajectories of each record.
    """

    def __init__(self, batch: Batch) -> None:
        responses, records = batch.responses.count, batch.records
        alone = batch.trajectories is None
        self.index = np.arange(responses) if batch.trajectories is None else batch.trajectories
        self.count = responses if alone else batch.trajectory_count
        self.order = self.index if alone else np.argsort(self.index, kind="stable")
        self.responses = Segments(np.bincount(self.index, minlength=self.count))
        owner = records.index[self.order[self.responses.starts]] if self.count else self.order
        self.records = Segments(np.bincount(owner, minlength=records.count))

    @property
    def members(self) -> list[list[int]]:
        """The responses of each trajectory."""
        flat, cuts = self.order.tolist(), bounds(self.responses)
        return [flat[begin:end] for begin, end in pairwise(cuts)]

    def sum(self, values: NDArray[Any]) -> list[float]:
        """The exactly rounded sum of each trajectory's values [R]."""
        return plain(record_sums(values[self.order], self.responses) + 0.0)


def bounds(segments: Segments) -> list[int]:
    """[S+1] where each segment begins, and where the last one ends."""
    return [*segments.starts.tolist(), segments.total]


def plain(values: F64) -> list[Any]:
    """A list without -0.0."""
    return (values + 0.0).tolist()


def whole(values: NDArray[Any]) -> list[int | float]:
    """A list in which whole numbers are whole."""
    return [int(one) if float(one).is_integer() else one for one in values.tolist()]


def fraction(parts: Sequence[Any], wholes: Sequence[float]) -> list[float | None]:
    """Each part of its whole; None where there is nothing."""
    return [part / whole if whole else None for part, whole in zip(parts, wholes, strict=True)]


def extreme(which: np.ufunc, values: F64, segments: Segments) -> list[float | None]:
    """[S] the least or greatest element of each segment; None for an empty one."""
    filled = np.flatnonzero(segments.lengths)
    result: list[float | None] = [None] * segments.count
    if len(filled):
        found = which.reduceat(values, segments.starts[filled]).tolist()
        for place, value in zip(filled.tolist(), found, strict=True):
            result[place] = value
    return result


def one_number(values: NDArray[Any]) -> bool:
    """Whether all of some numbers of 8 bytes are the same, to the bit."""
    bits = values.view(np.int64)
    return bool(bits[0] == bits[-1] and (bits == bits[0]).all())


same = object()
"""Marks any value that all rows of a table have in common."""
