"""Stage 3, surrogate: how is the ratio tamed?"""

from __future__ import annotations

from collections.abc import Mapping

from grpo_cli.objective.choice import Choice
from grpo_cli.objective.surrogate import (
    adaptive,
    clip,
    coupled,
    covariance,
    divergence,
    future,
    leaky,
    offpolicy,
    rollout,
    soft,
    weighted,
)

CHOICES: Mapping[str, Choice] = {
    **clip.CHOICES,
    **adaptive.CHOICES,
    **leaky.CHOICES,
    **weighted.CHOICES,
    **soft.CHOICES,
    **divergence.CHOICES,
    **offpolicy.CHOICES,
    **covariance.CHOICES,
    **coupled.CHOICES,
    **future.CHOICES,
    **rollout.CHOICES,
}
ALIASES: Mapping[str, str] = {
    **clip.ALIASES,
    **adaptive.ALIASES,
    **leaky.ALIASES,
    **weighted.ALIASES,
    **divergence.ALIASES,
    **offpolicy.ALIASES,
    **covariance.ALIASES,
    **coupled.ALIASES,
}
