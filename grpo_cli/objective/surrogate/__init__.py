"""Stage 3, surrogate: how is the ratio tamed?"""

from __future__ import annotations

from collections.abc import Mapping

from grpo_cli.objective.surrogate import clip, weighted
from grpo_cli.objective.choice import Choice

CHOICES: Mapping[str, Choice] = {**clip.CHOICES, **weighted.CHOICES}
ALIASES: Mapping[str, str] = {**clip.ALIASES, **weighted.ALIASES}
