"""The responses of the input, each as its sums: all that any cut of the batch needs of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from grpo_cli.batch import F64, I64
from grpo_cli.commands.split.work import ResponseSums, columns_of
from grpo_cli.engine import Reader
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluation import measured
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.engine.fold import fold
from grpo_cli.engine.references import lacks_kl, without_kl
from grpo_cli.errors import InputError
from grpo_cli.hyperparameters import Value
from grpo_cli.objective.objective import Objective
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
    first = next(iter(source), None)
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
