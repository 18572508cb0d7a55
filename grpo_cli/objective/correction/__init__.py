"""Stage 5, correction: does the engine that sampled agree with the trainer?"""

from __future__ import annotations

from collections.abc import Mapping

from grpo_cli.frameworks.areal import correction as areal
from grpo_cli.frameworks.ms_swift import correction as ms_swift
from grpo_cli.frameworks.open_instruct import correction as open_instruct
from grpo_cli.frameworks.trl import correction as trl
from grpo_cli.objective.choice import Choice
from grpo_cli.objective.correction import none, rollout

CHOICES: Mapping[str, Choice] = {
    **none.CHOICES,
    **rollout.CHOICES,
    **trl.CHOICES,
    **open_instruct.CHOICES,
    **areal.CHOICES,
    **ms_swift.CHOICES,
}
ALIASES: Mapping[str, str] = {
    **none.ALIASES,
    **rollout.ALIASES,
    **trl.ALIASES,
    **open_instruct.ALIASES,
    **areal.ALIASES,
    **ms_swift.ALIASES,
}
