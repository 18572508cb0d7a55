"""Surrogates whose only other policy is the engine that sampled.

The ratio that goes with them is ``rollout``, w = π_θ/π_rollout.
"""

from __future__ import annotations

from grpo_cli.batch import F64
from grpo_cli.objective.choice import ByToken, choice, reading
from grpo_cli.objective.results import Surrogate
from grpo_cli.objective.surrogate.gates import dppo_kl, dppo_tv, dro

choice("surrogate", "dppo-tv-rollout", divergence_low=0.2, divergence_high=0.2)(
    reading(
        dppo_tv,
        """``dppo-tv`` against the sampling engine: s = w·A, or 0 if π_θ − π_rollout is too large.

        The limits are δ_high if A > 0 and −δ_low if A < 0.

        Args:
            ratio: [N] w.
            divergence_low, divergence_high: δ, in probability.

        References:
            Qi et al., DPPO, 2026 (arXiv 2602.04879), the authors' dppo_binary_tv; prime-rl's
            default loss.
        """,
        log_probs_old="log_probs_rollout",
    )
)
choice("surrogate", "dppo-kl-rollout", divergence_low=0.05, divergence_high=0.05)(
    reading(
        dppo_kl,
        """``dppo-kl`` against the sampling engine: KL(π_rollout ‖ π_θ) of 'this token' or another.

        References:
            Qi et al., DPPO, 2026 (arXiv 2602.04879), the authors' dppo_binary_kl, which adds 1e-8
            inside its second logarithm.
        """,
        log_probs_old="log_probs_rollout",
    )
)


@choice("surrogate", "dro-rollout", scales=False, dro_beta=0.05)
def dro_rollout(
    log_probs_new: F64, log_probs_rollout: F64, advantage: F64, *, dro_beta: ByToken
) -> Surrogate:
    """``dro`` against the sampling engine: s = A·log π_θ − (β/2)·(log w)².

    References:
        Richemond et al., DRO, 2024 (arXiv 2405.19107), per token, as in Tinker.
    """
    return dro(log_probs_new - log_probs_rollout, advantage, log_probs_new, dro_beta=dro_beta)
