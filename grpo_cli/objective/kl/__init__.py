"""Stage 4, KL: how far from the reference?"""

from __future__ import annotations

from collections.abc import Mapping

from grpo_cli.objective.kl import estimate
from grpo_cli.objective.choice import Choice

CHOICES: Mapping[str, Choice] = {**estimate.CHOICES}
ALIASES: Mapping[str, str] = {**estimate.ALIASES}
