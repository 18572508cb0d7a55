"""Stage 5, correction: does the engine that sampled agree with the trainer?"""

from __future__ import annotations

from collections.abc import Mapping

from grpo_cli.objective.correction import none
from grpo_cli.objective.choice import Choice

CHOICES: Mapping[str, Choice] = {**none.CHOICES}
ALIASES: Mapping[str, str] = {**none.ALIASES}
