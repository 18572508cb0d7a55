"""Stage 1, advantage: how much better was this response?"""

from __future__ import annotations

from collections.abc import Mapping

from grpo_cli.objective.advantage import (
    baseline,
    batch,
    critic,
    decoupled,
    filtered,
    group,
    signed,
    togo,
)
from grpo_cli.objective.choice import Choice

CHOICES: Mapping[str, Choice] = {
    **group.CHOICES,
    **baseline.CHOICES,
    **batch.CHOICES,
    **decoupled.CHOICES,
    **signed.CHOICES,
    **filtered.CHOICES,
    **togo.CHOICES,
    **critic.CHOICES,
}
ALIASES: Mapping[str, str] = {
    **group.ALIASES,
    **baseline.ALIASES,
    **batch.ALIASES,
    **decoupled.ALIASES,
    **signed.ALIASES,
    **togo.ALIASES,
}
