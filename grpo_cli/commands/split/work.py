"""What is done with the records of a piece, in any process: seven sums of each response."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace

import numpy as np

from grpo_cli.batch import F64, Batch
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import BatchStatistics
from grpo_cli.engine.packing import chunks
from grpo_cli.engine.skipped import FEW, Skipped
from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import Value
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.choice import Bound
from grpo_cli.objective.objective import Objective
from grpo_cli.objective.pipeline import evaluate
from grpo_cli.objective.terms import ENTROPY, KL, Term
from grpo_cli.records import DecodedChunk
from grpo_cli.variants import STAGES

_SUMS = ("policy", "kl", "entropy", "slope_square", "slope_kl", "kl_square")


@dataclass
class Gathered:
    """What a piece of input comes to.

    Attributes:
        parts: name → [R] of some responses each: their sums, ``lengths``, ``groups``.
        groups: how many groups these are of.
        differing: hyperparameters in which a record differs from the first one of all.
        skipped: the records that cannot be used.
        error: what ends the work.
    """

    parts: list[dict[str, F64]] = field(default_factory=list)
    groups: int = 0
    differing: dict[str, Value] = field(default_factory=dict)
    skipped: Skipped = field(default_factory=Skipped)
    error: InputError | None = None

    def merge(self, later: Gathered) -> None:
        """Adds what the input that follows comes to; nothing of it follows an error."""
        if self.error is not None:
            return
        shift = float(self.groups)
        self.parts += [{**part, "groups": part["groups"] + shift} for part in later.parts]
        self.groups += later.groups
        self.differing |= later.differing
        self.skipped.merge(later.skipped)
        self.error = later.error


@dataclass(frozen=True)
class Gather:
    """What is done with the records of a piece, in any process.

    Attributes:
        objective: the first record's, by which all are evaluated.
        settings: that record's hyperparameters.
        columns: those that it gives.
        measured: the statistics of the whole input, where the objective wants some.
        skip: whether to go on behind a record that cannot be used.
        most_errors: how many errors of such records are kept; 0 for all.
    """

    objective: Objective
    settings: Mapping[str, Value]
    columns: frozenset[str]
    measured: BatchStatistics | None
    skip: bool
    most_errors: int = FEW

    def __call__(self, decoded: Iterable[DecodedChunk]) -> Gathered:
        """The sums of records in order, up to where they are no batch."""
        made = Gathered(skipped=Skipped(self.most_errors))
        for chunk in chunks(decoded, with_headers=True):
            made.error = self._other(chunk) if isinstance(chunk, Chunk) else None
            if made.error is not None:
                break
            parts = chunk.each(self._sums) if isinstance(chunk, Chunk) else (chunk,)
            for part in parts:
                if isinstance(part, InputError):
                    made.skipped.add(part)
                    if not self.skip:
                        made.error = part
                        return made
                    continue
                self._add(made, *part)
        return made

    def _other(self, chunk: Chunk) -> InputError | None:
        """What to say of records that have other columns than the first."""
        own = columns_of(chunk.batch)
        if own == self.columns:
            return None
        lacking, added = sorted(self.columns - own), sorted(own - self.columns)
        which = [f"without {', '.join(lacking)}"] if lacking else []
        which += [f"with {', '.join(added)}"] if added else []
        return InputError(
            f"this record has other columns than the first one ({' and '.join(which)}), "
            "so they are no one batch",
            source=chunk.records[0].source,
            line=chunk.records[0].line,
        )

    def _sums(self, chunk: Chunk) -> dict[str, F64]:
        whole = None if self.measured is None else self.measured.whole(chunk)
        return _sums(evaluate(chunk.batch, counting(self.objective), whole))

    def _add(self, made: Gathered, chunk: Chunk, sums: dict[str, F64]) -> None:
        groups = (chunk.batch.groups + made.groups).astype(np.float64)
        made.parts.append({**sums, "groups": groups})
        made.groups += chunk.batch.group_count
        if chunk.settings is not self.settings:
            for name in {**self.settings, **chunk.settings}:
                if chunk.settings.get(name) != self.settings.get(name):
                    made.differing[name] = self.settings.get(name)


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
