"""Whether one quantity of responses follows another: within groups, with its interval."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from grpo_cli.batch import F64, I64
from grpo_cli.commands.answer import Answer
from grpo_cli.commands.options import complete
from grpo_cli.commands.trend.measure import functions_of, rewards_of
from grpo_cli.commands.trend.metadata import cut_off, functions_in
from grpo_cli.commands.trend.origins import RecordStep
from grpo_cli.commands.trend.questions.noise import Estimate
from grpo_cli.commands.trend.run import Evaluated, RunSums
from grpo_cli.commands.trend.sums import EACH
from grpo_cli.engine.chunk import Chunk
from grpo_cli.objective.inputs import MissingColumnError

_THIRDS, _LEAST = 3, 6
_EQUAL = 1e-12
_LEAST_GROUPS = 10
"""The least number of groups in which both vary for an answer."""


@dataclass(frozen=True)
class Correlation(Answer):
    """A rank correlation within groups, over some steps.

    Attributes:
        first_step, last_step: the steps.
        groups: in which both quantities vary.
        responses: of these groups.
        r: the correlation of the ranks within groups; None where there are too few groups.
        low, high: its interval (95 %), with groups as the sample.
        slope: by how much the first quantity changes where the second is one more, within groups.
        between: the rank correlation of the groups' means.
    """

    first_step: int
    last_step: int
    groups: int
    responses: int
    r: float | None
    low: float | None
    high: float | None
    slope: float | None
    between: float | None


@dataclass(frozen=True)
class CorrelationAnswer(Answer):
    """The answer of ``trend --correlate``.

    Attributes:
        first, second: the quantities.
        verdict: what the correlation over all steps says, in a sentence.
        spans: that over all steps, then over each third of them.
    """

    first: str
    second: str
    verdict: str
    spans: Sequence[Correlation]


@dataclass
class ResponseColumns(RunSums):
    """Quantities of every response, as far as records have them; NaN where one does not."""

    columns: list[Mapping[str, F64]] = field(default_factory=list)
    groups: list[I64] = field(default_factory=list)

    def evaluate(self, chunk: Chunk) -> Evaluated:
        """The rewards; the objective is not evaluated."""
        return MissingColumnError(""), rewards_of(chunk, None)

    def add(self, chunk: Chunk, found: Evaluated) -> None:
        """Adds the responses of a chunk."""
        steps: list[RecordStep] = chunk.of_batches  # type: ignore[assignment]  # of with_steps
        self.columns.append(dict(_columns(chunk, steps, found[1])))
        self.groups.append(chunk.batch.groups)

    def merge(self, later: RunSums) -> None:
        """Adds the responses of the records that follow."""
        super().merge(later)
        if isinstance(later, ResponseColumns):
            self.columns += later.columns
            self.groups += later.groups

    def joined(self) -> tuple[dict[str, F64], I64]:
        """[R] every quantity, NaN where a response has none; and the group of every response."""
        each = [*zip(self.columns, self.groups, strict=True)]
        names = dict.fromkeys(name for one in self.columns for name in one)
        found = {
            name: np.concatenate([one.get(name, np.full(len(of), np.nan)) for one, of in each])
            for name in names
        }
        starts = np.cumsum([0, *(int(one.max(initial=-1)) + 1 for one in self.groups)])
        parts = [one + start for one, start in zip(self.groups, starts, strict=False)]
        return found, np.concatenate([*parts, np.zeros(0, dtype=np.int64)])


_STEP = "step"


def _columns(
    chunk: Chunk, steps: Sequence[RecordStep], rewards: F64 | None
) -> Iterator[tuple[str, F64]]:
    """The quantities of a chunk's responses, by name."""
    batch = chunk.batch
    responses, records = batch.responses, batch.records
    yield _STEP, records.spread(np.array([one.number for one in steps], dtype=np.float64))
    if rewards is not None:
        yield "reward", rewards
    yield "length", responses.lengths.astype(np.float64)
    new, old, engine = batch.log_probs_new, batch.log_probs_old, batch.log_probs_rollout
    if new is not None:
        yield "nll", responses.mean(-new)
    if batch.entropies is not None:
        yield "entropy", responses.mean(batch.entropies)
    trainer = new if old is None else old
    if trainer is not None and engine is not None:
        yield "mismatch", responses.mean(np.abs(trainer - engine))
    yield from functions_of(chunk).items()
    given: dict[str, list[tuple[int, list[float]]]] = {}
    for number, step in enumerate(steps):
        values = dict(functions_in(step.metadata or {}))
        if (endings := cut_off(step.metadata or {})) is not None:
            values["truncated"] = [float(one) for one in endings]
        for name, each in values.items():
            if len(each) == records.lengths[number]:
                given.setdefault(name, []).append((int(records.starts[number]), each))
    for name, parts in given.items():
        column = np.full(responses.count, np.nan)
        for start, each in parts:
            column[start : start + len(each)] = each
        yield name, column


