"""Stage 3, surrogate: how is the ratio tamed?"""

from __future__ import annotations

from collections.abc import Mapping

from grpo_cli.frameworks.skyrl import surrogate as skyrl
from grpo_cli.frameworks.trl import surrogate as trl
from grpo_cli.frameworks.trl import vespo as trl_vespo
from grpo_cli.frameworks.verl import surrogate as verl
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.surrogate import (
    clip,
    coupled,
    covariance,
    divergence,
    future,
    offpolicy,
    rollout,
    soft,
    weighted,
)

CHOICES: Mapping[str, Choice] = {
    **clip.CHOICES,
    **weighted.CHOICES,
    **soft.CHOICES,
    **divergence.CHOICES,
    **offpolicy.CHOICES,
    **covariance.CHOICES,
    **coupled.CHOICES,
    **future.CHOICES,
    **trl.CHOICES,
    **verl.CHOICES,
    **rollout.CHOICES,
    **trl_vespo.CHOICES,
    **skyrl.CHOICES,
}
ALIASES: Mapping[str, str] = {
    **clip.ALIASES,
    **weighted.ALIASES,
    **soft.ALIASES,
    **divergence.ALIASES,
    **offpolicy.ALIASES,
    **covariance.ALIASES,
    **coupled.ALIASES,
    **future.ALIASES,
    **trl.ALIASES,
    **verl.ALIASES,
    **rollout.ALIASES,
    **trl_vespo.ALIASES,
    **skyrl.ALIASES,
}
