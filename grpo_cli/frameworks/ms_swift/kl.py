"""ms-swift's KL in the reward, and its distillation as a loss beside the policy's (SDAR)."""

from __future__ import annotations

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Kl


def sdar(log_ratio_ref: F64, *, beta: float, sdar_gate_beta: float) -> Kl:
    """SDAR: k = −g·d, g = σ(−g_β·d) without a gradient, d = log π_θ − log π_ref, the teacher's.

    Where the teacher finds a token likelier than the policy does, g is near 1; σ is the logistic
    function. In the place of the KL, whose β SDAR wants to be 0; averaged over tokens
    (``--kl-aggregate``).

    Args:
        log_ratio_ref: [N] nats.
        beta: ``sdar_loss_coef``.
        sdar_gate_beta: g_β.

    References:
        ms-swift 4.6.0, ``compute_sdar_loss``, after SDAR's own code.
    """
    del beta  # the pipeline multiplies by it
    gate = 1.0 / (1.0 + np.exp(np.minimum(sdar_gate_beta * log_ratio_ref, 700.0)))
    return Kl(-gate * log_ratio_ref, -gate, None)


def k1_in_reward(log_probs_old: F64, log_probs_ref: F64, *, beta: float) -> F64:
    """K1 = d, d = log π_old − log π_ref, off the reward: ms-swift's ``kl_in_reward``.

    Without the clamps that its KL in the loss has.

    Args:
        log_probs_old, log_probs_ref: [N] nats.
        beta: β.
    """
    return beta * (log_probs_old - log_probs_ref)


CHOICES = {
    "ms-swift/k1-in-reward": Choice(k1_in_reward, in_reward=True),
    "ms-swift/sdar": Choice(sdar, {"sdar_gate_beta": 5.0}, stops_gradient="the gate"),
}
