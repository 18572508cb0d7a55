"""Stage 5, correction: does the engine that sampled agree with the trainer?

With ρₜ = exp(log π_old − log π_rollout) at a token, each function returns the constant c that
multiplies the surrogate. The KL and the denominators keep every token. ``chain`` makes one
correction of several.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, Segments
from grpo_cli.objective.choice import ByResponse, ByToken, Composed, call, choice, union
from grpo_cli.objective.results import Correction

Mask = NDArray[np.bool_]
Bound = Callable[[F64, float | None, float | None], F64]
Weigh = Callable[[F64, Segments, float | None, float | None], F64]
"""log ρ of each token [N] and the bounds to weights [N]."""


def chain(doc: str, *parts: Callable[..., Correction | None]) -> Composed:
    """One correction of several: weights multiply, and what one takes out is out.

    Args:
        parts: the corrections; one that returns None does nothing.
    """

    def run(columns: Mapping[str, Any], values: Mapping[str, Any]) -> Correction | None:
        found = [call(part, columns, values) for part in parts]
        made = [correction for correction in found if correction is not None]
        return reduce(_both, made) if made else None

    return Composed(union(parts), run, doc)


def _both(first: Correction, second: Correction) -> Correction:
    return Correction(
        first.weight * second.weight,
        _product(first.kl_weight, second.kl_weight),
        _product(first.kept, second.kept),
        policy_only=first.policy_only or second.policy_only,
        unmasked=_product(first.unmasked, second.unmasked),
        bonus_kept=_product(first.bonus_kept, second.bonus_kept),
    )


def _product(first: NDArray[Any] | None, second: NDArray[Any] | None) -> Any:
    """[N] the product, which of truths is ``and``; None means ones."""
    if first is None or second is None:
        return second if first is None else first
    return first * second


def within(values: F64, low: float | None, high: float | None) -> Mask:
    """Which values are between the bounds, which count as inside; None: no bound."""
    least, most = -np.inf if low is None else low, np.inf if high is None else high
    return (values >= least) & (values <= most)


def greatest(values: F64, responses: Segments) -> F64:
    """[R] the greatest value of each response; 0 for one without tokens."""
    found = np.zeros(responses.count)
    filled = responses.lengths > 0
    if responses.total:
        found[filled] = np.maximum.reduceat(values, responses.starts[filled])
    return found


def binary_kl(p: F64, q: F64) -> F64:
    """[N] p·log(p/q) + (1 − p)·log((1 − p)/(1 − q)), nats, of the token taken and any other."""
    return p * np.log(p / q) + (1.0 - p) * np.log((1.0 - p) / (1.0 - q))


def truncated(weight: F64, low: float | None, high: float | None) -> F64:
    """The weights held between the bounds; None: no bound."""
    return np.clip(weight, 0.0 if low is None else low, np.inf if high is None else high)


def masked(weight: F64, low: float | None, high: float | None) -> F64:
    """The weights between the bounds, 0 for those outside of them; None: no bound."""
    return np.where(within(weight, low, high), weight, 0.0)


def by_token(bound: Bound) -> Weigh:
    """Weighs each token with its own bounded ρₜ."""
    return lambda log_ratio, _, low, high: bound(np.exp(log_ratio), low, high)


def by_product(bound: Bound) -> Weigh:
    """Weighs the tokens of a response with the bounded product of its ρₜ."""
    return lambda log_ratio, responses, low, high: responses.spread(
        bound(np.exp(responses.sum(log_ratio)), low, high)
    )


def by_mean(bound: Bound) -> Weigh:
    """Weighs the tokens of a response with the bounded geometric mean of its ρₜ."""
    return lambda log_ratio, responses, low, high: responses.spread(
        bound(np.exp(responses.mean(log_ratio)), low, high)
    )


def own_by_mean(log_ratio: F64, responses: Segments, low: float | None, high: float | None) -> F64:
    """[N] ρₜ where the geometric mean over the response is between the bounds, else 0."""
    kept = responses.spread(masked(np.exp(responses.mean(log_ratio)), low, high) > 0)
    return np.where(kept, np.exp(log_ratio), 0.0)


def importance(weigh: Weigh, doc: str) -> Callable[..., Correction]:
    """The correction with such weights of π_old/π_rollout, between is_low and is_high."""

    def correction(
        log_probs_old: F64,
        log_probs_rollout: F64,
        responses: Segments,
        *,
        is_low: float | None,
        is_high: float | None,
    ) -> Correction:
        return Correction(weigh(log_probs_old - log_probs_rollout, responses, is_low, is_high))

    correction.__doc__ = doc
    return correction


@choice("correction", "none", absent=True)
def none() -> None:
    """No correction: c = 1."""


token_truncate = importance(
    by_token(truncated),
    """Truncated importance sampling: c = clip(ρₜ, is_low, is_high) per token.

    References:
        Yao et al., Your Efficient RL Framework Secretly Brings You Off-Policy RL Training, 2025,
        is_high 2 and no lower bound, as in slime, verl and open-instruct; OpenRLHF [0.5, 5].
    """,
)
choice("correction", "token-truncate", "tis", "token_truncate", is_low=None, is_high=2.0)(
    token_truncate
)
choice("correction", "sequence-truncate", "sequence_truncate", is_low=None, is_high=2.0)(
    importance(
        by_product(truncated),
        """The product over the response, for all its tokens: c = clip(Πₜ ρₜ, is_low, is_high).

        References:
            verl (rollout_is: sequence), TRL (sequence_truncate). ms-swift's sequence_truncate is
            ``geometric-truncate`` here.
        """,
    )
)
choice("correction", "geometric-truncate", is_low=None, is_high=2.0)(
    importance(
        by_mean(truncated),
        """The geometric mean of a response's ratios, c = clip((Πₜ ρₜ)^(1/|o|), is_low, is_high).

        References:
            ms-swift (sequence_truncate), AReaL and open-instruct (sequence level).
        """,
    )
)
token_mask = importance(
    by_token(masked),
    """IcePop: c = ρₜ if is_low ≤ ρₜ ≤ is_high, else 0, per token.

    References:
        Ling Team, Every Step Evolves (IcePop), 2025 (arXiv 2510.18855), [0.5, 5]. verl and TRL
        accept any bounds; ms-swift has no lower bound.
    """,
)
choice("correction", "token-mask", "icepop", "token_mask", is_low=0.5, is_high=5.0)(token_mask)
choice("correction", "sequence-mask", "sequence_mask", is_low=None, is_high=3.0)(
    importance(
        by_product(masked),
        """The product over the response: c = Πₜ ρₜ if it is between the bounds, else 0.

        References:
            TRL (sequence_mask, is_high 3). ms-swift masks by the geometric mean.
        """,
    )
)
choice("correction", "geometric-mask", "seq-mask-tis", is_low=0.999, is_high=1.002)(
    importance(
        own_by_mean,
        """The token's own ρₜ if its response's (Πₜ ρₜ)^(1/|o|) is between the bounds, else 0.

        References:
            Liu et al., When Speed Kills Stability, 2025; OpenRLHF and NeMo-RL (seq-mask-tis, bounds
            0.999 and 1.002). AReaL and open-instruct use the mean as the weight.
        """,
    )
)


@choice("correction", "off-policy-mask", "opsm", off_policy_mask_threshold=1e-4)
def off_policy_mask(
    advantage: F64,
    log_probs_new: F64,
    log_probs_rollout: F64,
    responses: Segments,
    *,
    off_policy_mask_threshold: ByResponse,
) -> Correction:
    """Factor 0 if A < 0 and the response's mean of log π_rollout − log π_θ > threshold, else 1.

    It drops bad responses that are too far off-policy.

    Args:
        off_policy_mask_threshold: nats per token.

    References:
        DeepSeek-V3.2, 2025 (arXiv 2512.02556): its π_old is the engine's. slime uses the trainer's
        π_old (``off-policy-mask-old``) and threshold 1e-4; TRL uses the engine's log-probs if they
        are given. ms-swift also removes the response from the KL and from token counts.
    """
    behind = log_probs_rollout - log_probs_new
    return _one_sided(advantage, behind, responses, off_policy_mask_threshold)


@choice("correction", "off-policy-mask-old", off_policy_mask_threshold=1e-4)
def off_policy_mask_old(
    advantage: F64,
    token_log_ratio: F64,
    responses: Segments,
    *,
    off_policy_mask_threshold: ByResponse,
) -> Correction:
    """``off-policy-mask`` with the trainer's old policy instead of the engine's.

    References:
        DeepSeek-V3.2, 2025 (arXiv 2512.02556), as in slime (use_opsm).
    """
    return _one_sided(advantage, -token_log_ratio, responses, off_policy_mask_threshold)


def _one_sided(
    advantage: F64, behind: F64, responses: Segments, threshold: ByResponse
) -> Correction:
    far = (responses.mean(behind) > threshold)[responses.index]
    return Correction(np.where(far & (advantage < 0), 0.0, 1.0))


@choice("correction", "dual-clip-drop", delta=10.0)
def dual_clip_drop(
    ratio: F64, advantage: F64, responses: Segments, *, delta: ByToken | None
) -> Correction | None:
    """Drops responses in which more than one token has A < 0 and ρ > δ.

    ρ is the ratio of the ratio stage, and δ is delta. The response does not count in the policy
    term or in token denominators.

    Args:
        delta: the bound on the ratio where A < 0; None: nothing is removed.

    References:
        Ma et al., FIPO, 2026 (arXiv 2603.19835), in the authors' code, not in the paper.
    """
    if delta is None:
        return None
    bound = responses.sum(((advantage < 0) & (ratio > delta)).astype(np.int64))
    kept = np.repeat(bound <= 1, responses.lengths)
    weight = kept.astype(np.float64)
    return Correction(weight, weight, kept)
