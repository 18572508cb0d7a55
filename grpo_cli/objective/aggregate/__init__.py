"""Stage 6, aggregate: what is the denominator?"""

from __future__ import annotations

from collections.abc import Mapping

from grpo_cli.frameworks.ms_swift import aggregate as trl_family
from grpo_cli.frameworks.openrlhf import aggregate as frameworks
from grpo_cli.frameworks.roll import aggregate as roll
from grpo_cli.frameworks.trl import aggregate as trl
from grpo_cli.frameworks.verl import aggregate as verl
from grpo_cli.objective.aggregate import mean
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
