"""Stage 1, advantage: how much better was this response?"""

from __future__ import annotations

from collections.abc import Mapping

from grpo_cli.objective.advantage import (
    areal,
    baseline,
    batch,
    decoupled,
    distil,
    group,
    nemo,
    returns,
    skyrl,
    togo,
    trl,
    verl,
)
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
