"""Stage 1, advantage: how much better was this response?"""

from __future__ import annotations

from collections.abc import Mapping

from grpo_cli.objective.advantage import group
from grpo_cli.objective.choice import Choice

CHOICES: Mapping[str, Choice] = {**group.CHOICES}
ALIASES: Mapping[str, str] = {**group.ALIASES}
