"""Stage 1, advantage: how much better was this response?"""

from __future__ import annotations

from collections.abc import Mapping

from grpo_cli.frameworks.areal import advantage as areal
from grpo_cli.frameworks.nemo_rl import advantage as nemo
from grpo_cli.frameworks.openrlhf import advantage as returns
from grpo_cli.frameworks.prime_rl import advantage as distil
from grpo_cli.frameworks.skyrl import advantage as skyrl
from grpo_cli.frameworks.trl import advantage as trl
from grpo_cli.frameworks.verl import advantage as verl
from grpo_cli.objective.advantage import baseline, batch, decoupled, group, togo
from grpo_cli.objective.choice import Choice

CHOICES: Mapping[str, Choice] = {
    **group.CHOICES,
    **baseline.CHOICES,
    **batch.CHOICES,
    **decoupled.CHOICES,
    **togo.CHOICES,
    **verl.CHOICES,
    **returns.CHOICES,
    **nemo.CHOICES,
    **areal.CHOICES,
    **distil.CHOICES,
    **trl.CHOICES,
    **skyrl.CHOICES,
}
ALIASES: Mapping[str, str] = {
    **group.ALIASES,
    **baseline.ALIASES,
    **batch.ALIASES,
    **decoupled.ALIASES,
    **togo.ALIASES,
    **verl.ALIASES,
    **returns.ALIASES,
    **nemo.ALIASES,
    **areal.ALIASES,
    **distil.ALIASES,
    **trl.ALIASES,
    **skyrl.ALIASES,
}
