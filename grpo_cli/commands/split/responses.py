"""The responses of the input, each as its sums: all that any cut of the batch needs of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import ClassVar

import numpy as np

from grpo_cli.batch import F64, I64, Batch
from grpo_cli.engine import Reader
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluation import measured
from grpo_cli.engine.evaluator import BatchStatistics, Evaluator
from grpo_cli.engine.fold import Accumulator, fold
from grpo_cli.engine.references import lacks_kl, without_kl
from grpo_cli.errors import InputError, UsageError
from grpo_cli.hyperparameters import HYPERPARAMETERS, Value
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.choice import Bound
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.pipeline import evaluate
from grpo_cli.objective.terms import ENTROPY, KL, Term
from grpo_cli.records import DecodedChunk
from grpo_cli.variants import STAGES
from grpo_cli.variants.plan import Plan


@dataclass(frozen=True)
class Responses:
    """The responses of the input, without their tokens.

    Attributes:
        objective: the first records'.
        alone: the first record, which errors name.
        lengths: [R] tokens that the denominators count; ``groups``: [R].
        sums: name → [R]: Σ c·s, Σ k, Σ H, and with p and q the slopes of c·s and of k in
            log π_θ: Σ p², Σ p·q, Σ q².
        differing: hyperparameters in which the records differ, and the first one's value.
    """

    objective: Objective
    alone: Chunk
    lengths: I64
    groups: I64
    sums: Mapping[str, F64]
    differing: Mapping[str, Value]

    @property
    def count(self) -> int:
        """All responses."""
        return len(self.lengths)


def gather(plan: Plan, source: Reader) -> Responses:
    """Reads the input once, or twice where an advantage needs its statistics.

    Raises:
        InputError: for a record that has other columns than the first, or cannot be evaluated.
    """
    source.keep_input()
    first = next(source.chunks(), None)
    if first is None:
        raise InputError("no record can be read")
    known = measured(Evaluator(plan), source).measured
    objective = first.objective(plan)
    source.notices.update(without_kl([plan] if lacks_kl(objective.parts) else []))
    source.notices.update(dict.fromkeys(plan.assumed(first.settings)))
    columns = columns_of(first.batch)
    whole = fold(source, partial(ResponseSums, objective, first.settings, columns, known))
    if not whole.parts:
        raise InputError("no record can be read")
    joined = {name: np.concatenate([part[name] for part in whole.parts]) for name in whole.parts[0]}
    lengths = joined.pop("lengths").astype(np.int64)
    groups = joined.pop("groups").astype(np.int64)
    return Responses(objective, first.first, lengths, groups, joined, whole.differing)


_SUMS = ("policy", "kl", "entropy", "slope_square", "slope_kl", "kl_square")


@dataclass
class ResponseSums(Accumulator[dict[str, F64]]):
    """Sums of each response, up to where records are no batch.

    Attributes:
        objective: the first record's, by which all are evaluated.
        first_settings: that record's hyperparameters.
        columns: those that it gives.
        measured: the statistics of the whole input, where the objective wants some.
        parts: name → [R] of some responses each: their sums, ``lengths``, ``groups``.
        groups: how many groups these are of.
        differing: hyperparameters in which a record differs from the first one of all.
    """

    objective: Objective
    first_settings: Mapping[str, Value]
    columns: frozenset[str]
    measured: BatchStatistics | None
    parts: list[dict[str, F64]] = field(default_factory=list)
    groups: int = 0
    differing: dict[str, Value] = field(default_factory=dict)

    headers: bool = field(default=True, init=False)
    settings: ClassVar[tuple[str, ...]] = ("objective", "first_settings", "columns", "measured")

    def chunks(self, decoded: Iterable[DecodedChunk]) -> Iterator[Chunk | InputError]:
        """Chunks with the columns of the first record; others end the work."""
        for chunk in super().chunks(decoded):
            if isinstance(chunk, Chunk) and columns_of(chunk.batch) != self.columns:
                self.error = self._other_columns(chunk)
                return
            yield chunk

    def _other_columns(self, chunk: Chunk) -> InputError:
        own = columns_of(chunk.batch)
        lacking, added = sorted(self.columns - own), sorted(own - self.columns)
        which = [f"without {', '.join(lacking)}"] if lacking else []
        which += [f"with {', '.join(added)}"] if added else []
        return InputError(
            f"this record has other columns than the first one ({' and '.join(which)}), so they "
            "are not one batch",
            source=chunk.records[0].source,
            line=chunk.records[0].line,
        )

    def evaluate(self, chunk: Chunk) -> dict[str, F64]:
        """The sums of a chunk's responses."""
        whole = None if self.measured is None else self.measured.whole(chunk)
        return _sums(evaluate(chunk.batch, counting(self.objective), whole))

    def add(self, chunk: Chunk, sums: dict[str, F64]) -> None:
        """Adds the responses of a chunk."""
        groups = (chunk.batch.groups + self.groups).astype(np.float64)
        self.parts.append({**sums, "groups": groups})
        self.groups += chunk.batch.group_count
        if chunk.settings is not self.first_settings:
            for name in {**self.first_settings, **chunk.settings}:
                if chunk.settings.get(name) != self.first_settings.get(name):
                    self.differing[name] = self.first_settings.get(name)

    def merge(self, later: ResponseSums) -> None:
        """Adds the responses that follow."""
        shift = float(self.groups)
        self.parts += [{**part, "groups": part["groups"] + shift} for part in later.parts]
        self.groups += later.groups
        self.differing |= later.differing


