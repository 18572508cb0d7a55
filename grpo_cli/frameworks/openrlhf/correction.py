"""OpenRLHF's rejection by the divergence of the trainer's policy from the engine's.

Its corrections by the ratio are everybody's: level token with mode clip is ``token-truncate`` and
with mode mask ``token-mask``, level seq ``geometric-mask``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, Segments
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.results import Correction

_EDGE = 1e-6  # probabilities are held this far from 0 and 1, so that the logarithms are finite

Divergence = Callable[[F64, F64], F64]


def binary_kl(engine: F64, trainer: F64) -> F64:
    """[N] p·log(p/q) + (1 − p)·log((1 − p)/(1 − q)), nats, p the engine's probability."""
    left = engine * np.log(engine / trainer)
    return left + (1.0 - engine) * np.log((1.0 - engine) / (1.0 - trainer))


def tv(engine: F64, trainer: F64) -> F64:
    """[N] |p − q|."""
    return np.abs(engine - trainer)


def _divergence(of: Divergence, log_probs_old: F64, log_probs_rollout: F64) -> F64:
    engine, trainer = (
        np.clip(np.exp(logs), _EDGE, 1.0 - _EDGE) for logs in (log_probs_rollout, log_probs_old)
    )
    return of(engine, trainer)


def by_token(of: Divergence) -> Callable[..., Correction]:
    """Rejects a token by its own divergence."""

    def correction(
        log_probs_old: F64, log_probs_rollout: F64, *, rejection_threshold: float
    ) -> Correction:
        kept = _divergence(of, log_probs_old, log_probs_rollout) <= rejection_threshold
        return _weighted(kept, log_probs_old, log_probs_rollout)

    correction.__doc__ = _described(of, "a token by its")
    return correction


def by_response(of: Divergence) -> Callable[..., Correction]:
    """Rejects a response by the mean of its tokens' divergences."""

    def correction(
        log_probs_old: F64,
        log_probs_rollout: F64,
        responses: Segments,
        *,
        rejection_threshold: float,
    ) -> Correction:
        mean = responses.mean(_divergence(of, log_probs_old, log_probs_rollout))
        kept = responses.spread(mean <= rejection_threshold)
        return _weighted(kept, log_probs_old, log_probs_rollout)

    correction.__doc__ = _described(of, "a response by its tokens' mean")
    return correction


def _weighted(kept: NDArray[np.bool_], log_probs_old: F64, log_probs_rollout: F64) -> Correction:
    return Correction(np.where(kept, np.exp(log_probs_old - log_probs_rollout), 0.0))


def _described(of: Divergence, what: str) -> str:
    name = of.__name__.replace("_", " ")
    return f"""Drops {what} {name}: c = ρₜ where that is ≤ rejection_threshold, else 0.

    ρₜ = π_old/π_rollout, {name} is of the engine's p against the trainer's q, both of the token
    taken and held within [1e-6, 1 − 1e-6]. What is dropped stays in the denominators.

    Args:
        log_probs_old, log_probs_rollout: [N] nats.
        responses: cuts the tokens into responses.
        rejection_threshold: nats for the KL, probability for the TV.

    References:
        OpenRLHF 0.11.2, ``is_correction_gating``; its FlashREINFORCE drops responses by the
        binary KL.
    """


CHOICES = {
    f"openrlhf/{level}-{name}-mask": Choice(make(of))
    for name, of in (("binary-kl", binary_kl), ("tv", tv))
    for level, make in (("token", by_token), ("seq", by_response))
}
