"""The same from Python: ``evaluate(record, variant="dr").objective``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.engine.evaluation import Task
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.engine.totals import Totals
from grpo_cli.errors import InputError
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.records import DecodedChunk, Raw
from grpo_cli.variants.plan import plan


@dataclass(frozen=True, eq=False, repr=False)
class Evaluated:
    """One record's result.

    Attributes:
        breakdown: every number of every token and response, as flat arrays.
        total: the record's numbers by name, as ``grpo eval`` prints them.
        signature: one line that names every choice which changes the number.
    """

    breakdown: Breakdown
    total: Mapping[str, Any]
    signature: str

    def __repr__(self) -> str:
        return f"Evaluated(objective={self.objective!r}, signature={self.signature!r})"

    @property
    def objective(self) -> float:
        """J, which is maximised."""
        return float(self.total["objective"])

    @property
    def loss(self) -> float:
        """−J."""
        return float(self.total["loss"])

    @property
    def advantages(self) -> list[F64]:
        """The advantage of each token, one array per response."""
        return self.per_response(self.breakdown.advantage)

    @property
    def gradient(self) -> list[F64]:
        """∂J/∂(log_probs_new), one array per response."""
        return self.per_response(self.breakdown.gradient)

    @property
    def contributions(self) -> list[F64]:
        """Each token's part of J, one array per response; they add up to J."""
        return self.per_response(self.breakdown.contribution)

    def per_response(self, tokens: F64) -> list[F64]:
        """Cuts a flat token array into responses."""
        return np.split(tokens, self.breakdown.batch.responses.starts[1:])


def evaluate(
    record: Mapping[str, Any],
    variant: str = "grpo",
    *,
    stages: Mapping[str, str] | None = None,
    **hyperparameters: float | int | str | None,
) -> Evaluated:
    """Evaluates one record.

    J = Σₜ wₜ·cₜ·sₜ − β·Σₜ w′ₜ·kₜ over the tokens that the mask keeps; loss = −J. The variant's
    page (``grpo explain VARIANT``) has its formula and its paper.

    Args:
        record: the data under any of the names that files may use: ``log_probs_new`` and
            ``log_probs_old`` as [G], [G][T] or [B][G][T] natural log-probs (nats, ragged or with
            a ``mask``), ``rewards`` [G] or ``advantages`` [G] or [G][T], ``log_probs_ref``, and
            ``hyperparameters``.
        variant: a variant's name or alias.
        stages: stage → choice to put in the variant's place, as ``{"kl": "k1"}``.
        **hyperparameters: values that win over the record's and the variant's, as ``beta=0.1``.

    Raises:
        UsageError: for an unknown name, or a value outside its meaning.
        InputError: for data that cannot be read, with its place in the record.

    References:
        Shao et al., DeepSeekMath, 2024 (arXiv 2402.03300), for ``grpo``; ``VARIANTS[name].paper``.
    """
    made = plan(variant, stages=stages, hyperparameters=hyperparameters)
    found: list[Breakdown] = []

    def keep(_: object, breakdown: Breakdown) -> list[bytes]:
        found.append(breakdown)
        return []

    raw = Raw(_plain(record), "", None, "", 0)
    outcome = Task(Evaluator(made), keep, skip=False).evaluate([DecodedChunk([raw])])
    if outcome.error is not None:
        raise InputError(outcome.error.message, path=outcome.error.path)
    totals: Totals = outcome.totals
    return Evaluated(found[0], totals.row(), totals.signature())


def _plain(value: Any) -> Any:
    """Arrays and tuples as the lists that a file would have."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value
