"""Stage 6, aggregate: what is the denominator?"""

from __future__ import annotations

from collections.abc import Mapping

from grpo_cli.objective.aggregate import frameworks, mean, roll, trl, trl_family, verl
from grpo_cli.objective.choice import Choice

CHOICES: Mapping[str, Choice] = {
    **mean.CHOICES,
    **trl.CHOICES,
    **verl.CHOICES,
    **frameworks.CHOICES,
    **trl_family.CHOICES,
    **roll.CHOICES,
}
ALIASES: Mapping[str, str] = {
    **mean.ALIASES,
    **trl.ALIASES,
    **verl.ALIASES,
    **frameworks.ALIASES,
    **trl_family.ALIASES,
    **roll.ALIASES,
}
