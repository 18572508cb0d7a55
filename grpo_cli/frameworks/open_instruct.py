"""open-instruct's two losses with its ρ correction, which is on by default.

The correction is a clamp and a mask together, per token, sequence or divergence: ρₜ = exp(dₜ),
dₜ = log π_old − log π_rollout clamped to ±10. What the mask drops weighs 0; denominators keep every
token. A bound of 0 is off, as in open-instruct, and so is null. The denominator is that of an
accumulation group on all ranks: open_instruct/grpo_fast.py, step.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64, I64, Segments
from grpo_cli.frameworks.framework import Framework
from grpo_cli.objective.choice import ByResponse, Usual, choice
from grpo_cli.objective.results import Correction, Weights
from grpo_cli.objective.row import Row, executed, use, words

_CLAMP = 10.0
_USUAL: Usual = {"is_low": None, "is_high": 2.0, "rho_mask_low": None, "rho_mask_high": None}


@choice("correction", "open-instruct/rho", **_USUAL)
def token(
    log_probs_old: F64,
    log_probs_rollout: F64,
    *,
    is_low: float | None,
    is_high: float | None,
    rho_mask_low: float | None,
    rho_mask_high: float | None,
) -> Correction:
    """The weight clip(ρₜ, is_low, is_high), 0 where ρₜ is outside rho_mask_low and rho_mask_high.

    Args:
        is_low, is_high: bounds that ρ is clamped to; None or 0: none.
        rho_mask_low, rho_mask_high: bounds beyond which a token is dropped; None or 0: none.

    References:
        open-instruct's default clamps at 2 and has no mask. With a mask and no clamp this is
        IcePop.
    """
    rho = np.exp(_difference(log_probs_old, log_probs_rollout))
    return _weight(rho, _inside(rho, rho_mask_low, rho_mask_high), is_low, is_high)


@choice("correction", "open-instruct/rho-sequence", **_USUAL)
def sequence(
    log_probs_old: F64,
    log_probs_rollout: F64,
    responses: Segments,
    *,
    is_low: float | None,
    is_high: float | None,
    rho_mask_low: float | None,
    rho_mask_high: float | None,
) -> Correction:
    """``open-instruct/rho`` with each response's geometric mean of ρₜ in place of ρₜ.

    References:
        open-instruct's ``rho_mask_sequence_level``, which computes the mean over a packed row;
        here it is over the response. OpenRLHF and NeMo-RL mask by the mean and weight by ρₜ.
    """
    rho = _by_sequence(_difference(log_probs_old, log_probs_rollout), responses)
    return _weight(rho, _inside(rho, rho_mask_low, rho_mask_high), is_low, is_high)


def _by_sequence(difference: F64, responses: Segments) -> F64:
    """[N] the geometric mean of each response's ρₜ."""
    return responses.spread(np.exp(responses.mean(difference)))


def _divergence(rho: Callable[[F64, Segments], F64], doc: str) -> Callable[..., Correction]:
    """The correction whose weight is ``rho`` of log ρₜ, and whose mask bounds a divergence."""

    def correction(
        log_probs_old: F64,
        log_probs_rollout: F64,
        advantage: F64,
        responses: Segments,
        *,
        is_low: float | None,
        is_high: float | None,
        rho_mask_low: float | None,
        rho_mask_high: float | None,
    ) -> Correction:
        difference = _difference(log_probs_old, log_probs_rollout)
        variation = responses.spread(responses.mean(np.abs(np.exp(difference) - 1.0)))
        widens = np.sign(difference) * advantage > 0
        kept = _inside(variation, rho_mask_low, rho_mask_high) | ~widens
        return _weight(rho(difference, responses), kept, is_low, is_high)

    correction.__doc__ = doc
    return correction


choice("correction", "open-instruct/rho-divergence", **_USUAL)(
    _divergence(
        lambda difference, _: np.exp(difference),
        """``open-instruct/rho`` whose mask bounds a response's mean |ρₜ − 1|, its total variation.

    If a response is outside the bounds, its tokens with A·log ρₜ > 0, which would increase the
    divergence, are dropped.

    References:
        VACO, 2026 (arXiv 2603.01365); open-instruct's ``rho_mask_tv_divergence``.
    """,
    )
)
choice("correction", "open-instruct/rho-sequence-divergence", **_USUAL)(
    _divergence(
        _by_sequence,
        """``open-instruct/rho-divergence`` with the weight of ``open-instruct/rho-sequence``.

    References:
        open-instruct's ``rho_mask_sequence_level`` and ``rho_mask_tv_divergence`` together.
    """,
    )
)


def _difference(log_probs_old: F64, log_probs_rollout: F64) -> F64:
    return np.clip(log_probs_old - log_probs_rollout, -_CLAMP, _CLAMP)


def _inside(values: F64, low: float | None, high: float | None) -> NDArray[np.bool_]:
    return (values >= (low or 0.0)) & (values <= (high or np.inf))


def _weight(rho: F64, kept: NDArray[np.bool_], low: float | None, high: float | None) -> Correction:
    return Correction(np.where(kept, np.clip(rho, low or 0.0, high or np.inf), 0.0))


@choice("aggregate", "open-instruct/constant", total=True)
def constant(lengths: I64, *, loss_denominator: ByResponse) -> Weights:
    """open-instruct's ``--loss_denominator N``: the sum over all tokens, divided by a constant."""
    return Weights(np.ones(len(lengths)), None, loss_denominator, "loss_denominator")


_READS = words("epsilon_low epsilon_high beta is_low is_high rho_mask_low rho_mask_high")
"""Of GRPOExperimentConfig (open_instruct/grpo_utils.py); the clamp of the KL is a constant."""

DAPO = Row(
    title="open-instruct's grpo (loss_fn dapo)",
    paper="2503.14476",
    aliases=("open-instruct/dapo",),
    advantage=use("group-mean"),
    ratio=use("token"),
    surrogate=use("clip", epsilon_low=0.2, epsilon_high=0.272),
    kl=use("k3", beta=0.05, kl_input_clamp=40.0),
    correction=use("open-instruct/rho"),
    aggregate=use("token-mean"),
    reads=_READS,
    checked="executed",
    version="e6c3044 (2026-08-20)",
    note="kl_estimator 2, the default, is k3; for 3, use --kl k1 -p kl_weight=ratio. For "
    "advantage_normalization_type standard, use --advantage group-std with ddof 0 and eps 1e-8. "
    "With one mini-batch the old log-probs come from the same forward pass, so every ratio is 1. "
    "For a numeric loss_denominator, use --aggregate open-instruct/constant.",
)

ROWS = {
    "open-instruct/grpo": DAPO,
    "open-instruct/cispo": executed(
        DAPO,
        surrogate=use("cispo", epsilon_low=1.0, epsilon_high=0.272),
        reads=_READS - {"epsilon_low"},
    ).named(
        "open-instruct's cispo",
        "The weight is capped at 1.272 and has no lower bound; slime and NeMo-RL have both bounds.",
        paper="2506.13585",
    ),
}


FRAMEWORK = Framework(name="open-instruct", rows=ROWS, accumulation="whole step")
