"""Stage 4, KL: how far from the reference?"""

from __future__ import annotations

from collections.abc import Mapping

from grpo_cli.objective.choice import Choice
from grpo_cli.objective.kl import estimate, reward, rollout, straight

CHOICES: Mapping[str, Choice] = {
    **estimate.CHOICES,
    **straight.CHOICES,
    **reward.CHOICES,
    **rollout.CHOICES,
}
ALIASES: Mapping[str, str] = {**estimate.ALIASES, **straight.ALIASES}
