"""What ``grpo trend`` finds: the numbers of steps, and where a run changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from grpo_cli.commands.trend.onsets import COPY, LEAST_FUTURE, SPIKE
from grpo_cli.commands.trend.settings import SettingChange
from grpo_cli.commands.trend.sums import DISTANCES, KINDS, LOWEST, Ragged, StepSums
from grpo_cli.commands.trend.watched import Watch, watch, watch_logged
from grpo_cli.errors import did_you_mean

WARNING, INFO = "warning", "info"
_COUNTS = (("count", "samples"), ("count", "tokens"), ("count", "prints"), ("count", "kl"))
_KEPT = {*_COUNTS, *(("sum", name) for name in DISTANCES.values())}
_LEAST_COPIED = 16
"""Tokens of a step whose log-probs are no others' by chance."""
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
        lowest: where "nll" (the mean of a record) and "length" (a response) are lowest.
        shares_file: whether the file has records of other steps.
        key: the field that holds the step; None if the file's name does.
        logged: whether it is a row of a log, without records.
        in_pass: the pass that trained it, if the run was resumed from a checkpoint; else 0.
        repeats_ids: whether records of other steps have ids of its records.
    """

    number: int
    file: str
    metrics: Mapping[str, float | None]
    worst: Mapping[str, Place]
    shares_file: bool = False
    key: str | None = None
    logged: bool = False
    in_pass: int = 0
    lowest: Mapping[str, Place] = field(default_factory=dict)
    repeats_ids: bool = False

    def fields(self) -> dict[str, Any]:
        """Its row: the metrics by name, and the worst places."""
        head = {"step": self.number} | ({"pass": self.in_pass} if self.in_pass else {})
        return {**head, "file": self.file, **self.metrics, "worst": dict(self.worst)}

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
        passes: the pass that trained each; empty where the run was never resumed.
        whole: the steps of every pass, in order; the same steps if there is only one pass.
        notices: the parts of a log that are not used.
        settings: changes of the objective's settings.
        repeats_ids: whether records of several steps have one id.
    """

    def __init__(
        self,
        sums: StepSums,
        metrics: Mapping[str, F64],
        not_finite: Mapping[str, NotFinite] = MappingProxyType({}),
        *,
        logged: bool = False,
        passes: Sequence[int] = (),
    ) -> None:
        self.not_finite, self.logged, self.passes, self.whole = not_finite, logged, passes, self
        self._sums, self.numbers = sums, sums.numbers.tolist()
        self.files = [file for file, _ in sums.sources]
        self.metrics = dict(metrics)
        self.notices: dict[str, int | None] = {}
        self.settings: Sequence[SettingChange] = ()
        self.repeats_ids = False
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

    def in_passes(self, passes: Sequence[int]) -> Steps:
        """The run as it went on, of steps of every pass, which are then its ``whole``."""
        self.passes = passes
        steps = self.until(passes[-1])
        steps.whole = self
        return steps

    def until(self, last: int) -> Steps:
        """The run as it was after a pass: steps that this one or one before repeated are left out.

        Of the steps of every pass (``whole``).
        """
        numbers, passes = np.array(self.numbers), np.array(self.passes)
        kept = passes <= last
        for later in range(2, last + 1):
            kept &= (passes >= later) | (numbers < numbers[passes == later].min())
        return self.chosen(np.flatnonzero(kept))

    def since(self, first: int) -> Steps:
        """The steps from a number on."""
        return self.chosen(np.flatnonzero(np.array(self.numbers) >= first))

    def with_metrics(self, metrics: Mapping[str, F64]) -> Steps:
        """The steps with other metrics, which may be infinite, as what a framework logs."""
        return Steps(self._sums, metrics)

    def as_records(self) -> Steps:
        """The steps, of a log under the names that metrics of records have."""
        if not self.logged:
            return self
        names = {name: self.record_name(name) for name in reversed(self.metrics)}  # first one wins
        metrics = {known: self.metrics[name] for name, known in names.items()}
        broken = {names.get(name, name): one for name, one in self.not_finite.items()}
        return Steps(self._sums, metrics, broken, passes=self.passes)

    def record_name(self, name: str) -> str:
        """The metric of records that a logged series is; its own name where it is none.

        The gradient's norm is none: a log has that over the parameters.
        """
        row = self.watch(name)
        known = row is not None and not row.name.endswith("/") and row.name != "gradient_norm"
        return row.name if row is not None and known else name

    def read_each(self) -> list[Steps]:
        """The runs that they are of, as ``Run`` has it of records: one."""
        return [self]

    def watch(self, name: str) -> Watch | None:
        """How a metric is watched; None where it is not."""
        return watch_logged(name) if self.logged else watch(name)

    def name_of(self, row: str) -> str:
        """What the run calls a row of ``watched.TABLE``; "" where it has none."""
        rows = ((metric, self.watch(metric)) for metric in self.metrics)
        return next((metric for metric, one in rows if one is not None and one.name == row), "")

    def series_of(self, row: str) -> F64 | None:
        """The values of a row of ``watched.TABLE``; None where the run has none."""
        return self.metrics.get(self.name_of(row))

    def columns(self) -> dict[str, Array]:
        """Their rows as arrays by name; a number that is unknown is NaN."""
        head = {"step": self.numbers} | ({"pass": self.passes} if self.passes else {})
        metrics = {name: self.values(name) for name in self.metrics}
        return {n: array(column) for n, column in (head | {"file": self.files} | metrics).items()}

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

    def distance(self, first: str, second: str) -> F64:
        """[S] the mean square of the difference of two columns; 0 where records lack one."""
        name = DISTANCES[frozenset((first, second))]
        return self._sums.sum(name) / np.maximum(self._sums.count("tokens"), 1)

    @property
    def copied_reference(self) -> int | None:
        """The place of the step from which on log_probs_ref equals log_probs_old at all tokens.

        None where it does not to the end, or for less than four steps of a run, whose first policy
        is the reference; or where records lack one of them, or the old is the current policy.
        """
        if self.logged or not self._sums.count("kl").all():
            return None
        differs = np.flatnonzero(self.distance("ref", "old")).tolist()
        begun = differs[-1] + 1 if differs else 0
        enough = begun < len(self) and (begun or len(self) >= LEAST_FUTURE)
        return begun if enough and self.distance("new", "old")[begun:].all() else None

    @property
    def copies(self) -> dict[int, int]:
        """Place of a step → that of an earlier one with equal log-probs.

        None where most have from the first on.
        """
        first, found = dict[int, int](), dict[int, int]()
        tokens = self.counted("tokens")
        for at, sum_of in enumerate(self._sums.count("prints").tolist()):
            if sum_of and tokens[at] >= _LEAST_COPIED and first.setdefault(sum_of, at) < at:
                found[at] = first[sum_of]
        differ = min(found, default=0) >= LEAST_FUTURE or 2 * len(found) < len(self)
        return found if differ else {}

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
        passes = [self.passes[row] for row in rows.tolist()] if self.passes else ()
        part = Steps(self._sums.taken(rows), columns, kept, logged=self.logged, passes=passes)
        part._shared, part.repeats_ids = self._shared, self.repeats_ids
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

    def _step(self, at: int, row: Sequence[float | None]) -> Step:
        return Step(
            self.numbers[at],
            self.files[at],
            dict(zip(self.metrics, row, strict=True)),
            dict(self._worst(at, KINDS)),
            self._shared[self.files[at]] > 1,
            self._sums.sources[at][1],
            self.logged,
            self.passes[at] if self.passes else 0,
            {
                kind: replace(place, value=0.0 - place.value)
                for kind, name in LOWEST.items()
                for _, place in self._worst(at, (name,))
            },
            self.repeats_ids,
        )

    @cached_property
    def _places(self) -> dict[str, tuple[Ragged, I64]]:
        """By kind, what is worst in each step that has it, and how many steps before have it."""
        worst = self._sums.family("worst")
        return {kind: (one, np.cumsum(one.widths) - 1) for kind, one in worst.items()}

    def _worst(self, at: int, kinds: Iterable[str]) -> Iterator[tuple[str, Place]]:
        for kind in kinds:
            if kind not in self._places:
                continue
            worst, places = self._places[kind]
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
        kind: "shift" (a new level), "drift" (a slope), "spike" (a single step, or steps at equal
            distances), "limit" (beyond a published or usual bound), "impossible" (a value that
            cannot be), "copy" (the records of an earlier step) or "settings" (the records have
            other hyperparameters).
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
        period: the distance between spikes or copies, in steps; 0 if there is no period.
        at_once: whether the new level was reached from one step to the next.
        earliest: the first step at which it may have begun (95 %), where noise hides a slow
            beginning; None: at ``onset``.
        has_past: whether steps before it show what was usual; False for what goes one way from the
            first step on, or is beyond a limit in the first steps.
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
    earliest: int | None = None
    has_past: bool = True
    before: float | None = None
    after: float | None = None

    @property
    def row(self) -> Watch | None:
        """How the metric is watched, of records or of a log."""
        return watch(self.metric) or watch_logged(self.metric)

    @property
    def begins(self) -> int:
        """The first step at which it may have begun."""
        return self.onset if self.earliest is None else self.earliest

    @property
    def is_single(self) -> bool:
        """Whether it is of one step."""
        return self.kind in (SPIKE, COPY) and not self.period

    def __repr__(self) -> str:
        """What happened."""
        return f"Finding({self.kind}: {self.sentence})"