# ---- the answer ---------------------------------------------------------------------------------


def correlate(found: ResponseColumns, first: str, second: str) -> CorrelationAnswer:
    """How far one quantity of responses follows another, within their groups.

    Args:
        found: the responses of a run.
        first, second: two of its names; a reward function's with or without ``rewards/``.

    Raises:
        UsageError: for a name that no response has, with those that are there.
    """
    known, owners = found.joined()
    quantities = [name for name in known if name != _STEP]
    names = [
        complete.known(
            "--correlate", EACH + name if EACH + name in quantities else name, quantities
        )
        for name in (first, second)
    ]
    columns = [known[name] for name in names]
    kept = ~np.isnan(columns).any(axis=0)
    values, groups, steps = [one[kept] for one in columns], owners[kept], known[_STEP][kept]
    numbers, rows = np.unique(steps), []
    thirds = (one for one in np.array_split(numbers, _THIRDS) if len(numbers) >= _LEAST)
    for span in (numbers, *thirds) if len(numbers) else ():
        inside = (steps >= span[0]) & (steps <= span[-1])
        parts = (one[inside] for one in (*values, groups))
        rows.append(_correlation(int(span[0]), int(span[-1]), *parts))
    return CorrelationAnswer(names[0], names[1], _verdict(names, rows), rows)


def _correlation(begun: int, ended: int, first: F64, second: F64, groups: I64) -> Correlation:
    """The correlation over some steps; r by the ranks within groups that vary in both."""
    _, places, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    means = [np.bincount(places, one) / sizes for one in (first, second)]
    values = [one - mean[places] for one, mean in zip((first, second), means, strict=True)]
    spread = [np.bincount(places, np.abs(one) > _EQUAL) > 0 for one in values]
    varies = spread[0] & spread[1]
    inside, count = varies[places], int(varies.sum())
    about = begun, ended, count, int(inside.sum())
    u, v = (_ranks(one, np.zeros(len(one), dtype=np.int64)) for one in means)
    size = float(np.sqrt((u @ u) * (v @ v)))
    between = float(u @ v) / size if size else None
    if count < _LEAST_GROUPS:
        return Correlation(*about, None, None, None, None, between)
    x, y = (one[inside] for one in values)
    slope = float(x @ y) / float(y @ y)
    x, y = (_ranks(one, places[inside]) for one in (x, y))
    x, y = x / np.sqrt(x @ x), y / np.sqrt(y @ y)
    r = float(x @ y)
    pull = np.bincount(places[inside], x * y - r / 2 * (x * x + y * y))
    width = Estimate(r, float(np.sqrt(pull @ pull)), count - 1).half_width()
    return Correlation(*about, r, max(r - width, -1.0), min(r + width, 1.0), slope, between)


def _ranks(values: F64, groups: I64) -> F64:
    """[n] the rank of each value in its group, equal ones sharing theirs, less the mean rank."""
    order = np.lexsort((values, groups))
    ordered, owners = values[order], groups[order]
    new = np.append(True, (np.diff(ordered) > _EQUAL) | (np.diff(owners) != 0))
    ties = np.cumsum(new) - 1
    ranks = np.empty(len(values))
    places = np.arange(len(values), dtype=np.float64)
    ranks[order] = (np.bincount(ties, places) / np.bincount(ties))[ties]
    sizes = np.bincount(groups)
    centred: F64 = ranks - (np.bincount(groups, ranks) / np.maximum(sizes, 1))[groups]
    return centred


def _verdict(names: Sequence[str], rows: Sequence[Correlation]) -> str:
    first, second = names
    low, high = (rows[0].low, rows[0].high) if rows else (None, None)
    if low is None or high is None:
        count = rows[0].groups if rows else 0
        return (
            f"{first} and {second} both vary in only {count} groups; at least {_LEAST_GROUPS} "
            "are needed (--group-by joins rows of one prompt)"
        )
    interval = f"r = {rows[0].r:.2f}, {low:.2f} to {high:.2f}"
    if low <= 0.0 <= high:
        return f"{first} does not follow {second} in {rows[0].groups:,} groups: {interval}"
    verb = "rises" if low > 0.0 else "falls"
    return f"{first} {verb} with {second} within groups: {interval}"
