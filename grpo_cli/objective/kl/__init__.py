"""Stage 4, KL: how far from the reference?"""

from __future__ import annotations

from collections.abc import Mapping

from grpo_cli.frameworks.nemo_rl import kl as weighted
from grpo_cli.frameworks.verl import kl as verl
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.kl import estimate, reward, rollout, straight

CHOICES: Mapping[str, Choice] = {
    **estimate.CHOICES,
    **straight.CHOICES,
    **verl.CHOICES,
    **reward.CHOICES,
    **rollout.CHOICES,
    **weighted.CHOICES,
}
ALIASES: Mapping[str, str] = {
    **estimate.ALIASES,
    **straight.ALIASES,
    **verl.ALIASES,
    **reward.ALIASES,
    **rollout.ALIASES,
    **weighted.ALIASES,
}
