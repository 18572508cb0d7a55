"""The input read: for statistics, for sums, and for the exact totals of a few plans."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from grpo_cli.batch import F64, Batch
from grpo_cli.commands.match.options import Options, drops, key
from grpo_cli.commands.match.sums import FirstPass, Measured, OnChunk, Sums, add
from grpo_cli.engine import Reader
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.engine.packing import chunks
from grpo_cli.engine.totals import Totals
from grpo_cli.errors import GrpoError, InputError
from grpo_cli.objective.breakdown import record_sums
from grpo_cli.objective.choice import keyword_only
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.results import Weights
from grpo_cli.objective.statistics import ExactMoments
from grpo_cli.objective.terms import ENTROPY, KL, POLICY
from grpo_cli.records import DecodedChunk
from grpo_cli.variants.plan import Plan

T = TypeVar("T")


class Data(Protocol):
    """What is asked about: records that can be gone over several times."""

    def fold(self, work: Callable[[Chunk, T], None], zero: Callable[[], T]) -> Iterator[T]:
        """``zero`` with ``work`` done on its chunks, part by part."""
        ...  # pragma: no cover


@dataclass(frozen=True)
class _OnPiece(Generic[T]):
    """The fold over a piece, as a function that travels between processes."""

    work: Callable[[Chunk, T], None]
    zero: Callable[[], T]

    def __call__(self, decoded: Iterable[DecodedChunk]) -> tuple[T, list[InputError]]:
        result, bad = self.zero(), []
        for chunk in chunks(decoded, with_headers=False):
            if isinstance(chunk, Chunk):
                self.work(chunk, result)
            else:
                bad.append(chunk)
        return result, bad


@dataclass(frozen=True)
class Stream:
    """The files of a command."""

    reader: Reader

    def fold(self, work: Callable[[Chunk, T], None], zero: Callable[[], T]) -> Iterator[T]:
        """Piece by piece, in as many processes as the reader has."""
        self.reader.skipped = []
        for _, (result, bad) in self.reader.map(_OnPiece(work, zero)):
            for error in bad:
                self.reader.bad(error)
            yield result


@dataclass(frozen=True)
class Few:
    """Records in memory."""

    chunks: Sequence[Chunk]

    def fold(self, work: Callable[[Chunk, T], None], zero: Callable[[], T]) -> Iterator[T]:
        """All at once."""
        result = zero()
        for chunk in self.chunks:
            work(chunk, result)
        yield result


# ---- what is done on each pass ----------------------------------------------------------------


@dataclass(frozen=True)
class _Measure:
    first: FirstPass

    def __call__(self, chunk: Chunk, into: dict[int, ExactMoments]) -> None:
        known: dict[object, ExactMoments] = {}
        for at, plan in self.first.plans.items():
            evaluator = Evaluator(plan)
            try:
                same = _sample(evaluator.objective(chunk))
                if same not in known:
                    known[same] = evaluator.measure(chunk)
            except GrpoError:
                continue
            into.setdefault(at, ExactMoments()).merge(known[same])


def _sample(objective: Objective) -> object:
    """What the sample of an objective's advantage is made of."""
    bound = objective.advantage
    function = bound.choice.measure
    names = () if function is None else keyword_only(function)
    penalty = key(objective.kl) if objective.kl_in_reward else None
    return function, tuple(bound.values[name] for name in names), penalty


def measure(options: Options, data: Data) -> Measured:
    """The statistics of the whole input that some options need."""
    first = FirstPass.of(options)
    merged: dict[int, ExactMoments] = {}
    for part in data.fold(_Measure(first), dict) if first.plans else ():
        for at, moments in part.items():
            merged.setdefault(at, ExactMoments()).merge(moments)
    return merged


@dataclass(frozen=True)
class _Add:
    options: Options
    measured: Measured

    def __call__(self, chunk: Chunk, into: Sums) -> None:
        add(into, self.options, chunk, self.measured)

    def zero(self) -> Sums:
        return Sums.zero(self.options)


def add_up(options: Options, measured: Measured, data: Data) -> Sums:
    """The sums of all options over the data."""
    work = _Add(options, measured)
    total = work.zero()
    for part in data.fold(work, work.zero):
        total.merge(part)
    return total


class _Terms(Totals):
    """Totals of J's terms alone."""

    def add_terms(self, work: OnChunk, evaluator: Evaluator, chunk: Chunk) -> None:
        """Adds a chunk's records: the sums that ``add`` makes of a breakdown, to the bit."""
        objective = work.objective(evaluator.plan)
        policy = work.policy(objective, evaluator.measured)
        self._weighted(POLICY, 1.0, policy, work.weight(objective, "aggregate"), chunk.batch)
        has_kl = objective.has_kl and not objective.kl_in_reward
        if has_kl and objective.beta:
            weights = work.weight(objective, _own(objective, "kl_aggregate"))
            self._weighted(KL, -objective.beta, work.kl(objective), weights, chunk.batch)
        if objective.entropy is not None and objective.entropy_coef:
            weights = work.weight(objective, _own(objective, "entropy_aggregate"))
            sums = work.entropy(objective)
            self._weighted(ENTROPY, objective.entropy_coef, sums, weights, chunk.batch)
        self.records += chunk.batch.records.count
        self.signatures.setdefault(objective.signature, objective.parts)

    def _weighted(
        self, name: str, coefficient: float, sums: F64, weights: Weights, batch: Batch
    ) -> None:
        total = self._term(name)
        values = (weights.numerator / weights.divisor) * sums
        if self.batch == "record":
            counts = np.ones(batch.records.count)
            if weights.counts is not None:
                counts = np.maximum(batch.records.sum(weights.counts), 1)
            total.add(coefficient, record_sums(values, batch.records) / counts)
            return
        total.add(coefficient, values)
        total.counted += 0.0 if weights.counts is None else float(weights.counts.sum())


def _own(objective: Objective, stage: str) -> str:
    return "aggregate" if getattr(objective, stage) is None else stage


@dataclass(frozen=True)
class _Exactly:
    evaluators: Sequence[Evaluator]
    everything: bool

    def __call__(self, chunk: Chunk, into: dict[int, Totals | None]) -> None:
        work = OnChunk(Options(solve=True), chunk, {})
        for at, evaluator in enumerate(self.evaluators):
            totals = into[at]
            if totals is None:
                continue
            try:
                with np.errstate(all="ignore"):
                    if isinstance(totals, _Terms):
                        totals.add_terms(work, evaluator, chunk)
                    else:
                        totals.add(evaluator.evaluate(chunk))
            except GrpoError:
                into[at] = None

    def zero(self) -> dict[int, Totals | None]:
        return {at: self._totals(one.plan) for at, one in enumerate(self.evaluators)}

    def _totals(self, plan: Plan) -> Totals:
        correction = plan.swapped.get("correction", plan.row.correction.name)
        return (Totals if self.everything or drops(correction) else _Terms)(plan.batch)


def exactly(
    evaluators: Sequence[Evaluator], data: Data, *, everything: bool
) -> list[Totals | None]:
    """The totals that ``grpo eval`` gives, to the bit; None where it gives an error.

    Args:
        evaluators: of which plans.
        data: the records.
        everything: whether numbers beside J and its terms are wanted.
    """
    work = _Exactly(evaluators, everything)
    merged = work.zero()
    for part in data.fold(work, work.zero) if evaluators else ():
        for at, totals in part.items():
            known = merged[at]
            if known is None or totals is None:
                merged[at] = None
            else:
                known.merge(totals)
    return [merged[at] for at in range(len(evaluators))]
