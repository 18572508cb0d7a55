"""Passes over the data: for the statistics of the whole input, and for the sums."""

from __future__ import annotations

from dataclasses import dataclass

from grpo_cli.commands.match.space.options import Options, key
from grpo_cli.commands.match.sums.add import FirstPass, Sums, add
from grpo_cli.commands.match.sums.data import Data
from grpo_cli.commands.match.sums.exact import Exactly, Found, merge
from grpo_cli.commands.match.sums.vectors import Measured
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import BatchStatistics, Evaluator
from grpo_cli.errors import GrpoError
from grpo_cli.objective.objective import Objective


@dataclass(frozen=True)
class _Measure:
    first: FirstPass

    def __call__(self, chunk: Chunk, into: dict[int, BatchStatistics]) -> None:
        known: dict[object, BatchStatistics] = {}
        for at, plan in self.first.plans.items():
            evaluator = Evaluator(plan)
            try:
                same = _sample(evaluator.objective(chunk))
                if same not in known:
                    known[same] = evaluator.measure(chunk)
            except GrpoError:
                continue
            into.setdefault(at, BatchStatistics()).merge(known[same])


def _sample(objective: Objective) -> object:
    """What the sample of an objective's advantage is made of."""
    bound = objective.advantage
    names = bound.choice.measured.hyperparameters
    penalty = key(objective.kl) if objective.kl_in_reward else None
    return bound.choice.measure, tuple(bound.values[name] for name in names), penalty


def measure(options: Options, data: Data) -> Measured:
    """The statistics of the whole input that some options need."""
    first = FirstPass.of(options)
    merged: dict[int, BatchStatistics] = {}
    for part in data.fold(_Measure(first), dict) if first.plans else ():
        for at, moments in part.items():
            merged.setdefault(at, BatchStatistics()).merge(moments)
    return merged


@dataclass(frozen=True)
class _Add:
    options: Options
    measured: Measured
    beside: Exactly

    def __call__(self, chunk: Chunk, into: tuple[Sums, Found]) -> None:
        sums, totals = into
        if totals:
            self.beside(chunk, totals)
        add(sums, self.options, chunk, self.measured)

    def zero(self) -> tuple[Sums, Found]:
        return Sums.zero(self.options), self.beside.zero()


_FEW_AT_ONCE, _MANY_AT_ONCE = 1 << 20, 1 << 22
"""Bytes of text: so that hundreds of columns of tokens take little memory, and so that numpy's
overhead is small."""


def add_up(options: Options, measured: Measured, data: Data, beside: Exactly) -> tuple[Sums, Found]:
    """The sums of all options over the data, and the exact totals of some plans ``beside``."""
    work = _Add(options, measured, beside)
    found: tuple[Sums, Found] | None = None
    together = _FEW_AT_ONCE if options.directs.plans else _MANY_AT_ONCE
    for part in data.fold(work, work.zero, together):
        if found is None:
            found = part
        else:
            found[0].merge(part[0])
            merge(found[1], part[1])
    return work.zero() if found is None else found
