"""Stage 5, correction: does the engine that sampled agree with the trainer?"""

from __future__ import annotations

from collections.abc import Mapping

from grpo_cli.objective.choice import Choice
from grpo_cli.objective.correction import dual_clip, none, rollout

CHOICES: Mapping[str, Choice] = {**none.CHOICES, **rollout.CHOICES, **dual_clip.CHOICES}
ALIASES: Mapping[str, str] = {**rollout.ALIASES}
