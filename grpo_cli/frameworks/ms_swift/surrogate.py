"""ms-swift's REAL, for which a response without tokens is a bad one."""

from __future__ import annotations

from grpo_cli.batch import F64, Segments
from grpo_cli.objective.arithmetic.groups import Groups
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Surrogate
from grpo_cli.objective.surrogate.coupled import of_labels


def real(
    log_ratio: F64, advantage: F64, responses: Segments, groups: Groups, *, real_tau: float
) -> Surrogate:
    """``real`` where a response whose every token is masked is bad, with s̄ = 0.

    So it adds e⁰ = 1 to the bad ones of its group, and makes a group valid that is all good else.

    Args:
        log_ratio: [N] log ρ, at any level.
        advantage: [N] A, of which only the sign counts.
        responses: cuts the tokens into responses.
        groups: which responses answer the same prompt.
        real_tau: τ > 0.
    """
    good = responses.mean(advantage) > 0
    return of_labels(log_ratio, good, ~good, responses, groups, real_tau)


CHOICES = {"ms-swift/real": Choice(real, {"real_tau": 0.5})}
