"""Seven sums of each response: all that any cut of the batch, by any aggregation, needs of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial

import numpy as np

from grpo_cli.batch import F64, I64, Batch
from grpo_cli.engine import Reader
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import Value
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.choice import Bound
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.pipeline import evaluate
from grpo_cli.objective.statistics import ExactMoments
from grpo_cli.objective.terms import ENTROPY, KL, Term
from grpo_cli.variants import STAGES
from grpo_cli.variants.plan import Plan

_SUMS = ("policy", "kl", "entropy", "slope_square", "slope_kl", "kl_square")


@dataclass(frozen=True)
class Responses:
    """The responses of the input, without their tokens.

    Attributes:
        objective: the first records'.
        alone: the first record, which an error is told of.
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


class _Gathering:
    """Adds chunk after chunk."""

    def __init__(self, plan: Plan, first: Chunk) -> None:
        self.first = first
        self.objective = plan.objective(first.settings, advantages_given=first.advantages_given)
        self.differing: dict[str, Value] = {}
        self._parts: list[dict[str, F64]] = []
        self._groups = 0

    def add(self, chunk: Chunk, measured: ExactMoments | None) -> None:
        """Adds a chunk's responses.

        Raises:
            InputError: where the records cannot be evaluated.
        """
        made = evaluate(chunk.batch, counting(self.objective), measured)
        groups = (chunk.batch.groups + self._groups).astype(np.float64)
        self._parts.append({**_sums(made), "groups": groups})
        self._groups += chunk.batch.group_count
        self._compare(chunk.settings)

    def _compare(self, settings: Mapping[str, Value]) -> None:
        first = self.first.settings
        if settings is not first:
            for name in {**first, **settings}:
                if settings.get(name) != first.get(name):
                    self.differing[name] = first.get(name)

    def responses(self) -> Responses:
        """All that were added."""
        names = self._parts[0]
        joined = {name: np.concatenate([part[name] for part in self._parts]) for name in names}
        lengths = joined.pop("lengths").astype(np.int64)
        groups = joined.pop("groups").astype(np.int64)
        alone = self.first.first
        return Responses(self.objective, alone, lengths, groups, joined, self.differing)


def counting(objective: Objective) -> Objective:
    """The objective with weights that say how many tokens of each response count."""
    count = Bound("token-mean", STAGES["aggregate"].choices["token-mean"], {})
    return replace(objective, aggregate=count, kl_aggregate=None, entropy_aggregate=None)


def gather(plan: Plan, source: Reader) -> Responses:
    """Reads the input once, or twice where an advantage needs its statistics.

    Raises:
        InputError: for a record that has other columns than the first, or cannot be evaluated.
    """
    measured = _measured(plan, source)
    found: _Gathering | None = None
    for chunk in source:
        if found is None:
            found = _Gathering(plan, chunk)
        elif _columns(chunk.batch) != _columns(found.first.batch):
            raise InputError(
                "this record has other columns than the first one, so they are no one batch",
                source=chunk.records[0].source,
                line=chunk.records[0].line,
            )
        for part in chunk.each(partial(found.add, measured=measured)):
            if isinstance(part, InputError):
                source.bad(part)
    if found is None or not found._parts:
        raise InputError("no record can be read")
    return found.responses()


def _measured(plan: Plan, source: Reader) -> ExactMoments | None:
    evaluator = Evaluator(plan)
    if not evaluator.wants_first_pass:
        return None
    measured = ExactMoments()
    for chunk in source:
        measured.merge(chunk.run(evaluator.measure))
    return measured


def _columns(batch: Batch) -> set[str]:
    """The columns that the records give; old log-probs that are the new ones are none."""
    found = {one.name for one in fields(batch) if getattr(batch, one.name) is not None}
    same = batch.log_probs_old is batch.log_probs_new
    return found - {"positions", "last_masked"} - ({"log_probs_old"} if same else set())


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
