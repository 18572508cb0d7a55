"""What two policies' log-probs differ by at each token."""

from __future__ import annotations

from grpo_cli.batch import F64
from grpo_cli.objective.breakdown import Breakdown


def differences_of(breakdown: Breakdown) -> dict[str, F64]:
    """[N] by name, those that the record has the log-probs for.

    ``difference`` is log π_θ − log π_old, which is log ρ only where the ratio is the token's own;
    ``mismatch`` is log π_old − log π_rollout: the trainer against the engine that sampled.
    """
    batch = breakdown.batch
    found = {}
    if batch.log_probs_new is not None and batch.log_probs_old is not None:
        found["difference"] = batch.log_probs_new - batch.log_probs_old + 0.0
    if batch.log_probs_old is not None and batch.log_probs_rollout is not None:
        found["mismatch"] = batch.log_probs_old - batch.log_probs_rollout + 0.0
    return found