def counting(objective: Objective) -> Objective:
    """The objective with weights that say how many tokens of each response count."""
    count = Bound("token-mean", STAGES["aggregate"].choices["token-mean"], {})
    return replace(objective, aggregate=count, kl_aggregate=None, entropy_aggregate=None)


def columns_of(batch: Batch) -> frozenset[str]:
    """The columns that the records give; old log-probs that are the new ones are none."""
    found = {one.name for one in fields(batch) if getattr(batch, one.name) is not None}
    same = batch.log_probs_old is batch.log_probs_new
    return frozenset(found - {"positions", "last_masked"} - ({"log_probs_old"} if same else set()))


def _sums(made: Breakdown) -> dict[str, F64]:
    """[R] each."""
    responses, nothing = made.batch.responses, np.zeros(made.batch.responses.count)
    kl, entropy = made.term(KL), made.term(ENTROPY)

    def sums(term: Term | None) -> F64:
        return nothing if term is None or not term.active else term.sums

    slope, pull = made.policy.slope, None if kl is None or not kl.active else kl.slope

    def dot(left: F64 | None, right: F64 | None) -> F64:
        return nothing if left is None or right is None else responses.sum(left * right)

    lengths = made.policy.weights.counts
    assert lengths is not None  # token-mean counts tokens
    values = (sums(made.policy), sums(kl), sums(entropy))
    dots = (dot(slope, slope), dot(slope, pull), dot(pull, pull))
    return dict(zip(_SUMS, (*values, *dots), strict=True)) | {"lengths": lengths}


# ---- the cut -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cut:
    """How a batch is cut: responses in order, n to a micro-batch.

    Attributes:
        micro_batch: n, responses of a micro-batch.
        accumulate: micro-batches that one rank accumulates in one optimiser step.
        ranks: data-parallel ranks.
        responses: the responses that there are.
    """

    micro_batch: int
    accumulate: int
    ranks: int
    responses: int

    @property
    def sizes(self) -> I64:
        """[M] responses of each micro-batch; the last may be smaller."""
        starts = np.arange(0, self.responses, self.micro_batch)
        return np.minimum(self.responses - starts, self.micro_batch)

    @property
    def steps(self) -> I64:
        """[M] the optimiser step of each micro-batch."""
        return np.arange(len(self.sizes)) // (self.accumulate * self.ranks)

    @property
    def cuts_nothing(self) -> bool:
        """Whether each micro-batch is a whole optimiser step."""
        return len(self.sizes) == int(self.steps[-1]) + 1


def cut(responses: int, micro_batch: int, accumulate: int | None, ranks: int) -> Cut:
    """The cut; without ``accumulate`` all the responses are one optimiser step."""
    micro_batches = max(math.ceil(responses / micro_batch), 1)
    if ranks > micro_batches:
        raise UsageError(
            f"--ranks {ranks}: {responses} responses make {micro_batches} micro-batches of "
            f"{micro_batch}, fewer than the ranks"
        )
    return Cut(micro_batch, accumulate or math.ceil(micro_batches / ranks), ranks, responses)


AGGREGATES = ("aggregate", "kl_aggregate", "entropy_aggregate")


def of_step(
    objective: Objective, responses: Responses, cutting: Cut, accumulate: int, ranks: int
) -> Objective:
    """The objective whose denominators know how the step is split, those of every term.

    An aggregation that counts something of the whole optimiser step has its trainer add the
    micro-batches up instead of averaging them (``adds``). Counts that are nowhere given are those
    of the data.
    """
    scaled = {
        name: replace(
            bound,
            values={**bound.values, **dict(_counts(bound, responses, cutting, accumulate, ranks))},
        )
        for name in AGGREGATES
        if (bound := getattr(objective, name)) is not None
    }
    return replace(objective, **scaled)


def side_by_side(objective: Objective, cutting: Cut) -> Cut:
    """The cut as the denominators see it.

    One that counts the micro-batches of all ranks makes one micro-batch of them, of one rank.
    """
    counted = {HYPERPARAMETERS[name].counts for name in objective.aggregate.values}
    if "tokens at a time" not in counted:
        return cutting
    return replace(cutting, micro_batch=cutting.micro_batch * cutting.ranks, ranks=1)


def _counts(
    bound: Bound, responses: Responses, cutting: Cut, accumulate: int, ranks: int
) -> Iterator[tuple[str, Value]]:
    in_step = {"microbatches": accumulate, "ranks": ranks}
    of_data = {"tokens": int(responses.lengths.sum()), "responses": responses.count}
    values = bound.values
    for name, value in values.items():
        counted = HYPERPARAMETERS[name].counts
        if counted in in_step:
            yield name, in_step[counted]
        elif counted == "tokens at a time":
            yield name, None
        elif counted == "generation" and value is not None:
            before = float(values.get("gradient_accumulation_steps") or 1)
            yield name, max(1, round(float(value) / before * accumulate))
        elif counted in of_data and value is None:
            if cutting.steps.any():
                raise InputError("missing; the input has more than one step", path=name, record=0)
            yield name, of_data[counted]
