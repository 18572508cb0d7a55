"""NeMo-RL's mask of responses that trainer and engine score apart."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64, Segments
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Correction


def log_prob_error(
    log_probs_old: F64,
    log_probs_rollout: F64,
    responses: Segments,
    *,
    seq_logprob_error_threshold: float,
) -> Correction:
    """Drops a response where the mean of exp|log π_old − log π_rollout| exceeds a threshold.

    The others weigh 1. What is dropped leaves the policy term, the KL and the tokens of the
    denominator; in NeMo-RL it leaves the number of responses too, of which token means have none.

    Args:
        log_probs_old, log_probs_rollout: [N] nats.
        responses: cuts the tokens into responses.
        seq_logprob_error_threshold: on the scale of the metric ``token_mult_prob_error``, 1 where
            both agree.

    References:
        NeMo-RL 7ea279a, ``compute_and_apply_seq_logprob_error_masking``.
    """
    error = responses.mean(np.exp(np.abs(log_probs_rollout - log_probs_old)))
    kept = responses.spread(error <= seq_logprob_error_threshold)
    weight = kept.astype(np.float64)
    return Correction(weight, weight, kept)


CHOICES = {
    "nemo-rl/seq-logprob-error": Choice(log_prob_error, {"seq_logprob_error_threshold": 1.5})
}
