"""Stage 6, aggregate: what is the denominator?"""

from __future__ import annotations

from collections.abc import Mapping

from grpo_cli.objective.aggregate import mean
from grpo_cli.objective.choice import Choice

CHOICES: Mapping[str, Choice] = {**mean.CHOICES}
ALIASES: Mapping[str, str] = {**mean.ALIASES}
