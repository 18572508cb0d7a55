"""verl's metrics, read off a breakdown: what it counts as clipped differs from loss to loss."""

from __future__ import annotations

import numpy as np

from grpo_cli.objective.breakdown import Breakdown


def metrics(breakdown: Breakdown, loss: str) -> dict[str, float]:
    """pg_clipfrac, pg_clipfrac_lower and ppo_kl as verl 0.9.1 logs them for a policy loss.

    verl's means divide by the number of tokens + 1e-8.
    """
    batch = breakdown.batch
    count = batch.responses.total + 1e-8
    clip, gains = breakdown.clip, breakdown.advantage > 0
    if loss == "gpg":
        return {}
    moved = breakdown.log_ratio if loss in CLAMPED else batch.log_probs_new - batch.log_probs_old
    kl = np.abs(moved) if loss == "kl_cov" else -moved
    found = {"actor/ppo_kl": kl.sum() / count}
    if loss in ("dro", "kl_cov"):
        return found
    clipped, lower = counted(breakdown, loss, clip, gains)
    found["actor/pg_clipfrac"] = clipped.sum() / count
    if lower is not None:
        found["actor/pg_clipfrac_lower"] = lower.sum() / count
    return found


CLAMPED = {"vanilla", "sapo", "cispo", "dppo_tv", "dppo_kl"}
"""The losses whose ppo_kl is of the clamped log ratio."""


def counted(breakdown, loss, clip, gains):  # type: ignore[no-untyped-def]
    """[N] the tokens that verl counts as clipped, and those it counts as clipped from below."""
    values = breakdown.objective.surrogate.values
    losing = breakdown.advantage < 0
    none = np.zeros(len(clip))
    if loss == "vanilla":
        return np.where(gains, clip == 1, clip == -1), (clip == 1) & losing
    if loss == "sapo":
        return none, none
    if loss == "clip_cov":
        inside = np.where(
            gains,
            breakdown.ratio <= 1 + values["epsilon_high"],
            breakdown.ratio >= 1 - values["epsilon_low"],
        )
        return (clip != 0) & inside, None
    if loss == "geo_mean":  # also those outside the window on the side that does not bind
        below = (breakdown.log_ratio < -values["epsilon_low"]) & gains
        above = (breakdown.log_ratio > values["epsilon_high"]) & losing
        return (clip == 1) | below, (clip == -1) | above
    if loss == "cispo":
        high = breakdown.ratio > 1 + values["epsilon_high"]
        low = breakdown.ratio < 1 - values["epsilon_low"]
        flat = breakdown.advantage == 0
        return (clip != 0) | (flat & (high | low)), none
    if loss.startswith("dppo"):
        out = (clip != 0) | ((breakdown.advantage == 0) & _left(breakdown, loss, values))
        return out, (breakdown.ratio > values["dual_clip"]) & ~out
    return clip != 0, none


def _left(breakdown, loss, values):  # type: ignore[no-untyped-def]
    """[N] where A = 0, verl's masks ask whether the probability fell too far."""
    new, old = np.exp(breakdown.batch.log_probs_new), np.exp(breakdown.batch.log_probs_old)
    if loss == "dppo_tv":
        return new - old < -values["epsilon_low"]
    difference = breakdown.batch.log_probs_old - breakdown.batch.log_probs_new
    divergence = old * difference + (1 - old) * np.log((1 - old + 1e-8) / (1 - new + 1e-8))
    return (divergence > values["epsilon_low"]) & (new < old)
