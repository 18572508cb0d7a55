"""Stage 5, correction: does the engine that sampled agree with the trainer?"""

from __future__ import annotations

from collections.abc import Mapping

from grpo_cli.objective.choice import Choice
from grpo_cli.objective.correction import areal, ms_swift, none, open_instruct, rollout, trl

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
