"""What ``grpo trend`` finds: the numbers of steps, and where a run changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from grpo_cli.batch import F64, I64
from grpo_cli.commands.answer import Answer, text_of_rows
from grpo_cli.commands.frames import Array, Frames, array
from grpo_cli.commands.trend.metrics import METRICS, RECORDED_LOSS, StepValues, metric, values
from grpo_cli.commands.trend.names import WHOLE
from grpo_cli.commands.trend.onsets import LEAST_FUTURE, SHIFT, SPIKE
from grpo_cli.commands.trend.sums import KINDS, Ragged, StepSums
from grpo_cli.commands.trend.watched import Watch, watch, watch_logged
from grpo_cli.errors import did_you_mean

WARNING, INFO = "warning", "info"
FAR = 10.0
"""Standard errors beyond which their number says nothing more."""
SURE = 1
"""Onsets that differ by no more steps are taken to be one: the likely cause has one of these."""
_KEPT = tuple(("count", name) for name in ("samples", "tokens", "kl", "moved", "ref_not_old"))
_WHOLE = WHOLE | {one.name for one in METRICS.values() if one.whole}


@dataclass(frozen=True, slots=True)
class Place:
    """The token, or the response, where something is largest.

    Attributes:
        source: the file as the user named it.
        line: its line, from 1; None if the file has no lines.
        record: the record's id or number, for ``--record``.
        response: the response's number in the record.
        token: the token's index as written; None for a response as a whole.
        value: its size.
    """

    source: str
    line: int | None
    record: str | int | float
    response: int
    token: int | None
    value: float


@dataclass(frozen=True, slots=True)
class Step(Answer):
    """A step of a run. Its row has attributes, as ``step.kl_k3``, and keys, as ``step["kl_k3"]``.

    Attributes:
        number: the step.
        file: the first file that has records of it.
        metrics: every metric of ``METRICS``, then those of single reward functions; None where
            the records lack what it is made of.
        worst: the largest values: "ratio", "mismatch", "kl", "nll" (a token each), "length" (a
            response) and "gradient" (a record).
        shares_file: whether the file has records of other steps.
        key: the field that holds the step; None if the file's name does.
        logged: whether it is a row of a log, without records.
    """

    number: int
    file: str
    metrics: Mapping[str, float | None]
    worst: Mapping[str, Place]
    shares_file: bool = False
    key: str | None = None
    logged: bool = False

    def fields(self) -> dict[str, Any]:
        """Its row: the metrics by name, and the worst places."""
        head = {"step": self.number, "file": self.file}
        return {**head, **self.metrics, "worst": dict(self.worst)}

    @property
    def has_rewards_alone(self) -> bool:
        """Whether its records have no log-probs, so that only ``grpo trend`` reads them."""
        return not self.logged and self.metrics.get("nll", 0.0) is None

    @property
    def headline(self) -> str:
        """The step and the metrics that it has."""
        known = ((name, value) for name, value in self.metrics.items() if value is not None)
        return f"step {self.number}: {', '.join(f'{name} {value:.6g}' for name, value in known)}"

    def __getitem__(self, name: str) -> Any:
        row = self.fields()
        if name not in row:
            raise KeyError(f"{name}{did_you_mean(name, row)}")
        return row[name]


class NotFinite(NamedTuple):
    """Where something is NaN or infinite: the places of the steps, and what is so, in words."""

    places: Sequence[int]
    words: str


class Steps(Frames, Sequence[Step]):
    """The steps of a run, by number.

    Attributes:
        numbers: of the steps.
        files: the first file that has records of each.
        metrics: name → [S] values; NaN where a step has none.
        not_finite: a column or a logged series → where it is NaN or infinite.
        logged: whether these are a trainer's log alone, under the names that it has there.
        notices: the parts of a log that are not used.
    """

    def __init__(
        self,
        sums: StepSums,
        metrics: Mapping[str, F64],
        not_finite: Mapping[str, NotFinite] = MappingProxyType({}),
        *,
        logged: bool = False,
    ) -> None:
        self.not_finite, self.logged = not_finite, logged
        self._sums, self.numbers = sums, sums.numbers.tolist()
        self.files = [file for file, _ in sums.sources]
        self.metrics = dict(metrics)
        self.notices: dict[str, int | None] = {}
        self._shared = Counter(self.files)

    @classmethod
    def of(cls, sums: StepSums) -> Steps:
        """The steps of sums with a row for each; what is not finite is no number of a step."""
        found = values(StepValues(sums)).items()
        metrics = {name: np.where(np.isfinite(column), column, np.nan) for name, column in found}
        shown = {
            key: column for key, column in sums.columns.items() if key in _KEPT or key[0] == "worst"
        }
        broken = np.flatnonzero(sums.count("recorded_nan")).tolist()
        words = f"{RECORDED_LOSS.name} is not finite"
        wrong = {RECORDED_LOSS.name: NotFinite(broken, words)} if broken else {}
        return cls(replace(sums, columns=shown), metrics, wrong)

    def with_metrics(self, metrics: Mapping[str, F64]) -> Steps:
        """The steps with other metrics, which may be infinite, as what a framework logs."""
        return Steps(self._sums, metrics)

    def watch(self, name: str) -> Watch | None:
        """How a metric is watched; None where it is not."""
        return watch_logged(name) if self.logged else watch(name)

    def series_of(self, row: str) -> F64 | None:
        """The values of a row of ``watched.TABLE``; None where the run has none."""
        rows = ((column, self.watch(name)) for name, column in self.metrics.items())
        return next((column for column, one in rows if one is not None and one.name == row), None)

    def columns(self) -> dict[str, Array]:
        """Their rows as arrays by name; a number that is unknown is NaN."""
        head = {"step": self.numbers, "file": self.files}
        metrics = {name: self.values(name) for name in self.metrics}
        return {name: array(column) for name, column in (head | metrics).items()}

    def __repr__(self) -> str:
        return f"Steps({len(self)})\n{text_of_rows(self.table())}"

    def table(self) -> list[dict[str, Any]]:
        """A row for each step: its number, and the metrics that are shown unasked."""
        known = {name: metric(name) for name in self.metrics}
        usual = {n: one.spare if one else 0 for n, one in known.items() if not one or one.usual}
        names = sorted(usual, key=usual.__getitem__)  # first those that a terminal never hides
        return [{"step": one.number, **{n: one.metrics[n] for n in names}} for one in self]

    def __len__(self) -> int:
        return len(self.numbers)

    def counted(self, unit: Literal["samples", "tokens"]) -> F64:
        """[S] the responses, or the tokens, of each step."""
        return self._sums.count(unit).astype(np.float64)

    def __iter__(self) -> Iterator[Step]:
        columns = [self.values(name) for name in self.metrics]
        rows = zip(*columns, strict=True) if columns else ((),) * len(self)
        return (self._step(at, row) for at, row in enumerate(rows))

    @overload
    def __getitem__(self, at: int) -> Step: ...
    @overload
    def __getitem__(self, at: slice) -> Steps: ...
    def __getitem__(self, at: int | slice) -> Step | Steps:
        if not isinstance(at, slice):
            return self._step(range(len(self))[at], [self.value(name, at) for name in self.metrics])
        return self.chosen(np.arange(len(self))[at])

    def chosen(self, rows: I64) -> Steps:
        """Some of the steps, by their places."""
        columns = {name: column[rows] for name, column in self.metrics.items()}
        place = {int(row): number for number, row in enumerate(rows)}
        kept = {
            name: found._replace(places=inside)
            for name, found in self.not_finite.items()
            if (inside := [place[one] for one in found.places if one in place])
        }
        part = Steps(self._sums.taken(rows), columns, kept, logged=self.logged)
        part._shared = self._shared
        return part

    def values(self, name: str, places: Sequence[int] | None = None) -> list[float | None]:
        """A metric of each step, or of those at some places; None where a step has none."""
        if name not in self.metrics:  # left_out, which is there only where there are any
            return [None] * (len(self) if places is None else len(places))
        column = self.metrics[name][slice(None) if places is None else [*places]].tolist()
        if name in _WHOLE:
            return [_plain(name, value) for value in column]
        return [value if value == value else None for value in column]

    def value(self, name: str, at: int) -> float | None:
        """A metric of a step, by its place; None where it has none."""
        return _plain(name, self.metrics[name][at].item())

    @property
    def copied_reference(self) -> int | None:
        """The place of the step from which on log_probs_ref equals log_probs_old at all tokens.

        None where it does not to the end, or for less than four steps; where records lack one of
        them; or where the old is the current policy.
        """
        if self.logged or not self._sums.count("kl").all():
            return None
        differs = np.flatnonzero(self._sums.count("ref_not_old")).tolist()
        begun = differs[-1] + 1 if differs else 0
        enough = len(self) - begun >= LEAST_FUTURE
        return begun if enough and self._sums.count("moved")[begun:].all() else None

    def _step(self, at: int, row: Sequence[float | None]) -> Step:
        return Step(
            self.numbers[at],
            self.files[at],
            dict(zip(self.metrics, row, strict=True)),
            dict(self._worst(at)),
            self._shared[self.files[at]] > 1,
            self._sums.sources[at][1],
            self.logged,
        )

    @cached_property
    def _places(self) -> dict[str, tuple[Ragged, I64]]:
        """By kind, what is worst in each step that has it, and how many steps before have it."""
        worst = self._sums.family("worst")
        return {
            kind: (worst[kind], np.cumsum(worst[kind].widths) - 1)
            for kind in KINDS
            if kind in worst
        }

    def _worst(self, at: int) -> Iterator[tuple[str, Place]]:
        for kind, (worst, places) in self._places.items():
            if worst.widths[at]:
                value, response, token, record = worst.values[places[at]].item()
                source, line, name = record
                inside = None if token < 0 else token
                yield kind, Place(source, line, name, response, inside, value)


def _plain(name: str, value: float) -> float | None:
    """A value as it is printed: None for NaN, whole numbers as such."""
    if value != value:
        return None
    return int(value) if name in _WHOLE else value


class Flags(NamedTuple):
    """The flags with which a run was read, for the commands that are suggested.

    Attributes:
        objective: which objective.
        reading: how the files are read.
        arguments: both as arguments of a call, which goes on with data in memory.
    """

    objective: Sequence[str] = ()
    reading: Sequence[str] = ()
    arguments: Mapping[str, Any] = MappingProxyType({})

    @property
    def words(self) -> list[str]:
        """All of them."""
        return [*self.objective, *self.reading]


@dataclass(frozen=True)
class Finding:
    """Where a run changed.

    Attributes:
        metric: its name.
        kind: "shift" (a new level), "drift" (a slope), "spike" (a single step), "limit" (beyond a
            published or usual bound), "impossible" (a value that cannot be), "stuck" (nothing can
            be learnt from the first step on) or "trend" (one way from the first step on).
        onset: the step at which it began.
        sentence: what happened, in numbers.
        command: shows the worst record and token of the first step; for data in memory a call, or
            None if no field holds the step.
        worst_step: the step farthest from the usual value.
        worst: the place in that step.
        score: the change in standard errors; infinite for a limit.
        cause: the command that may explain it, for its first step.
        worst_command: shows the worst step in the same way.
        direction: "up", "down" or "".
        severity: "warning", or "info" if the change is not a fault by itself.
        seen: the first step at which ``trend`` reports it in a growing run.
        end: the first step whose values are as before; None while it lasts.
        through: the last step before that one.
        period: the steps from one spike to the next; 0 if there is no period.
        at_once: whether the new level was reached from one step to the next.
        has_past: whether steps before it show what was usual; False for what is beyond a limit in
            the first steps.
        before, after: the levels in the sentence; for a single step or a limit, ``after`` is the
            farthest value; None if the sentence has none.
    """

    metric: str
    kind: str
    onset: int
    sentence: str
    command: str | None
    worst_step: int
    worst: Place | None
    score: float = inf
    cause: str | None = None
    worst_command: str | None = None
    direction: str = ""
    severity: str = WARNING
    seen: int = 0
    end: int | None = None
    through: int | None = None
    period: int = 0
    at_once: bool = False
    has_past: bool = True
    before: float | None = None
    after: float | None = None

    @property
    def row(self) -> Watch | None:
        """How the metric is watched, of records or of a log."""
        return watch(self.metric) or watch_logged(self.metric)

    @property
    def is_single(self) -> bool:
        """Whether it is of one step."""
        return self.kind == SPIKE and not self.period

    @property
    def is_clear(self) -> bool:
        """Whether it is a level or a single step far beyond noise: its step is certain."""
        return self.score > FAR and self.kind in (SHIFT, SPIKE)

    def __repr__(self) -> str:
        """What happened."""
        return f"Finding({self.kind}: {self.sentence})"
