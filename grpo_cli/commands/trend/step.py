"""What ``grpo trend`` finds: the numbers of a step, and where a run changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, NamedTuple

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.answer import Answer


@dataclass(frozen=True, slots=True)
class Place:
    """The token, or the response, where something is largest.

    Attributes:
        source: the file as the user named it.
        line: its 1-based line; None where it has none.
        record: the record's id, or its number: what ``--record`` takes.
        response: the response's number in the record.
        token: the token's index as written; None for a response as a whole.
        value: how large.
    """

    source: str
    line: int | None
    record: str | int | float
    response: int
    token: int | None
    value: float

    def __reduce__(self) -> tuple[object, ...]:
        """Many travel: this takes a tenth of the time that dataclasses take."""
        values = (self.source, self.line, self.record, self.response, self.token, self.value)
        return Place, values


@dataclass(frozen=True, slots=True)
class Step(Answer):
    """A step of a run.

    Attributes:
        number: the step.
        file: the first file that has records of it.
        metrics: every metric of ``METRICS``, then those of single reward functions; None where
            the records lack what it is made of.
        worst: what to look at: "ratio", "mismatch", "kl", "nll" (a token each), "length" (a
            response) and "gradient" (a record).
        shares_file: whether the file has records of other steps.
        key: the field of the file's objects that says the step; None where the file's name does.
    """

    number: int
    file: str
    metrics: Mapping[str, float | None]
    worst: Mapping[str, Place]
    shares_file: bool = False
    key: str | None = None

    def fields(self) -> dict[str, Any]:
        """Its row: the metrics by name, and the worst places."""
        head = {"step": self.number, "file": self.file}
        return {**head, **self.metrics, "worst": dict(self.worst)}


class Flags(NamedTuple):
    """What a run was read with, as words of a command line that goes on with it.

    Attributes:
        objective: which objective.
        reading: how the files are read.
    """

    objective: Sequence[str] = ()
    reading: Sequence[str] = ()

    @property
    def words(self) -> list[str]:
        """All of them."""
        return [*self.objective, *self.reading]


def with_equal_metrics(steps: Sequence[Step]) -> list[Step]:
    """The steps with the same metrics each: None for those that only others have."""
    names = dict.fromkeys(name for step in steps for name in step.metrics)
    return [
        step
        if len(step.metrics) == len(names)
        else replace(step, metrics={name: step.metrics.get(name) for name in names})
        for step in steps
    ]


def series_of(steps: Sequence[Step], name: str) -> F64:
    """[n] a metric of each step; NaN where a step has none."""
    return np.array([step.metrics[name] for step in steps], dtype=np.float64)


@dataclass(frozen=True)
class Finding:
    """Where a run changed.

    Attributes:
        metric: its name.
        kind: "shift" (a new level), "drift" (a slope), or "limit" (a threshold that frameworks
            publish).
        onset: the step at which it began.
        sentence: what happened, in numbers.
        command: what shows the step at which it began: its worst record and token.
        worst_step: the step that is farthest from what was usual.
        worst: where in that step.
        score: by how many standard errors; of a limit, infinite.
        cause: the command that may explain it, of the step at which it began.
        worst_command: what shows the worst step likewise.
    """

    metric: str
    kind: str
    onset: int
    sentence: str
    command: str
    worst_step: int
    worst: Place | None
    score: float = inf
    cause: str = ""
    worst_command: str = ""
