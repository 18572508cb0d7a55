"""Stage 2, ratio: at what level is π_θ compared with π_old?"""

from __future__ import annotations

from collections.abc import Mapping

from grpo_cli.objective.choice import Choice
from grpo_cli.objective.ratio import level, rollout

CHOICES: Mapping[str, Choice] = {**level.CHOICES, **rollout.CHOICES}
ALIASES: Mapping[str, str] = {**level.ALIASES}
